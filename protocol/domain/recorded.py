"""What a log records of the world: the answers that a guard had when it wrote an event."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from protocol.domain.breaker import Permit
from protocol.domain.ledger import Ledger
from protocol.domain.memory import recalled_for
from protocol.domain.steps import (
    AgentReadiness,
    Asks,
    Attendance,
    NeedAttendance,
    NeedCandidates,
    NeedPeers,
    NeedPermit,
    NeedReaders,
    NeedUndecided,
    NeedVerdictContext,
    OfferedTask,
    ReadersSeen,
    VerdictContext,
)
from protocol.wire import events
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.event_parts import Candidate, Grounds
from protocol.wire.events import AnyEvent
from protocol.wire.ids import AgentName, TurnId

_NOTHING = Grounds()


class Other(NamedTuple):
    """What should differ from the recorded world."""

    policies: Mapping[str, Policy] = {}
    """By name; a request keeps its policy if the name is missing here. `*` stands for every name."""
    fleet: Fleet | None = None

    def policy_for(self, recorded: Policy) -> Policy:
        """Return the policy that a request should begin under."""
        return self.policies.get(recorded.name) or self.policies.get("*") or recorded


class RecordedAnswers:
    """Answers a decision's needs with the grounds of one event.

    For any other turn or offer the answers make nothing due: its agents have been served just now.

    Args:
        ledger: the request before the event, including what was withheld for it.
        other: what should differ. Agents that the event does not mention are taken to be served and not to
            fail.
    """

    def __init__(self, ledger: Ledger, event: AnyEvent, other: Other | None = None) -> None:
        self._ledger, self._event, self._other = ledger, event, other or _AS_IT_WAS
        self._grounds = ledger.grounds_of(event) or _NOTHING
        self._kept = ledger.kept_back(event.cause)

    @property
    def fleet(self) -> Fleet:
        """The fleet, as far as the event recorded it; or the other fleet, as if it had been used then."""
        grounds, other = self._grounds, self._other.fleet
        if other is not None:
            revision, longest_s = max(grounds.fleet, self._ledger.fleet), grounds.longest_s
            kept_s = other.log_max_age_s if longest_s is None else 2 * longest_s
            return replace(other, revision=revision, log_max_age_s=kept_s)
        entries = (*(one.entry for one in grounds.candidates), grounds.sender, grounds.target)
        return Fleet(
            name="recorded",
            entry=AgentName("") if grounds.target is None else grounds.target.name,
            agents=_Recorded(entries, self._ledger, self.removed),
            human=grounds.human,
            revision=grounds.fleet,
            carries=self._carries,
            log_max_age_s=2 * (grounds.longest_s or 0),
        )

    @property
    def _carries(self) -> dict[AgentName, dict[AgentName, Mapping[str, Any]]]:
        sender, target, form = self._grounds.sender, self._grounds.target, self._grounds.form
        if form is None or sender is None or target is None:
            return {}
        return {sender.name: {target.name: form}}

    @property
    def removed(self) -> TurnId | None:
        """The turn whose round ended because its agent left the fleet; None if none did."""
        turn = self._event.turn
        return turn if self._grounds.removed and turn in self._ledger.turns else None

    def supply(self, need: Asks) -> None:
        grounds = self._grounds
        if isinstance(need, NeedVerdictContext):
            need.supply(self._verdict_context())
        elif isinstance(need, NeedPermit):
            need.supply(self._permit(need.agent))
        elif isinstance(need, NeedPeers):
            need.supply(grounds.peers)
        elif isinstance(need, NeedCandidates):
            known = {one.entry.name: one for one in grounds.candidates}
            is_other = self._other.fleet is not None
            found = [known.get(name) if is_other else known[name] for name in need.agents]
            need.supply(tuple(map(_standing, found)))
        elif isinstance(need, NeedAttendance):
            need.supply(tuple(self._attendance(turn.id) for turn in need.turns))
        elif isinstance(need, NeedReaders):
            need.supply(tuple(map(self._readers, need.offers)))
        elif isinstance(need, NeedUndecided):
            need.supply(False)  # otherwise nothing would have been appended

    def _verdict_context(self) -> VerdictContext:
        grounds, event = self._grounds, self._event
        use = Permit(grounds.breaker, grounds.breaker_since, grounds.breaker_until)
        if not isinstance(event, events.RequestOpened | events.RequestRefused):
            return VerdictContext(use)
        named = event.policy  # None: there was none of that name, and another policy does not create one
        prices = event.prices if isinstance(event, events.RequestOpened) else None
        memory = recalled_for(event, self._kept)
        policy = named and self._other.policy_for(named)
        return VerdictContext(use, policy, prices, memory, last=self._last_speaker)

    @property
    def _last_speaker(self) -> AgentName | None:
        """The agent that spoke last in the conversation, if the submit was to go to it."""
        event = self._event
        if isinstance(event, events.RequestOpened):
            return None if event.continued is None else event.continued.last
        return next((one.entry.name for one in self._grounds.candidates), None)

    def _permit(self, agent: AgentName) -> Permit:
        grounds = self._grounds
        for one in grounds.candidates:
            if one.entry.name == agent:
                return _standing(one).breaker
        if grounds.target is None or grounds.target.name != agent:
            return Permit("closed")
        return Permit(grounds.breaker, grounds.breaker_since, grounds.breaker_until)

    @property
    def _about(self) -> TurnId:
        """The turn or offer that the event is about."""
        event = self._event
        return event.offer.turn if isinstance(event, events.TaskOffered) else event.turn

    def _attendance(self, turn: TurnId) -> Attendance:
        grounds = self._grounds
        if turn != self._about or grounds.served is None:
            return Attendance(served=True, since=self._event.at, unbegun=False)
        return Attendance(grounds.served, grounds.served_since or 0, grounds.unbegun)

    def _readers(self, offer: OfferedTask) -> ReadersSeen:
        about = offer.task.turn == self._about
        if (about and self._grounds.removed) or (self._other.fleet is not None and not offer.entries):
            return ReadersSeen(None)
        to_ask = self._grounds.candidates if about else ()
        if self._other.fleet is not None:
            entries = {entry.name: entry for entry in offer.entries}
            seen = (one for one in to_ask if one.entry.name in entries)
            to_ask = tuple(replace(one, entry=entries[one.entry.name]) for one in seen)
        return ReadersSeen(self._attendance(offer.task.turn), to_ask)


_AS_IT_WAS = Other()


def _standing(one: Candidate | None) -> AgentReadiness:
    if one is None:
        return AgentReadiness()
    return AgentReadiness(Permit(one.breaker, one.since, one.until), one.served)


class _Recorded(dict[str, AgentEntry]):
    """The agents that an event recorded. A turn's holder counts as one, with nothing else known about it.

    Args:
        removed: the turn whose agent is no longer in the fleet.
    """

    def __init__(self, entries: Iterable[AgentEntry | None], ledger: Ledger, removed: TurnId | None) -> None:
        super().__init__((entry.name, entry) for entry in entries if entry is not None)
        self._ledger, self._removed = ledger, removed

    def __contains__(self, name: object) -> bool:
        turns = self._ledger.turns
        if self._removed is not None and turns[self._removed].agent == name:
            return False
        return super().__contains__(name) or any(turn.agent == name for turn in self._ledger.open.values())
