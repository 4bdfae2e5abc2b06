"""Judging a log again: exact for what was recorded, honest about what was changed."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mesh.errors import Malformed
from mesh.replay.export import StoredStep, load, step_line, steps_in
from mesh.replay.rejudge import rejudge
from protocol.domain.ledger import fold
from protocol.views.timeline import timeline
from protocol.wire import codec
from protocol.wire.commands import Freeze, ReplyToAsk, Resolve, Thaw
from protocol.wire.config import Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.handoff import Budget, Constraints
from tests.unit.protocol.worlds import (
    REQUEST,
    Play,
    agent,
    ask,
    complete,
    escalate,
    fact,
    hand_back,
    transfer,
    usage,
)

FLEET = {"a": agent("a", clearance=("pii",)), "b": agent("b"), "c": agent("c", clearance=("pii",))}


def begun() -> Play:
    return Play(fleet=dict(FLEET), policy=Policy(budget=Budget(tokens=1000)))


def withheld_and_back() -> Play:
    play = begun()
    play.submit(
        facts=(fact("ssn", "123", "pii"), fact("plan", "gold")),
        constraints=Constraints(must_carry=("ssn", "plan"), max_resolution_time_s=60.0),
    )
    play.move(transfer("b", fact("x", 1)), usage(10))
    play.move(transfer("a"), usage(20))
    play.move(hand_back(fact("y", [1]), drop=("x",)), usage(30))
    narrowed = Constraints(budget=Budget(tokens=100), allowed_actions=("pay",))
    play.move(transfer("c", constraints=narrowed, no_return=True))
    play.move(complete({"done": True}))
    return play


def asked_and_escalated() -> Play:
    play = begun()
    play.submit()
    play.move(ask())
    play.control(ReplyToAsk, "c1", turn=play.turn, round=0, value="that one")
    play.fail()
    play.wait(5)
    play.fail(permanent=True)
    brought = (fact("k", 1, "pii"),)
    play.control(Resolve, turn=play.turn, to="b", by="Ann", facts=brought)
    play.move(escalate(fact("tried", True)))
    play.control(Resolve, turn=play.turn, complete=True, answer="by hand", by="Ann")
    return play


def frozen_and_timed_out() -> Play:
    play = begun()
    play.submit()
    play.control(Freeze, by="Ann")
    play.move(transfer("b"))
    play.control(Thaw, by="Ann")
    play.wait(901)
    play.wait(100_000)
    return play


ALL = [withheld_and_back, asked_and_escalated, frozen_and_timed_out]


@pytest.mark.parametrize("make", ALL)
def test_a_changed_verdict_and_a_broken_chain_are_found(make: Callable[[], Play]) -> None:
    bodies = make().bodies
    event = msgspec.json.decode(bodies[3])
    event["at"] += 1
    bodies[3] = msgspec.json.encode(event)
    found = rejudge(bodies)
    assert [each.n for each in found.breaks] == [4]
    assert found.differences


def test_an_event_of_a_newer_version_stops_the_reading_and_says_so() -> None:
    bodies = withheld_and_back().bodies
    bodies[-1] = bodies[-1].replace(b'"v":2', b'"v":9', 1)
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


@pytest.mark.parametrize("missing", [[0], [0, 1], [2]], ids=["the-first", "the-beginning", "one-between"])
def test_a_log_with_events_missing_is_said_to_be_one(missing: list[int]) -> None:
    bodies = withheld_and_back().bodies
    left = [body for n, body in enumerate(bodies) if n not in missing]
    found = rejudge(left)
    assert not found.same
    assert found.events == missing[0]
    gap = next(n for n in range(len(bodies)) if n >= missing[0] and n not in missing)
    assert found.unreadable == f"event {missing[0]} is missing; the next one there is {gap}"


def test_nothing_at_all_is_no_log_that_holds() -> None:
    found = rejudge([])
    assert (found.same, found.unreadable) == (False, "there are no events")


@pytest.mark.parametrize("make", ALL)
def test_every_reader_of_a_log_without_its_beginning_says_so_in_one_way(make: Callable[[], Play]) -> None:
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
    for n, body in enumerate(withheld_and_back().bodies[2:]):
        left.append(msgspec.json.encode({**msgspec.json.decode(body), "n": n}))
    found = rejudge(left)
    assert not found.same
    assert "does not follow from those before it" in found.unreadable


SUBJECT = "mesh.step.a.c1_01.t.0-1"


def test_a_step_that_is_json_is_exported_as_json(tmp_path: Path) -> None:
    line = json.loads(step_line(StoredStep(SUBJECT, b'{"kind":"call","arguments":{"order":7}}')))
    assert line == {"step": SUBJECT, "body": {"kind": "call", "arguments": {"order": 7}}}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"kind":"call"}', id="JSON"),
        pytest.param(b'{\n "kind": "call"\n}', id="JSON on several lines"),
        pytest.param(b' {"kind":"call"} ', id="JSON with room around it"),
        pytest.param(b'{"text":"\\ud800"}', id="a lone surrogate"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b'"}\n{"request":"c1_01","n":0}', id="what would forge an event"),
        pytest.param(b'1,"n":2', id="what would add a field"),
        pytest.param(b"[" * 5000 + b"]" * 5000, id="nested deeply"),
        pytest.param(b"NaN", id="no JSON number"),
    ],
)
def test_a_step_is_read_back_to_the_byte_and_forges_nothing(data: bytes, tmp_path: Path) -> None:
    line = step_line(StoredStep(SUBJECT, data))
    assert b"\n" not in line
    path = tmp_path / "case.jsonl"
    event = b'{"request":"c1_01","n":0}'
    path.write_bytes(event + b"\n" + line + b"\n")
    assert steps_in(path) == [StoredStep(SUBJECT, data)]
    assert load(path) == {"c1_01": [event]}


@pytest.mark.parametrize("line", [b"{}", b'{"request":"c1_01"}', b'{"n":0}', b"nothing", b'{"step":""}'])
def test_a_line_that_is_neither_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "case.jsonl"
    path.write_bytes(b'{"request":"c1_01","n":0}\n' + line)
    with pytest.raises(Malformed, match="line 2"):
        load(path)
