"""What limits come to in a tree: read_only, clearance, budgets, counts, and tasks that are cut off."""

from typing import Any, NoReturn

import pytest
from msgspec.structs import replace

from mesh.replay.rejudge import rejudge
from mesh.testing import InMemoryGuard, fleet_of
from protocol.domain import plans
from protocol.wire.commands import Freeze, Thaw
from protocol.wire.config import Fleet, Policy
from protocol.wire.documents import DocumentInvalid, fleet_mistakes, parse_policy
from protocol.wire.events import (
    FactsWithheld,
    MoveDeferred,
    MoveRefused,
    RequestCompleted,
    TaskOpened,
    TurnResumed,
)
from protocol.wire.handoff import Budget, Constraints, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete
from tests.certain import is_
from tests.unit.protocol.swarms import Swarm
from tests.unit.protocol.swarms import task as offered
from tests.unit.protocol.trees import delegate, deliver, grant, refusal_of, say, task, tree
from tests.unit.protocol.worlds import Play, agent, agents, complete, fact, transfer, usage

# --- read_only ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["handoff", "supervised", "swarm"])
def test_a_submit_that_may_only_read_holds_for_everything_below(topology: str) -> None:
    play = Play(policy=Policy(topology=topology))
    play.submit(constraints=Constraints(read_only=True))
    assert play.holder.work.handoff.constraints.read_only
    paid = replace(usage(), actions=("pay",), effects=("pay",))
    assert is_(play.move(complete(), paid), MoveRefused).refusal.rule == Rule.READ_ONLY
    if topology == "handoff":
        play.move(transfer("b"))
        assert play.holder.work.handoff.constraints.read_only
    assert rejudge(play.bodies).same


# --- clearance ----------------------------------------------------------------------------------------


def test_a_lead_is_shown_of_results_what_the_fleet_lets_it_see_now() -> None:
    fleet = {"a": agent("a", clearance=("pii",)), "b": agent("b", clearance=("pii",)), "c": agent("c")}
    play = tree(task("one", "b"), fleet=fleet)
    fleet["a"] = agent("a")
    say(play, "one", deliver(fact("iban", "DE12", "pii"), fact("found", 1)))
    resumed = is_(play.events[-1], TurnResumed)
    assert resumed.grounds is not None
    assert resumed.grounds.target == agent("a")
    [result] = resumed.work.results
    assert [known.key for known in result.facts] == ["found"]
    assert result.withheld is not None
    assert result.withheld.labels == ("pii",)
    assert rejudge(play.bodies).same


@pytest.mark.parametrize("gone", [False, True])
def test_a_lead_that_may_see_more_now_is_shown_more_and_one_that_left_nothing_labelled(gone: bool) -> None:
    fleet = {"a": agent("a"), "b": agent("b", clearance=("pii",)), "c": agent("c")}
    play = tree(task("one", "b"), fleet=fleet)
    if gone:
        play.entry = "b"
        del fleet["a"]
    else:
        fleet["a"] = agent("a", clearance=("pii",))
    say(play, "one", deliver(fact("iban", "DE12", "pii")))
    resumed = [event for event in play.events if isinstance(event, TurnResumed)][-1]
    [result] = resumed.work.results
    assert [known.key for known in result.facts] == ([] if gone else ["iban"])
    assert rejudge(play.bodies).same


# --- counts and budgets -------------------------------------------------------------------------------


def test_a_plan_is_counted_before_anything_is_worked_out_for_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_early(*_: Any) -> NoReturn:
        raise AssertionError("what a task carries is worked out")

    play = tree(fleet=agents("abcdefgh"))
    monkeypatch.setattr(plans, "task_work", too_early)
    refusal = refusal_of(play, "", delegate(*[task(f"t{n}", "b", fact("k", n)) for n in range(900)]))
    assert (refusal.rule, refusal.numbers["open"]) == (Rule.FAN_OUT, 900)


def test_what_is_kept_back_is_kept_from_explicit_budgets_too() -> None:
    play = tree(policy={"budget": Budget(tokens=100, model_calls=10)})
    over = delegate(task("one", "b", constraints=grant(tokens=100)))
    refusal = refusal_of(play, "", over)
    assert refusal.rule == Rule.BUDGET
    assert refusal.numbers["tokens"] == {"asked": 100, "left": 100, "kept": 20}
    say(play, "", delegate(task("one", "b", constraints=grant(tokens=80, model_calls=8))))
    assert play.ledger.rest(play.holder) == Budget(tokens=20, model_calls=2)


