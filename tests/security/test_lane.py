"""Attacks on the lane: to ask in another's name, to answer in a guard's place, to hear what others ask."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from mesh.bus.connection import Bus
from mesh.bus.lane import Lane
from mesh.bus.nats_protocol import Incoming
from protocol.wire import codec, subjects
from protocol.wire.commands import Submit
from protocol.wire.records import LaneAnswer
from protocol.wire.subjects import evt, live, note, prop
from tests.security.attacks import BOTH_WAYS, Tried
from tests.security.scenes import Scene, attempt, heard_on, quiet
from tests.security.test_reply_subjects import last_seq
from tests.servers import fresh

BODY = codec.encode(Submit(text="hello"))
YES = msgspec.json.encode(LaneAnswer(digest=codec.body_digest(BODY), decided=True))


def questions(sender: str, request: str) -> tuple[str, ...]:
    """Return every subject that could pass for a question of `sender`."""
    return (subjects.lane(sender, request), *(f"mesh.lane.{n}.{sender}.{request}" for n in (0, 3, "*")))


@asynccontextmanager
async def answered_by(bus: Bus, subject: str = "mesh.lane.>") -> AsyncIterator[list[str]]:
    """Answer everything that is asked; give the subjects."""
    heard: list[str] = []

    def answer(asked: Incoming) -> None:
        heard.append(asked.subject)
        bus.send(asked.reply, YES)

    listening = await bus.subscribe(subject, answer)
    yield heard
    await listening.close()


@pytest.mark.parametrize("attacker", ["b", "c2", "op", "audit"])
@BOTH_WAYS
async def test_nobody_asks_in_anothers_name(attacker: str, refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        request = fresh()
        async with answered_by(await scene.bus("guard")) as heard:
            for subject in (*questions("a", request), *questions("c1", request)):
                await attempt(await scene.bus(attacker), subject, BODY)
            await quiet(await scene.admin())
        return bool(heard)

    await refused(attack, attacker)


@BOTH_WAYS
async def test_its_own_questions_do_reach_a_guard(shipped: Scene) -> None:
    """Else none of these attacks would show anything."""
    request = fresh("c2")
    async with answered_by(await shipped.bus("guard")) as heard:
        assert await Lane(await shipped.bus("c2"), "c2").is_decided(request, BODY)
    partition = subjects.partition(request, shipped.mesh.fleet.partitions)
    assert heard == [f"mesh.lane.{partition}.c2.{request}"]


async def test_an_audience_asks_nothing(shipped: Scene) -> None:
    async with answered_by(await shipped.bus("guard")) as heard:
        for subject in questions("audit", fresh("audit")):
            await attempt(await shipped.bus("audit"), subject, BODY)
    assert heard == []


@pytest.mark.parametrize("attacker", ["b", "c2", "op", "audit"])
async def test_nobody_hears_what_others_ask(attacker: str, refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        request, got = fresh(), []
        for subject in ("mesh.lane.>", "mesh.lane.*.a.*", "mesh.lane.a.*"):
            async with heard_on(await scene.bus(attacker), subject) as heard:
                await attempt(await scene.bus("a"), subjects.lane("a", request), BODY)
                await quiet(await scene.admin())
                got += heard
        return bool(got)

    await refused(attack, attacker)


@pytest.mark.parametrize("attacker", ["b", "c2", "op", "audit"])
async def test_nobody_answers_in_a_guards_place(attacker: str, refused: Tried) -> None:
    """It listens where guards do, and says yes wherever an answer might be awaited."""

    async def attack(scene: Scene) -> bool:
        victim, bus = await scene.bus("a"), await scene.bus(attacker)
        async with heard_on(bus, "mesh.lane.>"), heard_on(bus, "_R_.>") as replies:
            asking = asyncio.create_task(Lane(victim, "a").is_decided(fresh(), BODY))
            await victim.flush()
            number = victim._mux._number
            for inbox in (f"{victim.inbox}{number}", f"_I.a.{number}", f"_R_.{number}"):
                bus.send(inbox, YES)
            for subject, _ in replies:
                bus.send(subject, YES)
            await bus.flush()
            return await asking

    await refused(attack, attacker)


async def test_no_other_listener_answers_for_a_guard(refused: Tried) -> None:
    async def attack(scene: Scene) -> bool:
        bus = await scene.bus("b")
        try:
            async with answered_by(bus):
                return await Lane(await scene.bus("a"), "a").is_decided(fresh(), BODY)
        except Exception:
            return False  # it may not even listen

    await refused(attack)


@BOTH_WAYS
async def test_no_answer_is_led_to_another_or_into_a_stream(walled_off: Tried) -> None:
    """A guard answers each question; whatever place it names for that, nobody else is told anything."""

    async def attack(scene: Scene) -> bool:
        request, bus = fresh("b"), await scene.bus("b")
        victim, client = await scene.bus("a"), await scene.bus("c1")
        places = (
            ("LOG", evt("a", request)),
            ("PROP", prop("c1", request)),
            ("CONF", f"mesh.conf.policy.{request}"),
        )
        before = [await last_seq(scene, stream, subject) for stream, subject in places]
        async with (
            answered_by(await scene.bus("guard")) as heard,
            heard_on(victim, "_I.a.>") as first,
            heard_on(client, "mesh.note.c1.*") as second,
            heard_on(client, "mesh.live.c1.>") as third,
        ):
            baits = (f"{victim.inbox}1", note("c1", request), live("c1", request, "a", "t"))
            for bait in (*baits, *(subject for _, subject in places)):
                bus.send(subjects.lane("b", request), BODY, reply=bait)
                bus.send(f"mesh.lane.0.b.{request}", BODY, reply=bait)
            await bus.flush()
            await quiet(await scene.admin())
            for each in (victim, client):
                await each.flush()
            assert heard
            after = [await last_seq(scene, stream, subject) for stream, subject in places]
            return bool([*first, *second, *third]) or before != after

    await walled_off(attack)
