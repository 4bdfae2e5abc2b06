"""How processes share a model's rate limits: never too much together, and everybody gets some."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from mesh.bus.streams import stream_table
from protocol.domain.rate_limit import LEASE_US, MINUTE_US, TURN_US, ModelUse, release, renew
from protocol.wire import config, subjects
from protocol.wire.config import (
    MOST_AT_ONCE,
    MOST_PER_MINUTE,
    MOST_PROCESSES,
    DocumentInvalid,
    Fleet,
    ModelLimits,
    RateLimitEntry,
    RatePart,
    RateShare,
)
from protocol.wire.ids import AgentName, is_token
from tests.unit.protocol.anything import STORIES

T0 = 1_700_000_000_000_000
RENEW_US = 2_000_000
FEW = st.integers(1, 8)


class Process:
    """One that keeps to what it was granted, with as many calls as it can get."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.may_run = self.may_begin = 0
        self.running = 0
        self.begun: list[int] = []
        self.waiting = 0
        self.until = 0

    def usage(self, now: int) -> ModelUse:
        self.begun = [at for at in self.begun if at > now - MINUTE_US]
        return ModelUse(self.running, len(self.begun), self.waiting)

    def renew(self, entry: RateLimitEntry, now: int, limits: ModelLimits) -> RateLimitEntry:
        said = renew(entry, self.name, now, self.usage(now), limits)
        self.may_run, self.may_begin = said.concurrency, said.per_minute
        self.until = now + LEASE_US
        return config.read_rate_limit(msgspec.json.encode(said.entry))

    def begin(self, now: int) -> None:
        """Begin what waits, as far as it may."""
        self.usage(now)
        while (
            self.waiting
            and now < self.until
            and self.running < self.may_run
            and len(self.begun) < self.may_begin
        ):
            self.waiting -= 1
            self.running += 1
            self.begun.append(now)


