"""Attacks by reply subjects that make the server speak to others: megabytes for bytes, in anybody's name.

An answer is as large as what is read, and the server sends it wherever the question's reply subject says.
Inside one account that is everybody: a pull or a direct get cuts a victim's connection, forges a notice,
wakes it for nothing, or speaks in its live feed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from mesh.bus.connection import Bus
from mesh.bus.roles import GET, PRESENCE_S, Role, grants, members
from mesh.errors import BusError
from protocol.wire.subjects import card, evt, step
from tests.certain import known
from tests.security.attacks import BOTH_WAYS, Tried, append
from tests.security.scenes import Scene, attempt, heard_on, quiet
from tests.security.test_reply_subjects import body_for, concrete
from tests.servers import FLEET, eventually, fresh, until

VICTIMS = ("a", "c1", "op", "audit", "guard")
LARGE = b"x" * 200_000
ROLES = {name: role for role, name in members(FLEET)}


def heard_by(name: str, mark: str) -> list[str]:
    """Return a subject for each place where `name` listens, with `mark` in it where it may differ."""
    places = grants(ROLES[name], name).subscribe
    return [concrete(place, mark) for place in known(places)]


@contextlib.asynccontextmanager
async def listening(
    scene: Scene, names: tuple[str, ...], mark: str
) -> AsyncIterator[list[list[tuple[str, bytes]]]]:
    """Let everybody listen everywhere they may; give what comes to each place."""
    async with contextlib.AsyncExitStack() as stack:
        places = [(await scene.bus(name), place) for name in names for place in heard_by(name, mark)]
        yield [await stack.enter_async_context(heard_on(bus, place)) for bus, place in places]


async def leave_much(scene: Scene, attacker: str) -> list[str]:
    """Store something large that the attacker may read; return the subjects that read it."""
    request = fresh()
    if attacker == "b":
        subject = step("b", request, "t", "0-0")
        scene.expected |= {("STEPS", subject), ("CARDS", card("b"))}
        await (await scene.bus("b")).publish_durable(subject, LARGE)
        await (await scene.bus("b")).publish_durable(card("b"), b"{}")
        return [GET + f"STEPS-b.{subject}", GET + f"CARDS.{card('b')}"]
    await append(scene, attacker, request)
    return [GET + f"LOG.{evt(attacker, request)}"]


@pytest.mark.parametrize("attacker", ["b", "c2", "op", "audit"])
@BOTH_WAYS
async def test_no_reply_subject_reaches_anybody_else(attacker: str, walled_off: Tried) -> None:
    """Everything that a member may publish, answered to every place where any other listens."""

    async def attack(scene: Scene) -> bool:
        mark = f"m{fresh()}"
        publish = grants(ROLES[attacker], attacker).publish
        assert publish is not None
        bus, victims = await scene.bus(attacker), tuple(name for name in VICTIMS if name != attacker)
        calls = [
            concrete(subject, f"{fresh()}") for subject in publish if not subject.startswith("mesh.live")
        ]
        if not scene.shipped:
            calls = [call.replace("mesh.api.", "$JS.API.") for call in calls]
        calls += await leave_much(scene, attacker)
        async with listening(scene, victims, mark) as heard:
            for name in victims:
                for bait in heard_by(name, mark):
                    for call in calls:
                        bus.send(call, body_for(call), reply=bait)
            await bus.flush()
            await quiet(await scene.admin())
            for name in victims:
                await (await scene.bus(name)).flush()
            return any(heard)

    await walled_off(attack, attacker)


@pytest.mark.parametrize(
    ("attacker", "victim", "place"),
    [
        pytest.param("b", "a", "mesh.note.a.{mark}", id="an-agent-to-anothers-notes"),
        pytest.param("b", "a", "mesh.changed.fleet", id="an-agent-to-the-wake-ups-of-agents"),
        pytest.param("b", "a", "mesh.changed.card.{mark}", id="an-agent-to-the-wake-ups-of-cards"),
        pytest.param("b", "a", "_I.a.{mark}", id="an-agent-to-anothers-inbox"),
        pytest.param("b", "a", "$SRV.PING.a", id="an-agent-to-anothers-pings"),
        pytest.param("b", "c1", "mesh.note.c1.{mark}", id="an-agent-to-a-clients-notes"),
        pytest.param("b", "c1", "mesh.live.c1.{mark}.a.t", id="an-agent-to-a-clients-live-feed"),
        pytest.param("b", "guard", "mesh.changed.{mark}", id="an-agent-to-the-wake-ups-of-guards"),
        pytest.param("c2", "c1", "mesh.note.c1.{mark}", id="a-client-to-anothers-notes"),
        pytest.param("c2", "c1", "mesh.live.c1.{mark}.a.t", id="a-client-to-anothers-live-feed"),
        pytest.param("c2", "c1", "_I.c1.{mark}", id="a-client-to-anothers-inbox"),
        pytest.param("c2", "op", "mesh.note.op.{mark}", id="a-client-to-an-operators-notes"),
        pytest.param("op", "c1", "mesh.note.c1.{mark}", id="an-operator-to-a-clients-notes"),
    ],
)
async def test_no_answer_is_sent_to_another(
    attacker: str, victim: str, place: str, walled_off: Tried
) -> None:
    """Each way by itself: 20 questions of a few bytes, and how much the victim is sent for them."""

    async def attack(scene: Scene) -> bool:
        bus, other = await scene.bus(attacker), await scene.bus(victim)
        bait = place.format(mark=fresh())
        calls = await leave_much(scene, attacker)
        async with heard_on(other, bait) as heard:
            for _ in range(20):
                for call in calls:
                    bus.send(call, b"", reply=bait)
            await bus.flush()
            await quiet(await scene.admin())
            await other.flush()
            if not scene.shipped:
                await until(lambda: len(heard) == 20 * len(calls))
            return bool(heard)

    await walled_off(attack, attacker)


async def flooded(asker: Bus, subject: str, agent: Bus, count: int) -> int:
    """Let an agent answer one question `count` times; return how many answers come in."""

    asked: list[str] = []
    inbox: list[int] = []
    answering = await agent.subscribe(subject, lambda message: asked.append(message.reply))
    listening = await asker.subscribe(asker.new_inbox(), lambda message: inbox.append(len(message.data)))
    try:
        asker.send(subject, reply=listening.subject)
        await until(lambda: bool(asked))
        for _ in range(count):
            await agent.publish(asked[0], LARGE)
        await agent.flush()
        await asker.flush()
        return len(inbox)
    finally:
        await answering.close()
        await listening.close()


@BOTH_WAYS
async def test_an_agent_answers_a_question_once(refused: Tried) -> None:
    """A guard's connection was cut with 500 answers of 900 KB each: the server takes one."""

    async def attack(scene: Scene) -> bool:
        agent = await scene.bus("b")
        for asker, subject in (("guard", "$SRV.PING.b"), ("op", "$SRV.PING"), ("op", "$SRV.INFO.b")):
            if await flooded(await scene.bus(asker), subject, agent, 30) > 1:
                return True
        return False

    await refused(attack)