def test_a_task_that_the_answer_cuts_off_is_charged_what_it_had_left() -> None:
    play = tree(policy={"budget": Budget(tokens=100)})
    say(play, "", delegate(task("one", "b"), task("two", "c"), join="any"))
    say(play, "one", delegate(task("deep", "d")), usage(tokens=2))
    say(play, "two", deliver(), usage(tokens=5))
    assert play.ledger.spent.tokens == 7
    is_(play.move(Complete(answer=1, cancel_open=True)), RequestCompleted)
    assert play.ledger.spent.tokens == 7 + 31  # `one` has 40, of which it spent 2, kept 7 and gave `deep` 31
    assert rejudge(play.bodies).same


def test_a_request_that_waits_without_spending_is_charged_nothing_more_at_its_end() -> None:
    play = tree(task("one", "b"), policy={"budget": Budget(tokens=100)})
    say(play, "one", deliver(), usage(tokens=5))
    is_(play.move(complete()), RequestCompleted)
    assert play.ledger.spent.tokens == 5


# --- documents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["max_open_tasks", "max_tasks"])
def test_a_policy_in_which_no_task_can_be_given_is_refused(field: str) -> None:
    with pytest.raises(DocumentInvalid, match=f"^{field}: .*>= 1"):
        parse_policy({field: 0}, "p")


@pytest.mark.parametrize("bytes_", [1, 1_023])
def test_a_policy_in_which_no_handoff_fits_is_refused(bytes_: int) -> None:
    with pytest.raises(DocumentInvalid, match="max_handoff_bytes: expected at least 1024"):
        parse_policy({"max_handoff_bytes": bytes_}, "p")
    parse_policy({"max_handoff_bytes": 1_024}, "p")


def test_a_fleets_labels_hold_for_a_key_in_any_case() -> None:
    fleet = replace(fleet_of("a", "b"), labels={"iban": ("pii",), "IBAN": ("bank",), "Straße": ("pii",)})
    guard = InMemoryGuard(fleet)
    guard.submit("pay it", facts={"iban": 1, "Iban": 2, "STRASSE": 3, "other": 4})
    assert [known.key for known in guard.holder.work.handoff.facts] == ["other", "text"]
    withheld = is_(guard.events[0], FactsWithheld)
    assert [(known.key, known.labels) for known in withheld.facts] == [
        ("Iban", ("bank", "pii")),
        ("STRASSE", ("pii",)),
        ("iban", ("bank", "pii")),
    ]


def test_the_words_of_a_submit_are_nobody_s_to_label_in_any_case() -> None:
    fleet = Fleet(name="x", entry=AgentName("a"), agents=agents("a"), labels={"Text": ("pii",)})
    assert "labels.Text" in fleet_mistakes(fleet)[0]


# --- claims -------------------------------------------------------------------------------------------


def test_after_a_thaw_no_agent_holds_two_tasks_of_one_plan() -> None:
    play = Swarm()
    play.delegate(offered("one"), offered("two"))
    play.guard.say(Freeze(id="f"), "op")
    assert isinstance(play.claim("one", "b"), MoveDeferred)
    assert isinstance(play.claim("two", "b"), MoveDeferred)
    play.guard.say(Thaw(id="t"), "op")
    opened = [event for event in play.events if isinstance(event, TaskOpened)]
    assert [(event.name, event.to) for event in opened] == [("one", "b")]
    play.same()
    play.say(play.worker("one"), deliver())  # what waited for that is decided then
    opened = [event for event in play.events if isinstance(event, TaskOpened)]
    assert [(event.name, event.to) for event in opened] == [("one", "b"), ("two", "b")]
    play.same()


def test_what_a_busy_agent_claimed_during_a_freeze_is_still_for_others() -> None:
    play = Swarm()
    play.delegate(offered("one"), offered("two"))
    play.guard.say(Freeze(id="f"), "op")
    play.claim("one", "b")
    play.claim("two", "b")
    play.guard.say(Thaw(id="t"), "op")
    assert isinstance(play.claim("two", "c"), TaskOpened)
    play.say(play.worker("one"), deliver())
    assert play.worker("two").agent == "c"
    play.same()
