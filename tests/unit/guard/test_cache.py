"""The cache is bounded by the memory that it takes, whatever the requests in it are made of."""

import gc
import itertools
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from mesh.guard.cache import Cache, CachedRequest, weight
from mesh.testing import InMemoryGuard, fleet_of
from protocol.wire import codec
from protocol.wire.commands import Submit
from protocol.wire.config import Policy
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import HandBack, Move, Transfer
from tests.contract.script import Script
from tests.contract.tree_scenarios import DELIVERED, plan, task


class Weighed(CachedRequest):
    """A request that weighs what a test says."""

    weight = 0


def request(weighs: int, *, is_open: bool = False) -> Weighed:
    made = Weighed()
    made.weight = weighs
    made.ledger.status = "open" if is_open else "completed"
    return made


def test_of_those_that_are_over_the_longest_unused_goes_first() -> None:
    cache = Cache(most_bytes=100)
    for name in "abc":
        cache.put(name, request(40))
    assert (cache.get("a"), cache.held, len(cache)) == (None, 80, 2)
    cache.get("b")
    cache.put("d", request(60))
    assert cache.get("b") is not None
    assert (cache.get("c"), cache.held) == (None, 100)


def test_none_that_is_under_way_goes_for_one_that_is_over() -> None:
    cache = Cache(most_bytes=100)
    for name in "ab":
        cache.put(name, request(40, is_open=True))
    for name in "cde":
        cache.put(name, request(20))
    assert [name for name in "abcde" if cache.get(name)] == ["a", "b", "e"]
    cache.put("f", request(20, is_open=True))
    assert (cache.get("e"), cache.held) == (None, 100)


def test_requests_in_turns_that_are_a_little_too_many_do_not_all_go_before_they_are_used_again() -> None:
    numbers = itertools.cycle(number / 7 for number in range(7))
    cache, found = Cache(most_bytes=1_000, chance=lambda: next(numbers)), 0
    for round_ in range(40):
        for number in range(12):
            name = str(number)
            found += cache.get(name) is not None
            cache.put(name, request(100, is_open=True))
        assert (cache.held, len(cache)) == (1_000, 10) or not round_
    assert found > 40 * 12 / 3  # if the longest unused went, none would be


def test_a_request_that_grew_is_weighed_anew() -> None:
    cache, growing = Cache(most_bytes=100), request(10)
    cache.put("a", request(50))
    cache.put("b", growing)
    growing.weight = 90
    cache.put("b", growing)
    assert (cache.get("a"), cache.get("b"), cache.held) == (None, growing, 90)
    cache.drop("b")
    cache.drop("b")
    assert (cache.held, len(cache)) == (0, 0)


def test_one_beyond_the_bound_is_not_kept_and_puts_nobody_out() -> None:
    cache, small = Cache(most_bytes=100), request(50)
    cache.put("a", small)
    cache.put("b", request(101))
    assert (cache.get("a"), cache.get("b"), cache.held) == (small, None, 50)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x" * 100_000, id="text"),
        pytest.param([7] * 50_000, id="small-numbers"),
        pytest.param(list(range(10**6, 10**6 + 20_000)), id="numbers"),
        pytest.param([[] for _ in range(30_000)], id="empty-lists"),
        pytest.param([{} for _ in range(30_000)], id="empty-objects"),
        pytest.param({f"k{n}": n / 3 for n in range(10_000)}, id="an-object"),
        pytest.param([{"a": str(n)} for n in range(10_000)], id="objects"),
        pytest.param(["ä" * 9] * 5_000, id="words"),
    ],
)
def test_the_weight_of_an_event_follows_the_memory_that_it_takes(value: object) -> None:
    body = codec.encode(Submit(text="x", facts=(Fact(key="k", value=value),)))
    gc.collect()
    tracemalloc.start()
    kept = bytes(bytearray(body)), codec.parse_submit(body)
    takes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 * takes <= weight(body) <= 10 * takes
    del kept


