"""What a hostile agent, client, viewer or operator tries with its own credentials.

Agent `b` attacks, mostly `a`; client `c2` attacks `c1`. Every attack says whether it had its effect: it
must where the protection lacks, and must not where it does not; and there, nothing at all may have been
stored but under the attacker's own name.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from mesh.bus.connection import connect
from mesh.bus.log import JetStreamLog
from mesh.bus.pull import Message, Puller
from mesh.bus.roles import API, GET, NEXT, Role, grants
from mesh.errors import BusError, PublishRefused
from protocol.subjects import card, ctl, dead, evt, live, note, partition, prop, step
from tests.security.scenes import Scene, attempt, hearing, quiet, told
from tests.servers import eventually, fresh, until

Attack = Callable[[Scene], Awaitable[bool]]

OWN = {
    "b": (".b.", "mesh.card.b", "mesh.dead.b"),
    "c2": (".c2.",),
    "op": (".op.",),
    "audit": ("(nothing)",),
}


async def has_effect(scene: Scene, attack: Attack, attacker: str = "b") -> bool:
    """Run an attack; on the shipped mesh, also see that nothing foreign was stored or changed by it."""
    before = await scene.snapshot()
    effect = await attack(scene)
    if scene.shipped:
        await quiet(await scene.admin())
        foreign = [
            (stream, subject)
            for stream, subject in await scene.stored_since(before)
            if not any(own in subject for own in OWN[attacker]) and (stream, subject) not in scene.expected
        ]
        after = await scene.snapshot()
        assert foreign == []
        assert after.removed == before.removed
        assert after.configs == before.configs
        assert after.consumers == before.consumers
    scene.expected.clear()
    return effect


async def append(scene: Scene, to: str, request: str) -> int:
    """Let the guard write the first event of a request, as it should be."""
    guard = await scene.bus("guard")
    scene.expected.add(("LOG", evt(to, request)))
    body = msgspec.json.encode({"n": 0, "secret": request})
    return await JetStreamLog(guard).append(to, request, body, after=0)


async def stored(scene: Scene, stream: str, subject: str) -> int:
    """Return how many messages lie under a subject."""
    info = await (await scene.admin()).api(f"STREAM.INFO.{stream}", {"subjects_filter": subject})
    return sum((info["state"].get("subjects") or {}).values())


# --- writing where one must not -------------------------------------------------------------------


def writing(stream: str, subject: Callable[[str], str], where: str = "") -> Attack:
    """Publish under a subject that is somebody else's."""

    async def attack(scene: Scene) -> bool:
        request = fresh()
        target = subject(request)
        find = where.format(request=request) or target
        before = await stored(scene, stream, find)
        await attempt(await scene.bus("b"), target, b'{"n":0,"forged":true}')
        return await stored(scene, stream, find) > before

    return attack


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(writing("LOG", lambda r: evt("a", r)), id="work-into-an-inbox"),
        pytest.param(writing("LOG", lambda r: evt("c1", r)), id="an-answer-to-a-client"),
        pytest.param(writing("LOG", lambda r: evt("_", r)), id="a-verdict"),
        pytest.param(writing("LOG", lambda r: evt("b", r)), id="work-into-its-own-inbox"),
        pytest.param(
            writing("PROP", lambda r: prop("a", r), "mesh.prop.*.a.{request}"), id="a-proposal-of-another"
        ),
        pytest.param(writing("PROP", lambda r: prop("c1", r), "mesh.prop.*.c1.{request}"), id="a-submit"),
        pytest.param(
            writing("CTL", lambda r: ctl("op", r), "mesh.ctl.*.op.{request}"), id="a-control-of-an-operator"
        ),
        pytest.param(
            writing("CTL", lambda r: ctl("b", r), "mesh.ctl.*.b.{request}"), id="a-control-of-its-own"
        ),
        pytest.param(writing("STEPS", lambda r: step("a", r, "t", "0-0")), id="a-step-of-another"),
        pytest.param(writing("CARDS", lambda r: card("d")), id="the-card-of-another"),
        pytest.param(writing("DEAD", lambda r: dead("a")), id="a-dead-letter-of-another"),
        pytest.param(writing("TIMER", lambda r: f"mesh.timer.fire.0.{r}"), id="an-alarm"),
        pytest.param(writing("CONF", lambda r: f"mesh.conf.policy.{r}"), id="a-policy"),
        pytest.param(writing("CONF", lambda r: "mesh.conf.breaker.b"), id="its-own-breaker"),
        pytest.param(writing("CONF", lambda r: "mesh.conf.freeze"), id="a-freeze"),
    ],
)
async def test_an_agent_cannot_write_what_is_not_its_own(
    attack: Attack, shipped: Scene, without_permissions: Scene
) -> None:
    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


