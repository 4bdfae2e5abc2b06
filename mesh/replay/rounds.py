"""The rounds of a request in its log: the input of each, and its agent's proposal.

A round's inputs are its work, the fleet as it was then, and its turn's journal up to the round's end. The
guard's verdict is in the log. `verdict_on` asks the live decider for its verdict on another proposal.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from protocol.domain.breaker import Permit
from protocol.domain.decider import RequestDecider
from protocol.domain.ledger import Ledger
from protocol.domain.recorded import RecordedAnswers
from protocol.domain.steps import (
    AgentReadiness,
    Append,
    Appended,
    Asks,
    Moment,
    NeedCandidates,
    NeedVerdictContext,
    Settled,
    ShowQuestions,
    TurnOver,
    VerdictContext,
)
from protocol.domain.verdict import message_of, target_of
from protocol.wire.commands import Command, MoveProposed, ReportFailure, ReportInDoubt
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.events import AnyEvent, FactsWithheld, MoveDeferred, TurnFailed
from protocol.wire.ids import HUMAN, AgentName

Ending = MoveProposed | ReportFailure | ReportInDoubt
"""What an agent itself ends a round with."""

TIMED_OUT = "its time ran out"
ENDED_OUTSIDE = "it was ended from outside"
UNDECIDED = "it is not decided yet"


class RecordedRound(NamedTuple):
    """One round and its agent's proposal. Use it before asking for the next: the ledger is shared."""

    request: str
    agent: AgentName
    work: Assignment
    fleet: int
    """The revision of the fleet that was known when the round began."""
    ledger: Ledger
    """The request before the verdict."""
    event: AnyEvent | None
    """The verdict; None if the round made no proposal."""
    command: Command | None
    """What the verdict answers."""
    why: str = ""
    """Why there is no proposal."""

    @property
    def proposal(self) -> Ending:
        """What the agent proposed. Raises LookupError if there is nothing."""
        if self.command is None or not isinstance(self.command.what, Ending):
            raise LookupError(self.why)
        return self.command.what


class _Given(NamedTuple):
    work: Assignment
    fleet: int


def rounds_of(
    happened: Sequence[AnyEvent], bodies: Sequence[bytes], agents: Collection[str]
) -> Iterator[RecordedRound]:
    """Yield the rounds of these agents in order of decision; those without a proposal last.

    A proposal that waited while its request was frozen comes with its verdict after the thaw.

    Args:
        happened, bodies: a request's events, from the first on.

    Raises BrokenLog for events that no guard could have written.
    """
    ledger, given, why = Ledger(), dict[tuple[str, int], _Given](), dict[tuple[str, int], str]()
    decided = {event.cause: event.n for event in happened if not isinstance(event, FactsWithheld)}
    for event, body in zip(happened, bodies, strict=True):
        ledger.mesh_thawed = event.stood
        place = event.turn, event.round
        waits = isinstance(event, MoveDeferred) and decided[event.cause] != event.n
        if place in given and not waits and not isinstance(event, FactsWithheld):
            command = message_of(ledger, event)
            if command is not None and isinstance(command.what, Ending):
                work, fleet = given.pop(place)
                yield RecordedRound(
                    event.request, ledger.turns[event.turn].agent, work, fleet, ledger, event, command
                )
            elif isinstance(event, TurnFailed):
                why[place] = TIMED_OUT
        ledger.apply(event, body)
        work_ = event.work
        if work_ is not None and work_.handoff.to_agent != HUMAN and work_.handoff.to_agent in agents:
            given[work_.turn, work_.round] = _Given(work_, ledger.fleet)
    for unended, (work, fleet) in given.items():
        open_ = ledger.turns[work.turn].state == "working" and ledger.turns[work.turn].round == work.round
        reason = why.get(unended) or (UNDECIDED if open_ else ENDED_OUTSIDE)
        request = happened[0].request
        yield RecordedRound(request, work.handoff.to_agent, work, fleet, ledger, None, None, reason)


# --- the verdict on another proposal ---------------------------------------------------------------


class Verdict(NamedTuple):
    """How the decider decides a proposal."""

    event: AnyEvent | None
    """None: a guard rejects it, and nothing is written."""
    withheld: FactsWithheld | None
    """What is withheld from the event's reader, stored before it."""


def recorded_verdict(recorded: RecordedRound) -> Verdict:
    """Return the verdict in the log."""
    assert recorded.event is not None
    return Verdict(recorded.event, recorded.ledger.kept_back(recorded.event.cause))


def verdict_on(recorded: RecordedRound, proposal: Ending, fleet: Fleet) -> Verdict:
    """Return the live decider's verdict on another proposal in place of the recorded one.

    It knows what was recorded. For agents that the record does not name, it knows what the fleet file said,
    and takes their breakers to be closed.

    Args:
        fleet: as it was then.
    """
    assert recorded.event is not None
    assert recorded.command is not None
    event, ledger = recorded.event, copy(recorded.ledger)
    command = replace(recorded.command, what=proposal, stored=1)  # what was due before has its own events
    answers = _Answers(ledger, event, fleet, recorded.command)
    derived = _first_event(ledger, command, answers, event)
    if not isinstance(derived, FactsWithheld):
        return Verdict(derived, ledger.kept_back(event.cause))
    ledger.pending = derived
    return Verdict(_first_event(ledger, command, answers, event), derived)


def _first_event(ledger: Ledger, command: Command, answers: "_Answers", event: AnyEvent) -> AnyEvent | None:
    decision = RequestDecider(ledger).handle(command, answers.fleet, Moment(event.at, event.salt))
    while not isinstance(step := decision.next(), Settled):
        if isinstance(step, Append):
            found = step.event
            return found if found.trace == event.trace else replace(found, trace=event.trace)
        if not isinstance(step, Appended | TurnOver | ShowQuestions):
            answers.supply(step)
    return None


class _Answers(RecordedAnswers):
    """Answers from the record, and for the rest from the fleet as it was then."""

    def __init__(self, ledger: Ledger, event: AnyEvent, fleet: Fleet, command: Command) -> None:
        super().__init__(ledger, event)
        self._then, self._command, self._target = fleet, command, target_of(ledger, command)

    @property
    def fleet(self) -> Fleet:
        recorded = super().fleet
        entries = dict(recorded.agents)
        known = {**self._then.agents, **entries}
        for name in (self._command.sender, self._target):
            if name is not None and name not in entries:
                known.pop(name, None)  # the guard did not find it
        then = self._then
        return replace(recorded, agents=known, labels=then.labels, carries=then.carries)

    def supply(self, need: Asks) -> None:
        if isinstance(need, NeedVerdictContext) and need.target != self._target:
            need.supply(VerdictContext(Permit("closed")))
        elif isinstance(need, NeedCandidates):
            known = {one.entry.name: one for one in self._grounds.candidates}
            need.supply(
                tuple(
                    AgentReadiness()
                    if (one := known.get(name)) is None
                    else AgentReadiness(Permit(one.breaker, one.since, one.until), one.served)
                    for name in need.agents
                )
            )
        else:
            super().supply(need)


def differing(
    one: msgspec.Struct | None, other: msgspec.Struct | None
) -> Mapping[str, tuple[object, object]]:
    """Return the fields of two structs that differ, by name, with both values as JSON."""
    left = {} if one is None else msgspec.to_builtins(one)
    right = {} if other is None else msgspec.to_builtins(other)
    names = dict.fromkeys((*left, *right))
    return {
        name: (left.get(name), right.get(name))
        for name in names
        if msgspec.json.encode(left.get(name)) != msgspec.json.encode(right.get(name))
    }
