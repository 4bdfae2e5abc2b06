"""The cache is bounded by the memory that it takes, whatever the requests in it are made of."""

import gc
import tracemalloc

import pytest

from mesh.guard.processor import Cache, CachedRequest, weight
from protocol.wire import codec
from protocol.wire.commands import Submit
from protocol.wire.handoff import Fact


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
