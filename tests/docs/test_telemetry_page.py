"""docs/telemetry.md and docs/metrics.md name every span, attribute and metric that there is, and no other."""

import re
from typing import Final

from mesh.telemetry import export as telemetry
from mesh.telemetry import gauges, tracing
from tests.docs.pages import codes, read, section, table

PAGE = read("telemetry.md") + read("metrics.md")
SPANS = {
    tracing.SUBMIT,
    tracing.SEND_CONTROL,
    tracing.VERDICT,
    tracing.CONTROL,
    tracing.CONSEQUENCE,
    tracing.INVOKE_AGENT,
    tracing.EXECUTE_TOOL,
    tracing.CHAT,
}
_MADE = (each for key, each in vars(telemetry).items() if key.islower() and key[0] != "_")
COUNTED = {each._name for each in _MADE if hasattr(each, "_name")}
SHOWN = {table.name for table in (*gauges.OF_MESH, *gauges.OF_PROCESS)}
METRICS = COUNTED | SHOWN
_LABELS = {gauges.TIER, gauges.VERSION, gauges.BUILD, gauges.OF, gauges.STREAM}
_FINAL = (key for key, kind in vars(tracing)["__annotations__"].items() if kind is Final)
NAMES = METRICS | _LABELS | {getattr(tracing, key) for key in _FINAL}


def _first(rows: list[list[str]]) -> set[str]:
    return {name for row in rows for name in codes(row[0])}


def test_the_table_of_spans_is_complete() -> None:
    assert _first(table(section(PAGE, "The trace"), tracing.SUBMIT)) == SPANS


def test_the_table_of_metrics_is_complete() -> None:
    assert _first(table(section(PAGE, "The metrics"), "mesh.handoffs")) == COUNTED
    assert _first(table(section(PAGE, "The state of the mesh"), "mesh.agent.waiting")) == SHOWN


def test_every_name_is_on_the_page() -> None:
    said = {code for text in PAGE.splitlines() for code in codes(text)}
    assert NAMES - said == {tracing.SCOPE}


def test_no_name_is_on_the_page_that_there_is_not() -> None:
    dotted = set(re.findall(r"`((?:mesh|gen_ai|messaging|error)\.[a-z_.]+)`", PAGE))
    assert dotted - NAMES == set()


def test_the_labels_of_each_metric_are_names() -> None:
    for row in table(section(PAGE, "The metrics"), "mesh.handoffs"):
        assert set(codes(row[2])) <= NAMES
    for row in table(section(PAGE, "The state of the mesh"), "mesh.agent.waiting"):
        assert set(codes(row[2])) <= NAMES


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert f"waits {telemetry.FLUSH_S:g} s for it at most" in PAGE
    assert telemetry.PROTOCOL in PAGE
    assert telemetry.ENDPOINT in PAGE
    assert f"pip install '{telemetry.EXTRA}'" in PAGE
