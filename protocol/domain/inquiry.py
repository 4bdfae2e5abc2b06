"""An inquiry collects what one event depends on, before the event is written."""

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from protocol.domain.breaker import Permit
from protocol.domain.control import resolves_to
from protocol.domain.envelope import World, trace_of
from protocol.domain.ledger import Ledger
from protocol.domain.memory import goes_to_last
from protocol.domain.plans import candidates_of, fallbacks
from protocol.domain.steps import (
    Moment,
    NeedCandidates,
    NeedPeers,
    NeedPermit,
    NeedVerdictContext,
    VerdictContext,
)
from protocol.domain.tasks import opening_cause
from protocol.domain.verdict import target_of
from protocol.wire import commands, moves
from protocol.wire.commands import Command, MoveProposed, Submit
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.event_parts import Candidate, Continued, Grounds
from protocol.wire.handoff import Rule
from protocol.wire.ids import AgentName, Cause, TurnId
from protocol.wire.moves import Move

_BEGINS_WORK: Final = frozenset({Submit, commands.OfferClaimed})
_ASKS_WHO_COULD: Final = frozenset({moves.Delegate, moves.Fail})


def _may_continue(what: object) -> TypeGuard[Submit]:
    """Return True for a submit that may go to the agent that spoke last in its conversation."""
    return (
        type(what) is Submit
        and what.to is None
        and what.conversation is not None
        and what.continue_with != "entry"
    )


