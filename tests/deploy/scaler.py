"""What KEDA and the HorizontalPodAutoscaler do with a ScaledObject, with processes in place of pods.

It asks the trigger's expression of a guard's own page of metrics, and starts or ends processes: as many as
the value takes at `threshold` each, between minimum and maximum. It has none of their patience: each reading
counts at once, so processes are ended far more often than in a cluster.
"""

import asyncio
import math
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.trouble.crew import Crew, Service

_MAX = re.compile(r'max\((\w+)\{(\w+)="([^"]*)"\}\)')
"""The one form of expression that the manifests have."""


class NothingShown(Exception):
    """The expression has no result; with `ignoreNullValues: "false"` that is an error of the trigger."""


def value_of(query: str, page: str) -> float:
    """Return the value of an expression over a page of metrics. Raises NothingShown."""
    form = _MAX.fullmatch(query)
    assert form is not None, query
    name, label, wanted = form.groups()
    found = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and sample.labels.get(label) == wanted
    ]
    if not found:
        raise NothingShown(query)
    return max(found)


class ScaledAgent:
    """One agent's processes, and the ScaledObject that says how many they are.

    Args:
        command: what each process runs, as the agent's Deployment has it.
    """

    def __init__(self, crew: Crew, agent: str, manifest: Mapping[str, Any], command: list[str]) -> None:
        self._crew, self.agent, self._command = crew, agent, command
        spec = manifest["spec"]
        self._least, self._most = int(spec["minReplicaCount"]), int(spec["maxReplicaCount"])
        (self._trigger,) = [each["metadata"] for each in spec["triggers"]]
        self.replicas: list[Service] = []
        self._ending: list[Service] = []
        self.leaves_first: Callable[[Service], bool] = lambda _: False
        """Which processes are ended before others; a cluster may choose any."""
        self.counts = [0]
        """How many there were, each time that changed."""
        self._started = 0

    def wanted(self, page: str) -> int:
        """Return how many processes a reading asks for; as many as there are, if it shows nothing."""
        try:
            value = value_of(self._trigger["query"], page)
        except NothingShown:
            return len(self.replicas)
        return max(self._least, min(self._most, math.ceil(value / float(self._trigger["threshold"]))))

    async def scale(self, page: str) -> None:
        """Start or end processes as a reading asks for. They are ended with SIGTERM."""
        wanted = self.wanted(page)
        while len(self.replicas) > wanted:
            leaving = max(self.replicas, key=self.leaves_first)
            self.replicas.remove(leaving)
            leaving.signal(signal.SIGTERM)
            self._ending.append(leaving)
        while len(self.replicas) < wanted:
            self._started += 1
            self.replicas.append(
                await self._crew.start(self.agent, f"{self.agent}-{self._started}", self._command)
            )
        if len(self.replicas) != self.counts[-1]:
            self.counts.append(len(self.replicas))

    async def unruly(self) -> list[tuple[str, int]]:
        """Wait until every process that was to end has; return those that did not end as SIGTERM asks.

        One that took no work yet may end of the signal itself: its interpreter was still importing.
        """
        ends = [(each, await each.ended()) for each in self._ending]
        early = (0, -signal.SIGTERM)
        return [
            (each.identity, status)
            for each, status in ends
            if status not in (early if not each.said("agent_ready") else (0,))
        ]


class Scaler:
    """Reads the page again and again, and scales every agent by it."""

    PAUSE_S = 0.2

    def __init__(self, guard: Service, agents: list[ScaledAgent]) -> None:
        self._guard, self._agents = guard, agents

    async def keep(self) -> None:
        """Scale until cancelled."""
        while True:
            page = await self._page()
            for each in self._agents:
                await each.scale(page)
            await asyncio.sleep(self.PAUSE_S)

    async def _page(self) -> str:
        url = (await self._guard.says("health_listening"))[0]["url"]
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:  # `keep` may be cancelled meanwhile
            writer.close()
        return body.decode()
