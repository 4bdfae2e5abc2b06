"""The evidence made readable: events decoded and folded, steps by turn, deeds by what they belong to.

Nothing is trusted on the way. Bytes that cannot be read, and events that no guard could have written in
that order, are kept as what they are, so that a check can name them; no check falls over another's find.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from protocol.domain.ledger import Ledger
from protocol.wire import codec
from protocol.wire.config import AgentEntry
from protocol.wire.errors import MeshError
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.moves import Move
from tests.drill.evidence import SERVER, Deed, Evidence, Fault, StepName

_PLACE = re.compile(r"(\d+)-(\d+)(d?)")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks read of a journaled step; other fields are the agent's own affair."""

    kind: str = ""
    name: str = ""
    digest: str = ""
    nonce: str = ""
    at: int = 0
    key: str = ""
    value: Any = None
    error: Any = None


_STEP = msgspec.json.Decoder(Step)


class Place(NamedTuple):
    """Where a step of a turn's journal lies."""

    round: int
    n: int
    result: bool
    """Whether it is the result of the effect whose intent lies at this place."""


@dataclass(frozen=True, slots=True)
class Placed:
    """One step with its place."""

    where: StepName
    place: Place
    step: Step


@dataclass(frozen=True, slots=True)
class Story:
    """One request, as far as its stored events can be read."""

    request: str
    bodies: Sequence[bytes]
    events: Sequence[AnyEvent]
    """Up to the first that cannot be read."""
    ledger: Ledger | None
    """None if the events do not add up."""
    trouble: str = ""
    """Why not all of it could be read or folded."""

    @property
    def said(self) -> list[AnyEvent]:
        """The events without withholdings, which say nothing by themselves."""
        return [event for event in self.events if not isinstance(event, FactsWithheld)]


@dataclass(frozen=True)
class Reading:
    """The evidence, read once for all checks."""

    evidence: Evidence
    stories: dict[str, Story] = field(init=False)
    unreadable: list[tuple[StepName, str]] = field(default_factory=list)
    """Steps that are no records."""

    def __post_init__(self) -> None:
        stories = {request: _story(request, bodies) for request, bodies in self.evidence.bodies.items()}
        object.__setattr__(self, "stories", stories)

    @property
    def agents(self) -> Mapping[str, AgentEntry]:
        """Who is in the fleet file; nobody where the evidence has none."""
        return {} if self.evidence.fleet is None else self.evidence.fleet.agents

    @cached_property
    def steps(self) -> list[Placed]:
        """Every step that lies in a journal, in order of turn and place; attempts are none."""
        found = []
        for where, body in self.evidence.steps.items():
            match = _PLACE.fullmatch(where.step)
            if match is None:
                continue
            try:
                step = _STEP.decode(body)
            except (msgspec.MsgspecError, UnicodeError) as error:
                self.unreadable.append((where, type(error).__name__))
                continue
            found.append(Placed(where, Place(int(match[1]), int(match[2]), bool(match[3])), step))
        return sorted(found, key=lambda placed: (placed.where[:3], placed.place))

    @cached_property
    def steps_of(self) -> dict[str, list[Placed]]:
        """Steps by request."""
        return _grouped((placed.where.request, placed) for placed in self.steps)

    @cached_property
    def intents(self) -> dict[str, list[Placed]]:
        """Intents of effects by key."""
        return _grouped((each.step.key, each) for each in self.steps if each.step.kind == "intent")

    @cached_property
    def deeds(self) -> dict[tuple[str, str, str], list[Deed]]:
        """Deeds in order of time, by request, tool and call."""
        ordered = sorted(self.evidence.deeds, key=lambda deed: deed.at)
        return _grouped(((deed.request, deed.tool, deed.call), deed) for deed in ordered)

    @cached_property
    def asked(self) -> dict[tuple[str, str, int], list[Move]]:
        """Moves that agents asked for, by request, turn and round; each once."""
        found: dict[tuple[str, str, int], list[Move]] = defaultdict(list)
        for each in self.evidence.asked:
            moves = found[each.request, each.turn, each.round]
            if each.move not in moves:
                moves.append(each.move)
        return dict(found)

    @cached_property
    def noting(self) -> frozenset[str]:
        """Tools that write their deeds down: those that wrote one."""
        return frozenset(deed.tool for deed in self.evidence.deeds)

    def intents_of(self, request: str, tool: str) -> list[Placed]:
        """Return the intents of one tool's effects in one request."""
        return [
            each
            for each in self.steps_of.get(request, ())
            if each.step.kind == "intent" and each.step.name == tool
        ]

    @cached_property
    def _disturbances(self) -> list[Fault]:
        """All faults, and the stalls that none of them explains."""
        pauses = [fault for fault in self.evidence.faults if fault.kind == "pause"]
        stalls = [
            stall
            for stall in self.evidence.stalls
            if not any(each.pid == stall.pid and _overlap(each, stall.at, stall.until) for each in pauses)
        ]
        return [*self.evidence.faults, *stalls]

    def disturbances(self, agent: str, begin: int, end: int) -> list[Fault]:
        """Return what hit an agent, or the server, and overlaps a span of time (UTC µs)."""
        return [
            fault
            for fault in self._disturbances
            if fault.name in (agent, SERVER) and _overlap(fault, begin, end)
        ]


def _overlap(fault: Fault, begin: int, end: int) -> bool:
    return fault.at <= end and max(fault.until, fault.at) >= begin


def _story(request: str, bodies: Sequence[bytes]) -> Story:
    happened: list[AnyEvent] = []
    trouble = ""
    for body in bodies:
        try:
            happened.append(codec.decode_event(body))
        except MeshError as error:
            trouble = f"event {len(happened)}: {error.code}"
            break
    ledger = Ledger()
    try:
        for event, body in zip(happened, bodies, strict=False):
            ledger.apply(event, body)
    except Exception as error:  # what no guard writes in this order may break the fold anywhere
        return Story(request, bodies, happened, None, trouble or f"cannot be folded: {type(error).__name__}")
    return Story(request, bodies, happened, None if trouble else ledger, trouble)


def _grouped(pairs: Iterator[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return dict(found)


def digest_of(value: Any) -> str:
    """Return the digest (hex) under which the journal has what a model was asked."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