class Inquiry:
    """Asks for what one event depends on: each thing once, in order.

    Every question is a `Need`. Once it has its answer, call the same method again.
    """

    __slots__ = ("_candidates", "_context", "_fleet", "_ledger", "_peers", "_permits")

    def __init__(self, ledger: Ledger, fleet: Fleet) -> None:
        self._ledger, self._fleet = ledger, fleet
        self._context: NeedVerdictContext | None = None
        self._peers: NeedPeers | None = None
        self._candidates: NeedCandidates | None = None
        self._permits: dict[AgentName, NeedPermit] = {}

    @property
    def begun(self) -> bool:
        """True once it has asked for a verdict's context."""
        return self._context is not None

    def world(
        self, command: Command, moment: Moment
    ) -> World | NeedVerdictContext | NeedPermit | NeedPeers | NeedCandidates:
        """Return what the verdict on a command depends on, or the need to supply first."""
        what, ledger, fleet = command.what, self._ledger, self._fleet
        entry = fleet.agents.get(self._target(command) or "")
        target = None if entry is None else entry.name
        move = what.move if type(what) is MoveProposed else None
        asked = self._context
        if asked is None:
            gives_work = type(what) in _BEGINS_WORK if move is None else move.gives_work
            may_try = gives_work and ledger.frozen_at is None
            known = None if _may_continue(what) else target
            asked = self._context = NeedVerdictContext(command, known, may_try)
        context = asked.answer
        if context is None:
            return asked
        use, sender = context.breaker, fleet.agents.get(command.sender)
        peers: tuple[AgentName, ...] = ()
        candidates: tuple[Candidate, ...] = ()
        continued: Continued | None = None
        if _may_continue(what):
            found = self._continue(command, what, context)
            if isinstance(found, NeedPermit):
                return found
            entry, use, continued, candidates = found
        if use.state == "open" and sender is not None and isinstance(move, moves.Transfer):
            others = self._who_else(move, sender, target)
            if isinstance(others, NeedPeers):
                return others
            peers = others
        if use.state == "open" and isinstance(move, moves.Transfer):
            instead = self.fallback(target, command.cause)
            if isinstance(instead, NeedCandidates):
                return instead
            candidates = instead
        if type(what) is MoveProposed and type(move) in _ASKS_WHO_COULD:
            could = self.candidates(what.turn, what.move, sender)
            if isinstance(could, NeedCandidates):
                return could
            candidates = could
        grounds = Grounds(
            fleet=fleet.revision,
            sender=sender,
            target=entry,
            human=fleet.human,
            breaker=use.state,
            breaker_since=use.since,
            breaker_until=use.until,
            peers=peers,
            longest_s=fleet.log_max_age_s / 2 if type(what) is Submit else None,
            candidates=candidates,
            form=self._form(command.sender, target) if isinstance(move, moves.Transfer) else None,
        )
        return World(
            now=moment.now,
            salt=moment.salt,
            grounds=grounds,
            policy=context.policy,
            prices=context.prices,
            memory=context.memory,
            continued=continued,
            use=context.use,
            trace=trace_of(ledger.trace, command.trace),
        )

    def _continue(
        self, command: Command, submit: Submit, context: VerdictContext
    ) -> tuple[AgentEntry | None, Permit, Continued | None, tuple[Candidate, ...]] | NeedPermit:
        """Return which agent a submit that names none goes to, and its breaker; or the need to supply first.

        The last two are how it went on with the agent that spoke last, and that agent if it does not get it.
        """
        fleet, last, policy = self._fleet, context.last, context.policy
        continued, passed_over = None, tuple[Candidate, ...]()
        if last is not None and policy is not None and goes_to_last(submit, policy):
            continued = Continued(last=last)
            if last != fleet.entry:
                entry, why, use = fleet.agents.get(last), Rule.KNOWN_AGENT, Permit("closed")
                if entry is not None and entry.takes(submit.intent):
                    permit = self._permit(command, last)
                    if permit.answer is None:
                        return permit
                    why, use = Rule.AGENT_AVAILABLE, permit.answer
                    if use.state != "open":
                        return entry, use, continued, ()
                continued = Continued(last=last, why=why)
                if entry is not None:
                    passed_over = (
                        Candidate(entry=entry, breaker=use.state, since=use.since, until=use.until),
                    )
        permit = self._permit(command, fleet.entry)
        if permit.answer is None:
            return permit
        return fleet.agents.get(fleet.entry), permit.answer, continued, passed_over

    def _permit(self, command: Command, agent: AgentName) -> NeedPermit:
        return self._permits.setdefault(agent, NeedPermit(command, agent))

    def candidates(
        self, turn: TurnId, move: Move | None = None, sender: AgentEntry | None = None
    ) -> tuple[Candidate, ...] | NeedCandidates:
        """Return the agents that could get a plan's tasks, or the task of `turn` as a fallback."""
        ledger, fleet, asked = self._ledger, self._fleet, self._candidates
        if asked is None:
            lead = turn
            if isinstance(move, moves.Delegate):
                names = candidates_of(move, fleet, sender, ledger.policy.topology)
            else:
                task = ledger.task_of(turn)
                if task is None:
                    return ()
                lead, names = task.lead, fallbacks(task, ledger.turns[task.lead], fleet)
            if not names:
                return ()
            trial = opening_cause(str(ledger.request), lead, ledger.n)
            asked = self._candidates = NeedCandidates(names, trial)
        return self._found(asked)

    def fallback(self, agent: AgentName | None, trial: Cause) -> tuple[Candidate, ...] | NeedCandidates:
        """Return the fallback of an agent as it is now; nothing for one that has none.

        Args:
            trial: the cause of the event that would give it the work.
        """
        agents, asked = self._fleet.agents, self._candidates
        if asked is None:
            entry = None if agent is None else agents.get(agent)
            second = None if entry is None or entry.fallback is None else agents.get(entry.fallback)
            if second is None:
                return ()
            asked = self._candidates = NeedCandidates((second.name,), trial)
        return self._found(asked)

    def _found(self, asked: NeedCandidates) -> tuple[Candidate, ...] | NeedCandidates:
        if asked.answer is None:
            return asked
        fleet = self._fleet
        return tuple(
            Candidate(
                entry=fleet.agents[name],
                breaker=found.breaker.state,
                since=found.breaker.since,
                until=found.breaker.until,
                served=found.served,
            )
            for name, found in zip(asked.agents, asked.answer, strict=True)
        )

    def _who_else(
        self, move: moves.Transfer, sender: AgentEntry, target: AgentName | None
    ) -> tuple[AgentName, ...] | NeedPeers:
        """Return other agents that could take the work that a breaker keeps from its target."""
        fleet, asked = self._fleet, self._peers
        if asked is None:
            allowed = fleet.agents if sender.to is None else sender.to
            asked = self._peers = NeedPeers(
                tuple(
                    peer.name
                    for name, peer in sorted(fleet.agents.items())
                    if name in allowed and name not in (target, sender.name) and peer.takes(move.intent)
                )
            )
        return asked if asked.answer is None else asked.answer

    def _form(self, sender: AgentName, target: AgentName | None) -> Mapping[str, Any] | None:
        forms = self._fleet.carries.get(sender)
        return None if forms is None or target is None else forms.get(target)

    def _target(self, command: Command) -> AgentName | None:
        what = command.what
        if type(what) is Submit:
            return what.to or self._fleet.entry
        if type(what) is commands.Resolve:
            return resolves_to(self._ledger, what)
        return target_of(self._ledger, command)
