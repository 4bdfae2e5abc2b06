"""Hooks: they see what really happens, decide nothing, and harm nothing."""

import asyncio
from typing import Any

import pytest

from mesh.agent import (
    ApprovalNeeded,
    CalledModel,
    CalledTool,
    Hooks,
    Move,
    Permanent,
    Retry,
    ToolError,
    Transfer,
    Turn,
    agent,
    tool,
)
from mesh.agent._execution import Execution
from mesh.model import ClaudeAgent, Instructions, Reply, Supervisor, Swarm
from mesh.replay.code import Replayer
from mesh.testing import (
    FleetHarness,
    InMemoryGuard,
    MemorySteps,
    StrictModel,
    calls,
    driven_by,
    fleet_of,
    says,
    turn,
)
from protocol.wire.moves import Complete
from tests.certain import is_
from tests.logs import captured_logs
from tests.servers import until

Seen = list[tuple[str, Any]]


def recorder(seen: Seen, **more: Any) -> Hooks:
    """Return hooks that note what they are told."""
    return Hooks(
        before=lambda turn: seen.append(("before", turn.round)),
        after=lambda turn, ended: seen.append(("after", ended)),
        on_handoff=lambda turn, move: seen.append(("handoff", move)),
        on_tool=lambda turn, called: seen.append(("tool", called)),
        on_model=lambda turn, called: seen.append(("model", called)),
        **more,
    )


@tool(secret=["pin"])
async def look_up(name: str, pin: str = "") -> dict[str, Any]:
    """Look up a customer."""
    if name == "nobody":
        raise ToolError("no such customer")
    if name == "broken":
        raise ZeroDivisionError("a bug")
    return {"id": 7}


@tool(effect="once", approve="human")
async def pay(cents: int) -> str:
    """Pay."""
    return "paid"


def front(hooks: Hooks | None) -> Any:
    @agent(name="front", hooks=hooks)
    async def handle(turn: Turn) -> Move:
        found = await turn.call(look_up, name="Ada", pin="4711")
        return turn.transfer("back", summary="greet", facts=found)

    return handle


# --- what they see ------------------------------------------------------------------------------------


async def test_a_handlers_round_is_seen_from_its_beginning_to_its_move() -> None:
    seen: Seen = []
    move = await front(recorder(seen))(turn(agent="front", peers=["back"]))
    assert [name for name, _ in seen] == ["before", "tool", "handoff", "after"]
    called = is_(seen[1][1], CalledTool)
    assert (called.name, called.arguments, called.result, called.error) == (
        "look_up",
        {"name": "Ada"},
        {"id": 7},
        None,
    )
    assert called.seconds >= 0
    assert seen[2][1] == seen[3][1] == move
    assert isinstance(move, Transfer)


async def test_a_models_round_is_seen_with_its_prompts_and_replies() -> None:
    seen: Seen = []
    clerk = ClaudeAgent(
        "clerk", instructions=Instructions("1", "Be brief."), tools=[look_up], hooks=recorder(seen)
    )
    with driven_by(StrictModel(calls(("look_up", {"name": "nobody"})), says("Nobody of that name."))):
        await clerk(turn(agent="clerk", summary="Who is it?"))
    assert [name for name, _ in seen] == ["before", "model", "tool", "model", "after"]
    first, second = (is_(called, CalledModel) for name, called in seen if name == "model")
    assert "Summary: Who is it?" in first.prompt.brief
    assert is_(first.reply, Reply).calls[0].name == "look_up"
    assert is_(second.reply, Reply).text == "Nobody of that name."
    failed = is_(seen[2][1], CalledTool)
    assert (failed.result, str(failed.error)) == (None, "no such customer")
    assert seen[-1][1] == Complete(answer="Nobody of that name.")


@pytest.mark.parametrize("error", [Retry("later"), Permanent("never"), ZeroDivisionError("a bug")], ids=repr)
async def test_a_round_that_fails_is_seen_with_its_error(error: Exception) -> None:
    seen: Seen = []

    @agent(name="front", hooks=recorder(seen))
    async def handle(turn: Turn) -> Move:
        raise error

    with pytest.raises(type(error)):
        await handle(turn(agent="front"))
    assert [*seen] == [("before", 0), ("after", error)]


async def test_an_approval_that_is_asked_for_ends_a_round_and_no_tool_was_called() -> None:
    seen: Seen = []

    @agent(name="front", hooks=recorder(seen))
    async def handle(turn: Turn) -> Move:
        return turn.complete(await turn.call(pay, cents=5))

    walk = await FleetHarness(InMemoryGuard(fleet_of("front", human=True)), {"front": handle}).go(
        "Pay!", replies=[True]
    )
    assert walk.answer == "paid"
    names = [name for name, _ in seen]
    assert names == ["before", "after", "before", "tool", "after"]
    assert isinstance(seen[1][1], ApprovalNeeded)


async def test_a_lead_and_a_swarm_have_hooks() -> None:
    seen: Seen = []
    hooks = recorder(seen)
    plan, answer = Instructions("1", "Plan."), Instructions("1", "Answer.")
    assert Supervisor("lead", planner=plan, synthesizer=answer, hooks=hooks).hooks is hooks
    writer = ClaudeAgent("writer", instructions=Instructions("1", "Write."), hooks=hooks)
    assert Swarm(writer, reads=lambda turn: []).hooks is hooks


# --- outside the journal ------------------------------------------------------------------------------


