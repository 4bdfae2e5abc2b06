"""The cache is bounded by the memory that it takes, whatever the requests in it are made of."""

import gc
import tracemalloc

import pytest

from mesh.guard.processor import Cache, CachedRequest, weight
from mesh.testing import InMemoryGuard, fleet_of
from protocol.wire import codec
from protocol.wire.commands import Submit
from protocol.wire.config import Policy
from protocol.wire.handoff import Fact
from tests.contract.script import Script
from tests.contract.tree_scenarios import DELIVERED, plan, task


def request(weighs: int) -> CachedRequest:
    return CachedRequest(weight=weighs)


def test_the_longest_unused_goes_first_when_the_bytes_are_too_many() -> None:
    cache = Cache(most_bytes=100)
    for name in "abc":
        cache.put(name, request(40))
    assert (cache.get("a"), cache.held, len(cache)) == (None, 80, 2)
    cache.get("b")
    cache.put("d", request(60))
    assert cache.get("b") is not None
    assert (cache.get("c"), cache.held) == (None, 100)


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
    bodies = [bytes(bytearray(body)) for body in guard.bodies]
    assert len(bodies) == 1 + 5 * (1 + 8 + 8 + 1)
    gc.collect()
    tracemalloc.start()
    cached = CachedRequest()
    for at, body in enumerate(bodies):
        cached.ledger.apply(codec.decode_event(body), body)
        cached.stored(body, at + 1)
    takes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert takes + sum(map(len, bodies)) <= cached.weight