class Sharing(RuleBasedStateMachine):
    """Any number of processes that ask, end calls, renew, give back and die, in any order."""

    names = Bundle("names")

    @initialize(concurrency=FEW, per_minute=FEW)
    def begin(self, concurrency: int, per_minute: int) -> None:
        self.concurrency, self.per_minute = concurrency, per_minute
        self.limits = ModelLimits(concurrency=concurrency, per_minute=per_minute)
        self.now = T0
        self.entry = RateLimitEntry()
        self.known: dict[str, Process] = {}
        self.begun: list[int] = []
        self.count = 0

    @rule(target=names)
    def join(self) -> str:
        self.count += 1
        name = f"p{self.count}"
        self.known[name] = Process(name)
        return name

    @rule(name=names, calls=st.integers(0, 5), ended=st.integers(0, 5))
    def work(self, name: str, calls: int, ended: int) -> None:
        if (process := self.known.get(name)) is None:
            return
        process.running -= min(ended, process.running)
        process.waiting += calls
        process.usage(self.now)
        before = len(process.begun)
        process.begin(self.now)
        self.begun += process.begun[before:]

    @rule(name=names)
    def renew(self, name: str) -> None:
        if (process := self.known.get(name)) is not None:
            self.entry = process.renew(self.entry, self.now, self.limits)

    @rule(name=names)
    def give_back(self, name: str) -> None:
        process = self.known.get(name)
        if process is not None and not process.running:
            self.entry = release(self.entry, name, self.now, process.usage(self.now).begun)
            process.may_run = process.may_begin = 0

    @rule(name=names)
    def die(self, name: str) -> None:
        self.known.pop(name, None)

    @rule(seconds=st.integers(1, 90))
    def wait(self, seconds: int) -> None:
        self.now += seconds * 1_000_000
        for process in self.known.values():
            if process.until <= self.now:  # what it has under way then is its vendor's and nobody's share
                process.running = 0

    @invariant()
    def never_too_much(self) -> None:
        if not hasattr(self, "limits"):
            return
        live = [share for share in self.entry.shares.values() if share.until > self.now]
        assert sum(share.concurrency.has for share in live) <= self.concurrency
        assert sum(share.per_minute.has for share in self.entry.shares.values()) <= self.per_minute
        assert sum(process.running for process in self.known.values()) <= self.concurrency
        assert len([at for at in self.begun if at > self.now - MINUTE_US]) <= self.per_minute


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(concurrency=st.integers(1, 50), data=st.data())
@settings(max_examples=STORIES // 4, deadline=None)  # one of 50 processes renews 3,800 times
def test_a_newcomer_has_a_permit_soon(concurrency: int, data: Any) -> None:
    """Everybody's calls end between two renewals. Two rounds: one to be told of, one to be given."""
    limits = ModelLimits(concurrency=concurrency)
    count = data.draw(st.integers(1, concurrency))
    processes = [Process(f"p{number}") for number in range(count)]
    entry, now = RateLimitEntry(), T0
    for number, process in enumerate(processes):
        process.waiting = 1000
        for _ in range(3):
            for each in processes[: number + 1]:
                each.running = 0
                entry = each.renew(entry, now, limits)
                each.running = each.may_run
                now += 1
            now += RENEW_US
        assert process.may_run >= 1
    fair = concurrency // count
    assert all(fair <= each.may_run <= fair + 1 for each in processes)
    assert sum(each.may_run for each in processes) == concurrency


@pytest.mark.parametrize(("limit", "count"), [(1, 2), (1, 5), (3, 4), (3, 20), (5, 6)])
def test_with_fewer_places_than_processes_each_has_its_turn(limit: int, count: int) -> None:
    limits = ModelLimits(concurrency=limit)
    processes = [Process(f"p{number}") for number in range(count)]
    entry, now = RateLimitEntry(), T0 - T0 % TURN_US
    had = dict.fromkeys((each.name for each in processes), 0)
    while now < T0 + 4 * count * TURN_US:
        for each in processes:
            each.waiting, each.running = 10, 0
            entry = each.renew(entry, now, limits)
            had[each.name] += each.may_run
        now += RENEW_US
    assert min(had.values()) * 3 >= max(had.values())
    assert min(had.values()) > 0


def test_a_running_call_is_never_taken_and_its_place_is_when_it_ends() -> None:
    limits = ModelLimits(concurrency=4)
    one = renew(RateLimitEntry(), "one", T0, ModelUse(0, 0, 4), limits)
    two = renew(one.entry, "two", T0, ModelUse(0, 0, 4), limits)
    assert (one.concurrency, two.concurrency) == (4, 0)
    busy = renew(two.entry, "one", T0 + 1, ModelUse(4, 0, 9), limits)
    assert (busy.concurrency, busy.entry.shares["one"].concurrency.has) == (2, 4)
    less = renew(busy.entry, "one", T0 + 2, ModelUse(3, 0, 9), limits)
    assert (less.concurrency, less.entry.shares["one"].concurrency.has) == (2, 3)
    assert renew(less.entry, "two", T0 + 3, ModelUse(0, 0, 4), limits).concurrency == 1


def test_requests_that_began_are_given_back_when_their_minute_is_over() -> None:
    limits = ModelLimits(per_minute=10)
    one = renew(RateLimitEntry(), "one", T0, ModelUse(0, 0, 10), limits)
    two = renew(one.entry, "two", T0, ModelUse(0, 0, 10), limits)
    assert (one.per_minute, two.per_minute) == (10, 0)
    after = renew(two.entry, "one", T0 + 1, ModelUse(0, 8, 10), limits)
    assert (after.per_minute, after.entry.shares["one"].per_minute.has) == (5, 8)
    assert renew(after.entry, "two", T0 + 2, ModelUse(0, 0, 10), limits).per_minute == 2


def test_the_share_of_one_that_died_returns() -> None:
    limits = ModelLimits(concurrency=3, per_minute=30)
    dead = renew(RateLimitEntry(), "dead", T0, ModelUse(0, 0, 40), limits)
    assert (dead.concurrency, dead.per_minute) == (3, 30)
    for at, concurrency, per_minute in (
        (LEASE_US - 1, 0, 0),
        (LEASE_US, 3, 0),  # a minute for requests that it may have begun at its last moment
        (LEASE_US + MINUTE_US - 1, 3, 0),
        (LEASE_US + MINUTE_US, 3, 30),
    ):
        said = renew(dead.entry, "next", T0 + at, ModelUse(0, 0, 40), limits)
        assert (said.concurrency, said.per_minute) == (concurrency, per_minute)
    assert set(said.entry.shares) == {"next"}


def test_a_share_that_is_given_back_is_free_at_once_but_requests_that_began_are_not() -> None:
    limits = ModelLimits(concurrency=3, per_minute=30)
    one = renew(RateLimitEntry(), "one", T0, ModelUse(0, 0, 30), limits)
    rest = release(one.entry, "one", T0 + 1, begun=2)
    said = renew(rest, "two", T0 + 1, ModelUse(0, 0, 30), limits)
    assert (said.concurrency, said.per_minute) == (3, 28)
    assert release(said.entry, "two", T0 + 2, begun=0).shares.keys() == {"one"}


def test_without_a_limit_a_minute_nothing_remains_of_a_share_that_is_given_back() -> None:
    one = renew(RateLimitEntry(), "one", T0, ModelUse(1, 1, 1), ModelLimits(concurrency=3))
    assert release(one.entry, "one", T0 + 1, begun=2).shares == {}


def test_a_process_that_is_alone_leaves_half_of_what_it_does_not_need() -> None:
    limits = ModelLimits(concurrency=40)
    first = renew(RateLimitEntry(), "first", T0, ModelUse(0, 0, 1), limits)
    second = renew(first.entry, "second", T0, ModelUse(0, 0, 1), limits)
    assert (first.concurrency, second.concurrency) == (20, 10)


def test_nobody_gets_more_than_they_want_and_the_rest_is_divided() -> None:
    limits = ModelLimits(concurrency=12)
    entry, wanted = RateLimitEntry(), {"a": 20, "b": 20, "c": 1}
    for _ in range(3):
        parts = {}
        for name, wants in wanted.items():
            said = renew(entry, name, T0, ModelUse(0, 0, wants), limits)
            entry, parts[name] = said.entry, said.concurrency
    assert parts["c"] == 1
    assert sorted((parts["a"], parts["b"])) == [5, 6]


def test_a_model_without_limits_takes_part_in_nothing() -> None:
    said = renew(RateLimitEntry(), "one", T0, ModelUse(3, 3, 3), ModelLimits())
    assert said.entry.shares == {"one": RateShare(until=T0 + LEASE_US)}


def test_an_entry_has_room_for_so_many_and_fits() -> None:
    part = RatePart(has=1, wants=MOST_PER_MINUTE)
    name = "a" * 24 + "-01234567"
    full = RateLimitEntry(
        shares={
            f"{name[:-3]}{number:03}": RateShare(concurrency=part, per_minute=part, until=T0 + LEASE_US)
            for number in range(MOST_PROCESSES)
        }
    )
    limits = ModelLimits(concurrency=MOST_AT_ONCE, per_minute=MOST_PER_MINUTE)
    late = renew(full, "late", T0, ModelUse(0, 0, 1), limits)
    assert (late.concurrency, late.per_minute, late.entry) == (0, 0, full)
    assert len(msgspec.json.encode(full)) < stream_table(FLEET)["RATES"]["max_msg_size"]


FLEET = Fleet(name="t", entry=AgentName("a"))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"shares":{"p":{}}}', b'{"shares":{"p":{"until":-1}}}',
     b'{"shares":{"p":{"until":1e400}}}', b'{"shares":{"p":{"until":1,"concurrency":{"has":-5}}}}'],
)  # fmt: skip
def test_an_entry_with_a_mistake_is_refused(body: bytes) -> None:
    with pytest.raises(DocumentInvalid):
        config.read_rate_limit(body)


def test_an_entry_of_a_newer_version_is_read() -> None:
    entry = config.read_rate_limit(b'{"shares":{"p":{"until":7,"more":1}},"more":{}}')
    assert entry == RateLimitEntry(shares={"p": RateShare(until=7)})


@given(st.text(min_size=0, max_size=80), st.text(max_size=80))
def test_every_model_has_a_subject_of_its_own(one: str, other: str) -> None:
    head, _, token = subjects.rate(one).rpartition(".")
    assert head == "mesh.rate"
    assert is_token(token)
    assert (subjects.rate(one) == subjects.rate(other)) == (one == other)


def test_a_models_subject_can_be_read() -> None:
    assert subjects.rate("claude-haiku-5-5") == "mesh.rate.claude-haiku-5-5"
