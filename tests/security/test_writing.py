"""Attacks that write under a name that is not the attacker's own, or change what stands."""

from collections.abc import Callable

import msgspec
import pytest

from mesh.bus.roles import AGENT_WAKE_UPS, CALLS, GET, LEADER_GET, ME, NEXT, OUTSIDE_API
from protocol.wire import subjects
from protocol.wire.config import PARTITIONS
from protocol.wire.subjects import (
    CONF_CHANGED,
    card,
    ctl,
    dead,
    end,
    evt,
    prop,
    questions,
    step,
)
from tests.security.attacks import BOTH_WAYS, Attack, Tried, newest, stored
from tests.security.scenes import Scene, attempt, heard_on, quiet
from tests.servers import fresh


def writing(stream: str, subject: Callable[[str], str], where: str = "") -> Attack:
    """Publish under a subject that is somebody else's."""

    async def attack(scene: Scene) -> bool:
        request = fresh()
        target = subject(request)
        find = where.format(request=request) or target
        before = await newest(scene, stream, find)
        await attempt(await scene.bus("b"), target, b'{"n":0,"forged":true}')
        return await newest(scene, stream, find) > before

    return attack


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(writing("LOG", lambda r: evt("a", r)), id="work-into-an-inbox"),
        pytest.param(writing("LOG", lambda r: evt("c1", r)), id="an-answer-to-a-client"),
        pytest.param(writing("LOG", lambda r: evt("_", r)), id="a-verdict"),
        pytest.param(writing("LOG", lambda r: evt("b", r)), id="work-into-its-own-inbox"),
        pytest.param(writing("LOG", lambda r: evt("any-review", r)), id="an-offer"),
        pytest.param(
            writing("PROP", lambda r: prop("a", r), "mesh.prop.*.a.{request}"), id="a-proposal-of-another"
        ),
        pytest.param(writing("PROP", lambda r: prop("c1", r), "mesh.prop.*.c1.{request}"), id="a-submit"),
        pytest.param(
            writing("CTL", lambda r: ctl("op", r), "mesh.ctl.*.op.{request}"), id="a-control-of-an-operator"
        ),
        pytest.param(writing("STEPS", lambda r: step("a", r, "t", "0-0")), id="a-step-of-another"),
        pytest.param(writing("ENDS", lambda r: end("b", r, "t")), id="the-end-of-its-own-turn"),
        pytest.param(writing("ENDS", lambda r: end("a", r, "t")), id="the-end-of-anothers-turn"),
        pytest.param(
            writing("SHADOW", lambda r: subjects.shadow_differs("default", r, 1)), id="a-disagreement"
        ),
        pytest.param(writing("SHADOW", lambda r: subjects.shadow_counts("default", r, 0)), id="a-count"),
        pytest.param(writing("CONF", lambda r: subjects.shadow(r)), id="a-shadow"),
        pytest.param(writing("CONF", lambda r: subjects.schedule(r)), id="a-schedule"),
        pytest.param(writing("CONF", lambda r: subjects.pause(r)), id="a-pause"),
        pytest.param(writing("CONF", lambda r: subjects.tick(r)), id="a-tick"),
        pytest.param(
            writing("TIMER", lambda r: f"mesh.timer.fire.0.{subjects.schedule_timer(r[-26:])}"),
            id="the-alarm-of-a-schedule",
        ),
        pytest.param(
            writing("TIMER", lambda r: subjects.timer_at(subjects.schedule_timer(r[-26:]))),
            id="the-timer-of-a-schedule",
        ),
        pytest.param(writing("ASKS", lambda r: questions("c1", r)), id="a-question-to-a-client"),
        pytest.param(writing("CARDS", lambda r: card("d")), id="the-card-of-another"),
        pytest.param(writing("PROMPTS", lambda r: subjects.prompt("a", r)), id="a-prompt-of-another"),
        pytest.param(writing("DEAD", lambda r: dead("a")), id="a-dead-letter-of-another"),
        pytest.param(writing("TIMER", lambda r: f"mesh.timer.fire.0.{r}"), id="an-alarm"),
        pytest.param(writing("CONF", lambda r: f"mesh.conf.policy.{r}"), id="a-policy"),
        pytest.param(writing("CONF", lambda r: "mesh.conf.breaker.b"), id="its-own-breaker"),
        pytest.param(writing("CONF", lambda r: "mesh.conf.freeze"), id="a-freeze"),
    ],
)
@BOTH_WAYS
async def test_an_agent_cannot_write_what_is_not_its_own(attack: Attack, refused: Tried) -> None:
    await refused(attack)


async def test_an_agent_cannot_slow_down_what_others_ask_of_models(refused: Tried) -> None:
    """The fleet document alone limits how fast a model may be asked, and only the admin writes it."""
    limit = msgspec.json.encode({"models": {"m": {"concurrency": 1, "per_minute": 1}}})
    entry = b'{"shares":{"x":{"concurrency":{"has":99},"per_minute":{"has":99},"until":4500000000000000}}}'

    async def attack(scene: Scene) -> bool:
        before = (await (await scene.admin()).api("STREAM.INFO.CONF"))["state"]["last_seq"]
        for subject, body in (
            ("mesh.rate.m", entry),
            ("mesh.conf.rate.m", entry),
            ("mesh.conf.fleet", limit),
        ):
            await attempt(await scene.bus("b"), subject, body)
        return bool((await (await scene.admin()).api("STREAM.INFO.CONF"))["state"]["last_seq"] > before)

    await refused(attack)


