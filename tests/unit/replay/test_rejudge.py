"""Judging a log again: exact for what was recorded, honest about what was changed."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mesh.errors import Malformed
from mesh.replay.load import load
from mesh.replay.rejudge import rejudge
from protocol.decide import decide
from protocol.due import due
from protocol.ledger import Ledger, fold
from protocol.views.timeline import timeline
from protocol.wire import codec
from protocol.wire.commands import (
    Ask,
    Complete,
    Control,
    Escalate,
    Freeze,
    HandBack,
    Hearing,
    Move,
    MoveProposed,
    Reply,
    Report,
    ReportFailure,
    Resolve,
    Submit,
    Thaw,
    Transfer,
    Usage,
    id_of,
    submit_id,
)
from protocol.wire.commands import Failure as FailureOf
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.events import AnyEvent, FactsWithheld, type_of
from protocol.wire.handoff import Budget, Constraints, Fact
from protocol.wire.ids import AgentName, Cause, TurnId, control_cause
from protocol.world import Grounds, World

REQUEST = "app_01ARZ3NDEKTSV4RRFFQ69G5FAV"
FLEET = {
    "a": AgentEntry(name=AgentName("a"), clearance=("pii",)),
    "b": AgentEntry(name=AgentName("b")),
    "c": AgentEntry(name=AgentName("c"), clearance=("pii",)),
}


class Log:
    """Plays a guard on one request and keeps the bytes that it would have stored."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy(budget=Budget(tokens=1000))
        self.ledger = Ledger()
        self.bodies: list[bytes] = []
        self.now = 1_700_000_000_000_000
        self.salts = 0

    def _world(self, sender: str | None = None, target: str | None = None) -> World:
        self.now += 1_000
        self.salts += 1
        grounds = Grounds(
            fleet=1, sender=FLEET.get(sender or ""), target=FLEET.get(target or ""), human=True, served=True
        )
        return World(now=self.now, salt=f"{self.salts:032x}", grounds=grounds, policy=self.policy)

    def _put(self, event: AnyEvent) -> AnyEvent:
        body = codec.encode(event)
        self.ledger.apply(event, body)
        self.bodies.append(body)
        return event

    def _hear(self, hearing: Hearing, target: str | None) -> AnyEvent:
        while True:
            policy = self.policy if isinstance(hearing.what, Submit) else None
            event = self._put(decide(self.ledger, hearing, policy, self._world(hearing.sender, target)))
            if not isinstance(event, FactsWithheld):
                break
        while (follows := due(self.ledger, None, self._world())) is not None:
            if isinstance(follows, Hearing):
                return self._hear(follows, "b")
            event = self._put(follows)
        return event

    def submit(self, *facts: Fact, **asked: object) -> AnyEvent:
        submit = Submit(text="Please help\nsoon", facts=facts, **asked)  # type: ignore[arg-type]
        hearing = Hearing(REQUEST, AgentName("app"), submit, Cause(submit_id(REQUEST)), "client", "d")
        return self._hear(hearing, "a")

    def move(self, move: Move, target: str | None = None, tokens: int = 0) -> AnyEvent:
        turn = self.ledger.holder
        assert turn is not None
        report = Report(usage=Usage(tokens=tokens))
        proposal = MoveProposed(turn=turn.id, round=turn.round, move=move, report=report)
        return self._propose(proposal, turn.agent, target)

    def fail(self, **error: object) -> AnyEvent:
        turn = self.ledger.holder
        assert turn is not None
        failure = FailureOf(code="bug", **error)  # type: ignore[arg-type]
        return self._propose(ReportFailure(turn=turn.id, round=turn.round, error=failure), turn.agent, None)

    def _propose(
        self, proposal: MoveProposed | ReportFailure, sender: AgentName, target: str | None
    ) -> AnyEvent:
        cause = Cause(id_of(REQUEST, proposal))
        return self._hear(Hearing(REQUEST, sender, proposal, cause, "agent"), target)

    def control(self, make: Callable[[TurnId, int], Control], target: str | None = None) -> AnyEvent:
        turn = self.ledger.holder
        assert turn is not None
        control = make(turn.id, turn.round)
        cause = control_cause(REQUEST, "ops", control.id)
        return self._hear(Hearing(REQUEST, AgentName("ops"), control, cause, "operator"), target)

    def wait(self, seconds: float) -> None:
        """Let time pass, and append what becomes due."""
        self.now += int(seconds * 1e6)
        while (follows := due(self.ledger, None, self._world())) is not None:
            assert not isinstance(follows, Hearing)
            self._put(follows)


