"""A request's timeline and its entries: the documented JSON of `mesh request show --json`."""

from typing import Any

import msgspec

from protocol.wire.events import Withheld
from protocol.wire.handoff import Fact


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Base: every field is always written, so that readers of the JSON need not guess."""


class Cost(_Entry, frozen=True, kw_only=True):
    """What was spent, by the agents' own reports."""

    nano_dollars: int
    tokens: int
    model_calls: int
    unpriced: bool = False
    """Whether the dollars are too few: some of the calls were a model's that has no price."""


class StepEntry(_Entry, frozen=True, kw_only=True):
    """One step of a turn's journal, without what it was given and what came of it."""

    round: int
    n: int
    """Its place in the round, in the order of the code's calls."""
    kind: str
    """`model`, `call`, `effect`, `remark`, `now` or `random`; `intent`: an effect without a result."""
    name: str
    """Of the model or the tool."""
    at: int
    """UTC µs when it was journaled, by the agent's clock."""
    after: int = 0
    """µs since the step before it in its round; of the first, since the round was given."""
    version: str
    """The agent's that journaled it."""
    error: str | None
    """The code of a recorded no."""
    usage: Cost | None
    """Of a model's reply."""


class TurnEntry(_Entry, frozen=True, kw_only=True):
    """The turn that an entry is about."""

    id: str
    agent: str
    rounds: int
    steps: tuple[StepEntry, ...] = ()
    """What its journal holds of the rounds that came to this entry and to none before it; the turn's last
    entry has what is left. Empty where only the log was read: journals are no part of it."""
    usage: Cost
    status: str
    """`working`, `failed`, `refused`, `suspended`, `doubted` or `ended`."""


def named(by: str, sender: str | None) -> str:
    """Return who gave an order: what they call themselves, and whose credentials they had if that differs."""
    return by if sender in (None, "", by) else f"{by} ({sender})" if by else str(sender)


class TimelineEntry(_Entry, frozen=True, kw_only=True):
    """One thing that happened."""

    seq: int
    """The event's number in its request."""
    id: str
    at: int
    """UTC µs."""
    move: str
    """A move's name, or what else it was: `submit`, `turn_failed`, `retry`, `reply`, `freeze` …"""
    from_: str = msgspec.field(name="from")
    to: str | None = None
    summary: str = ""
    verdict: str
    """`admitted`, `refused` or `deferred`; `recorded` for what needs no verdict."""
    rule: str | None = None
    detail: str | None = None
    hint: str | None = None
    facts: tuple[Fact, ...] = ()
    """New or changed ones."""
    dropped: tuple[str, ...] = ()
    withheld: Withheld | None = None
    turn: TurnEntry | None = None
    sender: str | None = None
    """Of a control message: whose credentials sent it, by the broker's word. `from` is the name they gave."""


class Awaited(_Entry, frozen=True, kw_only=True):
    """What an open request waits for."""

    for_: str = msgspec.field(name="for")
    """An agent, `human`, the client's name, or `thaw`."""
    since: int
    """UTC µs."""
    why: str
    served: bool | None = None
    """Whether anybody serves the agent. None: nobody has looked; the log alone does not tell."""


class Timeline(_Entry, frozen=True, kw_only=True):
    """A whole request."""

    request: str
    status: str
    """`open`, `completed`, `refused`, `failed`, `expired` or `cancelled`."""
    policy: str
    topology: str
    client: str
    conversation: str | None = None
    """What groups it with other requests, as its submit said."""
    rerun_of: str | None = None
    """The request that this one does again, from where it failed."""
    entry: str | None
    path: tuple[str, ...]
    """The stack of holders as it stands."""
    trail: tuple[str, ...]
    """Everybody who held the work, in order, as often as they did."""
    depth: int
    answer: Any = None
    error: dict[str, str] | None = None
    cost: Cost
    """What its turns reported, summed up."""
    charged: Cost
    """What counts against its budget: `cost`, and all that was left to each turn that had begun and was
    ended without ever having reported, where that is a number."""
    waiting: tuple[Awaited, ...] = ()
    moves: tuple[TimelineEntry, ...] = ()
    running: tuple[TurnEntry, ...] = ()
    """Open turns that no entry is about yet."""
