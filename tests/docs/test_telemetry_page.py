"""docs/telemetry.md names every span, attribute and metric that there is, and none that there is not."""

import re

from mesh.service import metrics, names, telemetry
from tests.docs.pages import DOCS, codes, section, table

PAGE = (DOCS / "telemetry.md").read_text()
NAMES = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
SPANS = {
    names.SUBMIT,
    names.SEND_CONTROL,
    names.VERDICT,
    names.CONTROL,
    names.CONSEQUENCE,
    names.INVOKE_AGENT,
    names.EXECUTE_TOOL,
    names.CHAT,
}
METRICS = {
    names.HANDOFFS,
    names.TURN_DURATION,
    names.QUEUE_TIME,
    names.TOKENS,
    names.COST,
    names.OPEN_REQUESTS,
    names.OPENED_REQUESTS,
    names.ENDED_REQUESTS,
    names.DEAD_LETTERS,
    names.DROPPED_DELIVERIES,
    names.GUARD_LAG,
}


def _first(rows: list[list[str]]) -> set[str]:
    return {name for row in rows for name in codes(row[0])}


def test_the_table_of_spans_is_complete() -> None:
    assert _first(table(section(PAGE, "The trace"), names.SUBMIT)) == SPANS


def test_the_table_of_metrics_is_complete_and_so_is_the_table_here() -> None:
    assert _first(table(section(PAGE, "The metrics"), names.HANDOFFS)) == METRICS
    made = [each for key, each in vars(metrics).items() if key[0] != "_" and hasattr(each, "_name")]
    assert {each._name for each in made} == METRICS


def test_every_name_is_on_the_page() -> None:
    said = {code for text in PAGE.splitlines() for code in codes(text)}
    assert NAMES - said == {names.SCOPE}


def test_no_name_is_on_the_page_that_there_is_not() -> None:
    dotted = set(re.findall(r"`((?:mesh|gen_ai|messaging|error)\.[a-z_.]+)`", PAGE))
    assert dotted - NAMES == set()


def test_the_labels_of_each_metric_are_names() -> None:
    for row in table(section(PAGE, "The metrics"), names.HANDOFFS):
        assert set(codes(row[2])) <= NAMES


def test_the_numbers_on_the_page_are_those_of_the_code() -> None:
    assert f"waits {telemetry.FLUSH_S:g} s for it at most" in PAGE
    assert telemetry.PROTOCOL in PAGE
    assert telemetry.ENDPOINT in PAGE
    assert f"pip install '{telemetry.EXTRA}'" in PAGE