def test_members_write_nothing_that_all_of_them_share() -> None:
    """What members could write together, one of them could spoil for the others."""
    reads = (GET, NEXT, LEADER_GET, f"{OUTSIDE_API}STREAM.", f"{OUTSIDE_API}CONSUMER.", "$JS.ACK.", "$SRV.")
    written = [
        call.subject for calls in CALLS.values() for call in calls if not call.subject.startswith(reads)
    ]
    assert written
    assert all(ME in subject for subject in written), written


async def test_an_agent_cannot_change_the_fleet(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        before = (await (await scene.admin()).api("STREAM.INFO.CONF"))["state"]["last_seq"]
        await attempt(await scene.bus("b"), "mesh.conf.fleet", b'{"agents":{"b":{"clearance":["secret"]}}}')
        return bool((await (await scene.admin()).api("STREAM.INFO.CONF"))["state"]["last_seq"] > before)

    await refused(attack)


def _alarms(timer: str) -> tuple[str, str]:
    return subjects.timer_at(timer), subjects.timer_fire(timer, PARTITIONS)


@pytest.mark.parametrize("attacker", ["c2", "op", "audit"])
@BOTH_WAYS
async def test_nobody_of_the_users_writes_under_anothers_name(attacker: str, refused: Tried) -> None:
    request = fresh()
    targets = [
        ("LOG", evt("a", request), evt("a", request)),
        ("PROP", prop("c1", request), f"mesh.prop.*.c1.{request}"),
        ("CTL", ctl("c1", request), f"mesh.ctl.*.c1.{request}"),
        ("STEPS", step("a", request, "t", "0-9"), step("a", request, "t", "0-9")),
        ("CONF", f"mesh.conf.policy.{request}", f"mesh.conf.policy.{request}"),
        ("CONF", subjects.shadow(request), subjects.shadow(request)),
        ("SHADOW", subjects.shadow_differs("a", request, 1), subjects.shadow_differs("a", request, 1)),
        *(("CONF", of(request), of(request)) for of in (subjects.schedule, subjects.pause, subjects.tick)),
        *(("TIMER", alarm, alarm) for alarm in _alarms(subjects.schedule_timer(request[-26:]))),
        ("DEAD", dead(f"x{request}"), dead(f"x{request}")),
    ]

    async def attack(scene: Scene) -> bool:
        for _, subject, _ in targets:
            await attempt(await scene.bus(attacker), subject, b"{}")
        return any([await stored(scene, stream, find) for stream, _, find in targets])

    await refused(attack, attacker)


@BOTH_WAYS
async def test_a_client_is_no_operator_and_a_viewer_submits_nothing(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        await attempt(await scene.bus("c2"), ctl("op", request), b"{}")
        await attempt(await scene.bus("audit"), prop("audit", request), b"{}")
        found = [await stored(scene, "CTL", f"mesh.ctl.*.op.{request}")]
        return any([*found, await stored(scene, "PROP", f"mesh.prop.*.audit.{request}")])

    await refused(attack, "c2")


OF_GUARDS = ("policy.default", "prices", "freeze", "breaker.a")
"""What changes besides, and is nobody's business but guards'."""


async def test_an_agent_hears_of_changes_that_concern_it_and_nothing_of_what_they_say(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        bus, admin = await scene.bus("b"), await scene.admin()
        tries = (f"{CONF_CHANGED}.>", *(f"{CONF_CHANGED}.{what}" for what in OF_GUARDS), *AGENT_WAKE_UPS)
        got = []
        for subject in tries:
            async with heard_on(bus, subject) as heard:
                for what in OF_GUARDS:
                    scene.expected.add(("CONF", f"mesh.conf.{what}"))
                    await admin.publish_durable(f"mesh.conf.{what}", b'{"secret":1}')
                scene.expected.add(("CARDS", subjects.card("a")))
                await (await scene.bus("a")).publish_durable(subjects.card("a"), b'{"secret":1}')
                await bus.flush()
                await quiet(bus)
                got += heard
        assert (f"{CONF_CHANGED}.card.a", b"") in got  # it does listen
        return any(body or subject.removeprefix(f"{CONF_CHANGED}.") in OF_GUARDS for subject, body in got)

    await refused(attack)


async def test_an_agent_cannot_tell_others_that_something_changed(refused: Tried) -> None:
    """By the answer to a message of its own it can, as with every note: that is worth a look a second."""

    async def attack(scene: Scene) -> bool:
        other, bus = await scene.bus("a"), await scene.bus("b")
        got = []
        for subject in AGENT_WAKE_UPS:
            async with heard_on(other, subject) as heard:
                await attempt(bus, subject.replace("*", "a"), b"forged")
                await other.flush()
                await quiet(other)
                got += heard
        return any(body == b"forged" for _, body in got)

    await refused(attack)
