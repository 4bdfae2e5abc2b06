"""The limits of tasks: budgets, constraints, sizes; what each refuses, and what is just allowed."""

import pytest

from protocol.wire.commands import Report
from protocol.wire.events import TurnDelegated
from protocol.wire.handoff import Budget, Constraints, Refusal, Rule
from protocol.wire.moves import Delegate, Move
from tests.certain import is_
from tests.unit.protocol.trees import (
    admitted,
    delegate,
    deliver,
    grant,
    informed,
    refusal_of,
    results,
    say,
    task,
    tree,
    turn_of,
    worker,
)
from tests.unit.protocol.worlds import START, Play, fact, give_up, usage

# --- budget -------------------------------------------------------------------------------------------


def reserves(play: Play) -> list[int | None]:
    event = next(event for event in reversed(play.events) if isinstance(event, TurnDelegated))
    return [None if one.constraints.budget is None else one.constraints.budget.tokens for one in event.tasks]


def test_tasks_share_what_is_left_after_a_fifth_is_kept_back() -> None:
    play = tree(policy={"budget": Budget(tokens=1000)})
    say(play, "", delegate(task("x", "b"), task("y", "c"), task("z", "d")), usage(tokens=100))
    assert reserves(play) == [240, 240, 240]  # (900 - 180) / 3
    assert play.ledger.rest(play.holder) == Budget(tokens=180)
    assert worker(play, "x").work.handoff.constraints.budget == Budget(tokens=240)


def test_a_task_gets_what_it_asks_for_and_the_others_share_the_rest() -> None:
    play = tree(policy={"budget": Budget(tokens=1000)})
    say(play, "", delegate(task("x", "b", constraints=grant(tokens=500)), task("y", "c"), task("z", "d")))
    assert reserves(play) == [500, 150, 150]
    assert play.ledger.rest(play.holder) == Budget(tokens=200)


def test_all_but_what_is_kept_back_may_be_asked_for_and_not_one_more() -> None:
    def plan(tokens: int) -> Delegate:
        return delegate(
            task("x", "b", constraints=grant(tokens=tokens)), task("y", "c", constraints=grant(tokens=1))
        )

    play = tree(policy={"budget": Budget(tokens=100)})
    refusal = refusal_of(play, "", plan(80))
    assert refusal.rule == Rule.BUDGET
    assert refusal.numbers == {"tokens": {"asked": 81, "left": 100, "kept": 20}, "keep_back": 0.2}
    assert "tokens: 81 asked, 100 left, 20 of it kept for the answer" in refusal.detail
    admitted(play, plan(79))
    assert play.ledger.rest(play.holder) == Budget(tokens=20)


def test_a_lead_that_keeps_nothing_back_may_give_all() -> None:
    play = tree(policy={"budget": Budget(tokens=100), "keep_back": 0.0})
    admitted(play, delegate(task("x", "b", constraints=grant(tokens=100))))


def test_a_share_of_nothing_is_refused() -> None:
    play = tree(policy={"budget": Budget(model_calls=2)})
    three = delegate(task("x", "b"), task("y", "c"), task("z", "d"))
    assert refusal_of(play, "", three).numbers["model_calls"] == {
        "asked": 0,
        "left": 2,
        "kept": 0,
    }
    admitted(play, delegate(task("x", "b"), task("y", "c")))


def test_where_nothing_is_left_a_task_that_asks_for_nothing_is_given_and_no_other() -> None:
    play = tree(policy={"budget": Budget(tokens=100)})
    one = delegate(task("x", "b", constraints=grant(tokens=1)))
    refusal = refusal_of(play, "", one, usage(tokens=100))
    assert refusal.numbers["tokens"] == {"asked": 1, "left": 0, "kept": 0}
    admitted(play, delegate(task("x", "b", constraints=grant(tokens=0))))


def test_a_lead_that_has_spent_too_much_plans_nothing_more_and_may_wait() -> None:
    play = tree(policy={"budget": Budget(tokens=100)})
    say(play, "", delegate(task("x", "b", constraints=grant(tokens=0)), task("y", "c"), join="any"))
    say(play, "x", deliver())
    nothing = delegate(task("z", "d", constraints=grant(tokens=0)))
    refusal = refusal_of(play, "", nothing, usage(tokens=130))
    assert refusal.numbers["tokens"] == {"asked": 0, "left": -110, "kept": 0}
    admitted(play, delegate())


