"""A swarm reads side by side, then writes in one turn; a debate goes on until it is agreed."""

from collections.abc import Sequence
from typing import Any

import pytest

from mesh.agent import Agent, Task, Turn, agent, tool
from mesh.model import ClaudeAgent, Swarm
from mesh.model.prompt import Instructions
from mesh.model.swarm import Board, ReadsRefused
from mesh.testing import StrictModel, calls, driven_by, says
from mesh.testing.harness import delivered
from protocol.wire.event_parts import TaskResult
from protocol.wire.moves import Complete, Deliver, Move
from protocol.wire.moves import Task as WireTask
from tests.unit.model.lead_rounds import Rounds, entry

READERS = (entry("r1", "read"), entry("r2", "read"))


def reads(turn: Turn) -> Sequence[Task]:
    return [turn.task(f"look-{n}", summary="Look.", intent="read") for n in range(2)]


@agent(name="lead", version="7")
async def writer(turn: Turn) -> Move:
    """Say what was read."""
    if turn.task_name:
        return turn.deliver("as a worker")
    return turn.complete({name: each.summary for name, each in turn.results.items()})


def done(task: WireTask) -> TaskResult:
    return delivered(task.name, f"saw {task.name}")


def rounds_of(swarm: Agent, **more: Any) -> Rounds:
    return Rounds(swarm, READERS, done, topology="swarm", **more)


async def test_reads_go_out_at_once_and_then_one_writes() -> None:
    swarm = Swarm(writer, reads=reads)
    assert (swarm.name, swarm.version, swarm.description) == ("lead", "7", "Say what was read.")
    rounds = rounds_of(swarm)
    assert await rounds.go() == Complete(answer={"look-0": "saw look-0", "look-1": "saw look-1"})
    [fan_out] = rounds.delegates
    assert [(task.name, task.intent, task.to_agent) for task in fan_out.tasks] == [
        ("look-0", "read", None),
        ("look-1", "read", None),
    ]
    assert all(task.fallback for task in fan_out.tasks)  # a reader that died for good keeps none


async def test_a_read_that_names_its_agent_is_nobody_elses() -> None:
    rounds = rounds_of(Swarm(writer, reads=lambda turn: [turn.task("look", summary="Look.", to="r1")]))
    await rounds.go()
    assert [task.fallback for task in rounds.delegates[0].tasks] == [False]


@tool
async def measure() -> int:
    """Say how many there are to read."""
    return 2


async def measured(turn: Turn) -> Sequence[Task]:
    return reads(turn)[: await turn.call(measure)] if turn.agent == "lead" else ()


async def test_what_to_read_may_be_found_out_first_and_is_the_same_in_each_round() -> None:
    rounds = rounds_of(Swarm(writer, reads=measured))
    assert await rounds.go() == Complete(answer={"look-0": "saw look-0", "look-1": "saw look-1"})
    assert len(rounds.delegates) == 1


async def test_where_there_is_nothing_to_read_the_writer_begins() -> None:
    rounds = rounds_of(Swarm(writer, reads=lambda turn: ()))
    assert await rounds.go() == Complete(answer={})
    assert rounds.delegates == []


async def test_a_model_that_writes_sees_what_was_read_and_may_read_more() -> None:
    more = calls(("delegate", {"tasks": [{"name": "again", "summary": "s", "intent": "read"}]}))
    swarm = Swarm(ClaudeAgent("lead", instructions=Instructions("1", "Mend it.")), reads=reads)
    with driven_by(StrictModel(more, says("Mended."))) as model:
        rounds = rounds_of(swarm)
        assert await rounds.go() == Complete(answer="Mended.")
    assert (
        '- look-0: {"status": "delivered", "agent": "worker", "summary": "saw look-0"}'
        in model.prompts[0].brief
    )
    assert len(rounds.delegates) == 2


async def test_what_is_open_when_enough_is_read_is_called_off() -> None:
    rounds = rounds_of(Swarm(writer, reads=reads, join="any"))
    await rounds.go()
    assert [(len(each.tasks), each.cancel) for each in rounds.delegates] == [(2, ()), (0, ("look-1",))]


async def test_a_debate_goes_on_for_its_rounds_or_until_it_is_agreed() -> None:
    boards: list[Board] = []

    def agreed(board: Board) -> bool:
        boards.append(board)
        return len(board) == 2

    rounds = rounds_of(Swarm(writer, reads=reads, rounds=3, agreed=agreed))
    rounds.boards = [{}, {"r1": {"vote": 1}}, {"r1": {"vote": 1}, "r2": {"vote": 1}}, {}]
    await rounds.go()
    facts = [
        {fact.key: fact.value for fact in task.facts} for each in rounds.delegates for task in each.tasks
    ]
    assert [[task.name for task in each.tasks] for each in rounds.delegates] == [
        ["look-0", "look-1"],
        ["look-0~2", "look-1~2"],
    ]
    assert facts == [{"debate_round": n, "seat": seat} for n in (1, 2) for seat in (1, 2)]
    assert boards[0] == {"r1": {"vote": 1}}
    rounds = rounds_of(Swarm(writer, reads=reads, rounds=3))
    await rounds.go()
    assert len(rounds.delegates) == 3


async def test_reads_that_are_refused_are_a_typed_failure() -> None:
    rounds = rounds_of(Swarm(writer, reads=reads), refuse=lambda move: "nobody reads")
    with pytest.raises(ReadsRefused, match="rule known_agent refused to let the swarm read: nobody reads"):
        await rounds.go()


async def test_as_a_worker_it_reads_by_itself() -> None:
    assert await rounds_of(Swarm(writer, reads=reads), task="t").go() == Deliver(summary="as a worker")


def test_a_swarm_reads_at_least_once() -> None:
    with pytest.raises(ValueError, match="at least once"):
        Swarm(writer, reads=reads, rounds=0)
