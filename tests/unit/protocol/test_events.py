"""The catalogue: its wire names are for ever, and each event says who has to act on it."""

import msgspec
import pytest

from protocol.wire import events
from protocol.wire.events import AnyEvent, Ended, Event, type_of
from protocol.wire.handoff import Rule

TYPES = {
    "request.opened",
    "request.refused",
    "handoff.admitted",
    "move.refused",
    "move.deferred",
    "facts.withheld",
    "turn.failed",
    "turn.retried",
    "turn.suspended",
    "turn.resumed",
    "escalation.raised",
    "escalation.assigned",
    "escalation.resolved",
    "effect.doubted",
    "effect.settled",
    "request.frozen",
    "request.thawed",
    "request.completed",
    "request.failed",
    "request.expired",
    "request.cancelled",
}
ENVELOPE = ("v", "id", "request", "n", "at", "cause", "prev", "salt", "to", "trace")


def test_the_wire_names_are_these() -> None:
    assert [type_of(kind) for kind in AnyEvent.__args__] == sorted(
        TYPES, key=[type_of(kind) for kind in AnyEvent.__args__].index
    )
    assert {type_of(kind) for kind in AnyEvent.__args__} == TYPES


def test_every_event_class_is_in_the_union() -> None:
    defined = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    assert defined - {Event} == set(AnyEvent.__args__)


def test_a_request_ends_in_one_of_five_ways() -> None:
    assert {type_of(kind) for kind in Ended.__args__} == {
        "request.refused",
        "request.completed",
        "request.failed",
        "request.expired",
        "request.cancelled",
    }


@pytest.mark.parametrize("kind", AnyEvent.__args__, ids=type_of)
def test_an_event_is_frozen_and_begins_with_the_whole_envelope(kind: type[Event]) -> None:
    assert kind.__struct_fields__[: len(ENVELOPE)] == ENVELOPE
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert [name for name in ENVELOPE if not fields[name].required] == ["trace"]  # it came later
    assert kind.__struct_config__.frozen
    assert not kind.__struct_config__.forbid_unknown_fields  # a newer writer may add some
    assert kind.__doc__


def test_the_names_of_rules_are_stable() -> None:
    assert [str(rule) for rule in Rule] == [
        "known_policy",
        "known_move",
        "known_agent",
        "agent_available",
        "depth",
        "cycle",
        "hand_back",
        "no_return",
        "asks",
        "budget",
        "constraints",
        "must_carry",
        "actions",
        "size",
    ]
