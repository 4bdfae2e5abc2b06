"""Attacks by reply subjects: to let the server write, or speak, where the attacker must not."""

import pytest

from mesh.bus.roles import API, GET, NEXT, Role, grants
from mesh.errors import BusError
from protocol.wire.subjects import card, ctl, dead, evt, live, note, prop, step
from tests.security.attacks import BOTH_WAYS, Tried, append
from tests.security.scenes import Scene, attempt, heard_on, quiet
from tests.servers import eventually, fresh


def baits(request: str) -> list[tuple[str, str, str]]:
    """Return stream, subject to name as a reply, and what to look for: every place that is not one's own."""
    return [
        ("LOG", evt("a", request), evt("a", request)),
        ("PROP", prop("c1", request), f"mesh.prop.*.c1.{request}"),
        ("CTL", ctl("c1", request), f"mesh.ctl.*.c1.{request}"),
        ("STEPS-a", step("a", request, "t", "0-7"), step("a", request, "t", "0-7")),
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
    "$JS.ACK": b"+NXT",
}
STREAM_GET = {
    f"{GET}{stream}": b'{"seq":1,"batch":3}' for stream in ("LOG", "STEPS-b", "ENDS", "CARDS", "CONF", "DEAD")
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
@BOTH_WAYS
async def test_no_reply_subject_writes_anything(role: Role, attacker: str, walled_off: Tried) -> None:
    """Everything that a role may publish, with every place as its reply subject."""

    async def attack(scene: Scene) -> bool:
        request = fresh()
        bus, admin = await scene.bus(attacker), await scene.admin()
        await leave_something(scene, request)
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
            await bus.flush()
        await quiet(admin)
        await eventually(lambda: _no_pulls(scene))
        after = {find: await last_seq(scene, stream, find) for stream, _, find in baits(request)}
        return before != after

    await walled_off(attack, attacker)


async def leave_something(scene: Scene, request: str) -> None:
    """See that there is something to be pulled, and something to be read in every stream that is read."""
    await append(scene, "b", fresh())
    own = {"STEPS": step("b", request, "t", "0-0"), "CARDS": card("b"), "DEAD": dead("b")}
    scene.expected.update(own.items())
    for subject in own.values():
        await (await scene.bus("b")).publish_durable(subject, b"{}")


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


@BOTH_WAYS
async def test_a_reply_subject_of_an_agent_does_not_speak_to_a_client(walled_off: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        client, attacker = await scene.bus("c1"), await scene.bus("b")
        async with heard_on(client, "mesh.note.c1.*") as notes, heard_on(client, "mesh.live.c1.>") as output:
            for bait in (note("c1", request), live("c1", request, "a", "t"), client.inbox + "1"):
                for subject in (card("b"), prop("b", request), GET + "CARDS." + card("b")):
                    await attempt(attacker, subject, b"", reply=bait)
            await quiet(await scene.admin())
            await client.flush()
            return bool([*notes, *output])

    await walled_off(attack)