async def test_an_agent_cannot_change_the_fleet(shipped: Scene, without_permissions: Scene) -> None:
    async def attack(scene: Scene) -> bool:
        before = (await (await scene.admin()).api("STREAM.INFO.CONF"))["state"]["last_seq"]
        await attempt(await scene.bus("b"), "mesh.conf.fleet", b'{"agents":{"b":{"clearance":["secret"]}}}')
        return bool((await (await scene.admin()).api("STREAM.INFO.CONF"))["state"]["last_seq"] > before)

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


@pytest.mark.parametrize("attacker", ["c2", "op", "audit"])
async def test_nobody_of_the_users_writes_under_anothers_name(
    attacker: str, shipped: Scene, without_permissions: Scene
) -> None:
    request = fresh()
    targets = [
        ("LOG", evt("a", request), evt("a", request)),
        ("PROP", prop("c1", request), f"mesh.prop.*.c1.{request}"),
        ("CTL", ctl("c1", request), f"mesh.ctl.*.c1.{request}"),
        ("STEPS", step("a", request, "t", "0-9"), step("a", request, "t", "0-9")),
        ("CONF", f"mesh.conf.policy.{request}", f"mesh.conf.policy.{request}"),
        ("DEAD", dead(f"x{request}"), dead(f"x{request}")),
    ]

    async def attack(scene: Scene) -> bool:
        for _, subject, _ in targets:
            await attempt(await scene.bus(attacker), subject, b"{}")
        return any([await stored(scene, stream, find) for stream, _, find in targets])

    assert await has_effect(without_permissions, attack, attacker)
    assert not await has_effect(shipped, attack, attacker)


