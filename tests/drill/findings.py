"""What the checks found. Everything in here encodes to JSON as it stands: `--json` prints it."""

from collections.abc import Mapping

import msgspec


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """Base: every field is always written, so that whoever reads the JSON need not guess."""


class Breach(_Found, frozen=True, kw_only=True):
    """A promise that was not kept."""

    promise: str
    """The name of the check that found it, as in the table of checks."""
    request: str
    """Empty for what belongs to no request."""
    detail: str
    """What contradicts the promise: numbers, ids, steps, and nothing that a tool or a person wrote."""


class Unrested(_Found, frozen=True, kw_only=True):
    """An open turn of a request that did not come to rest."""

    request: str
    turn: str
    """Empty where no turn is open."""
    agent: str
    round: int | None
    waits_for: str
    since: int
    """UTC µs."""
    for_s: float
    """How long before the end that was."""


class Findings(_Found, frozen=True, kw_only=True):
    """The result of a drill."""

    requests: int
    acknowledged: int
    """Requests whose submit was acknowledged: the ones that may not be lost."""
    ended: Mapping[str, int]
    """Requests by how they ended: `completed`, `refused`, `failed`, `expired`, `cancelled`."""
    waiting: int
    """Open requests that wait for a person or for their client, rightly."""
    lost: int
    """Acknowledged requests that did not end and wait for nobody."""
    duplicated: int
    """Things that happened once more than they may: verdicts, effects, paid model calls."""
    doubted: int
    """Effects that were in doubt at some time."""
    in_doubt: int
    """Effects that are in doubt still."""
    events: int
    """In the log."""
    deeds: Mapping[str, int]
    """What tools wrote into the ledger, by kind."""
    ledger: bool
    """Whether there was one; without, nothing of the world outside was checked."""
    faults: Mapping[str, int]
    unreached: tuple[str, ...]
    """Failpoints in which a process was to die, and which no request came through."""
    dead_letters: Mapping[str, int]
    """By code, breaches or not."""
    unrested: tuple[Unrested, ...]
    """What did not come to rest."""
    unfinished: tuple[str, ...]
    """What else the drill waited for in vain: faults, services."""
    breaches: tuple[Breach, ...]

    @property
    def steps(self) -> int:
        """How many things the checks looked at: events, deeds and faults."""
        return self.events + sum(self.deeds.values()) + sum(self.faults.values())

    @property
    def passed(self) -> bool:
        return not self.breaches
