"""Events as CloudEvents: each line is one by the specification's rules, and nothing of an event is lost."""

import datetime as dt
import json
import re
from typing import Any
from urllib.parse import urlsplit

import pytest

from mesh.ops.cloudevents import cloud_event, source_of
from protocol.domain.hash_chain import redacted
from tests.golden.make import LOGS
from tests.unit.cli.conftest import Mesh, here, mesh

__all__ = ["here", "mesh"]

SOURCE = source_of("desk")
REQUIRED = ("id", "source", "specversion", "type")


def every_golden_event() -> list[bytes]:
    return [line for path in sorted(LOGS.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def read(line: bytes) -> dict[str, Any]:
    """Return a CloudEvent in JSON, checked by sections 2 and 3 of CloudEvents 1.0 and of its JSON format."""
    assert b"\n" not in line
    event: dict[str, Any] = json.loads(line)
    for name, value in event.items():
        if name != "data":  # the context: of these types, and no attribute is null or empty
            assert re.fullmatch(r"[a-z0-9]{1,20}", name), name
            assert isinstance(value, str), name
            assert value, name
            assert value.isprintable(), name
    assert set(REQUIRED) <= set(event)
    assert event["specversion"] == "1.0"
    assert urlsplit(event["source"]).scheme == "urn"
    assert not re.search(r"\s|[^!-~]", event["source"])
    if "time" in event:  # RFC 3339
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", event["time"])
        dt.datetime.fromisoformat(event["time"])
    assert event["datacontenttype"] == "application/json"
    assert "data_base64" not in event
    return event


def test_each_event_of_every_kind_is_a_cloudevent_that_holds_it() -> None:
    for body in every_golden_event():
        event, shown = json.loads(body), read(cloud_event(body, SOURCE) or b"")
        assert shown["data"] == event
        assert body in (cloud_event(body, SOURCE) or b"")  # to the byte: the chain can be checked
        assert (shown["id"], shown["subject"], shown["partitionkey"]) == (
            event["id"],
            *[event["request"]] * 2,
        )
        assert (shown["type"], int(shown["sequence"])) == (f"handoff-mesh.{event['type']}", event["n"])
        at = dt.datetime.fromisoformat(shown["time"])
        assert (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) == event["at"]


def test_no_two_events_of_a_log_have_the_same_id() -> None:
    for path in LOGS.glob("*.jsonl"):
        lines = path.read_bytes().splitlines()
        assert len({read(cloud_event(line, SOURCE) or b"")["id"] for line in lines}) == len(lines)


def test_sequences_are_in_order_as_text() -> None:
    event = json.loads(every_golden_event()[0])
    lines = [cloud_event(json.dumps({**event, "n": n}).encode(), SOURCE) for n in (2, 10, 1_000_000)]
    sequences = [read(line or b"")["sequence"] for line in lines]
    assert sequences == sorted(sequences)


def test_what_a_redacted_event_keeps_stands_around_it() -> None:
    body = every_golden_event()[0]
    whole, less = read(cloud_event(body, SOURCE) or b""), read(cloud_event(redacted(body), SOURCE) or b"")
    assert {**whole, "data": None} == {**less, "data": None}
    assert "redacted" in less["data"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no event",
        b"[]",
        b"{}",
        b'{"id":"","request":"r","n":0,"at":0,"type":"t"}',
        b'{"id":1}',
        b"\xff",
    ],
)
def test_what_is_no_event_is_no_cloudevent(body: bytes) -> None:
    assert cloud_event(body, SOURCE) is None


def test_a_time_outside_the_calendar_is_left_out_and_a_fleets_name_is_made_a_urn() -> None:
    event = json.loads(every_golden_event()[0])
    shown = read(cloud_event(json.dumps({**event, "at": 10**18}).encode(), source_of("Büro 7/é")) or b"")
    assert "time" not in shown
    assert shown["source"] == "urn:handoff-mesh:B%C3%BCro%207%2F%C3%A9"


@pytest.mark.parametrize("also", [["--parquet", "g"], ["--with-steps"]], ids=" ".join)
def test_one_form_at_a_time(mesh: Mesh, also: list[str]) -> None:
    result = mesh("log", "export", "--all", "--cloudevents", *also)
    assert result.exit_code == 2
    assert "--cloudevents" in result.stderr
