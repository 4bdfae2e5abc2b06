"""Alerts and dashboard: expressions that Prometheus reads, over metrics and labels that there are."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import promql_parser
import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from mesh.telemetry import export, gauges
from tests.certain import known
from tests.deploy.validator import DEPLOY, compose
from tests.docs.pages import DOCS, codes, read, section, table
from tests.docs.test_links import _anchors

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
SCRAPES = DEPLOY / "prometheus" / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana" / "mesh.json"
OF_PROMETHEUS = {"instance", "job", "le"}


class Rule(msgspec.Struct, forbid_unknown_fields=True, rename={"for_": "for"}):
    """An alerting rule, as Prometheus spells it."""

    alert: str
    expr: str
    labels: dict[str, str]
    annotations: dict[str, str]
    for_: str = "0s"


class Group(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rules: list[Rule]


class Rules(msgspec.Struct, forbid_unknown_fields=True):
    groups: list[Group]


def load(path: Any) -> Any:
    return YAML(typ="safe").load(path)


RULES = [rule for group in msgspec.convert(load(ALERTS), Rules).groups for rule in group.rules]
PANELS = {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]
    for target in panel["targets"]
}
FROM_ZERO = {"mesh_deliveries_dropped_total"}
"""Counters that each process shows before there is anything to count."""
EXPRESSIONS = {rule.alert: rule.expr for rule in RULES} | PANELS


@pytest.fixture(scope="module")
def page() -> Iterator[Mapping[str, set[str]]]:
    """The names and labels of a page on which every metric has a value."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader

    provider = MeterProvider([PrometheusMetricReader(scope_info_enabled=False)], shutdown_on_exit=False)
    metrics._internal._PROXY_METER_PROVIDER.on_set_meter_provider(provider)
    labels = labels_on_the_page()
    for made in vars(export).values():
        if isinstance(made, metrics.Counter):
            made.add(1, labels[made._name])  # type: ignore[attr-defined]
        elif isinstance(made, metrics.Histogram):
            made.record(1, labels[made._name])  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for shown in (*gauges.OF_MESH, *gauges.OF_PROCESS):
            patch.setattr(shown, "_series", [(labels[shown.name], 1.0)])
            if hasattr(shown, "read"):
                patch.setattr(shown, "read", lambda series=shown._series: series)
        text = generate_latest().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    yield found
    provider.shutdown()


def labels_on_the_page() -> dict[str, dict[str, str]]:
    """Return the labels of each metric that docs/metrics.md names, each with a value."""
    page = read("metrics.md")
    rows = table(section(page, "The metrics"), "mesh.handoffs")
    rows += table(section(page, "The state of the mesh"), "mesh.agent.waiting")
    return {name: dict.fromkeys(codes(row[2]), "x") for row in rows for name in codes(row[0])}


def names(parsed: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric that an expression reads, with the labels that it matches."""
    if isinstance(parsed, promql_parser.VectorSelector):
        yield known(parsed.name), {matcher.name for matcher in parsed.matchers.matchers}
    for field in ("expr", "lhs", "rhs", "vector_selector"):
        if (inner := getattr(parsed, field, None)) is not None:
            yield from names(inner)
    for inner in getattr(parsed, "args", None) or ():
        yield from names(inner)


def grouped(parsed: Any) -> Iterator[tuple[set[str], set[str]]]:
    """Yield the labels of each `by (…)`, with the names of the metrics below it."""
    modifier = getattr(parsed, "modifier", None)
    if isinstance(parsed, promql_parser.AggregateExpr) and modifier is not None:
        yield set(modifier.labels), {name for name, _ in names(parsed.expr)}
    for field in ("expr", "lhs", "rhs"):
        if (inner := getattr(parsed, field, None)) is not None:
            yield from grouped(inner)
    for inner in getattr(parsed, "args", None) or ():
        yield from grouped(inner)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_reads_metrics_and_labels_that_there_are(
    page: Mapping[str, set[str]], name: str
) -> None:
    parsed = promql_parser.parse(EXPRESSIONS[name])
    read_ = list(names(parsed))
    assert read_, "it reads something"
    for metric, matched in read_:
        assert metric in page, metric
        assert matched <= page[metric] | OF_PROMETHEUS, metric
    for by, below in grouped(parsed):
        for metric in below:
            assert by <= page[metric] | OF_PROMETHEUS, (metric, by)


@pytest.mark.parametrize("name", [rule.alert for rule in RULES])
def test_an_alert_on_any_increase_sees_the_first(name: str) -> None:
    """`increase` says nothing of a series that begins with what it counts."""
    if re.search(r"increase\(.*> 0", EXPRESSIONS[name]):
        counted = {metric for metric, _ in names(promql_parser.parse(EXPRESSIONS[name]))}
        assert " unless " in EXPRESSIONS[name] or counted <= FROM_ZERO


def test_the_parser_finds_an_expression_that_prometheus_does_not_read() -> None:
    with pytest.raises(ValueError, match="parenthesis"):
        promql_parser.parse("max by mesh_frozen) == 1")
    ((metric, matched),) = names(promql_parser.parse('rate(mesh_x_total{a="b"}[5m])'))
    assert (metric, matched) == ("mesh_x_total", {"a"})
    assert next(grouped(promql_parser.parse("sum by (a) (x)"))) == ({"a"}, {"x"})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.alert)
def test_an_alert_says_how_urgent_it_is_and_where_it_is_explained(rule: Rule) -> None:
    assert rule.labels["severity"] in ("page", "ticket")
    assert re.fullmatch(r"\d+[smh]", rule.for_)
    where, _, anchor = rule.annotations["runbook"].partition("#")
    assert (where, anchor) == ("docs/troubleshooting.md", rule.alert.lower())
    assert anchor in _anchors(DOCS / "troubleshooting.md")
    for label in re.findall(r"\$labels\.(\w+)", rule.annotations["summary"]):
        assert label in rule.expr


def test_there_is_an_alert_for_each_part_of_the_page_and_no_other() -> None:
    explained = re.findall(r"^### (\w+)$", section(read("troubleshooting.md"), "Alerts"), re.MULTILINE)
    assert explained == [rule.alert for rule in RULES]
    assert len(RULES) == 14


def test_the_profile_runs_what_is_here_and_scrapes_every_service() -> None:
    services = compose()["services"]
    asked = {name for name, service in services.items() if service.get("profiles") == ["metrics"]}
    assert asked == {"prometheus", "grafana"}
    for name in asked:
        for mount in services[name]["volumes"]:
            source = mount.partition(":")[0]
            assert not source.startswith("./") or (DEPLOY / source).exists(), mount
    (job,) = load(SCRAPES)["scrape_configs"]
    (lookup,) = job["dns_sd_configs"]
    working = {
        name for name, service in services.items() if service.get("command", [""])[-1:] and run(service)
    }
    assert set(lookup["names"]) == working
    image = (DEPLOY / "Dockerfile").read_text()
    assert f"MESH_HEALTH=0.0.0.0:{lookup['port']}" in image
    mounted = "".join(services["prometheus"]["volumes"])
    assert load(SCRAPES)["rule_files"][0] in mounted
    assert "opentelemetry-exporter-prometheus" in (DEPLOY / "requirements.txt").read_text()


def run(service: Mapping[str, Any]) -> bool:
    """Return True for a guard or an agent."""
    return service.get("command", [])[:2] in (["guard", "run"], ["agent", "run"])
