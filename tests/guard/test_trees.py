"""Trees of tasks: a guard is killed between two of its steps, and nothing is opened, told or ended twice.

What each agent was given and asked for is counted outside of the log.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.guard import processor
from protocol.domain.steps import Decided
from protocol.wire import events
from protocol.wire.commands import MAX_MESSAGE_BYTES, Cancel, MoveProposed, Report, Submit, Usage
from protocol.wire.event_parts import Assignment
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Complete, Delegate, Deliver, Move, Task
from protocol.wire.prices import LARGEST_AMOUNT, MAX_MODELS, Metered
from tests.certain import is_
from tests.guard.stage import HASTY, Stage, control_command, proposal_command, submit_command
from tests.servers import PATIENCE_S, eventually, until

CALLS = 40
"""Model calls that the root of each tree is given."""


FURNISHED = HASTY


def task(name: str, to: str) -> Task:
    return Task(name=name, summary=name, to_agent=AgentName(to), carry=())


PLANS: dict[str, Delegate] = {
    "": Delegate(tasks=(task("left", "b"), task("right", "c"))),
    "left": Delegate(tasks=(task("deep", "d"), task("also", "e"))),
}
"""By the task whose turn asks for it."""
TASKS = ("also", "deep", "left", "right")
PLAYED = Counter(
    {
        "request.opened": 1,
        "turn.delegated": 2,
        "task.opened": 4,
        "task.delivered": 4,
        "turn.resumed": 2,
        "request.completed": 1,
    }
)


def as_planned(work: Assignment) -> Move | None:
    """Delegate, deliver, and answer once everything is there."""
    if work.task in PLANS and not work.results:
        return PLANS[work.task]
    if work.task:
        return Deliver(summary=f"{work.task} is done")
    return Complete(answer=sorted(result.name for result in work.results))


class Cast:
    """Agents that do at once what a function says, and count what they were given."""

    def __init__(self, stage: Stage, decide: Callable[[Assignment], Move | None] = as_planned) -> None:
        self._stage = stage
        self._decide = decide
        self.given: Counter[tuple[str, int]] = Counter()
        """How often each round of each task was seen."""
        self.turns: dict[str, Assignment] = {}
        """By task: its newest work."""

    async def play(self, request: str) -> None:
        """Act on everything that comes, until cancelled."""
        actors = [await self._stage.actor(name) for name in "abcde"]
        seen = Counter[str]()
        while True:
            for actor in actors:
                got = actor.got.get(request, [])
                for event in got[seen[actor.name] :]:
                    seen[actor.name] += 1
                    if event.work is None:
                        continue
                    self.given[event.work.task, event.work.round] += 1
                    self.turns[event.work.task] = event.work
                    move = self._decide(event.work)
                    if move is not None:
                        await actor.propose(request, event.work, move)
            await asyncio.sleep(0.005)


async def ends(stage: Stage, request: str) -> set[str]:
    """Return the turns of a request whose ends were told where their agents look."""
    found = await (await stage.bus("admin")).api(
        "STREAM.INFO.ENDS", {"subjects_filter": f"mesh.end.*.{request}.*"}
    )
    return {subject.rpartition(".")[2] for subject in found["state"].get("subjects") or {}}


async def outlived(stage: Stage, cast: Cast, point: str, **of: Any) -> tuple[str, Any]:
    """Play a request whose guard dies at a point and has an heir; return its id and its answer."""
    client = await stage.client()
    async with stage.doomed_guard(point) as doomed:
        request = await client.submit("hello", policy="tree", **of)
        playing = asyncio.create_task(cast.play(request))
        await doomed.ended()
    await stage.guard()
    answer = (await client.wait(request, timeout_s=PATIENCE_S)).answer
    playing.cancel()
    await stage.drained()
    return request, answer


POINTS = (
    *("append:turn.delegated#1", "append:turn.delegated#2"),
    *("append:task.opened#1", "append:task.opened#2", "append:task.opened#3", "append:task.opened#4"),
    *("append:task.delivered#1", "append:task.delivered#4"),
    *("append:turn.resumed#1", "append:turn.resumed#2"),
    "append:request.completed",
    *("guard.heard#2", "guard.decided#2", "guard.armed#2"),  # the first delegate
    *("guard.due#1", "guard.followed#1"),  # its first task
    *("guard.heard#4", "guard.decided#4", "guard.armed#4"),  # the first deliver
    *("guard.heard#7", "guard.decided#7", "guard.armed#7"),  # the last deliver, which closes a join
    *("guard.due#6", "guard.followed#6"),  # the root's next round
)
"""Events of the tree, and failpoints by how often they were passed. Eight messages are heard."""


@pytest.mark.parametrize("point", POINTS)
async def test_a_guard_is_killed_and_each_task_is_opened_and_told_once(stage: Stage, point: str) -> None:
    cast, granted = Cast(stage), Constraints(budget=Budget(model_calls=CALLS))
    request, answer = await outlived(stage, cast, point, constraints=granted)
    assert answer == ["left", "right"]
    log = await stage.log(request)
    assert Counter(await stage.types(request)) == PLAYED
    opened = [event for event in log if isinstance(event, events.TaskOpened)]
    assert sorted(event.name for event in opened) == sorted(TASKS)
    assert cast.given == Counter({(name, 0): 1 for name in ("", *TASKS)} | {("", 1): 1, ("left", 1): 1})
    grants = {event.name: event.work.handoff.constraints.budget for event in opened}
    calls = {name: grant.model_calls or 0 for name, grant in grants.items() if grant is not None}
    assert calls["left"] + calls["right"] <= CALLS
    assert calls["deep"] + calls["also"] <= calls["left"]


@pytest.mark.parametrize(
    ("point", "before"),
    [
        ("guard.heard@task.opened#4", 0),
        ("append:request.cancelled", 0),
        ("guard.ended#1", 0),
        ("told", 1),
        ("guard.ended#3", 2),
        ("guard.decided#4", 5),
        ("guard.armed@request.cancelled", 5),
    ],
)
async def test_whoever_dies_while_many_turns_end_all_of_them_are_told(
    stage: Stage, point: str, before: int
) -> None:
    """`before`: how many ends the guard that dies has told."""

    def only_plan(work: Assignment) -> Move | None:
        return PLANS.get(work.task)

    client, cast = await stage.client(), Cast(stage, only_plan)
    async with stage.doomed_guard(point) as doomed:
        request = await client.submit("hello", policy="tree")
        playing = asyncio.create_task(cast.play(request))
        await until(lambda: len(cast.turns) == 1 + len(TASKS))
        await client.cancel(request)
        await doomed.ended()
    assert len(await ends(stage, request)) == before
    told = {name: await stage.notices(name) for name in "abcde"}
    await stage.guard()
    await stage.drained()
    playing.cancel()
    assert (await stage.types(request))[-1] == "request.cancelled"
    turns = {name: work.turn for name, work in cast.turns.items()}
    assert await ends(stage, request) == set(turns.values())

    def noticed() -> set[str]:
        return {each.ended.turn for name in "abcde" for each in told[name] if each.ended}

    await until(lambda: noticed() >= set(turns.values()))
    assert noticed() == set(turns.values())


@pytest.mark.parametrize("point", ["guard.fired", "guard.due#2", "append:turn.resumed", "guard.followed#2"])
async def test_a_guard_that_dies_as_a_join_runs_out_of_time_leaves_it_to_the_next(
    stage: Stage, point: str
) -> None:
    plan = Delegate(tasks=(task("slow", "b"),), within_s=0.5)

    def waits(work: Assignment) -> Move | None:
        if work.task:
            return None
        return Complete(answer="without it", cancel_open=True) if work.round else plan

    cast = Cast(stage, waits)
    request, answer = await outlived(stage, cast, point)
    assert answer == "without it"
    types = Counter(await stage.types(request))
    assert (types["task.opened"], types["turn.resumed"], types["request.completed"]) == (1, 1, 1)
    assert cast.given == Counter({("", 0): 1, ("slow", 0): 1, ("", 1): 1})


@pytest.mark.parametrize("point", ["append:task.delivered", "append:task.cancelled", "told"])
async def test_a_lead_that_ends_takes_the_tasks_below_it_along_and_no_other(stage: Stage, point: str) -> None:
    """`left` delivers while one of its own tasks is open; its own deep task goes with it, `right` stays."""
    last = {"deep", "right"}

    def hasty(work: Assignment) -> Move | None:
        if work.task in last:
            return None
        if work.task == "left":
            plan = msgspec.structs.replace(PLANS["left"], join="any")
            return Deliver(summary="enough", cancel_open=True) if work.results else plan
        if not work.task:
            plan = msgspec.structs.replace(PLANS[""], join="any")
            return Complete(answer="enough", cancel_open=True) if work.results else plan
        return Deliver(summary="done")

    cast = Cast(stage, hasty)
    request, answer = await outlived(stage, cast, point)
    assert answer == "enough"
    log = await stage.log(request)
    cancelled = [event for event in log if isinstance(event, events.TaskCancelled)]
    assert [(event.name, event.why) for event in cancelled] == [("deep", "lead_ended")]
    assert {event.name for event in log if isinstance(event, events.TaskDelivered)} == {"left", "also"}

    async def told() -> bool:
        return await ends(stage, request) == {cast.turns[name].turn for name in last}

    await eventually(told)


@pytest.mark.parametrize("policy", ["tree", "default"])
async def test_who_loses_a_race_over_a_tree_leaves_room_for_the_other_guard(
    stage: Stage, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many turns are open the other guard has more to do; elsewhere nothing is waited for."""
    drawn = Mock(return_value=0.1)
    monkeypatch.setattr(processor, "uniform", drawn)
    one, other = await stage.processor("one"), await stage.processor("other")
    request = (await stage.client()).new_id()
    opened = is_(await one.process(submit_command(request, Submit(text="hello", policy=policy))), Decided)
    turns = [TurnId(opened.event.id)]
    if policy == "tree":
        await one.process(proposal_command(request, "a", _moved(turns[0], PLANS[""])))
        turns = [
            TurnId(event.id) for event in await stage.log(request) if isinstance(event, events.TaskOpened)
        ]
    first, last = ("b", "c") if policy == "tree" else ("a", "a")
    move = Deliver(summary="done") if policy == "tree" else Complete(answer="done")
    await other.process(proposal_command(request, first, _moved(turns[0], move)))
    await one.process(proposal_command(request, last, _moved(turns[-1], move)))
    assert one.conflicts == 1
    assert drawn.call_count == (policy == "tree")
    await one.process(control_command(request, "op", Cancel(id="enough")))


