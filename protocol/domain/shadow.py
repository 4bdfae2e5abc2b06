"""A request beside a shadow: each command is judged once more, by another policy, on what really happened.

The request begins under the shadow, so that its budgets and its deadline are the shadow's. After a verdict
that would have been another, the history goes on as it was decided.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from protocol.domain.again import Again
from protocol.domain.judgement import verdict_of, wanted_by
from protocol.domain.ledger import Ledger
from protocol.domain.recorded import Other
from protocol.wire.config import Policy
from protocol.wire.errors import BrokenLog
from protocol.wire.events import AnyEvent, FactsWithheld, RequestOpened
from protocol.wire.handoff import Refusal
from protocol.wire.shadow import Judgement


class ShadowVerdict(NamedTuple):
    """What a policy decided on a command, and what its shadow would have."""

    event: AnyEvent
    """The one that decided."""
    was: Judgement
    would: Judgement
    client: str
    agent: str
    """Whose move it was; empty for a submit."""
    to: str
    """Whom the move would have given the work."""
    refusal: Refusal | None
    """The shadow's, or the policy's if the shadow refuses nothing."""

    @property
    def agrees(self) -> bool:
        return self.was == self.would

    @property
    def detail(self) -> str:
        return "" if self.refusal is None else self.refusal.detail

    @property
    def numbers(self) -> Mapping[str, Any]:
        return {} if self.refusal is None else self.refusal.numbers


class ShadowedRequest:
    """One request, whose events are taken one after the other, each compared with what the shadow derives.

    Args:
        shadow: it is compared with requests under a policy of the same name.
    """

    def __init__(self, shadow: Policy) -> None:
        self._shadow = shadow
        self._other = Other({shadow.name: shadow})
        self._happened: list[AnyEvent] = []
        self._bodies: list[bytes] = []
        self._taken: list[AnyEvent] = []
        """The same events as the ledger has them: as they were derived, where that agreed."""
        self._again = Again(self._happened, self._bodies, self._other)

    @property
    def n(self) -> int:
        """How many events were taken."""
        return len(self._happened)

    @property
    def is_over(self) -> bool:
        return bool(self._taken) and not self._again.ledger.is_open

    def take(self, event: AnyEvent, body: bytes) -> ShadowVerdict | None:
        """Take the next event; return what its verdict is compared with.

        Return None for what is withheld for a verdict: that comes next. Raises BrokenLog, and whatever the
        rules raise: then the object is of no use any more.
        """
        if event.n != self.n:
            raise BrokenLog(f"event {self.n} is missing; the next one there is {event.n}")
        self._happened.append(event)
        self._bodies.append(body)
        if isinstance(event, FactsWithheld):
            return None
        compared = None
        while len(self._taken) < self.n:
            compared = self._compare(len(self._taken))
        return compared

    def _compare(self, index: int) -> ShadowVerdict:
        """Derive an event and take it; also the next one, if other facts would have been withheld for it."""
        event, again = self._happened[index], self._again
        derived = again.derive(index)
        if verdict_of(derived) == verdict_of(event):
            compared = self._compared(event, derived)
            self._take(index, event if derived is None else derived)
            return compared
        decided, last = event, index
        if isinstance(event, FactsWithheld) and self._happened[index + 1].cause == event.cause:
            decided, last = self._happened[index + 1], index + 1
        whole = derived is None or not isinstance(derived, FactsWithheld)
        verdict = derived if derived is None or whole else again.beyond(index, derived)
        if verdict_of(verdict) == verdict_of(decided):  # what is withheld alone is otherwise
            decided, verdict = event, derived
        compared = self._compared(decided, verdict)
        if whole and decided is event and last == index:
            self._take(index, event)
        else:  # the decider went on from an event that was never stored
            self._begin_anew(last + 1)
        return compared

    def _take(self, index: int, event: AnyEvent) -> None:
        self._again.take(index, event)
        self._taken.append(event)
        if isinstance(event, RequestOpened):
            self._again.ledger.policy = self._shadow

    def _begin_anew(self, count: int) -> None:
        """Take so many events again, those that were not taken before as they were decided."""
        taken, self._taken = [*self._taken, *self._happened[len(self._taken) : count]], []
        self._again = Again(self._happened, self._bodies, self._other)
        for index, event in enumerate(taken):
            self._take(index, event)

    def _compared(self, event: AnyEvent, derived: AnyEvent | None) -> ShadowVerdict:
        ledger = self._again.ledger
        refused = None if derived is None else derived.refusal
        return ShadowVerdict(
            event=event,
            was=verdict_of(event),
            would=verdict_of(derived),
            client=str(ledger.client or (event.client if isinstance(event, RequestOpened) else "")),
            agent=_mover(ledger, event),
            to=wanted_by(event),
            refusal=refused or event.refusal,
        )


def _mover(ledger: Ledger, event: AnyEvent) -> str:
    turn = ledger.turns.get(event.turn)
    return "" if turn is None else str(turn.agent)