def test_what_a_task_did_not_use_returns_when_it_ends() -> None:
    play = tree(policy={"budget": Budget(tokens=1000)})
    say(play, "", delegate(task("x", "b", constraints=grant(tokens=800))))
    assert play.ledger.rest(play.holder) == Budget(tokens=200)
    say(play, "x", deliver(), usage(tokens=50))
    assert play.ledger.rest(play.holder) == Budget(tokens=950)
    assert results(play)["x"].cost.tokens == 50


def test_a_leads_next_round_is_told_what_its_tasks_have_spent_or_reserved() -> None:
    play = tree(policy={"budget": Budget(tokens=1000)})
    say(play, "", delegate(task("x", "b"), task("y", "c"), join="any"), usage(tokens=100))
    say(play, "x", deliver(), usage(tokens=50))
    work = turn_of(play, "").work
    assert (work.reported.usage.tokens, work.committed.tokens) == (100, 50 + 360)
    assert play.ledger.rest(turn_of(play, "")) == Budget(tokens=1000 - 100 - 50 - 360)
    say(play, "", delegate())
    say(play, "y", deliver(), usage(tokens=7))
    assert turn_of(play, "").work.committed.tokens == 50 + 7


def test_a_tree_spends_no_more_than_its_root_was_given() -> None:
    play = tree(policy={"budget": Budget(tokens=100)})
    say(play, "", delegate(task("x", "b", constraints=grant(tokens=60))), usage(tokens=20))
    say(play, "x", delegate(task("y", "c", constraints=grant(tokens=32))), usage(tokens=20))
    assert refusal_of(play, "y", delegate(task("z", "d"))).rule == Rule.LEVELS
    say(play, "y", deliver(), usage(tokens=32))
    assert refusal_of(play, "x", delegate(task("w", "d", constraints=grant(tokens=8)))).rule == Rule.BUDGET
    say(play, "x", deliver(), usage(tokens=20))
    assert play.ledger.spent.tokens == 72
    assert play.ledger.rest(play.holder) == Budget(tokens=28)


def test_without_a_limit_a_task_is_limited_only_where_it_asks() -> None:
    play = tree()
    say(play, "", delegate(task("x", "b"), task("y", "c", constraints=grant(tokens=5))))
    assert reserves(play) == [None, 5]


# --- constraints, must_carry, read_only, size ---------------------------------------------------------


@pytest.mark.parametrize(
    "wide",
    [
        Constraints(deadline=START - 1),
        Constraints(deadline=START + 86_400_000_001),
        Constraints(allowed_actions=("look", "pay")),
    ],
)
def test_a_tasks_constraints_are_no_wider_than_its_leads(wide: Constraints) -> None:
    play = informed(allowed_actions=("look",))
    refusal = refusal_of(play, "", delegate(task("fine", "c"), task("one", "b", constraints=wide)))
    assert (refusal.rule, refusal.numbers["task"]) == (Rule.CONSTRAINTS, "one")


def test_a_task_has_its_leads_constraints_narrowed_by_its_own() -> None:
    play = informed(allowed_actions=("look", "pay"))
    asked = Constraints(max_resolution_time_s=60.0, allowed_actions=("pay",), read_only=True)
    say(play, "", delegate(task("one", "b", constraints=asked), task("two", "c")))
    given = worker(play, "one").work.handoff.constraints
    assert (given.deadline, given.allowed_actions, given.read_only) == (START + 60_000_000, ("pay",), True)
    plain = worker(play, "two").work.handoff.constraints
    assert (plain.deadline, plain.allowed_actions, plain.read_only) == (
        play.ledger.deadline,
        ("look", "pay"),
        False,
    )


def test_a_fact_that_must_be_carried_is_neither_left_out_nor_changed() -> None:
    play = informed(fact("id", 7), must_carry=("id",))
    for odd in (task("one", "b", carry=("text",)), task("one", "b", fact("id", 8))):
        refusal = refusal_of(play, "", delegate(odd))
        assert (refusal.rule, refusal.numbers) == (Rule.MUST_CARRY, {"task": "one", "keys": ["id"]})
    say(play, "", delegate(task("one", "b", carry=("id",))))
    assert worker(play, "one").work.handoff.constraints.must_carry == ("id",)


