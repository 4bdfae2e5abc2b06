"""Probes of the agents whose time may be up, with a cache.

One decision may end many rounds, one event at a time. The result for the first is good enough for the next:
each round and each offer is probed at most once a second, not once per event.
"""

from collections.abc import Collection

from msgspec.structs import replace

from protocol.domain.ledger import Ledger
from protocol.domain.steps import Attendance, NeedAttendance, NeedReaders, OfferedTask, ReadersSeen
from protocol.domain.swarm import could_claim
from protocol.domain.waits import MIN_PROBE_PERIOD_US, Probed, may_time_out, offers_that_may_end
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Grounds
from protocol.wire.ids import AgentName, TurnId

_Round = tuple[TurnId, int]
_Offer = tuple[TurnId, int, tuple[AgentName, ...]]
"""The offer, how many agents got it again, and the agents that may claim it."""


class AttendanceProbes:
    """What one decision knows of the agents that its request waits for."""

    __slots__ = ("_asked", "_at", "_offers", "_rounds")

    def __init__(self) -> None:
        self._at = 0
        """UTC µs of the oldest answer."""
        self._rounds: dict[_Round, Attendance] = {}
        self._offers: dict[_Offer, ReadersSeen] = {}
        self._asked: NeedAttendance | NeedReaders | None = None

    def seen(
        self,
        ledger: Ledger,
        fleet: Fleet,
        grounds: Grounds,
        now: int,
        by: int,
        deciding: tuple[str, int] | None,
        gone: Collection[TurnId],
    ) -> Probed | NeedAttendance | NeedReaders:
        """Return the grounds for each turn and offer whose time may be up, or the need to supply first.

        Args:
            grounds: what else the next event depends on.
            now: UTC µs.
            by: consider what may be up by this time (UTC µs).
            deciding: as for `due`.
            gone: turns whose agents are not in the fleet.
        """
        if self._asked is not None:
            if self._asked.answer is None:
                return self._asked
            self._keep(self._asked)
            self._asked = None
        elif now - self._at > MIN_PROBE_PERIOD_US:
            self._rounds.clear()
            self._offers.clear()
        turns = may_time_out(ledger, by, deciding, gone)
        unseen = tuple(turn for turn in turns if (turn.id, turn.round) not in self._rounds)
        if unseen:
            return self._ask(NeedAttendance(unseen), now)
        offers = [
            OfferedTask(task, could_claim(ledger, task, fleet)) for task in offers_that_may_end(ledger, by)
        ]
        unread = tuple(offer for offer in offers if _key(offer) not in self._offers)
        if unread:
            return self._ask(NeedReaders(unread), now)
        found = {}
        for turn in turns:
            found[turn.id] = self._rounds[turn.id, turn.round].within(grounds, removed=turn.id in gone)
        for offer in offers:
            found[offer.task.turn] = self._of_offer(offer, grounds, known=fleet.revision >= ledger.fleet)
        return found

    def _ask(self, need: NeedAttendance | NeedReaders, now: int) -> NeedAttendance | NeedReaders:
        if not self._rounds and not self._offers:
            self._at = now
        self._asked = need
        return need

    def _keep(self, asked: NeedAttendance | NeedReaders) -> None:
        if isinstance(asked, NeedAttendance):
            for turn, attendance in zip(asked.turns, asked.answer or (), strict=True):
                self._rounds[turn.id, turn.round] = attendance
        else:
            for offer, seen in zip(asked.offers, asked.answer or (), strict=True):
                self._offers[_key(offer)] = seen

    def _of_offer(self, offer: OfferedTask, grounds: Grounds, *, known: bool) -> Grounds:
        """Return the grounds with the attendance of an offer's readers, and the agents that get it again.

        Args:
            known: False if the fleet is older than one that has judged the request: it may lack an agent.
        """
        attendance, to_ask = self._offers[_key(offer)]
        if attendance is None:
            return replace(grounds, removed=known)
        return attendance.within(replace(grounds, candidates=to_ask), removed=False)


def _key(offer: OfferedTask) -> _Offer:
    names = tuple(entry.name for entry in offer.entries)
    return offer.task.turn, len(offer.task.copies), names