def withheld_and_back() -> Log:
    log = Log()
    log.submit(
        Fact(key="ssn", value="123", labels=("pii",)),
        Fact(key="plan", value="gold"),
        constraints=Constraints(must_carry=("ssn", "plan"), max_resolution_time_s=60.0),
    )
    log.move(Transfer(to_agent=AgentName("b"), summary="look", facts=(Fact(key="x", value=1),)), "b", 10)
    log.move(Transfer(to_agent=AgentName("a"), summary="loop"), "a", 20)
    log.move(HandBack(summary="found", facts=(Fact(key="y", value=[1]),), drop=("x",)), "a", 30)
    narrowed = Constraints(budget=Budget(tokens=100), allowed_actions=("pay",))
    log.move(Transfer(to_agent=AgentName("c"), summary="pay", constraints=narrowed, no_return=True), "c")
    log.move(Complete(answer={"done": True}))
    return log


def asked_and_escalated() -> Log:
    log = Log()
    log.submit()
    log.move(Ask(to_agent=AgentName("app"), question="Which?"))
    log.control(lambda turn, round_: Reply(id="r", turn=turn, round=round_, value="that one"))
    log.fail()
    log.wait(5)
    log.fail(permanent=True)
    log.control(
        lambda turn, _: Resolve(
            id="go", turn=turn, to=AgentName("b"), by="Ann", facts=(Fact(key="k", value=1, labels=("pii",)),)
        ),
        "b",
    )
    log.move(Escalate(summary="no idea", facts=(Fact(key="tried", value=True),)))
    log.control(lambda turn, _: Resolve(id="done", turn=turn, complete=True, answer="by hand", by="Ann"))
    return log


def frozen_and_timed_out() -> Log:
    log = Log()
    log.submit()
    log.control(lambda *_: Freeze(id="f", by="Ann"))
    log.move(Transfer(to_agent=AgentName("b"), summary="waits"), "b")
    log.control(lambda *_: Thaw(id="t", by="Ann"))
    log.wait(901)
    log.wait(100_000)
    return log


ALL = [withheld_and_back, asked_and_escalated, frozen_and_timed_out]


@pytest.mark.parametrize("make", ALL)
def test_a_log_comes_out_the_same_to_the_letter(make: Callable[[], Log]) -> None:
    log = make()
    assert not log.ledger.is_open
    found = rejudge(log.bodies)
    assert found.same, found
    assert found.events == len(log.bodies) > 5


@pytest.mark.parametrize("make", ALL)
def test_a_changed_verdict_and_a_broken_chain_are_found(make: Callable[[], Log]) -> None:
    bodies = make().bodies
    event = msgspec.json.decode(bodies[3])
    event["at"] += 1
    bodies[3] = msgspec.json.encode(event)
    found = rejudge(bodies)
    assert [each.n for each in found.breaks] == [4]
    assert found.differences


def test_another_policy_says_which_verdicts_would_differ() -> None:
    found = rejudge(withheld_and_back().bodies, Policy(max_depth=1))
    assert [(each.recorded["type"], each.rederived.get("rule")) for each in found.differences] == [
        ("move.refused", "depth"),
        ("handoff.admitted", "depth"),
        ("handoff.admitted", "depth"),
    ]


def test_the_same_policy_changes_nothing() -> None:
    log = withheld_and_back()
    assert rejudge(log.bodies, log.policy).same


def test_an_event_of_a_newer_version_stops_the_reading_and_says_so() -> None:
    bodies = withheld_and_back().bodies
    bodies[-1] = bodies[-1].replace(b'"v":1', b'"v":9', 1)
    found = rejudge(bodies)
    assert "version 9" in found.unreadable
    assert not found.same


def test_a_file_is_sorted_by_request_and_number(tmp_path: Path) -> None:
    log = withheld_and_back()
    other = [body.replace(REQUEST.encode(), b"app_01ARZ3NDEKTSV4RRFFQ69G5FAX") for body in log.bodies]
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join([*reversed(log.bodies), *other]) + b"\n")
    found = load(file)
    assert list(found.values()) == [log.bodies, other]


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b'{"request":"r","n":0}\nrubbish\n')
    with pytest.raises(Malformed, match="line 2"):
        load(file)


