"""What a request cost, from its events alone."""

import pytest

from protocol import events
from protocol.messages import Report, Usage
from protocol.prices import Metered
from protocol.spending import BY, by_model, cached_share, spending, summed
from tests.unit.protocol.worlds import Court, complete, hand_back, transfer, usage


def played() -> list[events.AnyEvent]:
    """a (10, then 14 in all) → b (100) → a (3)"""
    court = Court()
    court.submit()
    court.move(transfer("nobody"), report=usage(nano_dollars=10))
    court.move(transfer("b"), report=usage(nano_dollars=14, tokens=2))
    court.move(hand_back(), report=usage(nano_dollars=100))
    court.move(complete(), report=usage(nano_dollars=3))
    return court.events


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


def test_a_turn_that_never_reported_has_no_line() -> None:
    court = Court()
    court.submit()
    court.move(transfer("b"))
    assert spending(court.events) == []


def test_tokens_add_up_by_model() -> None:
    court = Court()
    court.submit()
    one = Usage(models={"big": Metered(input=5, cache_read=15, calls=1), "small": Metered(output=1)})
    court.move(transfer("b"), report=Report(usage=one))
    court.move(complete(), report=Report(usage=Usage(models={"big": Metered(output=2, calls=1)})))
    found = by_model(spending(court.events))
    big = Metered(input=5, cache_read=15, output=2, calls=2)
    assert found == {"big": big, "small": Metered(output=1)}
    assert summed(spending(court.events), BY["client"])["c1"].models == found
    assert cached_share(big) == 0.75
    assert cached_share(found["small"]) is None
