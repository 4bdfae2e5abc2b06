"""What a guard cannot read it does not decide on: it waits, says so, and everything else goes on."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.bus.consumer import Message
from mesh.bus.provision import provision
from mesh.client import SubmitRejected
from mesh.guard import service
from mesh.ops.roster import mesh_freeze
from mesh.testing import EmbeddedBus
from protocol.wire import codec, subjects
from protocol.wire.commands import Thaw
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from protocol.wire.moves import Complete, Transfer
from tests.guard.stage import FLEET, PATIENT, POLICIES, Stage, furnish
from tests.logs import captured_logs, said
from tests.servers import PATIENCE_S, eventually, until

DONE = Complete(answer="done")
WAITS = PATIENT._replace(again_s=0.02, full_most_s=0.07)
"""What waits looks again soon."""


async def test_a_request_with_an_event_of_a_newer_version_waits_and_the_others_go_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, a = await stage.client(), await stage.actor("a")
    first = await stage.guard("first")
    newer, plain = await client.submit("hello"), await client.submit("hello")
    stage.spoiled.add(newer)
    works = {request: await a.work(request) for request in (newer, plain)}
    await stage.drained()
    await stage.dismiss(first)
    opened = msgspec.json.decode((await stage.bodies(newer))[0])
    note = {**opened, "type": "request.frozen", "v": 3, "n": 1, "to": "_", "by": "kim", "control": "x"}
    note = {**note, "sender": "op"}
    await stage.forge(msgspec.json.encode(note), "_", newer, after=await _head(stage, newer))

    readable_soon = service.LOG_UNREADABLE._replace(settle_s=0.2)
    monkeypatch.setattr(service, "LOG_UNREADABLE", readable_soon)
    with captured_logs() as lines:
        guard = await stage.guard("second")
        for request, work in works.items():
            await a.propose(request, work, DONE)
        assert (await client.wait(plain, timeout_s=PATIENCE_S)).status == "completed"
        await said(lines, "log_unreadable")
        await until(lambda: guard._bus.conditions.raised >= 3)  # it comes again and again, and is said once
        assert [line["about"] for line in lines if line["event"] == "log_unreadable"] == [newer]
        await stage.drained("PROP", to=1)
        assert len(await stage.bodies(newer)) == 2

        monkeypatch.setattr(codec, "decode_event", _newer_build)
        await stage.drained("PROP")
        await said(lines, "log_readable")
    assert await stage.types(newer) == ["request.opened", "request.frozen", "move.deferred"]


_READ = codec.decode_event


def _newer_build(body: bytes) -> AnyEvent:
    """Read an event as a build does that knows form 3 of it."""
    return _READ(body.replace(b'"v":3', b'"v":2'))


async def test_a_request_whose_events_do_not_add_up_waits_and_the_others_go_on(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    first = await stage.guard("first")
    broken, plain = await client.submit("hello"), await client.submit("hello")
    stage.spoiled.add(broken)
    works = {request: await a.work(request) for request in (broken, plain)}
    await stage.drained()
    await stage.dismiss(first)
    await stage.forge(
        b'{"n": 1, "type": "turn.failed", "v": 2}', "_", broken, after=await _head(stage, broken)
    )
    with captured_logs() as lines:
        await stage.guard("second")
        for request, work in works.items():
            await a.propose(request, work, DONE)
        assert (await client.wait(plain, timeout_s=PATIENCE_S)).status == "completed"
        await said(lines, "log_unreadable")
    await stage.drained("PROP", to=1)


async def test_what_waits_for_room_asks_less_and_less_often_and_goes_on_once_there_is_some(
    own_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, nak = list[float](), Message.nak

    def noted(message: Message, delay_s: float = 0.0) -> bool:
        pauses.append(round(delay_s, 3))
        return nak(message, delay_s)

    monkeypatch.setattr(Message, "nak", noted)
    admin, client = await own_stage.bus("admin"), await own_stage.client()
    config = (await admin.api("STREAM.INFO.LOG"))["config"]
    await admin.api("STREAM.UPDATE.LOG", {**config, "max_bytes": 1})
    await own_stage.guard()
    request = await client.submit("hello")
    await until(lambda: len(pauses) >= 6)
    assert pauses[:6] == [0.02, 0.04, 0.06, 0.07, 0.07, 0.07]
    await admin.api("STREAM.UPDATE.LOG", config)
    await own_stage.reaches(request, "request.opened")


async def _head(stage: Stage, request: str) -> int:
    got = await (await stage.bus("admin")).api(
        "STREAM.MSG.GET.LOG", {"last_by_subj": subjects.evt_of(request)}
    )
    return int(got["message"]["seq"])


async def test_a_guard_without_a_fleet_waits_for_one(own_stage: Stage) -> None:
    admin, client = await own_stage.bus("admin"), await own_stage.client()
    await admin.api("STREAM.PURGE.CONF", {"filter": subjects.FLEET})
    with captured_logs() as lines:
        await own_stage.guard()
        request = await client.submit("hello")
        await said(lines, "fleet_missing")
    assert await own_stage.types(request) == []
    await admin.publish_durable(subjects.FLEET, msgspec.json.encode(FLEET))
    await own_stage.reaches(request, "request.opened")


async def test_a_guard_on_a_server_without_streams_waits_for_them(tmp_path: Path) -> None:
    mesh = EmbeddedBus(FLEET, tmp_path)
    await mesh.server.start()
    try:
        own = Stage(mesh)
        with captured_logs() as lines:
            await own.guard()
            await said(lines, "conf_unreachable")
            await provision(await own.bus("admin"), FLEET)
            await furnish(mesh)
            await said(lines, "guard_ready")
        request = await (await own.client()).submit("hello")
        await own.reaches(request, "request.opened")
        await own.close()
    finally:
        await mesh.server.kill()


RUBBISH = {
    "empty": b"",
    "no-utf-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "null": b"null",
    "wrong-type": b'{"name":5,"state":"ajar","frozen":"x"}',
}
NO_FLEET = {
    "a-name-that-is-none": b'{"name":"x","entry":"a","agents":{"a.b":{"name":"a.b"}}}',
    "an-age-that-is-none": b'{"name":"x","entry":"a","agents":{},"log_max_age_s":1e308}',
    "an-entry-that-is-none": b'{"name":"x","entry":"z","agents":{"a":{"name":"a"}}}',
}
NO_POLICY = {
    "a-rule-that-is-none": b'{"name":"lenient","max_depht":3}',
    "no-depth": b'{"name":"lenient","max_depth":0}',
    "no-time": b'{"name":"lenient","turn_timeout_s":0}',
    "a-time-that-is-none": b'{"name":"lenient","deadline_s":1e300}',
    "a-debt": b'{"name":"lenient","budget":{"tokens":-1}}',
    "another-topology": b'{"name":"lenient","topology":"mesh"}',
    "another-policy": b'{"name":"strict"}',
}


def cases(bodies: dict[str, bytes]) -> list[Any]:
    return [pytest.param(body, id=name) for name, body in bodies.items()]


async def refused_by_name(stage: Stage, entry: str, policy: str = "default") -> None:
    """Submit, and be told that `entry` cannot be read; nothing of the submit gets into the log."""
    client = await stage.client()
    kind = entry.split(".")[2]

    async def refused() -> bool:  # until the guard has read the entry, it takes requests
        request = await client.submit("hello", policy=policy)
        try:
            outcome = await client.wait(request, timeout_s=0.5)
        except SubmitRejected as rejected:
            told = (rejected.reason, rejected.detail)
            letter = await stage.buried(f"{kind}_unreadable", request=request)
            assert told == (letter.code, letter.detail)
            assert entry in letter.detail
            assert await stage.types(request) == []
            return True
        except TimeoutError:
            return False
        raise AssertionError(outcome)

    await eventually(refused)


@pytest.mark.parametrize("body", cases(RUBBISH | NO_POLICY))
async def test_a_submit_whose_policy_cannot_be_read_is_refused_by_its_name(stage: Stage, body: bytes) -> None:
    admin, client, guard = await stage.bus("admin"), await stage.client(), await stage.guard()
    subject = subjects.policy("lenient")
    await stage.reaches(await client.submit("hello", policy="lenient"), "request.opened")
    await admin.publish_durable(subject, body)
    await refused_by_name(stage, subject, "lenient")
    await stage.reaches(await client.submit("hello"), "request.opened")  # the others go on
    await admin.publish_durable(subject, msgspec.json.encode(POLICIES["lenient"]))
    await eventually(lambda: _taken(stage, "lenient"))
    assert stage.alive(guard)


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        *(
            pytest.param(subjects.FLEET, body, id=f"fleet-{name}")
            for name, body in (RUBBISH | NO_FLEET).items()
        ),
        pytest.param(subjects.PRICES, b"[]", id="prices-no-table"),
        pytest.param(subjects.PRICES, b'{"m":{"input":-1,"output":0}}', id="prices-less-than-nothing"),
    ],
)
async def test_without_a_readable_fleet_or_prices_new_requests_are_refused_and_the_others_go_on(
    stage: Stage, subject: str, body: bytes
) -> None:
    admin, client, guard = await stage.bus("admin"), await stage.client(), await stage.guard()
    a = await stage.actor("a")
    request = await client.submit("hello")
    work = await a.work(request)
    await admin.publish_durable(subject, body)
    await refused_by_name(stage, subject)
    assert [reason.code for reason in guard._bus.conditions.reasons()] == ["entry_unreadable"]
    await a.propose(request, work, DONE)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"
    if subject == subjects.FLEET:
        await admin.publish_durable(subjects.FLEET, msgspec.json.encode(FLEET))
    else:
        await admin.api("STREAM.PURGE.CONF", {"filter": subject})
        await admin.publish_durable(subjects.FLEET, msgspec.json.encode(FLEET))  # a purge wakes nobody
    await until(lambda: not guard._bus.conditions.reasons())
    await stage.reaches(await client.submit("hello"), "request.opened")
    assert stage.alive(guard)


async def test_a_guard_that_begins_with_a_fleet_that_cannot_be_read_says_so_and_waits(
    own_stage: Stage,
) -> None:
    admin, client = await own_stage.bus("admin"), await own_stage.client()
    await admin.publish_durable(subjects.FLEET, b"{}")
    with captured_logs() as lines:
        guard = await own_stage.guard()
        request = await client.submit("hello")
        await said(lines, "entry_unreadable")
    assert "fleet_missing" not in [line["event"] for line in lines]
    assert [reason.text for reason in guard._bus.conditions.reasons()] == [
        "mesh.conf.fleet cannot be read: run `mesh doctor`"
    ]
    assert await own_stage.types(request) == []
    await admin.publish_durable(subjects.FLEET, msgspec.json.encode(FLEET))
    await own_stage.reaches(request, "request.opened")


@pytest.mark.parametrize("body", cases(RUBBISH))
async def test_a_freeze_that_cannot_be_read_freezes_until_somebody_thaws(stage: Stage, body: bytes) -> None:
    admin, client, guard = await stage.bus("admin"), await stage.client(), await stage.guard()
    await stage.ready(guard)
    await admin.publish_durable(subjects.FREEZE, body)
    await until(guard._context.frozen.is_set)
    request = await client.submit("hello")
    assert (await mesh_freeze(admin)).frozen
    await stage.control(subjects.MESH_WIDE, Thaw(id=f"thaw-{request}"))
    await stage.reaches(request, "request.opened")
    assert not guard._context.frozen.is_set()
    await admin.api("STREAM.PURGE.CONF", {"filter": subjects.FREEZE})


@pytest.mark.parametrize("agent", ["a", "b"])
async def test_no_breakers_entry_ends_a_guard(stage: Stage, agent: str) -> None:
    admin, client, guard = await stage.bus("admin"), await stage.client(), await stage.guard()
    a, subject = await stage.actor("a"), subjects.breaker(agent)
    for body in RUBBISH.values():
        request = await client.submit("hello")
        work = await a.work(request)
        with captured_logs() as lines:
            await admin.publish_durable(subject, body)
            await said(lines, "conf_unreadable")
        await a.propose(request, work, Transfer(to_agent="b", summary="please"))  # type: ignore[arg-type]
        await stage.reaches(request, "handoff.admitted")
    assert stage.alive(guard)
    await admin.api("STREAM.PURGE.CONF", {"filter": subject})


async def test_a_guard_sees_a_new_fleet_and_a_new_policy_at_once(stage: Stage) -> None:
    admin, client = await stage.bus("admin"), await stage.client()
    await stage.guard()
    assert (
        await client.wait(await client.submit("hello", policy="new"), timeout_s=PATIENCE_S)
    ).status == "refused"
    await admin.publish_durable(subjects.policy("new"), msgspec.json.encode(Policy(name="new")))
    await eventually(lambda: _taken(stage, "new"))


async def _taken(stage: Stage, policy: str) -> bool:
    """Return True if a submit under a policy opens a request; the guard may not have read it yet."""
    request = await (await stage.client()).submit("hello", policy=policy)

    async def decided() -> bool:
        buried = [letter.request for letter in await stage.dead_letters()]
        return request in buried or bool(await stage.types(request))

    await eventually(decided)
    return await stage.types(request) == ["request.opened"]