def test_a_key_that_must_be_carried_is_one_that_the_task_gets() -> None:
    play = informed(fact("id", 7))
    odd = task("one", "b", constraints=Constraints(must_carry=("no",)))
    assert refusal_of(play, "", delegate(odd)).numbers == {"task": "one", "keys": ["no"]}
    asked = Constraints(must_carry=("id",))
    say(play, "", delegate(task("one", "b", constraints=asked)))
    assert worker(play, "one").work.handoff.constraints.must_carry == ("id",)


@pytest.mark.parametrize(
    "end", [deliver(), give_up(), delegate(task("sub", "c"))], ids=lambda end: type(end).__name__
)
def test_a_turn_that_may_only_read_reports_no_effect(end: Move) -> None:
    play = tree(task("one", "b", constraints=Constraints(read_only=True)))
    report = Report(actions=("look", "pay"), effects=("pay",))
    refusal = refusal_of(play, "one", end, report)
    assert (refusal.rule, refusal.numbers) == (Rule.READ_ONLY, {"effects": ["pay"]})


def test_what_is_below_a_reader_reads_only_too() -> None:
    play = tree(task("one", "b", constraints=Constraints(read_only=True)))
    say(play, "one", delegate(task("two", "c")))
    assert worker(play, "two").work.handoff.constraints.read_only
    refusal = refusal_of(play, "two", deliver(), Report(effects=("pay",)))
    assert refusal.rule == Rule.READ_ONLY
    assert worker(play, "two").work.handoff.constraints.read_only


def test_a_task_is_no_larger_than_a_handoff_may_be() -> None:
    play = tree(policy={"max_handoff_bytes": 1000})
    refusal = refusal_of(play, "", delegate(task("one", "b"), task("two", "c", fact("x", "y" * 1000))))
    assert (refusal.rule, refusal.numbers["task"]) == (Rule.SIZE, "two")


def test_a_result_is_no_larger_than_a_handoff_and_all_together_no_larger_than_a_join() -> None:
    play = tree(policy={"max_handoff_bytes": 200_000})
    say(play, "", delegate(*(task(name, "b") for name in "uvwx")))
    assert refusal_of(play, "u", deliver(fact("k", "x" * 200_000))).numbers["max_handoff_bytes"] == 200_000
    for name in "uv":
        say(play, name, deliver(fact("k", "x" * 190_000)))
    refusal = refusal_of(play, "w", deliver(fact("k", "x" * 190_000)))
    assert (refusal.rule, refusal.numbers["max_join_bytes"]) == (Rule.SIZE, 524_288)
    say(play, "w", deliver())
    say(play, "x", deliver())
    assert len(results(play)) == 4
    names = ("u", "v", "w", "x")
    fat = task("sum", "c", uses=names)
    assert is_(say(play, "", delegate(fat)), TurnDelegated)
    assert sorted(result.name for result in worker(play, "sum").work.results) == sorted(names)


def join_bytes(refusal: Refusal) -> int:
    """Return to how many bytes results come, which are more than may be told at once."""
    assert (refusal.rule, refusal.numbers["max_join_bytes"]) == (Rule.SIZE, 524_288)
    return int(refusal.numbers["bytes"])


def test_what_a_lead_has_to_be_told_comes_to_524288_bytes_at_most() -> None:
    play = tree(policy={"max_handoff_bytes": 400_000})
    say(play, "", delegate(task("x", "b"), task("y", "c")))
    say(play, "x", deliver(fact("k", "x" * 300_000)))
    most = 300_000 - join_bytes(refusal_of(play, "y", deliver(fact("k", "x" * 300_000)))) + 524_288
    assert join_bytes(refusal_of(play, "y", deliver(fact("k", "x" * (most + 1))))) == 524_289
    say(play, "y", deliver(fact("k", "x" * most)))
    assert [result.status for result in results(play).values()] == ["delivered", "delivered"]


def test_the_results_that_a_task_uses_come_to_524288_bytes_at_most() -> None:
    def two_results(letters: int) -> Play:
        play = tree(policy={"max_handoff_bytes": 400_000})
        for name, to, size in (("x", "b", 300_000), ("y", "d", letters)):
            say(play, "", delegate(task(name, to)))
            say(play, name, deliver(fact("k", "x" * size)))
        return play

    both = delegate(task("sum", "c", uses=("x", "y")))
    most = 300_000 - join_bytes(refusal_of(two_results(300_000), "", both)) + 524_288
    refusal = refusal_of(two_results(most + 1), "", both)
    assert (join_bytes(refusal), refusal.numbers["task"]) == (524_289, "sum")
    admitted(two_results(most), both)
