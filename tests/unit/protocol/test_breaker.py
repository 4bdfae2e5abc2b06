"""The circuit breaker as a function: what is counted, what opens, tries and closes it."""

from typing import Any

import pytest

from protocol.domain.breaker import CLOSED, Permit, Signal, asked, counted, is_agents_fault
from protocol.wire.commands import Failure
from protocol.wire.config import BreakerEntry, BreakerRules, FailedTurn, Trial
from protocol.wire.ids import AgentName, Cause, TurnId, event_id
from tests.certain import known

RULES = BreakerRules(failures=3, window_s=10.0, open_s=5.0, trial_s=20.0)
T0 = 1_700_000_000_000_000


def failed(entry: BreakerEntry, rules: BreakerRules, turn: TurnId, now: int) -> BreakerEntry | None:
    return counted(entry, rules, Signal(AgentName("a"), "failed", turn), now)


def worked(entry: BreakerEntry, turn: TurnId) -> BreakerEntry | None:
    return counted(entry, RULES, Signal(AgentName("a"), "worked", turn), T0)


def given_back(entry: BreakerEntry, whose: str) -> BreakerEntry | None:
    return counted(entry, RULES, Signal(AgentName("a"), "given_back", whose), T0)


def at(seconds: float) -> int:
    return T0 + round(seconds * 1e6)


def after(*failures: tuple[str, float], rules: BreakerRules = RULES, entry: BreakerEntry = CLOSED) -> Any:
    """Return the entry once these turns failed at these seconds."""
    for turn, seconds in failures:
        entry = failed(entry, rules, TurnId(turn), at(seconds)) or entry
    return entry


def opened_by(cause: str, opener: str = "handoff.admitted") -> TurnId:
    return TurnId(event_id(cause, opener, 0))


OPEN = BreakerEntry(state="open", opened_at=T0)
TRIED = BreakerEntry(state="half_open", opened_at=T0, trial=Trial(Cause("c1"), at(5)))


def test_so_many_failed_turns_within_the_window_open_it() -> None:
    assert after(("t1", 0), ("t2", 1)).state == "closed"
    assert after(("t1", 0), ("t2", 1), ("t3", 2)) == BreakerEntry(state="open", opened_at=at(2))


def test_failures_that_are_older_than_the_window_are_forgotten() -> None:
    entry = after(("t1", 0), ("t2", 1), ("t3", 10.5))
    newer = (FailedTurn(TurnId("t2"), at(1)), FailedTurn(TurnId("t3"), at(10.5)))
    assert entry == BreakerEntry(failures=newer)
    assert after(("t4", 10.9), entry=entry).state == "open"
    assert after(("t4", 11), entry=entry).state == "closed"


def test_the_rounds_of_one_turn_count_once_and_the_newest_counts() -> None:
    entry = after(*((f"t{n // 10}", n / 10) for n in range(20)))
    assert entry.failures == (FailedTurn(TurnId("t0"), at(0.9)), FailedTurn(TurnId("t1"), at(1.9)))


def test_an_entry_never_grows_beyond_what_opens_it() -> None:
    rules = BreakerRules(failures=4)
    entry = CLOSED
    for number in range(100):
        entry = failed(entry, rules, TurnId(f"t{number}"), T0 + number) or entry
        assert len(entry.failures) < 4


@pytest.mark.parametrize("entry", [OPEN, BreakerEntry(state="open")], ids=["by-count", "by-hand"])
def test_what_ends_while_it_is_open_changes_nothing(entry: BreakerEntry) -> None:
    assert failed(entry, RULES, opened_by("c1"), at(1)) is None
    assert worked(entry, opened_by("c1")) is None
    assert given_back(entry, "c1") is None


def test_a_closed_one_asks_for_nothing() -> None:
    assert asked(after(("t1", 0)), RULES, at(0), "c1") == Permit("closed")
    assert worked(after(("t1", 0)), TurnId("t2")) is None


def test_an_open_one_lets_one_message_through_when_its_time_is_over() -> None:
    assert asked(OPEN, RULES, at(4.999), "c1") == Permit("open", T0, at(5))
    assert asked(OPEN, RULES, at(5), "c1") == Permit("half_open", T0, None, TRIED)


def test_all_others_find_it_open_until_the_trial_lapses() -> None:
    assert asked(TRIED, RULES, at(6), "c2") == Permit("open", T0, at(25))
    assert asked(TRIED, RULES, at(24.999), "c2").state == "open"
    second = asked(TRIED, RULES, at(25), "c2")
    assert second.state == "half_open"
    assert known(second.write).trial == Trial(Cause("c2"), at(25))


def test_the_message_that_has_the_trial_keeps_it_without_writing() -> None:
    assert asked(TRIED, RULES, at(6), "c1") == Permit("half_open", T0)
    assert asked(TRIED, RULES, at(600), "c1") == Permit("half_open", T0)


@pytest.mark.parametrize("opener", ["handoff.admitted", "request.opened"])
def test_what_the_trials_turn_comes_to_decides(opener: str) -> None:
    turn = opened_by("c1", opener)
    assert worked(TRIED, turn) == CLOSED
    assert failed(TRIED, RULES, turn, at(7)) == BreakerEntry(state="open", opened_at=at(7))
    for nothing in (failed(TRIED, RULES, TurnId("t1"), at(7)), worked(TRIED, TurnId("t1"))):
        assert nothing is None


def test_a_trial_that_was_given_back_is_there_for_the_next() -> None:
    for whose in ("c1", opened_by("c1")):
        free = given_back(TRIED, whose)
        assert free == BreakerEntry(state="half_open", opened_at=T0)
        use = asked(known(free), RULES, at(6), "c2")
        assert (use.state, use.write is not None) == ("half_open", True)
    assert given_back(TRIED, "c2") is None


def test_one_that_was_opened_by_hand_stays_open() -> None:
    by_hand = BreakerEntry(state="open")
    for rules in (RULES, BreakerRules(failures=0)):
        assert asked(by_hand, rules, at(1e6), "c1") == Permit("open")


@pytest.mark.parametrize("entry", [CLOSED, OPEN, TRIED], ids=["closed", "open", "half-open"])
def test_without_a_number_it_is_off(entry: BreakerEntry) -> None:
    off = BreakerRules(failures=0)
    assert asked(entry, off, at(1), "c2") == Permit("closed")
    assert failed(entry, off, opened_by("c1"), at(1)) is None


def test_a_single_failure_may_be_enough() -> None:
    assert after(("t1", 0), rules=BreakerRules(failures=1)).state == "open"


@pytest.mark.parametrize(
    ("code", "permanent", "counts"),
    [
        ("bug", False, True),
        ("retry", False, True),
        ("timeout", False, True),
        ("journal_mismatch", False, True),
        ("journal_mismatch", True, True),
        ("crash_loop", True, True),
        ("unattended", True, False),
        ("deadline", True, False),
        ("budget_exhausted", True, False),
        ("action_not_allowed", True, False),
        ("permanent", True, False),
    ],
)
def test_what_speaks_of_the_agent_counts(code: str, permanent: bool, counts: bool) -> None:
    assert is_agents_fault(Failure(code=code, permanent=permanent)) is counts
