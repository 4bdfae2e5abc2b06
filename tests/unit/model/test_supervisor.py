"""A supervisor plans, delegates what is ready, has flaws mended, and answers; whatever instance it is."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from mesh.agent import Result, Turn
from mesh.agent.errors import Permanent
from mesh.model import ContextWindow
from mesh.model.arguments import PlanInvalid
from mesh.model.port import Prompt, Reply
from mesh.model.prompt import Instructions
from mesh.model.rounds import TopologyWrong
from mesh.model.supervisor import DelegateRefused, Flaw, Supervisor
from mesh.ops.prompt import rebuild
from mesh.testing import StrictModel, calls, driven_by, says
from mesh.testing.harness import delivered, undelivered
from protocol.wire.event_parts import TaskResult
from protocol.wire.handoff import Fact
from protocol.wire.moves import Complete, Delegate, Deliver, Task
from protocol.wire.records import decode_record
from tests.certain import is_
from tests.unit.model.lead_rounds import Rounds, entry, plan

PLANNER = Instructions("1", "Plan.")
SYNTHESIZER = Instructions("2", "Answer.")
WORKERS = (entry("finder", "find"), entry("writer", "write"))


def supervisor(**more: Any) -> Supervisor:
    return Supervisor("lead", planner=PLANNER, synthesizer=SYNTHESIZER, **more)


def done(task: Task) -> TaskResult:
    return delivered(task.name, f"did {task.name}", {"n": 1})


def models(plans: Iterable[Any], answers: Iterable[Any]) -> dict[str, StrictModel]:
    return {"lead-planner": StrictModel(*plans), "lead-synthesizer": StrictModel(*answers)}


FIND, LOOK = {"name": "find", "agent": "finder"}, {"name": "look", "intent": "find"}
WRITE = {"name": "write", "agent": "writer", "intent": "write", "needs": ["find", "look"]}


def shape(delegates: Iterable[Delegate]) -> list[tuple[list[str], Any]]:
    return [([task.name for task in each.tasks], each.join) for each in delegates]


# --- the usual way --------------------------------------------------------------------------------


async def test_each_step_is_delegated_once_its_own_inputs_are_there() -> None:
    other = {"name": "other", "agent": "writer", "needs": ["find"]}
    rounds = Rounds(supervisor(), WORKERS, done)
    with driven_by(models([calls(plan(FIND, LOOK, other, WRITE))], [says("It scatters.")])) as cast:
        move = await rounds.go()
    assert move == Complete(answer="It scatters.")
    assert shape(rounds.delegates) == [(["find", "look"], "any"), (["other"], "any"), (["write"], "all")]
    tasks = {task.name: task for each in rounds.delegates for task in each.tasks}
    assert tasks["write"].uses == ("find", "look")
    assert (tasks["look"].to_agent, tasks["look"].intent) == (None, "find")
    assert tasks["find"].uses == ()
    [asked] = cast["lead-synthesizer"].prompts
    assert asked.instructions == "Answer."
    assert "- write: (delivered, worker) did write" in asked.brief
    assert "Full text of write:" in asked.brief
    assert "Full text of find:" not in asked.brief  # it was for `write` to use


async def test_a_round_that_runs_again_comes_to_the_same_and_asks_nobody_twice() -> None:
    rounds = Rounds(supervisor(), WORKERS, done)
    with driven_by(models([calls(plan(FIND, LOOK, WRITE))], [says("So.")])):
        while True:
            move = await rounds.round()
            written = rounds.steps.written
            assert await rounds.round() == move
            assert rounds.steps.written == written
            if not isinstance(move, Delegate):
                break
            rounds.judged(move)
    assert move == Complete(answer="So.")


async def test_the_fleet_may_change_while_a_plan_is_carried_out() -> None:
    rounds = Rounds(supervisor(), WORKERS, done)
    with driven_by(models([calls(plan(FIND, LOOK, WRITE))], [says("So.")])):
        move = is_(await rounds.round(), Delegate)
        rounds.judged(move)
        rounds.fleet.agents["new"] = entry("new")  # type: ignore[index]
        assert await rounds.go() == Complete(answer="So.")


class Verdict(BaseModel):
    blue: bool


async def test_an_answer_has_its_form_and_a_worker_delivers_it() -> None:
    wrong, right = (
        calls(("deliver", {"summary": "s"})),
        calls(("deliver", {"summary": "s", "answer": {"blue": True}})),
    )
    rounds = Rounds(supervisor(output_type=Verdict), WORKERS, done, task="inner")
    with driven_by(models([calls(plan(FIND))], [says("blue"), wrong, right])):
        move = await rounds.go()
    assert isinstance(move, Deliver)
    assert move.facts == (Fact(key="answer", value={"blue": True}),)


async def test_a_plan_of_one_step_is_noted_once_as_one_that_needed_no_supervisor() -> None:
    rounds = Rounds(supervisor(), WORKERS, done)
    with driven_by(models([calls(plan(FIND))], [says("So.")])):
        await rounds.go()
    remarks = [each for body in rounds.steps.steps.values() if (each := decode_record(body)).kind == "remark"]
    assert [each.value for each in remarks] == [
        "the plan has a single step: this request needed no supervisor"
    ]


def test_planner_and_synthesizer_are_two_prompts() -> None:
    with pytest.raises(ValueError, match="two prompts"):
        Supervisor("lead", planner=PLANNER, synthesizer=Instructions("2", "Plan."))


# --- plans that cannot be carried out -------------------------------------------------------------

MISTAKES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "a cycle": (
        [{**FIND, "needs": ["look"]}, {**LOOK, "needs": ["find"]}],
        "these steps wait for each other",
    ),
    "two of one name": ([FIND, FIND], "two steps are called 'find'"),
    "an unknown need": ([{**FIND, "needs": ["nothing"]}], "find needs 'nothing', and there is no such step"),
    "an unknown agent": ([{"name": "a", "agent": "nobody"}], "agent"),
    "an unknown intent": ([{"name": "a", "intent": "fly"}], "intent"),
    "an intent of others": (
        [{"name": "a", "agent": "finder", "intent": "write"}],
        "finder does not take 'write'",
    ),
    "nobody": ([{"name": "a"}], "a names neither an agent nor an intent"),
    "no step": ([], "there is no step"),
    "10,000 tasks": ([{"name": f"t{n}", "agent": "finder"} for n in range(10_000)], "50"),
}


@pytest.mark.parametrize("case", MISTAKES)
async def test_a_plan_with_a_mistake_is_told_to_the_planner(case: str) -> None:
    steps, says_what = MISTAKES[case]

    def corrected(prompt: Prompt) -> Reply:
        assert says_what in str(prompt.transcript[-1])
        return calls(plan(FIND))

    rounds = Rounds(supervisor(), WORKERS, done)
    with driven_by(models([calls(plan(*steps)), corrected], [says("So.")])):
        assert await rounds.go() == Complete(answer="So.")


async def test_a_planner_has_so_many_tries() -> None:
    rounds = Rounds(supervisor(tries=2), WORKERS, done)
    with (
        driven_by(models([says("I would look."), calls(plan(FIND, FIND))], [])),
        pytest.raises(PlanInvalid, match="two steps are called 'find'") as wrong,
    ):
        await rounds.go()
    assert (wrong.value.code, wrong.value.permanent) == ("plan.invalid", True)


async def test_a_request_without_tasks_is_none_for_a_supervisor() -> None:
    with driven_by(models([], [])), pytest.raises(TopologyWrong, match="the policy topology `supervised`"):
        await Rounds(supervisor(), WORKERS, done, topology="handoff").go()


async def test_a_supervisor_that_may_delegate_to_nobody_says_so() -> None:
    with driven_by(models([], [])), pytest.raises(PlanInvalid, match="may delegate to nobody"):
        await Rounds(supervisor(workers=["finder"]), [entry("writer")], done).go()


async def test_a_plan_that_the_guard_refuses_goes_back_to_the_planner() -> None:
    def again(prompt: Prompt) -> Reply:
        assert "rule known_agent refused these tasks: finder is away" in prompt.brief
        return calls(plan({"name": "other", "agent": "writer"}))

    def refuse(move: Delegate) -> str | None:
        return "finder is away" if move.tasks[0].to_agent == "finder" else None

    rounds = Rounds(supervisor(), WORKERS, done, refuse=refuse)
    with driven_by(models([calls(plan(FIND)), again], [says("So.")])):
        assert await rounds.go() == Complete(answer="So.")
    assert [names for names, _ in shape(rounds.delegates)] == [["find"], ["other"]]


async def test_a_plan_that_is_refused_for_ever_is_a_typed_failure() -> None:
    rounds = Rounds(supervisor(most_plans=1), WORKERS, done, refuse=lambda move: "no")
    with driven_by(models([calls(plan(FIND))], [])), pytest.raises(DelegateRefused, match="known_agent"):
        await rounds.go()


# --- failures and flaws ---------------------------------------------------------------------------


async def test_a_step_that_failed_is_planned_anew_once_and_its_error_is_told() -> None:
    def work(task: Task) -> TaskResult:
        return undelivered(task.name, "retry", "the index is down") if task.name == "find" else done(task)

    def again(prompt: Prompt) -> Reply:
        assert "find: failed: retry the index is down" in prompt.brief
        assert "needs find, look): do write [not begun]" in prompt.brief
        return calls(plan({"name": "read", "agent": "writer", "needs": ["look"]}))

    rounds = Rounds(supervisor(), WORKERS, work)
    with driven_by(models([calls(plan(FIND, LOOK, WRITE)), again], [says("So.")])) as cast:
        assert await rounds.go() == Complete(answer="So.")
    assert [names for names, _ in shape(rounds.delegates)][-1] == ["read"]
    [asked] = cast["lead-synthesizer"].prompts
    assert "Not settled:\n- find: failed: retry the index is down" in asked.brief


async def test_a_flaw_has_its_step_done_again_with_feedback_and_what_rests_on_it() -> None:
    seen: list[str] = []

    def check(turn: Turn, results: Mapping[str, Result]) -> list[Flaw]:
        seen.append(results["find"].name)
        first = results["find"].name == "find"
        return [Flaw("find", "two sources disagree", "fact n")] if first else []

    rounds = Rounds(supervisor(check=check), WORKERS, done)
    with driven_by(models([calls(plan(FIND, LOOK, WRITE))], [says("So.")])):
        assert await rounds.go() == Complete(answer="So.")
    assert set(seen) == {"find", "find~2"}
    tasks = {task.name: task for each in rounds.delegates for task in each.tasks}
    assert list(tasks) == ["find", "look", "write", "find~2", "write~2"]
    revised = tasks["find~2"]
    assert (revised.revises, revised.uses) == ("find", ("find",))
    assert revised.facts == (
        Fact(key="feedback", value=[{"what": "two sources disagree", "where": "fact n"}]),
    )
    assert tasks["write~2"].uses == ("find~2", "look", "write")


@pytest.mark.parametrize(("most", "delegated"), [({}, 4), ({"most_revisions": 1}, 2)])
async def test_a_step_is_revised_so_often_and_then_its_flaw_is_told_to_the_synthesizer(
    most: dict[str, int], delegated: int
) -> None:
    async def check(turn: Turn, results: Mapping[str, Result]) -> list[Flaw]:
        return [Flaw("find", "still wrong")]

    rounds = Rounds(supervisor(check=check, **most), WORKERS, done)
    with driven_by(models([calls(plan(FIND))], [says("So.")])) as cast:
        await rounds.go()
    names = ["find", "find~2", "find~3", "find~4"][:delegated]
    assert [tasks for tasks, _ in shape(rounds.delegates)] == [[name] for name in names]
    assert "Not settled:\n- find: still wrong" in cast["lead-synthesizer"].prompts[0].brief


@pytest.mark.parametrize("may", [True, False])
async def test_a_step_may_go_to_a_second_agent_only_if_the_supervisor_says_so(may: bool) -> None:
    rounds = Rounds(supervisor(second_agent=may), WORKERS, done)
    with driven_by(models([calls(plan(LOOK))], [says("So.")])):
        await rounds.go()
    assert [task.fallback for each in rounds.delegates for task in each.tasks] == [may]


async def test_the_planner_may_have_a_model_of_its_own() -> None:
    plans, answers = StrictModel(calls(plan(FIND))), StrictModel(says("So."))
    await Rounds(supervisor(model=answers, planner_model=plans), WORKERS, done).go()
    assert [[prompt.instructions for prompt in each.prompts] for each in (plans, answers)] == [
        ["Plan."],
        ["Answer."],
    ]


async def test_a_flaw_of_the_plan_goes_to_the_planner_who_may_say_that_nothing_is_left() -> None:
    def check(turn: Turn, results: Mapping[str, Result]) -> list[Flaw]:
        return [] if "look" in results else [Flaw("", "nobody looked at the dates")]

    def more(prompt: Prompt) -> Reply:
        assert "Found wrong:\n- the plan: nobody looked at the dates" in prompt.brief
        return calls(plan(LOOK))

    rounds = Rounds(supervisor(check=check), WORKERS, done)
    with driven_by(models([calls(plan(FIND)), more], [says("So.")])):
        assert await rounds.go() == Complete(answer="So.")
    rounds = Rounds(supervisor(check=check), WORKERS, done)
    with driven_by(models([calls(plan(FIND)), calls(plan())], [says("So.")])):
        assert await rounds.go() == Complete(answer="So.")


async def test_the_synthesizer_leaves_facts_to_the_conversation() -> None:
    rounds = Rounds(supervisor(remembers=True, labels={"cause": ("pii",)}), WORKERS, done)
    answer = {"answer": "It scatters.", "remember": [{"key": "cause", "value": "scattering"}]}
    with driven_by(models([calls(plan(FIND))], [calls(("complete", answer))])):
        move = await rounds.go()
    left = Fact(key="cause", value="scattering", labels=("pii",))
    assert move == Complete(answer="It scatters.", remember=(left,))


async def test_no_more_tasks_are_open_than_may_be() -> None:
    steps = [{"name": f"t{n}", "agent": "finder"} for n in range(5)]
    rounds = Rounds(supervisor(most_open=2), WORKERS, done)
    with driven_by(models([calls(plan(*steps))], [says("So.")])):
        await rounds.go()
    assert [names for names, _ in shape(rounds.delegates)] == [["t0", "t1"], ["t2"], ["t3"], ["t4"]]


async def test_prompts_keep_to_the_window_and_name_what_they_leave_out() -> None:
    def much(task: Task) -> TaskResult:
        return delivered(task.name, "short", {"long": "word " * 1_000})

    rounds = Rounds(supervisor(window=ContextWindow(600)), WORKERS, much)
    with driven_by(models([calls(plan(FIND, LOOK))], [says("So.")])) as cast:
        await rounds.go()
    brief = cast["lead-synthesizer"].prompts[0].brief
    assert "Left out, as it does not fit: full text of find, look." in brief
    assert len(brief) < 600 * 4
    with driven_by(models([], [])), pytest.raises(Permanent, match="room for 8"):
        await Rounds(supervisor(window=ContextWindow(10)), WORKERS, much).go()


async def test_tasks_that_an_escalation_called_off_are_delegated_again() -> None:
    other = {"name": "other", "agent": "writer", "needs": ["find"]}
    rounds = Rounds(
        supervisor(), WORKERS, done, refuse=lambda move: None if move.tasks else "nothing is open"
    )
    with driven_by(models([calls(plan(FIND, LOOK, other))], [says("So.")])):
        first = is_(await rounds.round(), Delegate)
        rounds.judged(first)
        rounds.open.clear()
        assert await rounds.go() == Complete(answer="So.")
    assert [names for names, _ in shape(rounds.delegates)] == [["find", "look"], ["other"], [], ["look"]]


async def test_prompts_of_a_round_can_be_built_again_from_the_journal() -> None:
    rounds = Rounds(supervisor(), WORKERS, done)
    with driven_by(models([calls(plan(FIND, LOOK, WRITE))], [says("So.")])) as cast:
        await rounds.go()
        last = rounds.turns[-1].execution
        steps = {name: body for (_, _, name), body in rounds.steps.steps.items()}
        built = await rebuild(supervisor(), last.request, last.work, rounds.fleet, steps)
    asked = [*cast["lead-planner"].prompts, *cast["lead-synthesizer"].prompts]
    assert [each.prompt.brief for each in built.sent] == [prompt.brief for prompt in asked]
    assert all(each.exact for each in built.sent)
    assert built.ended == ""
