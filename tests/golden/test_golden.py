"""Every released form stays readable: frozen events, frozen logs, and what must not be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from mesh.replay.rejudge import rejudge
from protocol.domain.hash_chain import breaks
from protocol.domain.ledger import Ledger, fold_bodies
from protocol.wire import codec
from protocol.wire.commands import Usage
from protocol.wire.errors import Malformed, OldForm, ProtocolError, UnknownEvent
from protocol.wire.event import VERSION
from protocol.wire.events import (
    AnyEvent,
    EscalationRaised,
    EscalationResolved,
    HandoffAdmitted,
    RequestCompleted,
    RequestOpened,
    TurnFailed,
    type_of,
)
from protocol.wire.handoff import Budget
from protocol.wire.schema import json_schema
from tests.golden.make import BAD, EVENTS, FORMS, LOGS, golden

TYPES = sorted(type_of(kind) for kind in AnyEvent.__args__)
SCHEMA = Draft202012Validator(json_schema())

UNREADABLE: dict[str, tuple[type[ProtocolError], str]] = {
    "cut-off": (Malformed, "not an event"),
    "handoff-without-summary": (Malformed, "missing required field `summary` - at `$.work.handoff`"),
    "missing-envelope-field": (Malformed, "missing required field `prev`"),
    "missing-payload-field": (Malformed, "missing required field `by`"),
    "no-type": (UnknownEvent, "unknown event ''"),
    "no-version": (Malformed, "without a version"),
    "not-an-object": (Malformed, "not an event"),
    "number-for-text": (Malformed, "at `$.reason`"),
    "unknown-policy-field": (Malformed, "max_deepth"),
    "unknown-rule": (Malformed, "no_such_rule"),
    "old-form": (OldForm, "events of form 1, of an earlier build"),
    "redacted": (Malformed, "request.cancelled is redacted"),
    "unknown-type": (UnknownEvent, "unknown event 'handoff.delegated', version 2"),
    "unknown-version": (UnknownEvent, "unknown event 'request.cancelled', version 3"),
    "version-is-text": (Malformed, "without a version"),
    "version-zero": (UnknownEvent, "version 0"),
}


def stems(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name.removesuffix(suffix) for path in directory.glob(f"*{suffix}"))


def test_every_log_and_every_event_is_as_it_would_be_made_now() -> None:
    made = golden()
    assert {*EVENTS.iterdir(), *LOGS.iterdir()} == set(made)
    changed = [path.name for path, text in made.items() if path.read_bytes() != text]
    assert changed == [], "python -m tests.golden.make"


def test_every_event_type_has_a_golden_file() -> None:
    assert stems(EVENTS, ".json") == TYPES
    assert len(TYPES) == 28


@pytest.mark.parametrize("type_", TYPES)
def test_a_golden_event_is_read_and_written_again_as_it_was(type_: str) -> None:
    body = (EVENTS / f"{type_}.json").read_bytes()
    event = codec.decode_event(body)
    assert type_of(event) == type_
    assert json.loads(codec.encode(event)) == json.loads(body)
    assert codec.decode_event(codec.encode(event)) == event


@pytest.mark.parametrize("type_", TYPES)
def test_a_golden_event_follows_the_schema(type_: str) -> None:
    SCHEMA.validate(json.loads((EVENTS / f"{type_}.json").read_bytes()))


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_what_is_no_event_of_ours_is_refused_with_its_reason(name: str) -> None:
    kind, said = UNREADABLE[name]
    with pytest.raises(kind) as raised:
        codec.decode_event((BAD / f"{name}.json").read_bytes())
    assert said in str(raised.value)


def test_every_bad_file_is_expected_to_be() -> None:
    assert stems(BAD, ".json") == sorted(UNREADABLE)


@pytest.mark.parametrize("name", sorted(set(UNREADABLE) - {"cut-off"}))
def test_what_is_no_event_of_ours_does_not_follow_the_schema(name: str) -> None:
    assert not SCHEMA.is_valid(json.loads((BAD / f"{name}.json").read_bytes()))


def test_a_golden_log_folds_to_what_it_always_was() -> None:
    bodies = (LOGS / "long-story.jsonl").read_bytes().splitlines()
    assert breaks(bodies) == []
    ledger = fold_bodies(bodies)
    assert (ledger.status, ledger.n, ledger.escalations) == ("completed", 23, 1)
    assert [turn.path for turn in ledger.turns.values()][1:3] == [("triage", "billing"), ("triage",)]
    assert ledger.spent == Usage(nano_dollars=17_100_000, tokens=5_700, model_calls=8)
    assert ledger.prev == "f817d3c6ea00c9a535d1026d2bc8e6182ce7249857f2d742f8cbdd8ba5acd082"
    answer: Any = ledger.ended
    assert answer.answer == {"refunded": 12.5, "text": "Done."}


def test_a_golden_log_says_which_prompt_and_which_model_each_turn_had() -> None:
    bodies = (LOGS / "modelled-story.jsonl").read_bytes().splitlines()
    assert breaks(bodies) == []
    ledger, told = Ledger(), []
    for event in map(codec.decode_event, bodies):
        ledger.apply(event)
        if isinstance(event, HandoffAdmitted | RequestCompleted):
            report = ledger.report_of(event)
            told.append((report.prompt, report.usage.models["claude-x"].calls))
    assert told == [("3", 1), ("2026-11.1", 1)]
    assert (ledger.status, ledger.spent.tokens) == ("completed", 2_100)


def test_a_golden_log_says_which_spans_decided_it() -> None:
    bodies = (LOGS / "traced-story.jsonl").read_bytes().splitlines()
    assert breaks(bodies) == []
    happened = [codec.decode_event(body) for body in bodies]
    assert [event.trace for event in happened] == [
        f"00-{7:032x}-{number:016x}-01" for number in range(1, len(happened) + 1)
    ]
    assert (happened[-1].n, fold_bodies(bodies).status) == (9, "completed")


@pytest.mark.parametrize("name", stems(LOGS, ".jsonl"))
def test_a_golden_log_judged_again_is_what_it_was(name: str) -> None:
    bodies = (LOGS / f"{name}.jsonl").read_bytes().splitlines()
    again = rejudge(bodies)
    assert (again.same, again.events) == (True, len(bodies)), again


def test_a_golden_log_says_what_was_granted_and_why_nothing_was_charged() -> None:
    happened = [codec.decode_event(body) for body in (LOGS / "granted-story.jsonl").read_bytes().splitlines()]
    failed = next(event for event in happened if isinstance(event, TurnFailed))
    assert failed.grounds is not None
    assert (failed.grounds.served, failed.grounds.unbegun) == (False, True)
    assert failed.grounds.served_since == happened[0].at
    resolved = next(event for event in happened if isinstance(event, EscalationResolved))
    assert resolved.budget == Budget(tokens=500_000)
    raised = [event.reason for event in happened if isinstance(event, EscalationRaised)]
    assert raised == ["unattended", "deadline"]


def test_a_golden_log_tells_each_holder_the_prices_that_the_request_began_with() -> None:
    happened = [codec.decode_event(body) for body in (LOGS / "priced-story.jsonl").read_bytes().splitlines()]
    given = {type_of(event): work.prices for event in happened if (work := event.work)}
    assert set(given) == {
        "effect.settled",
        "escalation.raised",
        "escalation.resolved",
        "handoff.admitted",
        "move.refused",
        "request.opened",
        "turn.resumed",
        "turn.retried",
    }
    assert all(prices == {"claude-x": {"input": 3000, "output": 15_000}} for prices in given.values())


def test_a_golden_log_says_which_submit_was_answered() -> None:
    bodies = (LOGS / "answered-story.jsonl").read_bytes().splitlines()
    opened, completed = codec.decode_event(bodies[1]), codec.decode_event(bodies[-1])
    assert isinstance(opened, RequestOpened)
    assert isinstance(completed, RequestCompleted)
    assert completed.digest == opened.digest == "ef" * 32


# --- forms ------------------------------------------------------------------------------------------


def test_a_log_of_every_form_is_kept() -> None:
    assert stems(FORMS, ".jsonl") == [f"v{form}" for form in range(1, VERSION + 1)]


@pytest.mark.parametrize("form", range(2, VERSION + 1))
def test_a_log_of_every_form_from_2_on_is_read_as_on_the_day_it_was_written(form: int) -> None:
    """If this fails, a log that somebody has can no longer be read: mend the reader, not the log."""
    bodies = (FORMS / f"v{form}.jsonl").read_bytes().splitlines()
    assert {json.loads(body)["v"] for body in bodies} == {form}
    assert breaks(bodies) == []
    ledger = fold_bodies(bodies)
    assert (ledger.status, ledger.n, ledger.escalations) == ("completed", 23, 1)
    assert ledger.spent == Usage(nano_dollars=17_100_000, tokens=5_700, model_calls=8)
    assert rejudge(bodies).same


@pytest.mark.parametrize("read", [fold_bodies, breaks, rejudge])
def test_a_log_of_form_1_is_refused_by_name(read: Callable[[list[bytes]], Any]) -> None:
    with pytest.raises(OldForm, match="form 1, of an earlier build; this build reads form 2 on"):
        read((FORMS / "v1.jsonl").read_bytes().splitlines())
