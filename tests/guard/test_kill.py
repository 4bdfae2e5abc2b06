"""A guard is killed, as with `kill -9`, between two of its steps: another finishes, nothing happens twice."""

import msgspec
import pytest

from mesh.bus.reader import get
from mesh.bus.roles import GET
from mesh.ops import dead_letters
from mesh.ops.watch import Watch, WatchPoint
from protocol.wire import events
from protocol.wire.commands import Failure, Freeze, ReportFailure, Thaw
from protocol.wire.freeze import FreezeEntry
from protocol.wire.handoff import Fact
from protocol.wire.moves import Complete, Transfer
from protocol.wire.subjects import FREEZE, end
from tests.certain import is_, known
from tests.guard.stage import HASTY, Stage
from tests.servers import PATIENCE_S, eventually

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]
SECRET = (Fact(key="ssn", value="1", labels=("pii",)),)


FURNISHED = HASTY


async def test_between_a_verdict_and_its_acknowledgement(stage: Stage) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    async with stage.doomed_guard("append:handoff.admitted") as doomed:
        request = await client.submit("hello")
        await a.propose(request, await a.work(request), TO_B)
        await doomed.ended()
    assert await stage.types(request) == ["request.opened", "handoff.admitted"]
    assert await stage.waiting("PROP") == 1
    await stage.guard()
    await stage.drained()
    assert await stage.types(request) == ["request.opened", "handoff.admitted"]
    await b.propose(request, await b.work(request), Complete(answer="done"))
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"


async def test_between_a_withholding_and_its_verdict(stage: Stage) -> None:
    client, a, b = await stage.client(), await stage.actor("a"), await stage.actor("b")
    async with stage.doomed_guard("append:facts.withheld") as doomed:
        request = await client.submit("hello", facts=SECRET)
        await a.propose(request, await a.work(request), TO_B)
        await doomed.ended()
    assert await stage.all_types(request) == ["request.opened", "facts.withheld"]
    await stage.guard()
    work = await b.work(request)
    assert [fact.key for fact in work.handoff.facts] == ["text"]
    await stage.drained()
    assert await stage.all_types(request) == ["request.opened", "facts.withheld", "handoff.admitted"]


async def test_between_a_withholding_and_the_submit_that_it_belongs_to(stage: Stage) -> None:
    client, b = await stage.client(), await stage.actor("b")
    async with stage.doomed_guard("append:facts.withheld") as doomed:
        request = await client.submit("hello", to="b", facts=SECRET)
        await doomed.ended()
    await stage.guard()
    await b.work(request)
    await stage.drained()
    assert await stage.all_types(request) == ["facts.withheld", "request.opened"]