def _moved(turn: TurnId, move: Move) -> MoveProposed:
    return MoveProposed(turn=turn, round=0, move=move)


async def test_a_plan_of_ten_thousand_tasks_is_refused_and_its_lead_asks_for_less(stage: Stage) -> None:
    """It does not fit into its sender's queue; one that does is refused by `fan_out`."""
    told: list[tuple[str, str]] = []

    async def plan(turn: Turn) -> Move:
        told.extend((refusal.rule, refusal.hint) for refusal in turn.refusals)
        if turn.refusals:
            return turn.complete("fewer, then")
        turn.spend(tokens=77)
        return turn.delegate([turn.task(f"t{number}", summary="x", to="b") for number in range(10_000)])

    await stage.guard()
    await stage.runtime(Agent("a", plan))
    request = await (await stage.client()).submit("hello", policy="tree")
    await stage.reached(request, events.RequestCompleted)
    assert await stage.types(request) == ["request.opened", "move.refused", "request.completed"]
    refused = await stage.reached(request, events.MoveRefused)
    assert (refused.move, refused.report.usage.tokens) == (Delegate(), 77)
    assert refused.oversized == refused.refusal.numbers["bytes"] > MAX_MESSAGE_BYTES
    [(rule, hint)] = told
    assert rule == Rule.SIZE
    assert "fewer tasks" in hint


async def test_workers_that_report_the_largest_amounts_leave_a_request_that_can_be_cancelled(
    stage: Stage,
) -> None:
    """Their sum is cut to what an event can hold, and a guard that was not there reads the log."""
    guard = await stage.guard()
    client, lead, worker = await stage.client(), await stage.actor("a"), await stage.actor("b")
    request = await client.submit("hello", policy="tree")
    plan = Delegate(tasks=(task("one", "b"), task("two", "b")))
    await lead.propose(request, await lead.work(request), plan)
    used = {f"model-{number}": Metered(input=LARGEST_AMOUNT) for number in range(MAX_MODELS)}
    for nth in range(2):
        work = await worker.work(request, nth=nth)
        models = {f"{nth}-{name}": metered for name, metered in used.items()}
        report = Report(usage=Usage(tokens=LARGEST_AMOUNT, models=models))
        await worker.propose(request, work, Deliver(summary="done"), report=report)
    again = await lead.work(request, round_=1)
    assert again.committed.tokens == LARGEST_AMOUNT
    await stage.dismiss(guard)
    await stage.guard("g2")
    await client.cancel(request)
    await stage.reached(request, events.RequestCancelled)