def test_the_weight_of_a_tree_is_no_less_than_the_memory_that_it_takes() -> None:
    """Turns, tasks and results come on top of the events, and all of them share the events' own parts."""
    guard = InMemoryGuard(fleet_of("a", "b"), {"default": Policy(topology="supervised")})
    script = Script(guard)
    script.submit(sender=guard.client, facts=tuple(Fact(key=f"k{n}", value="x" * 200) for n in range(20)))
    for wave in range(5):
        names = [f"{wave}-{number}" for number in range(8)]
        script.of("", plan(*(task(name, "b", facts=(Fact(key="part", value=name),)) for name in names)))
        for name in names:
            script.of(name, DELIVERED)
    assert len(guard.bodies) == 1 + 5 * (1 + 8 + 8 + 1)
    cached, takes = folded(guard.bodies)
    assert takes <= cached.weight


def test_the_weight_of_leads_that_are_over_is_no_less_than_the_memory_that_they_take() -> None:
    """What a lead was given is the source of its tasks, and goes with the last of them."""
    guard = InMemoryGuard(fleet_of("a", "b", "c"), {"default": Policy(topology="supervised", max_tasks=99)})
    script = Script(guard)
    script.submit(sender=guard.client, facts=(Fact(key="whole", value="x" * 40_000),))
    for lead in map(str, range(20)):
        script.of("", plan(task(lead, "b", facts=(Fact(key="part", value=lead),))))
        script.of(lead, plan(task(f"{lead} below", "c")))
        script.of(f"{lead} below", DELIVERED)
        script.of(lead, DELIVERED)
    cached, takes = folded(guard.bodies)
    assert takes <= cached.weight
    over = [turn for turn in cached.ledger.turns.values() if turn.state == "ended"]
    assert len(over) == 2 * 20
    assert not any(turn.given for turn in over)


def test_a_long_request_takes_little_more_for_each_turn_that_is_over() -> None:
    """What a turn was given goes with it: a request of 1,000 events would else take 7 KB for each of them."""
    guard = InMemoryGuard(fleet_of("a", "b"), {"default": Policy(max_depth=1_000)})
    guard.submit("x", facts=tuple(Fact(key=f"k{n}", value="x" * 200) for n in range(20)), to=AgentName("a"))
    for move in to_and_fro(range(300)):
        guard.move(move)
    (half, some), (whole, all_) = folded(guard.bodies[:150]), folded(guard.bodies)
    assert (all_ - some) / 150 < len(guard.bodies[-1]) / 2
    assert some <= half.weight
    assert all_ <= whole.weight <= 3 * all_


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([str(n) * 20_000 for n in range(10, 40)], id="texts"),
        pytest.param([[[n] for _ in range(5_000)] for n in range(30)], id="lists"),
    ],
)
def test_the_weight_of_a_long_request_is_no_less_than_it_takes(values: Iterable[object]) -> None:
    guard = InMemoryGuard(fleet_of("a", "b"), {"default": Policy(max_depth=1_000)})
    guard.submit("x", to=AgentName("a"))
    for move in to_and_fro(values):
        guard.move(move)
    for events in (2, 5, 20, len(guard.bodies)):
        cached, takes = folded(guard.bodies[:events])
        assert takes <= cached.weight


def to_and_fro(values: Iterable[object]) -> Iterator[Move]:
    """Yield transfers and hand-backs between two agents, each with one of these values."""
    for number, value in enumerate(values):
        facts = (Fact(key="found", value=value),)
        yield (
            HandBack(summary="s", facts=facts)
            if number % 2
            else Transfer(to_agent=AgentName("b"), summary="s", facts=facts)
        )


def folded(stored: Iterable[bytes]) -> tuple[CachedRequest, int]:
    """Return a request as a guard reads it, and the bytes of memory that it takes."""
    gc.collect()
    tracemalloc.start()
    cached = CachedRequest()
    for at, body in enumerate(stored):
        own = bytes(bytearray(body))
        event = codec.decode_event(own)
        cached.ledger.apply(event, own)
        cached.stored(event, own, at + 1)
    del own, event
    takes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return cached, takes