async def test_between_a_decision_and_its_consequence(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    async with stage.doomed_guard("append:turn.failed") as doomed:
        request = await client.submit("hello")
        work = await a.work(request)
        broken = ReportFailure(turn=work.turn, round=0, error=Failure(code="broken", permanent=True))
        await a.say(request, broken)
        await doomed.ended()
    assert await stage.types(request) == ["request.opened", "turn.failed"]
    await stage.guard()
    await stage.drained()
    assert await stage.types(request) == ["request.opened", "turn.failed", "escalation.raised"]


@pytest.mark.parametrize("point", ["append:request.opened", "armed"])
async def test_between_the_first_event_and_its_timer_whichever_came_first(stage: Stage, point: str) -> None:
    client = await stage.client()
    client._lane._close(PATIENCE_S)  # an asker waits, and its timer fires meanwhile
    before = await stage.last_seq("TIMER")
    async with stage.doomed_guard(point) as doomed:
        request = await client.submit("hello", policy="short")
        await doomed.ended()

    async def is_armed() -> bool:
        return await stage.last_seq("TIMER") > before

    await eventually(is_armed)  # event and timer were sent at once
    await stage.guard()
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "expired"
    await stage.drained()
    assert await stage.types(request) == ["request.opened", "request.expired"]


async def test_between_the_end_of_a_request_and_telling_its_agent(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    async with stage.doomed_guard("append:request.cancelled") as doomed:
        request = await client.submit("hello")
        work = await a.work(request)
        await client.cancel(request)
        await doomed.ended()
    told = await stage.notices("a")
    await stage.guard()
    await stage.drained()
    assert [(notice.request, notice.ended.turn) for notice in told if notice.ended] == [(request, work.turn)]
    assert (await stage.state("ENDS"))["messages"] >= 1
    assert await stage.types(request) == ["request.opened", "request.cancelled"]


async def test_between_a_dead_letter_and_its_acknowledgement(stage: Stage) -> None:
    after = await stage.last_seq("DEAD")
    client = await stage.client()
    async with stage.doomed_guard("buried") as doomed:
        await (await stage.bus("c1")).publish_durable(f"mesh.prop.c1.{client.new_id()}", b"{")
        await doomed.ended()
    await stage.guard()
    await stage.drained()
    letters = await stage.dead_letters(after=after)
    assert [(letter.code, letter.original) for letter in letters] == [("protocol.malformed", b"{")]
    viewer, told = await stage.bus("op"), set[dead_letters.LetterKey]()
    ((seq, letter),) = [each async for each in dead_letters.letters(viewer, after + 1, told)]
    assert letter == letters[0]
    assert not [each async for each in dead_letters.letters(viewer, seq + 1, told)]
    restarted = Watch(viewer, "nats://").alarms(
        after=WatchPoint(log=await stage.last_seq("LOG"), dead=seq), goes_on=False
    )
    assert not [alarm async for alarm in restarted if alarm.what == "dead_letter"]


async def test_a_freeze_that_comes_again_does_not_undo_the_thaw_that_came_after_it(stage: Stage) -> None:
    async with stage.doomed_guard("frozen") as doomed:
        await stage.control("_", Freeze(id="f1", by="kim"))
        await doomed.ended()
    heir = await stage.guard("heir")
    await heir._context.frozen.wait()
    await stage.control("_", Thaw(id="t1", by="lee"))
    await heir._context.thawed.wait()
    await stage.drained("CTL")
    found = await get(await stage.bus("guard", "reader"), "CONF", FREEZE)
    entry = msgspec.json.decode(known(found).data, type=FreezeEntry)
    assert (entry.frozen, entry.by, entry.sender) == (False, "lee", "op")
    info = await (await stage.bus("admin")).api("STREAM.INFO.CTL")
    assert entry.seq == info["state"]["last_seq"]
    assert 0 < entry.since <= entry.at


async def test_a_guard_that_is_killed_leaves_its_partitions_to_one_that_waits(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    async with stage.doomed_guard("append:request.completed") as doomed:
        requests = [await client.submit(f"hello {number}") for number in range(20)]
        works = [await a.work(request) for request in requests]
        await stage.guard("heir")
        for request, work in zip(requests, works, strict=True):
            await a.propose(request, work, Complete(answer="done"))
        assert {(await client.wait(request, timeout_s=PATIENCE_S)).status for request in requests} == {
            "completed"
        }
        await stage.drained()
        for request in requests:
            assert await stage.types(request) == ["request.opened", "request.completed"]
        await doomed.ended()


async def test_a_timer_outlives_the_server_and_every_guard(own_stage: Stage) -> None:
    client = await own_stage.client()
    async with own_stage.doomed_guard("never") as doomed:
        request = await client.submit("hello", policy="alone")
        await own_stage.reaches(request, "request.opened")
        await own_stage.drained()
        doomed.signal(9)
        await doomed.ended()
    await own_stage.mesh.server.kill()
    await own_stage.mesh.server.start()
    await own_stage.back()
    await own_stage.guard()
    log = await own_stage.reaches(request, "escalation.raised")
    failed = is_(log[1], events.TurnFailed)
    assert failed.error.code == "unattended"
    assert len(log) == 3


async def test_between_an_escalation_by_the_clock_and_the_step_that_tells_its_agent(stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a", served=True)
    async with stage.doomed_guard("append:escalation.raised") as doomed:
        request = await client.submit("hello", policy="brisk")
        turn = (await a.work(request)).turn
        await doomed.ended()
    await stage.guard()
    await stage.drained()
    assert (await stage.types(request))[-1] == "escalation.raised"
    async with stage.mesh.connected_as("audit") as bus:

        async def told() -> bool:
            return not (await bus.request(f"{GET}ENDS.{end('a', request, turn)}")).status

        await eventually(told)
