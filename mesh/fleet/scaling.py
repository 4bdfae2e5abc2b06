"""How many processes an agent has: `scale` of an agent, and `[scale]`, which says what that is read from.

What counts is `mesh_agent_waiting`: handoffs in the agent's inbox that are not acknowledged, those in hand
included. It is zero only when nothing is left to do, so no process that is stopped then is missed.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from mesh.fleet.near_miss import Strict

METRIC, AGENT = "mesh_agent_waiting", "gen_ai_agent_name"
"""The gauge `mesh.agent.waiting` and its label, as Prometheus spells them."""
WAKES_S = 300.0
"""The least that a handoff must be able to wait for an agent that may be at zero (s).

A guard probes every 15 s, Prometheus and KEDA look every 15 to 60 s, and then a pod has to start.
"""
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_URL = re.compile(r"https?://[!-~]+")


class AgentScale(Strict):
    """Between which numbers of processes an agent is scaled, and by what."""

    min: int = Field(default=0, ge=0, le=1000)
    max: int = Field(ge=1, le=1000)
    waiting: int = Field(ge=1, le=1_000_000)
    """Handoffs for each process: there are as many processes as it takes."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise PydanticCustomError("scale", "`min` is more than `max`")
        return self


def _url(given: str) -> str:
    if not _URL.fullmatch(given):
        raise PydanticCustomError("url", "not a URL: it begins with http:// or https://")
    return given.rstrip("/")


def _labels(given: Mapping[str, str]) -> Mapping[str, str]:
    for label, value in given.items():
        if not _LABEL.fullmatch(label) or not value.isprintable():
            raise PydanticCustomError("label", "not a label of Prometheus with a printable value")
    return given


class ScaleSection(Strict):
    """Where the scaler reads what waits."""

    prometheus: Annotated[str, AfterValidator(_url)] = ""
    """URL of the Prometheus that scrapes the guards."""
    labels: Annotated[Mapping[str, str], AfterValidator(_labels)] = {}
    """Labels of this mesh's series there, if it also scrapes the guards of other meshes."""


def query_of(agent: str, labels: Mapping[str, str]) -> str:
    """Return the expression of Prometheus for what waits for an agent.

    One guard shows it, and for a moment two may: hence the maximum. If none does, there is no result.
    """
    wanted = ", ".join(
        f"{label}={_quoted(value)}" for label, value in ({AGENT: agent} | dict(labels)).items()
    )
    return f"max({METRIC}{{{wanted}}})"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def may_be_at_zero(scales: Mapping[str, AgentScale]) -> list[str]:
    """Return the agents that have no process while nothing waits for them."""
    return [name for name, scale in scales.items() if not scale.min]


def scale_mistakes(
    scales: Mapping[str, AgentScale],
    section: ScaleSection,
    *,
    policies: Mapping[str, Any],
    readers: Collection[str],
    fallbacks: Mapping[str, str],
) -> list[str]:
    """Return why these agents cannot be scaled so, each with its place in the fleet file.

    Args:
        policies: numbers of policies by name, as the file has them.
        readers: agents that read offers of a swarm.
        fallbacks: by agent that is another's fallback: that other.
    """
    if not scales:
        return []
    wrong = [] if section.prometheus else ["scale.prometheus: say the URL of the Prometheus to scale by"]
    asleep = may_be_at_zero(scales)
    wrong += [
        f"agents.{name}.scale: it reads offers, which wake nobody; say `min = 1` or more"
        for name in asleep
        if name in readers
    ]
    wrong += [
        f"agents.{name}.scale: as the fallback of {fallbacks[name]} it gets work only while it runs; "
        "say `min = 1` or more"
        for name in asleep
        if name in fallbacks
    ]
    for policy, numbers in policies.items():
        limit = numbers.get("unattended_after_s") if isinstance(numbers, Mapping) else None
        if asleep and isinstance(limit, int | float) and limit < WAKES_S:
            wrong.append(
                f"policies.{policy}.unattended_after_s: {limit:g} is too short for {', '.join(asleep)}, "
                f"which may have no process: it takes {WAKES_S:g} to wake one; say more, or `min = 1`"
            )
    return wrong
