"""Supervisors and workers before a guard: the whole way of a request, in memory."""

from dataclasses import replace
from typing import Any

from mesh.agent import Agent, Permanent, Task, Turn, agent, tool
from mesh.agent.errors import ActionNotAllowed
from mesh.model import ClaudeAgent, Instructions, Supervisor, Swarm
from mesh.model.swarm import Board
from mesh.testing import FleetHarness, InMemoryGuard, StrictModel, calls, driven_by, fleet_of, says
from protocol.views.tree import flat, trees
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from tests.certain import known
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


async def test_a_lead_that_a_person_takes_up_again_still_has_its_tasks() -> None:
    @agent()
    async def lead(turn: Turn) -> Move:
        """Lead, be stuck once, and go on with what came out before."""
        if "a" not in turn.results:
            return turn.delegate([turn.task("a", summary="s", to="finder")])
        if not any(past.how == "resolved" for past in turn.past):
            raise Permanent("stuck")
        if "c" not in turn.results:
            return turn.delegate([turn.task("c", summary="s", to="writer", uses=["a"])])
        return turn.complete([each.summary for each in turn.results.values()])

    harness = FleetHarness(guard(*FLEET), {**AGENTS, "lead": lead})
    await harness.go("Why?")
    assert harness.status == "escalated"
    harness.guard.resolve(again=True)
    await harness.go_on()
    assert (harness.refused, harness.answer) == ([], ["found by a", "written"])
    assert [line.name for line in flat(trees(harness.guard.ledger, {}))] == ["", "a", "", "c"]


# --- swarms -----------------------------------------------------------------------------------------


@tool(effect="idempotent")
async def write(text: str, idempotency_key: str = "") -> str:
    """Write it down."""
    return f"wrote {text}"


@agent(name="r1", tools=[write])
async def reader(turn: Turn) -> Move:
    """Read, try to write, and post."""
    try:
        await turn.call(write, text="x")
    except ActionNotAllowed:
        await turn.post({"vote": len(turn.board)})
    return turn.deliver(f"{turn.agent} read {turn.task_name}")


@agent(name="lead", tools=[write])
async def decides(turn: Turn) -> Move:
    """Write what was read."""
    done = await turn.call(write, text=", ".join(each.summary for each in turn.results.values()))
    return turn.complete([done, {by: dict(facts) for by, facts in turn.board.items()}])


def looks(turn: Turn) -> list[Task]:
    return [turn.task(f"look-{n}", summary="Look.", intent="read") for n in range(2)]


def swarm_of(swarm: Swarm, *readers: str, listed: tuple[str, ...] = (), **policy: Any) -> FleetHarness:
    fleet = fleet_of("lead", *(entry(name, "read") for name in listed or readers))
    judge = InMemoryGuard(fleet, {"default": Policy(topology="swarm", **policy)})
    return FleetHarness(judge, {"lead": swarm, **{name: replace(reader, name=name) for name in readers}})


async def test_a_swarm_reads_through_offers_and_writes_in_one_turn() -> None:
    harness = await swarm_of(Swarm(decides, reads=looks), "r1", "r2").go("Why?")
    assert harness.tasks == {"look-0": "delivered", "look-1": "delivered"}
    wrote, board = harness.answer
    assert wrote == "wrote r1 read look-0, r2 read look-1"  # no agent gets two of a set
    assert set(board) == {"r1", "r2"}


async def test_an_offer_that_nobody_may_have_is_a_failed_result() -> None:
    harness = await swarm_of(Swarm(decides, reads=looks), listed=("r1",), claim_within_s=5.0).go("Why?")
    error = harness.turns[-1].results["look-1"].error
    assert (harness.tasks["look-0"], known(error).code) == ("failed", "unclaimed")


async def test_an_agent_alone_does_one_read_after_the_other() -> None:
    harness = await swarm_of(Swarm(decides, reads=looks), "r1").go("Why?")
    assert harness.answer[0] == "wrote r1 read look-0, r1 read look-1"


async def test_a_debate_goes_through_its_rounds_on_the_board() -> None:
    boards: list[Board] = []

    def agreed(board: Board) -> bool:
        boards.append(board)
        return False

    harness = await swarm_of(Swarm(decides, reads=looks, rounds=2, agreed=agreed), "r1", "r2").go("Why?")
    assert list(harness.tasks) == ["look-0", "look-1", "look-0~2", "look-1~2"]
    assert harness.status == "completed"
    assert {by: facts["vote"] for by, facts in boards[-1].items()} == {"r1": 2, "r2": 2}
