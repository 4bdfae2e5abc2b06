"""How processes share what a model may be asked, as a function: never too much, and everybody gets some."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from mesh.bus.streams import stream_table
from protocol import documents, subjects
from protocol.documents import DocumentInvalid
from protocol.fleet import MOST_AT_ONCE, MOST_PER_MINUTE, Fleet, ModelLimits
from protocol.ids import AgentName, is_token
from protocol.pace import (
    LEASE_US,
    MINUTE_US,
    MOST_PROCESSES,
    PaceEntry,
    Part,
    Share,
    Use,
    released,
    renewed,
)

T0 = 1_700_000_000_000_000
RENEW_US = 5_000_000
ROUNDS = 40
FEW = st.integers(1, 8)


class Process:
    """One that keeps to what it was granted, with as many calls as it can get."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.permits = self.begins = 0
        self.running = 0
        self.begun: list[int] = []
        self.waiting = 0
        self.until = 0

    def use(self, now: int) -> Use:
        self.begun = [at for at in self.begun if at > now - MINUTE_US]
        return Use(self.running, len(self.begun), self.waiting)

    def renew(self, entry: PaceEntry, now: int, limits: ModelLimits) -> PaceEntry:
        said = renewed(entry, self.name, now, self.use(now), limits)
        self.permits, self.begins = said.permits or 0, said.begins or 0
        self.until = now + LEASE_US
        return documents.read_pace(msgspec.json.encode(said.entry))

    def begin(self, now: int) -> None:
        """Begin what waits, as far as it may."""
        self.use(now)
        while (
            self.waiting
            and now < self.until
            and self.running < self.permits
            and len(self.begun) < self.begins
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
        self.entry = PaceEntry()
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
        process.use(self.now)
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
            self.entry = released(self.entry, name, self.now, process.use(self.now))
            process.permits = process.begins = 0

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
        assert sum(share.permits.has for share in live) <= self.concurrency
        assert sum(share.begins.has for share in self.entry.shares.values()) <= self.per_minute
        assert sum(process.running for process in self.known.values()) <= self.concurrency
        assert len([at for at in self.begun if at > self.now - MINUTE_US]) <= self.per_minute


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(concurrency=st.integers(1, 50), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_newcomer_has_a_permit_soon(concurrency: int, data: Any) -> None:
    """Everybody's calls end between two renewals. Two rounds: one to be told of, one to be given."""
    limits = ModelLimits(concurrency=concurrency)
    count = data.draw(st.integers(1, concurrency))
    processes = [Process(f"p{number}") for number in range(count)]
    entry, now = PaceEntry(), T0
    for number, process in enumerate(processes):
        process.waiting = 1000
        for _ in range(3):
            for each in processes[: number + 1]:
                each.running = 0
                entry = each.renew(entry, now, limits)
                each.running = each.permits
                now += 1
            now += RENEW_US
        assert process.permits >= 1
    fair = concurrency // count
    assert all(fair <= each.permits <= fair + 1 for each in processes)
    assert sum(each.permits for each in processes) == concurrency


@pytest.mark.parametrize(("limit", "count"), [(1, 2), (1, 5), (3, 4), (3, 20), (5, 6)])
def test_with_fewer_permits_than_processes_each_has_its_turn(limit: int, count: int) -> None:
    limits = ModelLimits(concurrency=limit)
    processes = [Process(f"p{number}") for number in range(count)]
    entry, now = PaceEntry(), T0
    had = dict.fromkeys((each.name for each in processes), 0)
    for _ in range(ROUNDS * 4):
        for each in processes:
            each.waiting, each.running = 10, 0
            entry = each.renew(entry, now, limits)
            had[each.name] += each.permits
            now += RENEW_US // count
    assert min(had.values()) * 3 >= max(had.values())
    assert min(had.values()) > 0


def test_what_runs_is_never_taken_and_what_ends_is() -> None:
    limits = ModelLimits(concurrency=4)
    one = renewed(PaceEntry(), "one", T0, Use(0, 0, 4), limits)
    two = renewed(one.entry, "two", T0, Use(0, 0, 4), limits)
    assert (one.permits, two.permits) == (4, 0)
    busy = renewed(two.entry, "one", T0 + 1, Use(4, 0, 9), limits)
    assert (busy.permits, busy.entry.shares["one"].permits.has) == (2, 4)
    less = renewed(busy.entry, "one", T0 + 2, Use(3, 0, 9), limits)
    assert (less.permits, less.entry.shares["one"].permits.has) == (2, 3)
    assert renewed(less.entry, "two", T0 + 3, Use(0, 0, 4), limits).permits == 1


def test_what_began_is_given_back_when_its_minute_is_over() -> None:
    limits = ModelLimits(per_minute=10)
    one = renewed(PaceEntry(), "one", T0, Use(0, 0, 10), limits)
    two = renewed(one.entry, "two", T0, Use(0, 0, 10), limits)
    assert (one.begins, two.begins) == (10, 0)
    after = renewed(two.entry, "one", T0 + 1, Use(0, 8, 10), limits)
    assert (after.begins, after.entry.shares["one"].begins.has) == (5, 8)
    assert renewed(after.entry, "two", T0 + 2, Use(0, 0, 10), limits).begins == 2


def test_the_share_of_one_that_died_returns() -> None:
    limits = ModelLimits(concurrency=3, per_minute=30)
    dead = renewed(PaceEntry(), "dead", T0, Use(0, 0, 40), limits)
    assert (dead.permits, dead.begins) == (3, 30)
    for at, permits, begins in (
        (LEASE_US - 1, 0, 0),
        (LEASE_US, 3, 0),  # a minute for what it may have begun at its last moment
        (LEASE_US + MINUTE_US - 1, 3, 0),
        (LEASE_US + MINUTE_US, 3, 30),
    ):
        said = renewed(dead.entry, "next", T0 + at, Use(0, 0, 40), limits)
        assert (said.permits, said.begins) == (permits, begins)
    assert set(said.entry.shares) == {"next"}


def test_what_is_given_back_is_free_at_once_but_what_began() -> None:
    limits = ModelLimits(concurrency=3, per_minute=30)
    one = renewed(PaceEntry(), "one", T0, Use(0, 0, 30), limits)
    rest = released(one.entry, "one", T0 + 1, Use(0, 2, 0))
    said = renewed(rest, "two", T0 + 1, Use(0, 0, 30), limits)
    assert (said.permits, said.begins) == (3, 28)
    assert released(said.entry, "two", T0 + 2, Use()).shares.keys() == {"one"}


def test_who_comes_alone_leaves_half_of_what_it_does_not_need() -> None:
    limits = ModelLimits(concurrency=40)
    first = renewed(PaceEntry(), "first", T0, Use(0, 0, 1), limits)
    second = renewed(first.entry, "second", T0, Use(0, 0, 1), limits)
    assert (first.permits, second.permits) == (21, 10)


def test_an_entry_has_room_for_so_many_and_fits() -> None:
    part = Part(has=1, wants=MOST_PER_MINUTE, since=T0)
    name = "a" * 24 + "-01234567"
    full = PaceEntry(
        shares={
            f"{name[:-3]}{number:03}": Share(permits=part, begins=part, until=T0 + LEASE_US)
            for number in range(MOST_PROCESSES)
        }
    )
    limits = ModelLimits(concurrency=MOST_AT_ONCE, per_minute=MOST_PER_MINUTE)
    late = renewed(full, "late", T0, Use(0, 0, 1), limits)
    assert (late.permits, late.begins, late.entry) == (0, 0, full)
    assert len(msgspec.json.encode(full)) < stream_table(FLEET)["PACE"]["max_msg_size"]


FLEET = Fleet(name="t", entry=AgentName("a"))


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"shares":{"p":{}}}', b'{"shares":{"p":{"until":-1}}}',
     b'{"shares":{"p":{"until":1e400}}}', b'{"shares":{"p":{"until":1,"permits":{"has":-5}}}}'],
)  # fmt: skip
def test_an_entry_with_a_mistake_is_refused(body: bytes) -> None:
    with pytest.raises(DocumentInvalid):
        documents.read_pace(body)


def test_an_entry_of_a_newer_version_is_read() -> None:
    entry = documents.read_pace(b'{"shares":{"p":{"until":7,"more":1}},"more":{}}')
    assert entry == PaceEntry(shares={"p": Share(until=7)})


@given(st.text(min_size=0, max_size=80), st.text(max_size=80))
def test_every_model_has_a_subject_of_its_own(one: str, other: str) -> None:
    head, _, token = subjects.pace(one).rpartition(".")
    assert head == "mesh.pace"
    assert is_token(token)
    assert (subjects.pace(one) == subjects.pace(other)) == (one == other)


def test_a_models_subject_can_be_read() -> None:
    assert subjects.pace("claude-haiku-5.5") == "mesh.pace.claude-haiku-5_2e5"