async def test_a_client_is_no_operator_and_a_viewer_submits_nothing(
    shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        await attempt(await scene.bus("c2"), ctl("op", request), b"{}")
        await attempt(await scene.bus("audit"), prop("audit", request), b"{}")
        found = [await stored(scene, "CTL", f"mesh.ctl.*.op.{request}")]
        return any([*found, await stored(scene, "PROP", f"mesh.prop.*.audit.{request}")])

    assert await has_effect(without_permissions, attack, "c2")
    assert not await has_effect(shipped, attack, "c2")


# --- acknowledgements and other agents' work ------------------------------------------------------


async def hold_work(scene: Scene) -> tuple[Puller, list[Message]]:
    """Let `a` have one message of its inbox in hand, and ask for another."""
    bus = await scene.bus("a")
    held: list[Message] = []
    forever = asyncio.Event()

    async def keep(message: Message) -> None:
        held.append(message)
        await forever.wait()

    puller = Puller(bus, "LOG", "in-a", keep, slots=2, expires_s=4.0)
    await puller.start()
    await append(scene, "a", fresh())
    await until(lambda: bool(held))
    return puller, held


@pytest.mark.parametrize("what", [b"+ACK", b"+TERM", b"-NAK"], ids=["ack", "term", "nak"])
async def test_an_agent_cannot_acknowledge_for_another(
    what: bytes, shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        puller, held = await hold_work(scene)
        try:
            subject = held[0]._incoming.reply
            attacker, admin = await scene.bus("b"), await scene.admin()
            await attempt(attacker, subject, what)
            await attempt(attacker, card("b"), b"{}", reply=subject)
            await attempt(attacker, subject.replace(".in-a.", ".in-b."), what)
            await quiet(admin)
            info = await admin.api("CONSUMER.INFO.LOG.in-a")
            return bool(info["num_ack_pending"] == 0 or len(held) > 1)
        finally:
            await held[-1].ack_sync()
            await puller.close()

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


async def test_an_agent_cannot_pull_anothers_work(shipped: Scene, without_permissions: Scene) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        await append(scene, "e", request)
        got = await told(await scene.bus("b"), NEXT + "LOG.in-e", b'{"batch":100,"no_wait":true}')
        delivered = (await (await scene.admin()).api("CONSUMER.INFO.LOG.in-e"))["delivered"]["consumer_seq"]
        return bool(delivered or got)

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        pytest.param(
            "CONSUMER.CREATE.LOG.spy",
            {"stream_name": "LOG", "config": {"name": "spy", "ack_policy": "none", "mem_storage": True}},
            id="a-consumer-of-its-own",
        ),
        pytest.param(
            "CONSUMER.CREATE.LOG.in-d",
            {
                "stream_name": "LOG",
                "config": {
                    "name": "in-d",
                    "durable_name": "in-d",
                    "filter_subject": "mesh.evt.d.*",
                    "ack_policy": "explicit",
                    "ack_wait": 3600 * 10**9,
                    "max_deliver": -1,
                },
            },
            id="another-lease-for-anothers",
        ),
        pytest.param("CONSUMER.DELETE.LOG.in-c", {}, id="delete-anothers"),
        pytest.param("CONSUMER.PAUSE.LOG.in-d", {"pause_until": "2100-01-01T00:00:00Z"}, id="pause-anothers"),
        pytest.param("CONSUMER.RESET.LOG.in-d", {"seq": 1}, id="reset-anothers"),
        pytest.param("CONSUMER.RESET.LOG.in-b", {"seq": 1}, id="reset-its-own"),
    ],
)
@pytest.mark.parametrize("attacker", ["b", "c2", "audit", "op"])
async def test_nobody_takes_or_alters_a_consumer(
    verb: str, body: dict[str, object], attacker: str, shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        answers = []
        for prefix in (API, "mesh.api."):
            answers += await told(await scene.bus(attacker), prefix + verb, msgspec.json.encode(body))
        return any(b'"error"' not in answer for answer in answers)

    if attacker == "b" and "in-c" not in verb:
        assert await has_effect(without_permissions, attack, attacker)
    assert not await has_effect(shipped, attack, attacker)


# --- reading --------------------------------------------------------------------------------------


async def test_an_agent_cannot_read_the_log(shipped: Scene, without_permissions: Scene) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        seq = await append(scene, "a", request)
        batch = {"seq": 1, "batch": 10_000, "next_by_subj": f"mesh.evt.*.{request}"}
        tries = [
            (GET + "LOG", {"seq": seq}),
            (GET + "LOG", batch),
            (GET + "LOG", {"multi_last": [f"mesh.evt.*.{request}"]}),
            (GET + f"LOG.{evt('a', request)}", None),
            (API + "STREAM.MSG.GET.LOG", {"seq": seq}),
            ("mesh.api.STREAM.MSG.GET.LOG", {"seq": seq}),
            (NEXT + "LOG.audit-audit", {"batch": 10_000, "no_wait": True}),
        ]
        answers = []
        for subject, body in tries:
            data = b"" if body is None else msgspec.json.encode(body)
            answers.append(await told(await scene.bus("b"), subject, data))
        read = [any(request.encode() in each or b'"message"' in each for each in got) for got in answers]
        if not scene.shipped:
            assert read[:5] == [True] * 5  # each way is a way
        return any(read)

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


async def test_an_agent_reads_its_own_steps_and_nobody_elses(
    shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        subject = step("a", request, "t", "0-0")
        scene.expected.add(("STEPS", subject))
        await (await scene.bus("a")).publish_durable(subject, b"the secret of a")
        await (await scene.bus("b")).publish_durable(step("b", request, "t", "0-0"), b"mine")
        last = {"last_by_subj": subject}
        own = GET + "STEPS." + step("b", request, "t", "0-0")
        tries = [
            (GET + "STEPS." + subject, b""),
            (GET + f"STEPS.mesh.step.*.{request}.t.0-0", b""),
            (GET + "STEPS.mesh.step.>", b""),
            (GET + "STEPS", msgspec.json.encode(last)),
            (own, msgspec.json.encode(last)),
            (own, msgspec.json.encode({"multi_last": ["mesh.step.>"]})),
            (own, b'{"seq":1,"batch":1000}'),
        ]
        bus = await scene.bus("b")
        answers = [answer for subject, data in tries for answer in await told(bus, subject, data)]
        assert await told(bus, own) == [b"mine"]
        return any(b"the secret of a" in answer for answer in answers)

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


async def test_a_client_cannot_read_anothers_answer(shipped: Scene, without_permissions: Scene) -> None:
    async def attack(scene: Scene) -> bool:
        theirs, mine = fresh("c1"), fresh("c2")
        seq = await append(scene, "c1", theirs)
        await append(scene, "c2", mine)
        own = GET + "LOG." + evt("c2", mine)
        tries = [
            (GET + "LOG." + evt("c1", theirs), b""),
            (GET + f"LOG.mesh.evt.*.{theirs}", b""),
            (GET + "LOG.mesh.evt.>", b""),
            (GET + "LOG", b'{"seq":%d}' % seq),
            (own, b'{"seq":%d}' % seq),
            (own, msgspec.json.encode({"last_by_subj": evt("c1", theirs)})),
            (own, msgspec.json.encode({"multi_last": ["mesh.evt.>"]})),
            (own, b'{"seq":1,"batch":100000}'),
            (own, msgspec.json.encode({"seq": 1, "next_by_subj": "mesh.evt.c1.*"})),
            (API + "STREAM.MSG.GET.LOG", b'{"seq":%d}' % seq),
        ]
        bus = await scene.bus("c2")
        answers = [answer for subject, data in tries for answer in await told(bus, subject, data)]
        assert any(mine.encode() in answer for answer in await told(bus, own))
        return any(theirs.encode() in answer or b'"message"' in answer for answer in answers)

    assert await has_effect(without_permissions, attack, "c2")
    assert not await has_effect(shipped, attack, "c2")


@pytest.mark.parametrize(
    ("attacker", "subject", "speaker"),
    [
        pytest.param("c2", "mesh.note.c1.*", "guard", id="a-client-to-anothers-notes"),
        pytest.param("c2", "mesh.note.>", "guard", id="a-client-to-all-notes"),
        pytest.param("b", "mesh.note.c1.*", "guard", id="an-agent-to-a-clients-notes"),
        pytest.param("audit", "mesh.note.>", "guard", id="a-viewer-to-notes"),
        pytest.param("op", "mesh.note.c1.*", "guard", id="an-operator-to-a-clients-notes"),
        pytest.param("c2", "mesh.live.c1.>", "a", id="a-client-to-anothers-live-output"),
        pytest.param("b", "mesh.live.>", "a", id="an-agent-to-live-output"),
        pytest.param("b", "_I.a.>", "", id="an-agent-to-anothers-answers"),
        pytest.param("b", "_I.guard.>", "", id="an-agent-to-the-guards-answers"),
        pytest.param("c2", "_I.c1.>", "", id="a-client-to-anothers-answers"),
        pytest.param("b", ">", "a", id="an-agent-to-everything"),
        pytest.param("b", "$JS.EVENT.ADVISORY.>", "", id="an-agent-to-advisories"),
    ],
)
async def test_nobody_listens_to_what_is_anothers(
    attacker: str, subject: str, speaker: str, shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        bus, request = await scene.bus(attacker), fresh()
        async with hearing(bus, subject) as heard:
            if speaker == "guard":
                await (await scene.bus("guard")).publish(note("c1", request), b"a notice")
            elif speaker:
                await (await scene.bus("a")).publish(live("c1", request, "a", "t"), b"a token")
            for name in ("a", "c1"):  # something is answered to each
                await attempt(await scene.bus(name), card("a") if name == "a" else prop("c1", request), b"{}")
            await JetStreamLog(await scene.bus("guard")).head(request)
            await attempt(await scene.bus("admin"), API + "STREAM.INFO.NONE")
            if "ADVISORY" in subject:
                await (await scene.admin()).api("CONSUMER.PAUSE.LOG.audit-op", {})
            await quiet(await scene.admin())
            await bus.settle()
            return bool(heard)

    assert await has_effect(without_permissions, attack, attacker)
    before = await shipped.snapshot()
    assert not await attack(shipped)
    assert (await shipped.snapshot()).configs == before.configs


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("attacker", ["b", "c2", "audit", "op", "guard"])
@pytest.mark.parametrize(
    ("verb", "body"),
    [
        pytest.param("STREAM.PURGE.DEAD", {}, id="purge"),
        pytest.param("STREAM.MSG.DELETE.DEAD", {"seq": 1}, id="delete-a-message"),
        pytest.param("STREAM.UPDATE.DEAD", {"name": "DEAD", "subjects": ["mesh.dead.*"]}, id="update"),
        pytest.param("STREAM.DELETE.DEAD", {}, id="delete"),
        pytest.param("STREAM.CREATE.SPY", {"name": "SPY", "subjects": ["spy.>"]}, id="create"),
        pytest.param("STREAM.SNAPSHOT.LOG", {"deliver_subject": "x"}, id="copy"),
        pytest.param("STREAM.NAMES", {}, id="list"),
        pytest.param("ACCOUNT.PURGE.CORE", {}, id="purge-the-account"),
        pytest.param("STREAM.LEADER.STEPDOWN.LOG", {}, id="step-down"),
    ],
)
async def test_nobody_but_the_admin_changes_a_stream(
    verb: str, body: dict[str, object], attacker: str, shipped: Scene
) -> None:
    """The next test shows what becomes of a stream where these are allowed."""

    async def attack(scene: Scene) -> bool:
        answers = []
        for prefix in (API, "mesh.api."):
            answers += await told(await scene.bus(attacker), prefix + verb, msgspec.json.encode(body))
        return bool(answers)

    assert not await has_effect(shipped, attack, attacker if attacker in OWN else "b")


async def test_with_everything_allowed_a_stream_is_erased_with_one_message(
    without_permissions: Scene,
) -> None:
    bus, admin = await without_permissions.bus("b"), await without_permissions.admin()
    await bus.publish_durable(dead("b"), b"{}")
    await attempt(bus, API + "STREAM.MSG.DELETE.DEAD", b'{"seq":1}')
    await bus.publish_durable(dead("b"), b"{}")
    assert b'"success":true' in (await told(bus, API + "STREAM.PURGE.DEAD"))[0]
    assert (await admin.api("STREAM.INFO.DEAD"))["state"]["messages"] == 0
    update = (await admin.api("STREAM.INFO.DEAD"))["config"]
    encoded = msgspec.json.encode({**update, "max_msgs": 3})
    assert b'"max_msgs":3' in (await told(bus, API + "STREAM.UPDATE.DEAD", encoded))[0]


# --- headers --------------------------------------------------------------------------------------


async def test_a_guessed_message_id_makes_nobodys_message_vanish(
    shipped: Scene, loose_streams: Scene
) -> None:
    """Squatting in the deduplication window: it ignores sender and payload."""

    async def attack(scene: Scene) -> bool:
        request = fresh()
        squat = {"Nats-Msg-Id": str(request)}
        await attempt(await scene.bus("b"), prop("b", request), b"junk", squat)
        client = await scene.bus("c1")
        scene.expected.add(("PROP", as_stored(prop("c1", request))))
        # What a client that sent ids would do, against what ours does.
        await client.publish_durable(prop("c1", request), b"{}", None if scene.shipped else squat)
        return not await stored(scene, "PROP", f"mesh.prop.*.c1.{request}")

    assert await has_effect(loose_streams, attack)
    assert not await has_effect(shipped, attack)


def as_stored(subject: str) -> str:
    """Return a queued subject with the partition that the server puts in."""
    _, kind, sender, request = subject.split(".")
    return f"mesh.{kind}.{partition(request)}.{sender}.{request}"


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        pytest.param({"Nats-Rollup": "all"}, "gone", id="rollup-of-all"),
        pytest.param(
            {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "mesh.card.a"},
            "forged",
            id="a-schedule-that-speaks-for-another",
        ),
    ],
)
async def test_a_card_cannot_be_erased_or_forged_by_a_header(
    headers: dict[str, str], what: str, shipped: Scene, loose_streams: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        scene.expected.add(("CARDS", card("a")))
        await (await scene.bus("a")).publish_durable(card("a"), b"the card of a")
        await attempt(await scene.bus("b"), card("b"), b"evil", headers)
        admin = await scene.admin()
        await quiet(admin)

        async def theirs() -> bytes:
            return (await admin.request(GET + "CARDS." + card("a"))).data

        if not scene.shipped:  # a schedule takes its time
            await eventually(lambda: _differs(theirs))
        return await theirs() != b"the card of a"

    assert await has_effect(loose_streams, attack)
    assert not await has_effect(shipped, attack)


async def _differs(ask: Callable[[], Awaitable[bytes]]) -> bool:
    return await ask() != b"the card of a"


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Incr": "1"},
        {"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "mesh.card.a"},
        {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "mesh.dead.b"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    ],
    ids=lambda headers: "-".join(headers.values()),
)
async def test_no_stream_that_outsiders_write_takes_a_header_with_power(
    headers: dict[str, str], shipped: Scene, loose_streams: Scene
) -> None:
    request = fresh()
    agent, client, operator = [await shipped.bus(name) for name in ("b", "c2", "op")]
    writes = [
        (agent, prop("b", request)),
        (agent, step("b", request, "t", "0-1")),
        (agent, card("b")),
        (agent, dead("b")),
        (client, prop("c2", request)),
        (client, ctl("c2", request)),
        (operator, ctl("op", request)),
    ]
    for bus, subject in writes:
        with pytest.raises(PublishRefused):
            await bus.publish_durable(subject, b"x", headers)
        await bus.publish_durable(subject, b"x")  # it is the header that is refused
    if "Nats-Rollup" in headers or "Nats-TTL" in headers:  # and a stream that allows it takes it
        await (await loose_streams.bus("b")).publish_durable(card("b"), b"x", headers)


async def test_a_trace_header_writes_nothing_into_the_log(shipped: Scene, without_permissions: Scene) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        bus = await scene.bus("b")
        target = evt("a", request)
        for more in ({}, {"Nats-Trace-Only": "true"}):
            for subject in (prop("b", request), card("b"), NEXT + "LOG.in-b"):
                await attempt(bus, subject, b"", {"Nats-Trace-Dest": target, **more})
        await quiet(await scene.admin())
        return bool(await stored(scene, "LOG", target))

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


# --- reply subjects -------------------------------------------------------------------------------


def baits(request: str) -> list[tuple[str, str, str]]:
    """Return stream, subject to name as a reply, and what to look for: every place that is not one's own."""
    return [
        ("LOG", evt("a", request), evt("a", request)),
        ("PROP", prop("c1", request), f"mesh.prop.*.c1.{request}"),
        ("CTL", ctl("c1", request), f"mesh.ctl.*.c1.{request}"),
        ("STEPS", step("a", request, "t", "0-7"), step("a", request, "t", "0-7")),
        ("DEAD", dead("a"), "mesh.dead.a"),
        ("CARDS", card("e"), "mesh.card.e"),
        ("TIMER", f"mesh.timer.fire.3.{request}", f"mesh.timer.fire.3.{request}"),
        ("CONF", f"mesh.conf.policy.{request}", f"mesh.conf.policy.{request}"),
        ("CONF", "mesh.conf.fleet", "mesh.conf.fleet"),
    ]


def concrete(subject: str, request: str) -> str:
    """Return a subject that a permission covers."""
    return subject.replace("*", request).replace(">", f"{request}.1")


BODIES = {
    NEXT: b'{"batch":3,"expires":200000000}',
    GET: b"",
    "mesh.api.STREAM.MSG.GET": b'{"seq":1}',
    API + "STREAM.MSG.GET": b'{"seq":1}',
    "mesh.api.CONSUMER.RESET": b'{"seq":1}',
    API + "CONSUMER.RESET": b'{"seq":1}',
    "$JS.ACK": b"+NXT",
}
STREAM_GET = {
    f"{GET}{stream}": b'{"seq":1,"batch":3}' for stream in ("LOG", "STEPS", "CARDS", "CONF", "DEAD")
}


def body_for(subject: str) -> bytes:
    """Return what makes a call answer with as much as it can."""
    if subject in STREAM_GET:
        return STREAM_GET[subject]
    return next((body for start, body in BODIES.items() if subject.startswith(start)), b"{}")


@pytest.mark.parametrize(
    ("role", "attacker"),
    [(Role.AGENT, "b"), (Role.CLIENT, "c2"), (Role.VIEWER, "audit"), (Role.OPERATOR, "op")],
    ids=["agent", "client", "viewer", "operator"],
)
async def test_no_reply_subject_writes_anything(
    role: Role, attacker: str, shipped: Scene, without_walls: Scene
) -> None:
    """Everything that a role may publish, with every place as its reply subject."""

    async def attack(scene: Scene) -> bool:
        request = fresh()
        bus, admin = await scene.bus(attacker), await scene.admin()
        await append(scene, "b", fresh())  # something to be pulled
        publish = grants(role, attacker).publish
        assert publish is not None
        before = {find: await last_seq(scene, stream, find) for stream, _, find in baits(request)}
        for _, bait, _ in baits(request):
            for number, subject in enumerate(publish):
                if not scene.shipped:
                    subject = subject.replace("mesh.api.", API)
                own = concrete(subject, f"{request}{number}")
                for exact in {own, own.replace(f"{request}{number}", "LOG")}:
                    bus.send(exact, body_for(exact), reply=bait)
            await bus.settle()
        await quiet(admin)
        await eventually(lambda: _no_pulls(scene))
        after = {find: await last_seq(scene, stream, find) for stream, _, find in baits(request)}
        return before != after

    assert await has_effect(without_walls, attack, attacker)
    assert not await has_effect(shipped, attack, attacker)


async def last_seq(scene: Scene, stream: str, subject: str) -> int:
    """Return the last sequence under a subject, 0 for none: also seen where a message replaces another."""
    try:
        got = await (await scene.admin()).api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    except BusError:
        return 0
    return int(got["message"]["seq"])


async def _no_pulls(scene: Scene) -> bool:
    """Say whether no pull of the attack waits any more: its end is answered too."""
    listed = (await (await scene.admin()).api("CONSUMER.LIST.LOG"))["consumers"]
    return not any(each["num_waiting"] for each in listed)


async def test_a_reply_subject_of_an_agent_does_not_speak_to_a_client(
    shipped: Scene, without_walls: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        client, attacker = await scene.bus("c1"), await scene.bus("b")
        async with hearing(client, "mesh.note.c1.*") as notes, hearing(client, "mesh.live.c1.>") as output:
            for bait in (note("c1", request), live("c1", request, "a", "t"), client.inbox + "1"):
                for subject in (card("b"), prop("b", request), GET + "CARDS." + card("b")):
                    await attempt(attacker, subject, b"", reply=bait)
            await quiet(await scene.admin())
            await client.settle()
            return bool([*notes, *output])

    assert await has_effect(without_walls, attack)
    assert not await has_effect(shipped, attack)


# --- what is said on core NATS --------------------------------------------------------------------


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(live("c1", "r", "a", "t"), id="live-output-of-another"),
        pytest.param(note("c1", "r"), id="a-note-to-a-client"),
    ],
)
@pytest.mark.parametrize("attacker", ["b", "c2"])
async def test_nobody_speaks_in_anothers_feed(
    subject: str, attacker: str, shipped: Scene, without_permissions: Scene
) -> None:
    async def attack(scene: Scene) -> bool:
        client = await scene.bus("c1")
        listening = "mesh.live.c1.>" if ".live." in subject else "mesh.note.c1.*"
        async with hearing(client, listening) as heard:
            await attempt(await scene.bus(attacker), subject, b"a lie", reply="nowhere")
            await client.settle()
            await quiet(await scene.admin())
            return bool(heard)

    assert await has_effect(without_permissions, attack, attacker)
    assert not await has_effect(shipped, attack, attacker)


async def test_an_agent_cannot_answer_that_another_is_there(
    shipped: Scene, without_permissions: Scene
) -> None:
    """The guard asks `$SRV.PING.<agent>`: nobody else may say yes, nor send an answer unasked."""

    async def attack(scene: Scene) -> bool:
        attacker, guard = await scene.bus("b"), await scene.bus("guard")
        with contextlib.suppress(BusError):
            await attacker.subscribe(
                "$SRV.PING.a", lambda message: attacker.send(message.reply, b'{"name":"a"}') and None
            )
        for guess in ("_R_.guess", guard.inbox + "1", guard.inbox + "2"):
            attacker.send(guess, b'{"name":"a"}')
        try:
            answer = await guard.request("$SRV.PING.a", timeout_s=0.5)
        except BusError:
            return False
        return b'"a"' in answer.data

    assert await has_effect(without_permissions, attack)
    assert not await has_effect(shipped, attack)


async def test_an_agent_answers_for_itself(shipped: Scene) -> None:
    """The control to the one above: what is denied to `b` works for `a`, for guards and operators."""
    agent = await shipped.bus("a")
    for subject in ("$SRV.PING.a", "$SRV.PING"):
        await agent.subscribe(subject, lambda message: agent.send(message.reply, b'{"name":"a"}') and None)
    assert b'"a"' in (await (await shipped.bus("guard")).request("$SRV.PING.a")).data
    assert b'"a"' in (await (await shipped.bus("op")).request("$SRV.PING")).data
    for name in ("c1", "audit", "b"):
        with pytest.raises(BusError):
            await (await shipped.bus(name)).request("$SRV.PING.a", timeout_s=0.3)


async def test_an_anonymous_connection_is_its_client_and_nobody_else(shipped: Scene) -> None:
    async with await connect(shipped.mesh.url, name="whoever") as bus:
        for subject in (prop("c1", fresh()), ctl("op", fresh()), evt("a", fresh()), card("a")):
            with pytest.raises(BusError):
                await bus.request(subject, b"{}", timeout_s=0.3)
        for subject in ("_I.>", "_I.c1.>", "mesh.note.c1.*", ">"):
            with pytest.raises(BusError):
                await bus.subscribe(subject, lambda message: None)
