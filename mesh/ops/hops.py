"""The hops of one request, for statistics: between whom work passed, how long, and at what cost.

A hop is a turn and the name that gave it the work. It lasts from the event that opened the turn to the one
that ended it. While the turn asks, is to be tried again later, has open tasks or is in doubt, it waits.
What is left after that and the time that its agent worked is its time in the queue, and with guards.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from protocol.domain.ledger import Ledger
from protocol.wire.events import AnyEvent
from protocol.wire.ids import TurnId
from protocol.wire.moves import Transfer

OPEN: Final = -1
"""The bucket of hops that have not ended."""
_STEPS: Final = 4
"""Buckets per doubling of a time: the bounds of a bucket are 19% apart."""


class HopCount(NamedTuple):
    """Hops of one request over one edge with about the same duration."""

    giver: str
    taker: str
    bucket: int
    """Bucket of their duration; `OPEN` for hops that have not ended."""
    passed: int
    us: int
    """Their total duration."""
    waited_us: int
    """How much of it they waited."""
    timed: int
    """Hops whose taker said how long it worked, and did so in each round."""
    queued_us: int
    """Total time of these in which they neither waited nor were worked on: in a queue, or with a guard."""
    nano_dollars: int


class RefusalCount(NamedTuple):
    """Refusals of one request by one rule, for moves between two names."""

    rule: str
    giver: str
    taker: str
    """Empty for a move without a receiver."""
    refused: int


class RequestCounts(NamedTuple):
    """The counts of one request for statistics."""

    depth: int = 0
    """Its greatest depth."""
    ping_pong: int = 0
    """Hops by which work went to and fro again: a → b, b → a, and then a → b."""
    hops: tuple[HopCount, ...] = ()
    refusals: tuple[RefusalCount, ...] = ()


def bucket_of(us: int) -> int:
    """Return the bucket of a time: 0 below a millisecond, four more for each doubling."""
    return 0 if us < 1_000 else 1 + math.floor(_STEPS * math.log2(us / 1_000))


def time_in(bucket: int) -> int:
    """Return the middle of a bucket (µs), which is at most 10% from any time in it."""
    return 500 if bucket < 1 else round(1_000 * 2 ** ((bucket - 0.5) / _STEPS))


class HopTracker:
    """Follows the turns of one request."""

    def __init__(self) -> None:
        self._edges: dict[TurnId, tuple[str, str]] = {}
        self._waits: dict[TurnId, int] = {}
        """Waiting turns, and since when (UTC µs)."""
        self._waited = Counter[TurnId]()
        self._refused = Counter[tuple[str, str, str]]()
        self._depth = self._ping_pong = 0
        self._latest: tuple[tuple[str, str], ...] = ()

    def take(self, event: AnyEvent, ledger: Ledger) -> None:
        """Add the next event, after the ledger has it."""
        if event.opens_turn and event.work is not None:
            handoff = event.work.handoff
            self._hop(event.work.turn, (str(handoff.from_agent), str(handoff.to_agent)))
            self._depth = max(self._depth, event.work.depth)
        if event.refusal is not None:
            self._refuse(event, ledger)
        for turn in [each for each in self._waits if not _waiting(ledger, each)]:
            self._waited[turn] += max(0, event.at - self._waits.pop(turn))
        for turn in ledger.open:
            if _waiting(ledger, turn):
                self._waits.setdefault(turn, event.at)

    def _hop(self, turn: TurnId, edge: tuple[str, str]) -> None:
        if self._latest == (edge, edge[::-1]):
            self._ping_pong += 1
        self._latest = (*self._latest[-1:], edge)
        self._edges[turn] = edge

    def _refuse(self, event: AnyEvent, ledger: Ledger) -> None:
        assert event.refusal is not None
        turn, move = ledger.turns.get(event.turn), getattr(event, "move", None)
        giver = str(ledger.client or "") if turn is None else str(turn.agent)
        taker = str(move.to_agent) if isinstance(move, Transfer) else ""
        self._refused[str(event.refusal.rule), giver, taker] += 1

    def counts(self, ledger: Ledger) -> RequestCounts:
        """Return the counts of the request so far."""
        return RequestCounts(
            self._depth,
            self._ping_pong,
            tuple(sorted(self._summed(ledger))),
            tuple(sorted(RefusalCount(*each, count) for each, count in self._refused.items())),
        )

    def _summed(self, ledger: Ledger) -> Iterator[HopCount]:
        found: dict[tuple[str, str, int], list[int]] = {}
        for id_, (giver, taker) in self._edges.items():
            turn = ledger.turns[id_]
            us = 0 if turn.end is None else max(0, turn.end.at - turn.opened_at)
            bucket = OPEN if turn.end is None else bucket_of(us)
            sums = found.setdefault((giver, taker, bucket), [0] * 6)
            waited = 0 if turn.end is None else min(us, self._waited[id_])
            worked = turn.report.worked_ms * 1_000
            is_timed = turn.end is not None and worked > 0 and not turn.unaccounted
            queued = max(0, us - waited - worked) if is_timed else 0
            cost = turn.report.usage.nano_dollars
            for at, more in enumerate((1, us, waited, int(is_timed), queued, cost)):
                sums[at] += more
        for edge, sums in found.items():
            yield HopCount(*edge, *(min(each, 2**62) for each in sums))


def _waiting(ledger: Ledger, turn: TurnId) -> bool:
    state = ledger.open.get(turn)
    return state is not None and state.state != "working"
