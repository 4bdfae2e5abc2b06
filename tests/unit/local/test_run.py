"""`mesh.run`, `mesh.run_sync` and `mesh run`: agents in one process, under the guard's rules."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import mesh
from mesh.agent import Agent, Move, Result, Retry, Turn, agent, tool
from mesh.agent._reply_schema import ReplyInvalid
from mesh.cli.exits import Exit
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions
from mesh.testing import Policy, StrictModel, driven_by, says
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.handoff import Constraints
from tests.system.terminal import Folder

ASKING = """
from mesh.agent import Turn, agent, tool


@tool(effect="idempotent", approve="human")
async def pay(cents: int, idempotency_key: str = "") -> str:
    return f"paid {cents}"


@agent()
async def front(turn: Turn):
    return turn.complete(await turn.call(pay, cents=5))


@agent()
async def lost(turn: Turn):
    return turn.complete(turn.facts["order"])


@agent()
async def stuck(turn: Turn):
    return turn.escalate("too hard")
"""


@agent()
async def front(turn: Turn) -> Move:
    return turn.transfer("greeter", summary="greet them", facts={"name": turn.facts["text"]})


@agent()
async def greeter(turn: Turn) -> Move:
    return turn.complete(f"Hello, {turn.facts['name']}!")


@agent()
async def asking(turn: Turn) -> Move:
    if not turn.past:
        return turn.ask("how many?", schema={"type": "integer"})
    return turn.complete(turn.reply)


@tool(effect="idempotent", approve="human")
async def pay(cents: int, idempotency_key: str = "") -> str:
    """Pay."""
    return f"paid {cents}"


@agent(tools=[pay])
async def paying(turn: Turn) -> Move:
    return turn.complete(await turn.call(pay, cents=5))


def test_a_notebook_may_call_it_though_a_loop_runs_in_its_thread() -> None:
    async def cell() -> Any:
        return mesh.run_sync([front, greeter], "Ada").answer

    before = set(threading.enumerate())
    assert asyncio.run(cell()) == "Hello, Ada!"
    assert set(threading.enumerate()) <= before


async def test_a_request_is_judged_and_journaled_as_on_a_bus() -> None:
    happened: list[AnyEvent] = []
    outcome = await mesh.run([front, greeter], "Ada", on_event=happened.append)
    assert (outcome.status, outcome.answer, outcome.event) == ("completed", "Hello, Ada!", happened[-1])
    kinds = ["request.opened", "handoff.admitted", "facts.withheld", "request.completed"]
    assert [type_of(event) for event in happened] == kinds


async def test_what_the_guard_refuses_comes_back_to_the_code() -> None:
    refused = []

    @agent()
    async def first(turn: Turn) -> Move:
        if turn.refusals:
            refused.append(turn.refusals[-1].rule)
            return turn.complete("alone then")
        return turn.transfer("nobody", summary="help")

    assert (await mesh.run(first, "hello")).answer == "alone then"
    assert refused == ["known_agent"]


def test_questions_and_approvals_get_their_replies() -> None:
    asked = []

    def answer(question: mesh.Question) -> Any:
        asked.append((question.agent, question.question.partition(":")[0]))
        return 7 if question.agent == "asking" else True

    assert mesh.run_sync(asking, "go", on_question=answer).answer == 7
    assert mesh.run_sync(paying, "go", on_question=answer).answer == "paid 5"
    assert asked == [("asking", "how many?"), ("paying", "paying asks for approval")]


async def test_a_reply_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ReplyInvalid):
        await mesh.run(asking, "go", on_question=lambda question: "many")


async def test_without_anybody_to_ask_it_says_what_the_request_waits_for() -> None:
    with pytest.raises(mesh.RequestWaits, match=r"asking asks the client: how many\?") as waits:
        await mesh.run(asking, "go")
    assert type_of(waits.value.events[-1]) == "turn.suspended"
    with pytest.raises(mesh.RequestWaits, match="paying asks a person: "):
        await mesh.run(paying, "go")


async def test_a_retry_waits_and_goes_on_where_the_journal_ends() -> None:
    looked = []

    @tool
    async def look(key: str) -> str:
        """Look."""
        looked.append(key)
        return key.upper()

    @agent(tools=[look])
    async def trying(turn: Turn) -> Move:
        found = await turn.call(look, key="a")
        if not turn.failures:
            raise Retry("not yet", after_s=0.01)
        return turn.complete(found)

    assert (await mesh.run(trying, "go")).answer == "A"
    assert looked == ["a"]


async def test_a_round_that_outlasts_its_request_is_stopped() -> None:
    stopped = []

    @agent()
    async def slow(turn: Turn) -> Move:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(turn.agent)
        raise AssertionError

    outcome = await mesh.run(slow, "go", constraints=Constraints(max_resolution_time_s=0.2))
    assert (outcome.status, stopped) == ("expired", ["slow"])


async def test_a_lead_gets_what_its_tasks_came_to() -> None:
    @agent()
    async def lead(turn: Turn) -> Move:
        if not turn.results:
            return turn.delegate([turn.task(name, to="worker", summary=name) for name in ("one", "two")])
        done: list[Result] = list(turn.results.values())
        return turn.complete([each.summary for each in done])

    @agent()
    async def worker(turn: Turn) -> Move:
        return turn.deliver(f"{turn.task_name} is done")

    supervised = Policy(topology="supervised")
    outcome = await mesh.run([lead, worker], "go", policy=supervised)
    assert outcome.answer == ["one is done", "two is done"]


def test_a_model_of_the_caller_drives_the_agents() -> None:
    clerk = ClaudeAgent("clerk", instructions=Instructions("1", "Be brief."))
    with driven_by(StrictModel(says("She is gold."))):
        assert mesh.run_sync(clerk, "Who is Ada?").answer == "She is gold."


async def test_a_bug_is_raised_where_it_is() -> None:
    @agent()
    async def broken(turn: Turn) -> Move:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        await mesh.run(broken, "go")


def test_an_interrupt_stops_the_agents_and_leaves_no_thread() -> None:
    stopped = []

    @agent()
    async def interrupted(turn: Turn) -> Move:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(turn.agent)
        raise AssertionError

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        mesh.run_sync(interrupted, "go")
    assert stopped == ["interrupted"]
    assert set(threading.enumerate()) <= before, "one of an earlier test may end meanwhile"


@pytest.mark.parametrize(
    ("agents", "error", "said"),
    [
        ((), ValueError, "there is no agent to run"),
        ((front, Agent("front", front.handler)), ValueError, "two agents are called 'front'"),
        ((front.handler,), TypeError, r"not an agent: .*; @agent\(\) makes one"),
    ],
)
async def test_what_cannot_be_run_is_named(agents: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        await mesh.run(agents, "go")


async def test_a_submit_that_no_guard_would_take_is_refused() -> None:
    with pytest.raises(mesh.SubmitRejected, match="malformed"):
        await mesh.run(front, "go", facts={"": 1})


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "asking.py").write_text(ASKING)
    return Folder(tmp_path)


def test_a_command_takes_a_yes_at_its_terminal(folder: Folder) -> None:
    ended = folder.typed("maybe\nyes\n", "run", "asking.py:front", "go", "--follow")
    assert (ended.status, ended.out) == (Exit.DONE, "paid 5\n"), ended
    assert "not what was asked for" in ended.err
    assert "front → human  ask" in ended.err


def test_a_bug_is_shown_from_the_authors_own_line_on(folder: Folder) -> None:
    ended = folder.process("run", "asking.py:lost", "go")
    first, place, *_, last = ended.err.splitlines()
    assert (ended.status, first) == (Exit.FAILED, "Traceback (most recent call last):")
    assert 'asking.py", line 17, in lost' in place
    assert last.endswith("UnknownFact: no fact 'order': there are text")


@pytest.mark.parametrize(
    ("reference", "status", "said"),
    [
        ("asking.py", Exit.USAGE, "asking.py has 3 agents; say which one: asking.py:front, asking.py:lost, "),
        ("asking.py:nobody", Exit.USAGE, "asking.py has no agent 'nobody'; say which one: "),
        ("nothing.py:front", Exit.USAGE, "there is no file nothing.py"),
        ("nothing:front", Exit.USAGE, "no module 'nothing'"),
        ("json.py:front", Exit.USAGE, "json.py cannot be loaded: another module is called 'json'"),
        ("asking.py:front", Exit.FAILED, "the request has no end: front asks a person: front asks for"),
        ("asking.py:stuck", Exit.FAILED, "the request has no end: a person has it now (asked): too hard"),
    ],
)
def test_what_a_command_cannot_do_is_said_in_a_line(
    folder: Folder, reference: str, status: Exit, said: str
) -> None:
    (folder.path / "json.py").write_text("")
    ended = folder.process("run", reference, "go")
    assert ended.status == status, ended
    assert ended.err.startswith(f"mesh: {said}"), ended
    assert len(ended.err.splitlines()) == 1
