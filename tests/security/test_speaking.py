"""Attacks on core NATS: to speak in another's feed, or in another's name."""

import contextlib

import pytest

from mesh.bus.connection import connect
from mesh.errors import BusError
from protocol.wire.subjects import card, ctl, evt, live, note, prop
from tests.security.attacks import has_effect
from tests.security.scenes import Scene, attempt, hearing, quiet
from tests.servers import fresh


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
            await client.flush()
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
            answer = await guard.request("$SRV.PING.a", timeout_s=3.0)
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
