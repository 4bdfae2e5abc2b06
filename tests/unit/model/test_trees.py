"""Supervisors and workers before a guard: the whole way of a request, in memory."""

from typing import Any

from mesh.agent import Agent, Turn, agent
from mesh.model import ClaudeAgent, Supervisor
from mesh.model.prompt import Instructions
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, calls, driven_by, fleet_of, says
from protocol.wire.commands import Move
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.ids import AgentName
from tests.unit.model.lead_rounds import plan


def entry(name: str, *intents: str, **more: Any) -> AgentEntry:
    return AgentEntry(name=AgentName(name), intents=intents or None, **more)


def guard(*entries: AgentEntry, **policy: Any) -> InMemoryGuard:
    return InMemoryGuard(fleet_of(*entries), {"default": Policy(topology="supervised", **policy)})


def supervisor(name: str = "lead", **more: Any) -> Supervisor:
    planner, synthesizer = Instructions("1", "Plan."), Instructions("1", "Answer.")
    return Supervisor(name, planner=planner, synthesizer=synthesizer, **more)


@agent()
async def finder(turn: Turn) -> Move:
    """Find."""
    return turn.deliver(f"found by {turn.task_name}", facts={"used": list(turn.results)})


@agent()
async def writer(turn: Turn) -> Move:
    """Write."""
    return turn.deliver("written", facts={"from": [each.summary for each in turn.results.values()]})


AGENTS: dict[str, Agent] = {"finder": finder, "writer": writer}
FLEET = (entry("lead"), entry("finder", "find"), entry("writer", "write"))
STEPS = plan(
    {"name": "a", "intent": "find"},
    {"name": "b", "agent": "finder"},
    {"name": "c", "agent": "writer", "needs": ["a", "b"]},
)


def cast(*plans: Any, answer: str = "So.", name: str = "lead") -> dict[str, StrictModel]:
    return {f"{name}-planner": StrictModel(*plans), f"{name}-synthesizer": StrictModel(says(answer))}


async def test_a_supervisor_comes_to_its_answer_through_a_guard() -> None:
    harness = FleetHarness(guard(*FLEET), {**AGENTS, "lead": supervisor()})
    with driven_by(cast(calls(STEPS))):
        await harness.go("Why?")
    assert (harness.status, harness.answer) == ("completed", "So.")
    assert harness.tasks == {"a": "delivered", "b": "delivered", "c": "delivered"}
    lead = harness.turns[-1]
    assert lead.results["c"].facts["from"] == ["found by a", "found by b"]
    assert lead.results["a"].facts["used"] == []


async def test_a_lead_that_a_model_drives_by_itself_delegates_and_answers() -> None:
    tasks = [{"name": "a", "summary": "s", "to": "finder"}, {"name": "b", "summary": "s", "intent": "write"}]
    lead = ClaudeAgent("lead", instructions=Instructions("1", "Lead."))
    words = ClaudeAgent("writer", instructions=Instructions("1", "Write."))
    models = {
        "lead": StrictModel(calls(("delegate", {"tasks": tasks})), says("done")),
        "writer": StrictModel(says("Written.")),
    }
    harness = FleetHarness(guard(*FLEET), {"lead": lead, "finder": finder, "writer": words})
    with driven_by(models):
        await harness.go("Why?")
    assert (harness.status, harness.answer) == ("completed", "done")
    assert harness.turns[-1].results["b"].facts["answer"] == "Written."


async def test_hierarchy_is_nesting_and_an_error_below_arrives_with_its_origin() -> None:
    @agent()
    async def broken(turn: Turn) -> Move:
        """Give up."""
        return turn.fail("the index is gone")

    @agent()
    async def middle(turn: Turn) -> Move:
        """Lead a task of its own."""
        if not turn.results:
            return turn.delegate([turn.task("deep", summary="s", to="broken")])
        return turn.fail("nothing came of it")

    @agent()
    async def top(turn: Turn) -> Move:
        """Lead."""
        if not turn.results:
            return turn.delegate([turn.task("mid", summary="s", to="middle")])
        return turn.complete("gave up")

    harness = FleetHarness(
        guard(entry("top"), entry("middle"), entry("broken")),
        {"top": top, "middle": middle, "broken": broken},
    )
    await harness.go("Why?")
    error = harness.turns[-1].results["mid"].error
    assert error is not None
    assert (error.code, error.agent, error.lineage) == ("failed", "middle", ("top", "middle"))
    assert error.origin is not None
    assert (error.origin.agent, error.origin.lineage) == ("broken", ("top", "middle", "broken"))


async def test_a_plan_beyond_the_policy_goes_back_to_the_planner_as_the_guard_refuses_it() -> None:
    wide = plan(*({"name": f"t{n}", "agent": "finder"} for n in range(3)))
    harness = FleetHarness(guard(*FLEET, max_tasks=2), {**AGENTS, "lead": supervisor()})
    narrow = plan({"name": "one", "agent": "finder"})
    with driven_by(cast(calls(wide), calls(narrow))):
        await harness.go("Why?")
    assert harness.refused == ["fan_out"]
    assert (harness.status, harness.tasks) == ("completed", {"one": "delivered"})


async def test_results_are_told_again_after_a_round_that_failed() -> None:
    failing = [True]

    @agent()
    async def lead(turn: Turn) -> Move:
        """Lead, and break once after the join."""
        if not turn.results:
            return turn.delegate([turn.task("a", summary="s", to="finder")])
        if failing.pop() if failing else False:
            raise RuntimeError("once")
        return turn.complete(list(turn.results))

    harness = FleetHarness(guard(*FLEET), {**AGENTS, "lead": lead}, keep_going=True)
    await harness.go("Why?")
    assert (harness.broke, harness.answer) == (["bug"], ["a"])
