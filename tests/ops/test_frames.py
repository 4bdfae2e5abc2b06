"""Events as a table: read back, each row has what its event says, and nothing is lost."""

import json
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import compute, parquet

from mesh.errors import UsageWrong
from mesh.ops.frames import COLUMNS, EventFrames
from tests.golden.make import LOGS
from tests.unit.cli.conftest import Mesh, here, mesh

__all__ = ["here", "mesh"]


def written(bodies: list[bytes], path: Path) -> pyarrow.Table:
    with path.open("wb") as file, EventFrames(file) as frames:
        for body in bodies:
            frames.add(body)
    return parquet.read_table(path)


def every_golden_event() -> list[bytes]:
    return [line for path in sorted(LOGS.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def test_each_row_has_its_event(tmp_path: Path) -> None:
    bodies = every_golden_event()
    table = written(bodies, tmp_path / "log.parquet")
    assert table.num_rows == len(bodies) > 100
    assert table.column_names == list(COLUMNS)
    for row, body in zip(table.to_pylist(), bodies, strict=True):
        event = json.loads(body)
        assert row["body"].encode() == body
        assert (row["request"], row["n"], row["type"]) == (event["request"], event["n"], event["type"])
        assert round(row["at"].timestamp() * 1e6) == event["at"]
        if "refusal" in event:
            assert row["rule"] == event["refusal"]["rule"]
        elif "work" in event:
            given = event["work"]["handoff"]
            assert (row["giver"], row["taker"]) == (given["from_agent"], given["to_agent"])
            assert row["depth"] == event["work"]["depth"]
        if usage := event.get("report", {}).get("usage"):
            assert row["tokens"] == usage.get("tokens", 0)


def test_an_event_of_another_version_keeps_its_envelope_and_its_body(tmp_path: Path) -> None:
    body = next(each for each in every_golden_event() if b'"type":"request.opened"' in each)
    other = json.dumps({**json.loads(body), "type": "request.teleported"}).encode()
    [first, second, third] = written([other, body, b"no event"], tmp_path / "f").to_pylist()
    assert (first["type"], first["giver"], first["n"]) == ("request.teleported", None, json.loads(body)["n"])
    assert second["giver"] is not None
    assert (third["type"], third["body"]) == (None, "no event")


def test_a_program_sums_by_edge(tmp_path: Path) -> None:
    table = written(every_golden_event(), tmp_path / "f")
    given = table.filter(compute.equal(table["type"], "handoff.admitted"))
    counts = given.group_by(["giver", "taker"]).aggregate([("n", "count")]).to_pylist()
    assert {(each["giver"], each["taker"]) for each in counts} >= {("triage", "billing")}


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (tmp_path / "f").open("wb") as file, pytest.raises(UsageWrong, match=r"handoff-mesh\[frames\]"):
        EventFrames(file)


@pytest.mark.parametrize("also", [["--out", "x"], ["--with-steps"]], ids=" ".join)
def test_one_form_at_a_time(mesh: Mesh, also: list[str]) -> None:
    result = mesh("log", "export", "--all", "--parquet", "f", *also)
    assert result.exit_code == 2
    assert "--parquet" in result.stderr