async def test_an_agent_cannot_keep_its_answers_to_send_them_at_once(
    shipped: Scene, without_permissions: Scene
) -> None:
    async def is_late(scene: Scene) -> bool:
        """Answer later than the server waits; return True if the answer comes to nobody."""
        agent, guard = await scene.bus("b"), await scene.bus("guard")
        asked: list[str] = []
        answers: list[bytes] = []
        answering = await agent.subscribe("$SRV.PING.b", lambda message: asked.append(message.reply))
        listening = await guard.subscribe(guard.new_inbox(), lambda message: answers.append(message.data))
        guard.send("$SRV.PING.b", reply=listening.subject)
        await until(lambda: bool(asked))
        await asyncio.sleep(PRESENCE_S + 0.2)
        await attempt(agent, asked[0], LARGE, reply="nowhere")
        await guard.flush()
        await answering.close()
        await listening.close()
        return not answers

    assert not await is_late(without_permissions)
    await eventually(lambda: is_late(shipped))


async def test_an_agent_shows_live_output_to_a_client_in_its_own_name_alone(shipped: Scene) -> None:
    """The control to the attacks on live feeds: an agent's own output crosses to the client it names."""
    client, other, agent = await shipped.bus("c1"), await shipped.bus("c2"), await shipped.bus("b")
    mark = fresh()
    async with heard_on(client, "mesh.live.c1.>") as heard, heard_on(other, "mesh.live.c2.>") as not_heard:
        await agent.publish(f"mesh.live.c1.{mark}.b.t", b"a token")
        await attempt(agent, f"mesh.live.c1.{mark}.a.t", b"a lie", reply="nowhere")
        await until(lambda: bool(heard))
        await client.flush()
        assert [subject for subject, _ in heard] == [f"mesh.live.c1.{mark}.b.t"]
        assert not_heard == []
        with pytest.raises(BusError):
            await client.request(f"mesh.live.c1.{mark}.b.t", timeout_s=0.3)


def test_every_member_outside_core_is_alone_in_its_account() -> None:
    accounts = [grants(Role.AGENT, name).account for name in FLEET.agents]
    accounts += [grants(Role.CLIENT, name).account for name in FLEET.clients]
    accounts += [grants(Role.OPERATOR, "op").account, grants(Role.VIEWER, "audit").account]
    assert len(set(accounts)) == len(accounts)
