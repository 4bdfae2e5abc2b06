"""The state of the mesh as gauges, and a process's own metrics besides its counts.

A table's series are always replaced as a whole. So a removed name disappears at the next update, and a guard
that stops updating shows nothing instead of old values. Labels are names of the fleet, and versions, of which
few are kept, because agents report these themselves.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from mesh.telemetry import tracing

Labels = Mapping[str, str]

TIER = "mesh.tier"
VERSION = "mesh.version"
STREAM = "mesh.stream"
BUILD = "mesh.build"
OF = "mesh.of"

_meter = metrics.get_meter(tracing.SCOPE)


class GaugeTable:
    """The series of one metric."""

    def __init__(self, name: str, unit: str, description: str) -> None:
        self.name = name
        self._series: Sequence[tuple[Labels, float]] = ()
        _meter.create_observable_gauge(name, [self._observe], unit=unit, description=description)

    def show(self, series: Iterable[tuple[Labels, float]]) -> None:
        """Replace every series by these."""
        self._series = tuple(series)

    def clear(self) -> None:
        """Show nothing."""
        self._series = ()

    def _observe(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, labels) for labels, value in self._series]


# --- the mesh, shown by one guard -----------------------------------------------------------------

agent_waiting = GaugeTable(
    "mesh.agent.waiting", "{handoff}", "Handoffs in an agent's inbox that are not acknowledged"
)
agent_oldest = GaugeTable("mesh.agent.oldest", "s", "Age of the oldest of them; 0 if there is none")
agent_instances = GaugeTable(
    "mesh.agent.instances", "{instance}", "Processes that serve an agent, by the version that they report"
)
people_waiting = GaugeTable(
    "mesh.people.waiting", "{decision}", "Decisions that wait for people: escalation, ask or doubt"
)
people_oldest = GaugeTable("mesh.people.oldest", "s", "Age of the oldest of them")
people_urgent = GaugeTable(
    "mesh.people.urgent", "{decision}", "Those of them for which people have used up 80 % of their time"
)
requests = GaugeTable("mesh.requests", "{request}", "Requests in the log by status")
frozen_requests = GaugeTable("mesh.requests.frozen", "{request}", "Open requests that are frozen")
breaker_open = GaugeTable("mesh.breaker.open", "", "1 while an agent is kept from work, 0.5 for a trial")
frozen = GaugeTable("mesh.frozen", "", "1 while the whole mesh is frozen")
revision = GaugeTable("mesh.fleet.revision", "", "Revision of the fleet document")
stream_used = GaugeTable(
    "mesh.stream.used", "", "How much of its limit the fullest stream of a kind has: of bytes or of messages"
)

OF_MESH = (
    agent_waiting,
    agent_oldest,
    agent_instances,
    people_waiting,
    people_oldest,
    people_urgent,
    requests,
    frozen_requests,
    breaker_open,
    frozen,
    revision,
    stream_used,
)

# --- each process ---------------------------------------------------------------------------------

build_info = GaugeTable("mesh.build.info", "", "1: the version and the build of this process")


class _AgeTable(GaugeTable):
    """Series that are computed on each request."""

    read: Callable[[], Iterable[tuple[Labels, float]]] = staticmethod(lambda: ())

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        self.show(self.read())
        return super()._observe(options)


key_age = _AgeTable("mesh.key.age", "s", "Age of the file of this process's key")
certificate_remaining = _AgeTable(
    "mesh.certificate.remaining", "s", "Until a certificate file of this process expires: its own, its CA's"
)

OF_PROCESS = (build_info, key_age, certificate_remaining)


def show_process(
    version: str, build: str, key: Path, certificates: Callable[[], Mapping[str, float]]
) -> None:
    """Show the metrics of the process itself.

    Args:
        certificates: returns when each certificate expires (Unix time), by its owner.
    """
    build_info.show([({VERSION: version, BUILD: build}, 1.0)])

    def age() -> Iterable[tuple[Labels, float]]:
        try:
            return [({}, max(0.0, time.time() - key.stat().st_mtime))]
        except OSError:
            return ()

    key_age.read = age
    certificate_remaining.read = lambda: [
        ({OF: whose}, until - time.time()) for whose, until in certificates().items()
    ]
