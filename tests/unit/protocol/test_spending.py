"""What a request cost, from its events alone."""

import pytest

from protocol.views.spending import BY, Spending, by_model, cached_share, spending, summed, total
from protocol.wire import events
from protocol.wire.commands import Cancel, Freeze, ReplyToAsk, Report, Resolve, Usage
from protocol.wire.config import Policy
from protocol.wire.ids import TurnId
from protocol.wire.prices import Metered
from tests.unit.protocol.worlds import ask, complete, escalate, hand_back, opened, transfer, usage


def played() -> list[events.AnyEvent]:
    """a (10, then 14 in all) → b (100) → a (3)"""
    play = opened()
    play.move(transfer("nobody"), report=usage(nano_dollars=10))
    play.move(transfer("b"), report=usage(nano_dollars=14, tokens=2))
    play.move(hand_back(), report=usage(nano_dollars=100))
    play.move(complete(), report=usage(nano_dollars=3))
    return play.events


def test_each_turn_costs_what_it_reported_last() -> None:
    lines = spending(played())
    assert [(line.giver, line.agent, line.usage.nano_dollars) for line in lines] == [
        ("c1", "a", 14),
        ("a", "b", 100),
        ("b", "a", 3),
    ]


@pytest.mark.parametrize(
    ("by", "sums"),
    [
        ("agent", {"b": 100, "a": 17}),
        ("edge", {"a -> b": 100, "c1 -> a": 14, "b -> a": 3}),
        ("client", {"c1": 117}),
    ],
)
def test_sums_are_of_turns_and_the_dearest_comes_first(by: str, sums: dict[str, int]) -> None:
    found = summed(spending(played()), BY[by])
    assert {name: used.nano_dollars for name, used in found.items()} == sums
    assert list(found) == list(sums)


def test_tokens_add_up_by_model() -> None:
    play = opened()
    one = Usage(models={"big": Metered(input=5, cache_read=15, calls=1), "small": Metered(output=1)})
    play.move(transfer("b"), report=Report(usage=one))
    play.move(complete(), report=Report(usage=Usage(models={"big": Metered(output=2, calls=1)})))
    found = by_model(spending(play.events))
    big = Metered(input=5, cache_read=15, output=2, calls=2)
    assert found == {"big": big, "small": Metered(output=1)}
    assert summed(spending(play.events), BY["client"])["c1"].models == found
    assert cached_share(big) == 0.75
    assert cached_share(found["small"]) is None


def taken(happened: list[events.AnyEvent]) -> Spending:
    account = Spending()
    for event in happened:
        account.take(event)
    return account


@pytest.mark.parametrize("cut", range(7))
def test_a_log_without_its_beginning_is_counted_as_far_as_it_goes(cut: int) -> None:
    happened = played()
    assert len(happened) == 6
    lines = taken(happened[cut:]).lines
    told = [(line.client, line.giver, line.agent, line.usage.nano_dollars) for line in lines]
    whole = [("c1", "c1", "a", 14), ("c1", "a", "b", 100), ("c1", "b", "a", 3)]
    without = {
        1: [("c1", "c1", "a", 14), *whole[1:]],  # the refusal gives the handoff again
        2: [("c1", "?", "a", 14), *whole[1:]],
        3: [("c1", "?", "b", 100), whole[2]],
        4: [("c1", "?", "a", 3)],
        5: [],  # its end says nothing of what it cost
        6: [],
    }
    assert told == without.get(cut, whole)


def test_a_turn_whose_agent_nothing_tells_is_counted_under_a_question_mark() -> None:
    play = opened()
    play.doubt(report=usage(nano_dollars=5))
    (line,) = taken(play.events[1:]).lines
    assert (line.agent, line.usage.nano_dollars) == ("?", 5)


def rounds(account: Spending) -> list[tuple[str, int, int]]:
    return [(each.agent, each.first, each.last) for each in account.unreported]


def test_a_turn_owes_a_report_from_its_newest_report_to_its_newest_round() -> None:
    play = opened()
    assert rounds(taken(play.events)) == [("a", 0, 0)]
    play.move(transfer("nobody"), report=usage(nano_dollars=10))
    assert rounds(taken(play.events)) == [("a", 1, 1)]
    play.move(ask("c1"), report=usage(nano_dollars=11))
    assert rounds(taken(play.events)) == []
    play.control(ReplyToAsk, sender="c1", turn=play.turn, round=1, value=1)
    assert rounds(taken(play.events)) == [("a", 2, 2)]
    play.move(transfer("b"), report=usage(nano_dollars=12))
    assert rounds(taken(play.events)) == [("b", 0, 0)]
    play.control(Cancel)
    account = taken(play.events)
    (b,) = account.unreported
    account.add(b.turn, Usage(nano_dollars=3), at=play.now + 1)
    account.add(b.turn, Usage(nano_dollars=4), at=play.now)
    assert [(line.agent, line.usage.nano_dollars) for line in account.lines] == [("a", 12), ("b", 7)]
    assert account.lines[1].at == play.now + 1
    assert total(account.lines) == Usage(nano_dollars=19)


def test_a_round_that_the_clock_ended_is_owed_until_a_later_report_has_it() -> None:
    play = opened(policy=Policy(turn_timeout_s=10, max_retries=1))
    play.wait(11)
    play.wait(60)
    assert play.holder.round == 1
    assert rounds(taken(play.events)) == [("a", 0, 1)]
    play.wait(11)
    assert rounds(taken(play.events)) == [("a", 0, 1)]  # escalated: nobody will report
    play = opened(policy=Policy(turn_timeout_s=10, max_retries=1))
    play.wait(11)
    play.wait(60)
    play.move(complete(), report=usage(nano_dollars=9))
    assert rounds(taken(play.events)) == []


def test_a_turn_that_goes_on_owes_its_own_rounds_of_the_journal_that_it_shares() -> None:
    play = opened()
    first = play.turn
    play.move(escalate(), report=usage(nano_dollars=9))
    assert rounds(taken(play.events)) == []
    play.control(Resolve, turn=play.turn, again=True)
    (owed,) = taken(play.events).unreported
    assert (owed.turn, owed.journal, owed.first, owed.last) == (play.turn, first, 1, 1)


def test_a_move_that_waits_for_a_thaw_has_reported() -> None:
    play = opened()
    play.control(Freeze)
    play.move(complete(), report=usage(nano_dollars=9))
    account = taken(play.events)
    assert (rounds(account), total(account.lines).nano_dollars) == ([], 9)


def test_a_model_without_a_price_is_named_where_it_was_used() -> None:
    play = opened(prices={"big": {"input": 1, "output": 1}, "free": {"input": 0, "output": 0}})
    used = {
        "big-20261101": Metered(input=5, calls=1),
        "free": Metered(input=5, calls=1),
        "new": Metered(input=5, calls=2),
        "alias": Metered(input=5, calls=1, nano_dollars=7),
        "silent": Metered(calls=1),
    }
    play.move(complete(), report=Report(usage=Usage(models=used)))
    (line,) = taken(play.events).lines
    assert (line.unpriced, line.unpriced_calls) == (("new",), 2)


def test_costs_can_be_told_turn_by_turn() -> None:
    found = summed(spending(played()), BY["turn"])
    assert [name.split()[0] for name in found] == ["b", "a", "a"]
    assert all(TurnId(name.split()[1]) for name in found)
