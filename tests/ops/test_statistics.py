"""Statistics: each number against a plain count of the same requests, and the same after every growth."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.ops.hops import OPEN, HopTracker, bucket_of, time_in
from mesh.ops.index import RequestIndex
from mesh.ops.rows import FoldedRequest
from mesh.ops.statistics import QUIET_S, EdgeStatistics, Statistics, statistics
from mesh.ops.where import Filter, parse
from mesh.testing import InMemoryGuard, Policy, fleet_of
from protocol.wire.commands import Report, Usage
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Escalate, Fail, HandBack, Move, Transfer

FLEET = fleet_of("a", "b", "c", human=True)


def to(agent: str, *facts: Fact) -> Transfer:
    return Transfer(to_agent=AgentName(agent), summary="go on", facts=facts)


def fresh(n: int) -> Fact:
    return Fact(key=f"k{n}", value=n)


def back(*facts: Fact) -> HandBack:
    return HandBack(summary="no", facts=facts)


class Log:
    """Requests side by side in one index, which is fed event by event."""

    def __init__(self, path: Path) -> None:
        self.index = RequestIndex(path, "a log")
        self.seq = 0
        self.requests: list[InMemoryGuard] = []

    def request(self, **policy: object) -> InMemoryGuard:
        place, folded = [0], FoldedRequest()

        def feed(event: object) -> None:
            self.seq += 1
            place[0] = place[0] or self.seq
            folded.take(event)  # type: ignore[arg-type]
            self.index.put([(place[0], folded.row(self.seq))], self.seq - 1, self.seq)

        policies = {"default": Policy(**policy)}  # type: ignore[arg-type]
        guard = InMemoryGuard(FLEET, policies, number=len(self.requests) + 1, on_event=feed)
        self.requests.append(guard)
        return guard

    def of(self, where: str = "", **also: int) -> Statistics:
        return statistics(self.index, parse(where) if where else Filter(), **also)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "index.sqlite3")
    with contextlib.closing(made.index):
        yield made


def walk(guard: InMemoryGuard, *moves: Move, each_s: float = 10.0, dollars: float = 0.5) -> None:
    guard.submit("hello")
    for move in moves:
        guard.wait(each_s)
        guard.move(move, Report(usage=Usage(nano_dollars=int(dollars * 1e9), model_calls=1)))


def edge(found: Statistics, giver: str, taker: str) -> EdgeStatistics:
    [each] = [each for each in found.edges if (each.giver, each.taker) == (giver, taker)]
    return each


def test_edges_have_hops_refusals_times_and_costs(log: Log) -> None:
    walk(log.request(), to("b"), Complete(answer="done"))
    walk(log.request(), to("b"), Complete(answer="done"), each_s=40.0)
    walk(log.request(max_depth=0), to("b"))
    found = log.of()
    first, second = edge(found, "client", "a"), edge(found, "a", "b")
    assert (first.passed, first.refused, first.open) == (3, 0, 1)
    assert (second.passed, second.refused, second.open) == (2, 1, 0)
    assert second.mean_s == pytest.approx(25.0)
    assert second.p50_s == pytest.approx(10.0, rel=0.1)
    assert second.p95_s == pytest.approx(40.0, rel=0.1)
    assert (second.waited_s, second.nano_dollars) == (0.0, 10**9)
    assert (found.requests, found.hops, found.refusals) == (3, 5, 1)
    assert found.nano_dollars == 2_500_000_000
    assert [(each.rule, each.refused, each.requests) for each in found.rules] == [("depth", 1, 1)]
    assert found.depths == {0: 1, 1: 2}
    assert found.statuses == {"completed": 2, "open": 1}
    assert found.events == sum(len(each.events) for each in log.requests)


def test_what_a_turn_waits_is_told_apart_from_what_it_works(log: Log) -> None:
    guard = log.request()
    guard.submit("hello")
    guard.wait(10)
    guard.move(Ask(to_agent=AgentName("client"), question="which one?", expires_s=3_600))
    guard.wait(30)
    guard.reply("this one")
    guard.wait(5)
    guard.move(Complete(answer="done"))
    hop = edge(log.of(), "client", "a")
    assert hop.mean_s == pytest.approx(45.0)
    assert hop.waited_s == pytest.approx(30.0)


def test_the_time_in_the_queue_is_what_was_neither_waited_nor_worked(log: Log) -> None:
    guard = log.request()
    guard.submit("hello")
    guard.wait(10)  # of which it worked 2 s
    guard.move(
        Ask(to_agent=AgentName("client"), question="which one?", expires_s=3_600), Report(worked_ms=2_000)
    )
    guard.wait(30)
    guard.reply("this one")
    guard.wait(5)  # of which it worked 4 s
    guard.move(Complete(answer="done"), Report(worked_ms=6_000))
    assert edge(log.of(), "client", "a").queued_s == pytest.approx(9.0)


def test_the_time_in_the_queue_is_known_only_of_agents_that_say_how_long_they_worked(log: Log) -> None:
    for worked_ms in (0, 3_000, 60_000):  # the last one by a clock that runs too fast
        guard = log.request()
        guard.submit("hello")
        guard.wait(10)
        guard.move(Complete(answer="done"), Report(worked_ms=worked_ms))
    silent = log.request()
    silent.submit("hello")
    silent.wait(10)
    silent.move(to("b"))
    assert edge(log.of(), "client", "a").queued_s == pytest.approx((7.0 + 0.0) / 2)
    assert edge(log.of(), "a", "b").queued_s is None


@pytest.mark.parametrize(
    ("moves", "count"),
    [
        ([to("b"), back()], 0),
        ([to("b"), back(), to("b", fresh(1))], 1),
        ([to("b"), back(), to("b", fresh(1)), back(fresh(2)), to("b", fresh(3))], 3),
        ([to("b"), back(), to("c")], 0),
    ],
)
def test_ping_pong_is_work_that_goes_to_and_fro_again(log: Log, moves: list[Move], count: int) -> None:
    walk(log.request(), *moves)
    walk(log.request(), Fail(reason="no"))
    found = log.of()
    assert (found.ping_pong, found.ping_pong_requests) == (count, int(count > 0))
    assert found.ping_pong_share == count / found.hops


def test_open_requests_are_counted_by_who_has_them_and_the_quiet_ones_apart(log: Log) -> None:
    one, other, people, ended = (log.request() for _ in range(4))
    walk(one, to("b"))
    walk(other, to("b"), each_s=500.0)
    walk(people, Escalate(summary="a person, please"))
    walk(ended, Fail(reason="no"))
    at = max(one.events[-1].at, other.events[-1].at)
    found = log.of(now=one.events[-1].at + QUIET_S * 1_000_000 + 1)
    with_b = next(each for each in found.stuck if each.holder == "b")
    assert (with_b.open, with_b.quiet, with_b.since) == (2, 1, one.events[-1].at)
    assert (found.human, found.frozen) == (1, 0)
    assert {each.holder for each in found.stuck} == {"b", "human"}
    assert sum(each.quiet for each in log.of(now=at).stuck) == 0


def test_a_filter_counts_the_wanted_requests_alone(log: Log) -> None:
    walk(log.request(), to("b"), Complete(answer="done"))
    walk(log.request(), to("c"), Complete(answer="done"))
    walk(log.request(max_depth=0), to("c"))
    found = log.of("agent=c")
    assert (found.requests, found.hops) == (1, 2)
    assert [(each.giver, each.taker) for each in found.edges] == [("a", "c"), ("client", "a")]
    assert found.rules == ()
    assert log.of("rule=depth").rules[0].refused == 1
    assert log.of("agent=a agent=c status=open").requests == 0
    assert log.of("since=2099-01-01T00:00Z") == log.of("text=nothing")


def test_days_are_those_on_which_requests_were_opened(log: Log) -> None:
    walk(log.request(), Complete(answer="done"))
    guard = log.request()
    guard.now += 3 * 86_400_000_000
    walk(guard, to("b"))
    first, second = log.of().days
    assert (first.requests, first.statuses, first.nano_dollars) == (1, {"completed": 1}, 500_000_000)
    assert (second.requests, second.statuses, second.hops) == (1, {"open": 1}, 2)
    assert first.day < second.day
    assert len(first.day) == len("2026-11-27")


def test_what_the_log_no_longer_holds_is_counted_no_longer(log: Log) -> None:
    walk(log.request(), to("b"), Complete(answer="done"))
    until = log.seq
    walk(log.request(max_depth=0), to("c"), Fail(reason="no"))
    assert log.index.forget(until + 1) == 1
    found = log.of()
    assert {(each.giver, each.taker) for each in found.edges} == {("client", "a"), ("a", "c")}
    assert (found.requests, found.hops) == (1, 1)
    assert log.index.forget(log.seq + 1) == 1
    with log.index.reading_of(Filter()) as reader:
        assert reader.read("SELECT count(*) FROM hops") == [(0,)]
        assert reader.read("SELECT count(*) FROM refusals") == [(0,)]


def test_amounts_that_no_sum_could_hold_stop_nothing(log: Log) -> None:
    for _ in range(3):
        guard = log.request()
        guard.submit("hello")
        guard.move(Complete(answer="done"), Report(usage=Usage(nano_dollars=2**53 - 1)))
    assert log.of().nano_dollars > 2**53


def test_a_bucket_holds_times_that_are_alike() -> None:
    assert bucket_of(0) == bucket_of(999) == 0
    for us in (1_000, 12_345, 999_999, 5_000_000, 86_400_000_000):
        assert time_in(bucket_of(us)) == pytest.approx(us, rel=0.1)
    assert bucket_of(1_000) > OPEN
    assert HopTracker().counts(InMemoryGuard(FLEET).ledger).hops == ()
