"""Probes: how agents are seen whose time may be up, each asked about once in a while.

One decision may end many rounds, one event at a time. What was seen for the first of them is as good for the
next: each round and each offer is asked about once a second at most, not once an event.
"""

from collections.abc import Collection

from msgspec.structs import replace

from protocol.domain.ledger import Ledger
from protocol.domain.steps import Attendance, NeedAttendance, NeedReaders, OfferedTask, ReadersSeen
from protocol.domain.swarm import could_claim
from protocol.domain.waits import LEAST_PERIOD_US, Looks, by_the_clock, offers_by_the_clock
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Grounds
from protocol.wire.ids import AgentName, TurnId

_Round = tuple[TurnId, int]
_Offer = tuple[TurnId, int, tuple[AgentName, ...]]
"""The offer, to how many it went again, and who may claim it."""


class AttendanceProbes:
    """What one decision was told of the agents that its request waits for."""

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
    ) -> Looks | NeedAttendance | NeedReaders:
        """Return how those are seen whose time may be up; or what has to be asked first.

        Args:
            grounds: what else the next event rests on.
            now: UTC µs.
            by: UTC µs by which the time may be up.
            deciding: as for `due`.
            gone: the turns whose agents are not in the fleet.
        """
        if self._asked is not None:
            if self._asked.answer is None:
                return self._asked
            self._keep(self._asked)
            self._asked = None
        elif now - self._at > LEAST_PERIOD_US:
            self._rounds.clear()
            self._offers.clear()
        turns = by_the_clock(ledger, by, deciding, gone)
        unseen = tuple(turn for turn in turns if (turn.id, turn.round) not in self._rounds)
        if unseen:
            return self._ask(NeedAttendance(unseen), now)
        offers = [
            OfferedTask(task, could_claim(ledger, task, fleet)) for task in offers_by_the_clock(ledger, by)
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
        """Return the grounds with how those are served who may claim an offer, and whom to ask again.

        Args:
            known: False for an older fleet than one that the request was judged by: it may not know an agent.
        """
        attendance, to_ask = self._offers[_key(offer)]
        if attendance is None:
            return replace(grounds, removed=known)
        return attendance.within(replace(grounds, candidates=to_ask), removed=False)


def _key(offer: OfferedTask) -> _Offer:
    names = tuple(entry.name for entry in offer.entries)
    return offer.task.turn, len(offer.task.copies), names