# --- what is not all there --------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [[0], [0, 1], [2]], ids=["the-first", "the-beginning", "one-between"])
@pytest.mark.parametrize("policy", [None, Policy(max_depth=1)], ids=["recorded", "other-policy"])
def test_a_log_with_events_missing_is_said_to_be_one(missing: list[int], policy: Policy | None) -> None:
    bodies = withheld_and_back().bodies
    left = [body for n, body in enumerate(bodies) if n not in missing]
    found = rejudge(left, policy)
    assert not found.same
    assert found.events == missing[0]
    gap = next(n for n in range(len(bodies)) if n >= missing[0] and n not in missing)
    assert found.unreadable == f"event {missing[0]} is missing; the next one there is {gap}"


def test_nothing_at_all_is_no_log_that_holds() -> None:
    found = rejudge([])
    assert (found.same, found.unreadable) == (False, "there are no events")


@pytest.mark.parametrize("make", ALL)
def test_every_reader_of_a_log_without_its_beginning_says_so_in_one_way(make: Callable[[], Log]) -> None:
    bodies = make().bodies
    for first in range(1, len(bodies)):
        left = [codec.decode_event(body) for body in bodies[first:]]
        for read in (fold, timeline):
            with pytest.raises(BrokenLog, match=f"event 0 is missing; the next one there is {first}"):
                read(left)
        numbered = [msgspec.structs.replace(event, n=n) for n, event in enumerate(left)]
        assert not rejudge([codec.encode(event) for event in numbered]).same


def test_events_that_follow_from_nothing_are_said_to() -> None:
    """Somebody numbered them anew, so that nothing seems to be missing."""
    left = []
    for n, body in enumerate(withheld_and_back().bodies[1:]):
        left.append(msgspec.json.encode({**msgspec.json.decode(body), "n": n}))
    found = rejudge(left)
    assert not found.same
    assert "does not follow from those before it" in found.unreadable


# --- what only looks the same ------------------------------------------------------------------------

TRICKY = [
    (1, True),
    (True, 1.0),
    (0.0, -0.0),
    ({"n": [1]}, {"n": [True]}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1.0}),
]


@pytest.mark.parametrize(("first", "then"), TRICKY)
def test_a_value_that_python_takes_for_the_one_before_is_new_in_replay_too(
    first: object, then: object
) -> None:
    log = Log()
    log.submit()
    there = Transfer(to_agent=AgentName("b"), summary="pay", facts=(Fact(key="paid", value=first),))
    log.move(there, "b")
    log.move(HandBack(summary="no"), "a")
    again = Transfer(to_agent=AgentName("b"), summary="pay", facts=(Fact(key="paid", value=then),))
    assert type_of(log.move(again, "b")) == "handoff.admitted"
    found = rejudge(log.bodies)
    assert found.same, found
    told = timeline([codec.decode_event(body) for body in log.bodies])
    assert [msgspec.json.encode(fact.value) for fact in told.moves[-1].facts] == [msgspec.json.encode(then)]


def test_a_fact_whose_keys_are_in_another_order_is_not_new_and_comes_out_the_same() -> None:
    log = Log()
    log.submit()
    there = Transfer(to_agent=AgentName("b"), summary="pay", facts=(Fact(key="k", value={"a": 1, "b": 2}),))
    log.move(there, "b")
    log.move(
        HandBack(summary="no", facts=(Fact(key="k", value={"b": 2, "a": 1}), Fact(key="x", value=1))), "a"
    )
    assert b'"value":{"b":2' not in log.bodies[-1]
    assert rejudge(log.bodies).same


def test_a_withheld_value_is_kept_anew_where_only_its_type_changed() -> None:
    log = Log()
    log.submit(Fact(key="pin", value=1, labels=("pii",)))
    log.move(Transfer(to_agent=AgentName("b"), summary="x"), "b")
    log.move(Transfer(to_agent=AgentName("c"), summary="x"), "c")
    pin = (Fact(key="pin", value=True, labels=("pii",)),)
    log.move(HandBack(summary="x", facts=pin), "b")
    kept = codec.decode_event(log.bodies[-2])
    assert isinstance(kept, FactsWithheld)
    assert [fact.value for fact in kept.facts] == [True]
    assert rejudge(log.bodies).same
