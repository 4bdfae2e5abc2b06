"""Exported logs: events and steps, a line each, read back as the very bytes that were stored."""

from pathlib import Path

import pytest

from mesh.errors import Malformed
from mesh.replay.load import StoredStep, load, step_line, steps_in

SUBJECT = "mesh.step.a.c1_01.t.0-1"


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