async def test_what_the_journal_answers_did_not_happen_again() -> None:
    seen: Seen = []
    steps = MemorySteps()
    for _ in range(2):
        await front(recorder(seen))(turn(agent="front", peers=["back"], steps=steps))
    assert [name for name, _ in seen] == ["before", "tool", "handoff", "after", "before", "handoff", "after"]


async def test_hooks_write_no_step_and_change_no_report() -> None:
    found = []
    for hooks in (None, recorder([])):
        steps = MemorySteps()
        given = turn(agent="front", peers=["back"], steps=steps)
        await front(hooks)(given)
        found.append((given.execution.report.digest, steps.written))
    assert found[0] == found[1]
    assert found[0][1] == 1


async def test_a_replay_calls_no_hook_and_comes_to_the_same() -> None:
    seen: Seen = []

    @agent(name="back")
    async def back(turn: Turn) -> Move:
        return turn.complete("done")

    agents = {"front": front(recorder(seen)), "back": back}
    walk = await FleetHarness(InMemoryGuard(fleet_of("front", "back")), agents).go("Hello")
    assert walk.answer == "done"
    seen.clear()
    found = await Replayer(agents, walk.recording).replay(walk.guard.bodies)
    assert [each.result for each in found] == ["same", "same"]
    assert seen == []


# --- they decide nothing ------------------------------------------------------------------------------


def meddle(value: Any) -> None:
    """Change all that can be changed."""
    if isinstance(value, dict):
        for each in value.values():
            meddle(each)
        value["meddled"] = True
    if isinstance(value, list):
        value.append("meddled")


async def test_a_hook_that_changes_what_it_gets_changes_copies() -> None:
    def on_turn(turn: Turn, *_: Any) -> None:
        for fact in turn.handoff.facts:
            meddle(fact.value)

    def on_tool(turn: Turn, called: CalledTool) -> None:
        meddle(called.result)
        meddle(called.arguments)

    def on_model(turn: Turn, called: CalledModel) -> None:
        for call in called.reply.calls:
            meddle(call.arguments)
        for spec in called.prompt.tools:
            meddle(spec.schema)

    def on_handoff(turn: Turn, move: Move) -> None:
        for fact in move.facts:
            meddle(fact.value)

    hooks = Hooks(before=on_turn, after=on_turn, on_handoff=on_handoff, on_tool=on_tool, on_model=on_model)
    clerk = ClaudeAgent("clerk", instructions=Instructions("1", "Be brief."), tools=[look_up], hooks=hooks)
    given = {"summary": "x", "facts": [{"key": "found", "value": {"id": 7}}]}
    with driven_by(
        StrictModel(calls(("look_up", {"name": "Ada"})), calls(("transfer_to_back", given)))
    ) as model:
        move = await clerk(turn(agent="clerk", peers=["back"], facts={"order": {"n": [1]}}))
    assert is_(move, Transfer).facts[0].value == {"id": 7}
    assert "meddled" not in str(model.prompts)


async def test_a_hooks_turn_takes_no_steps() -> None:
    errors: list[str] = []

    async def before(turn: Turn) -> None:
        assert turn.facts["name"] == "Ada"
        for taken in (
            turn.call(look_up, name="Ada"),
            turn.now(),
            turn.remark("x"),
            turn.make(turn.fail("x")),
        ):
            with pytest.raises(RuntimeError, match="only reads, without steps"):
                await taken
        with pytest.raises(RuntimeError):
            turn.spend(tokens=1)
        errors.append("none")

    steps = MemorySteps()
    await front(Hooks(before=before))(turn(agent="front", peers=["back"], facts={"name": "Ada"}, steps=steps))
    await until(lambda: errors == ["none"])
    assert steps.written == 1


# --- they harm nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("a bug"), SystemExit(1), Retry("again"), asyncio.CancelledError()], ids=repr
)
async def test_what_a_hook_raises_is_logged_with_its_place(error: BaseException) -> None:
    def fails(*_: Any) -> None:
        raise error

    hooks = Hooks(before=fails, after=fails, on_handoff=fails, on_tool=fails, on_model=fails)
    with captured_logs() as logged:
        move = await front(hooks)(turn(agent="front", peers=["back"]))
    assert is_(move, Transfer).to_agent == "back"
    found = [line for line in logged if line["event"] == "hook_failed"]
    assert [line["hook"] for line in found] == ["before", "on_tool", "on_handoff", "after"]
    assert {line["agent"] for line in found} == {"front"}
    assert {line["error"] for line in found} == {type(error).__name__}
    assert all(line["place"].startswith("test_hooks.py:") for line in found)


async def test_an_async_hook_runs_beside_the_round_and_its_error_is_logged() -> None:
    goes_on, told = asyncio.Event(), asyncio.Event()

    async def waits(turn: Turn, called: CalledTool) -> None:
        await goes_on.wait()
        told.set()
        raise ZeroDivisionError("a bug")

    with captured_logs() as logged:
        move = await front(Hooks(on_tool=waits))(turn(agent="front", peers=["back"]))
        assert isinstance(move, Transfer)
        assert not told.is_set()
        goes_on.set()
        await until(lambda: bool(logged))
    (line,) = [line for line in logged if line["event"] == "hook_failed"]
    assert (line["hook"], line["error"]) == ("on_tool", "ZeroDivisionError")


async def test_without_hooks_nothing_is_copied() -> None:
    held: list[Execution] = []

    @agent(name="front")
    async def handle(turn: Turn) -> Move:
        held.append(turn.execution)
        return turn.complete("done")

    await handle(turn(agent="front"))
    assert held[0].watcher is None
