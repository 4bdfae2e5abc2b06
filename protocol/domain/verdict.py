"""The verdict on a move, a failure or a doubt: one message in, one event out, and the way back.

    decide(ledger, command, world) -> event
    message_of(ledger, event) -> command

Both are pure, and `decide` is total.

The caller has checked that the message may be decided (`protocol.domain.admission`). A proposal whose handoff
hides something from its reader takes two events: `decide` first returns `facts.withheld` and then, with that
in the ledger, the verdict itself. So the caller repeats it until the proposal is decided.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from protocol.domain import budget, people, plans, rules, swarm
from protocol.domain.carried import NOTHING, Carried, added, dropped, merge
from protocol.domain.case import Case
from protocol.domain.control import ASKED, control_of, decide_control
from protocol.domain.envelope import Draft, World
from protocol.domain.fallback import usable
from protocol.domain.ledger import Ledger
from protocol.domain.memory import as_asked, to_remember
from protocol.domain.submit import decide_submit, submit_of
from protocol.domain.tasks import TaskState
from protocol.domain.turns import Segment, TurnState, error_of, next_round, remembered, retry_at
from protocol.wire import commands, events
from protocol.wire.commands import Command, MoveProposed, Proposal, Submit
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import FALLBACK, Constraints, Fact, Handoff, Refusal, Rule
from protocol.wire.ids import HUMAN, NOBODY, AgentName, SenderRole
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Escalate, Fail, HandBack, Move, Transfer


def target_of(ledger: Ledger, command: Command) -> AgentName | None:
    """Return the name that a message gives work to, or asks; None if it has none."""
    what = command.what
    if type(what) is MoveProposed:
        return _target_of(what.move, ledger.turns[what.turn].segment)
    if type(what) is Submit:
        return what.to
    return command.sender if type(what) is commands.OfferClaimed else None


def _target_of(move: Move, segment: Segment) -> AgentName | None:
    if type(move) is Transfer or type(move) is Ask:
        return move.to_agent
    if type(move) is HandBack:
        back = segment.resumed()
        return None if back is None else segment.path[back].agent
    return HUMAN if type(move) is Escalate else None


def decide(ledger: Ledger, command: Command, world: World) -> AnyEvent:
    """Return the event to append for one message. It never raises for anything that a peer may send.

    Args:
        ledger: the message's request, up to its head.
        command: the message, which `admission` has accepted.
        world: what else the verdict depends on.
    """
    return _DECIDE.get(type(command.what), decide_control)(ledger, command, command.what, world)


def _decide_move(ledger: Ledger, command: Command, proposal: MoveProposed, world: World) -> AnyEvent:
    turn, draft = ledger.turns[proposal.turn], Draft(ledger, world, command.cause)
    if ledger.frozen_at is None:
        return _Verdict(draft, command, proposal, turn).event()
    return events.MoveDeferred(
        **draft.envelope(events.MoveDeferred, NOBODY),
        turn=turn.id,
        round=turn.round,
        proposal=proposal,
        sender=command.sender,
    )


def _decide_failure(
    ledger: Ledger, command: Command, failure: commands.ReportFailure, world: World
) -> AnyEvent:
    turn, error = ledger.turns[failure.turn], failure.error
    return events.TurnFailed(
        **Draft(ledger, world, command.cause).envelope(events.TurnFailed, NOBODY),
        turn=turn.id,
        round=turn.round,
        error=error,
        retry_at=retry_at(turn, error, ledger.policy, world.now, command.cause),
        report=failure.report,
        sender=command.sender,
    )


def _decide_doubt(ledger: Ledger, command: Command, doubt: commands.ReportInDoubt, world: World) -> AnyEvent:
    return events.EffectDoubted(
        **Draft(ledger, world, command.cause).envelope(events.EffectDoubted, HUMAN),
        turn=doubt.turn,
        round=doubt.round,
        effect=doubt.effect,
        report=doubt.report,
    )


_DECIDE: Mapping[type, Callable[[Ledger, Command, Any, World], AnyEvent]] = {
    Submit: decide_submit,
    MoveProposed: _decide_move,
    commands.ReportFailure: _decide_failure,
    commands.ReportInDoubt: _decide_doubt,
    commands.OfferClaimed: swarm.decide_claim,
    commands.FactsPost: swarm.decide_post,
}
"""The verdicts on all messages that are not control messages."""


class _Verdict(Case):
    """One move that is being judged."""

    __slots__ = ("_command", "_proposal", "draft", "instead_of", "recorded", "sender", "spent")

    def __init__(self, draft: Draft, command: Command, proposal: MoveProposed, turn: TurnState) -> None:
        self.draft, self.ledger, self.world = draft, draft.ledger, draft.world
        self._command, self._proposal = command, proposal
        self.recorded = draft.world.grounds
        self.instead_of: AgentName | None = None
        self.sender, self.move, self.report = command.sender, proposal.move, proposal.report
        self.oversized = proposal.oversized
        self.turn, self.policy = turn, self.ledger.policy
        more = self.ledger.more(turn, self.report)
        self.spent = budget.plus(self.ledger.spent, more)
        self.rest = self.ledger.rest(turn, more)
        self.target = target_of(self.ledger, command)
        self.before = self.carried = NOTHING
        self.handoff, self.known, self.plan = None, None, ()
        if type(self.move) is Delegate:
            grounds, now = self.world.grounds, self.world.now
            self.plan = plans.planned(self.ledger, turn, self.move, grounds, now, self.rest)
        elif type(self.move) in _HANDS_OVER:
            self._carry(self.move)

    def event(self) -> AnyEvent:
        refusal = rules.judge(self)
        if refusal is None:
            return _ADMIT[type(self.move)](self, self.move)
        if refusal.rule == Rule.AGENT_AVAILABLE and type(self.move) is Transfer:
            instead = self._to_fallback(self.move)
            if instead is not None:
                return instead
        return self._refused(refusal)

    def _to_fallback(self, move: Transfer) -> AnyEvent | None:
        """Return what the same transfer to its target's fallback becomes; None if that may not have it."""
        named = move.to_agent
        second = usable(self.recorded.candidates, self.turn, move.intent)
        if second is None:
            return None
        entry = second.entry
        grounds = replace(self.recorded, target=entry, breaker=second.breaker)
        draft = Draft(self.ledger, replace(self.world, grounds=grounds), self._command.cause)
        move = replace(move, to_agent=entry.name)
        proposal = replace(self._proposal, move=move)
        case = _Verdict(draft, replace(self._command, what=proposal), proposal, self.turn)
        case.recorded, case.instead_of = self.recorded, named
        return None if rules.judge(case) is not None else case._admitted(move)

    def _completed(self, move: Complete) -> AnyEvent:
        facts = self._to_remember(move)
        first = self.draft.withhold_from_client(report=self.report, facts=facts)
        if first is not None:
            return first
        return events.RequestCompleted(
            **self.draft.envelope(events.RequestCompleted, str(self.ledger.client)),
            turn=self.turn.id,
            round=self.turn.round,
            answer=move.answer,
            sender=self.sender,
            digest=self.ledger.submit_digest,
            conversation=self.ledger.conversation if facts or self.ledger.notes_speakers else None,
            cancel_open=move.cancel_open,
            **self.draft.told(self.turn, self.report),
        )

    def _given_up(self, move: Fail) -> AnyEvent:
        if self.turn.task is not None:
            return self._task_failed(move, self.turn.task)
        return self._failed(move.code, move.reason)

    def _to_remember(self, move: Complete) -> tuple[Fact, ...]:
        """Return the facts that the conversation should remember; none if there is no conversation."""
        if self.ledger.conversation is None or not (move.remember or move.remember_keys):
            return ()
        return to_remember(move, self.turn.carried(), self.ledger.history.labels)

    def _carry(self, move: Move) -> None:
        """Compute what the move would carry on and hand over."""
        self.before = self.turn.carried()
        labels = self.ledger.history.labels
        self.carried = merge(self.before, move.facts, move.artifacts, move.drop, labels)
        self.handoff = self._handoff(self.carried)
        if self.handoff is not None:
            self.known = plans.known_to_giver(self.handoff, self.turn, move.facts, move.artifacts)

    def _handoff(self, carried: Carried) -> Handoff | None:
        """Return the whole handoff that the move would make; None if it makes none."""
        segment, own = self.segment, self.turn.frame.constraints
        match self.move:
            case Transfer() as move:
                granted = budget.grant(move.constraints.budget, self.rest)
                return self._handoff_of(
                    carried,
                    to=move.to_agent,
                    summary=move.summary,
                    intent=move.intent,
                    constraints=plans.narrower(own, move.constraints, self.world.now, granted),
                    return_to=move.return_to,
                    no_return=move.no_return,
                )
            case HandBack() as move:
                back = segment.resumed()
                if back is None:
                    return None
                frame = segment.path[back]
                left = budget.public(budget.left(frame.ceiling, self.spent))
                return self._handoff_of(
                    carried,
                    to=frame.agent,
                    summary=move.summary,
                    intent=frame.intent,
                    constraints=replace(frame.constraints, budget=left),
                    return_to=frame.return_to,
                    no_return=frame.sealed,
                )
            case Escalate() as move:
                return self._handoff_of(
                    carried,
                    to=HUMAN,
                    summary=move.summary,
                    intent=self.turn.work.handoff.intent,
                    constraints=replace(own, budget=budget.public(self.rest)),
                )
        return None

    def _handoff_of(self, carried: Carried, *, to: str, **rest: Any) -> Handoff:
        return Handoff(
            move=self.move.name,
            from_agent=self.turn.agent,
            to_agent=AgentName(to),
            parent=self.turn.id,
            facts=carried.fact_tuple,
            artifacts=carried.artifact_tuple,
            **rest,
        )

    def _admitted(self, move: Transfer | HandBack) -> AnyEvent:
        assert self.handoff is not None
        segment = self.segment
        if type(move) is Transfer:
            path, asked = (*segment.names, move.to_agent), move.constraints
            seal = len(segment.path) if move.no_return else segment.seal
        else:
            back = segment.resumed() or 0
            path, asked = segment.names[: back + 1], Constraints()
            seal = segment.pop_to(back).seal
        opening = self.draft.opening(
            events.HandoffAdmitted,
            self.handoff,
            self.carried,
            path=path,
            depth=segment.depth + 1,
            seal=seal,
        )
        if isinstance(opening, events.FactsWithheld):
            return opening
        return events.HandoffAdmitted(
            **opening.envelope,
            work=opening.work,
            turn=self.turn.id,
            round=self.turn.round,
            report=self.report,
            asked=asked,
            grounds=self.recorded,
            added=added(self.before.facts, self.carried.facts),
            dropped=dropped(self.before, self.carried),
            artifacts=added(self.before.artifacts, self.carried.artifacts),
            instead_of=self.instead_of,
        )

    def _refused(self, refusal: Refusal) -> AnyEvent:
        turn, move, work = self.turn, self.move, None
        if turn.refusals < self.policy.max_refusals:
            past = RoundOutcome(round=turn.round, how="refused", move=move, refusal=refusal)
            work = next_round(turn, remembered(past), self.report)
        return events.MoveRefused(
            **self.draft.envelope(events.MoveRefused, NOBODY if work is None else turn.agent),
            turn=turn.id,
            round=turn.round,
            report=self.report,
            move=move,
            refusal=refusal,
            work=work,
            grounds=self.world.grounds,
            oversized=self.oversized,
        )

    def _suspended(self, move: Ask) -> AnyEvent:
        expires_at = people.latest_reply(self.ledger, self.turn, move.to_agent, self.world.now)
        if move.expires_s is not None:
            expires_at = min(expires_at, self.world.now + int(move.expires_s * 1e6))
        first = self.draft.withhold_from_client(move.to_agent, report=self.report)
        if first is not None:
            return first
        noted = self.ledger.notes_speakers and move.to_agent == self.ledger.client
        return events.TurnSuspended(
            **self.draft.envelope(events.TurnSuspended, move.to_agent),
            turn=self.turn.id,
            round=self.turn.round,
            ask=move,
            expires_at=expires_at,
            agent=self.turn.agent if noted else None,
            conversation=self.ledger.conversation if noted else None,
        )

    def _delegated(self, move: Delegate) -> AnyEvent:
        """Return the admitted plan. It is in no inbox, so it may contain everything."""
        deadlines = (self.ledger.deadline, self.own.deadline)
        expires_at = None
        if move.within_s is not None:
            own = min(at for at in deadlines if at is not None)
            expires_at = min(own, self.world.now + int(move.within_s * 1e6))
        return events.TurnDelegated(
            **self.draft.envelope(events.TurnDelegated, NOBODY),
            turn=self.turn.id,
            round=self.turn.round,
            report=self.report,
            tasks=tuple(work.planned for work in self.plan),
            join=move.join,
            cancel=move.cancel,
            expires_at=expires_at,
            within_s=move.within_s,
            grounds=self.world.grounds,
        )

    def _delivered(self, move: Deliver) -> AnyEvent:
        task = self.turn.task
        assert task is not None
        labelled = merge(NOTHING, move.facts, labels=self.ledger.history.labels)
        return events.TaskDelivered(
            **self.draft.envelope(events.TaskDelivered, NOBODY),
            turn=self.turn.id,
            round=self.turn.round,
            report=self.report,
            name=task.name,
            summary=move.summary,
            facts=labelled.fact_tuple,
            artifacts=move.artifacts,
            cancel_open=move.cancel_open,
            sender=self.sender,
            grounds=self.world.grounds,
        )

    def _task_failed(self, move: Fail, task: TaskState) -> AnyEvent:
        return events.TaskFailed(
            **self.draft.envelope(events.TaskFailed, NOBODY),
            turn=self.turn.id,
            round=self.turn.round,
            report=self.report,
            name=task.name,
            error=error_of(self.turn, move.code, move.reason),
            sender=self.sender,
            grounds=self.world.grounds,
        )

    def _escalated(self, move: Escalate) -> AnyEvent:
        most, segment = self.policy.max_escalations, self.segment
        if self.ledger.escalations >= most:
            return self._failed("max_escalations", f"the policy lets a person be asked {most} times", move)
        assert self.handoff is not None
        opening = self.draft.opening(
            events.EscalationRaised,
            self.handoff,
            self.carried,
            path=segment.names,
            depth=segment.depth,
            past=self.turn.past,
        )
        if isinstance(opening, events.FactsWithheld):
            return opening
        return events.EscalationRaised(
            **opening.envelope,
            work=opening.work,
            turn=self.turn.id,
            round=self.turn.round,
            report=self.report,
            reason=ASKED,
            grounds=self.world.grounds,
            added=added(self.before.facts, self.carried.facts),
        )

    def _failed(self, code: str, reason: str, move: Move | None = None) -> AnyEvent:
        first = self.draft.withhold_from_client(report=self.report, move=move)
        if first is not None:
            return first
        return events.RequestFailed(
            **self.draft.envelope(events.RequestFailed, str(self.ledger.client)),
            turn=self.turn.id,
            round=self.turn.round,
            code=code,
            reason=reason,
            sender=self.sender,
            digest=self.ledger.submit_digest,
            **self.draft.told(self.turn, self.report),
        )


_ADMIT: Mapping[type, Callable[[_Verdict, Any], AnyEvent]] = {
    Transfer: _Verdict._admitted,
    HandBack: _Verdict._admitted,
    Ask: _Verdict._suspended,
    Escalate: _Verdict._escalated,
    Delegate: _Verdict._delegated,
    Deliver: _Verdict._delivered,
    Complete: _Verdict._completed,
    Fail: _Verdict._given_up,
}
"""How each move becomes an event if no rule refuses it. `known_move` refuses all other moves."""
_HANDS_OVER = frozenset({Transfer, HandBack, Escalate})
"""Moves that hand over what the turn carries."""


# --- the way back ---------------------------------------------------------------------------------------


def message_of(ledger: Ledger, event: AnyEvent) -> Command | None:
    """Return the message that `event` answers; None for a consequence.

    Args:
        ledger: the request as it was before `event`, including what was withheld for it.
    """
    if isinstance(event, events.RequestOpened | events.RequestRefused):
        submit = submit_of(ledger, event)
        role: SenderRole = "client" if submit.forked_from is None else "operator"
        return Command(event.request, event.client, submit, event.cause, role, event.digest)
    proposal = swarm.proposal_of(ledger, event) or _proposal_of(ledger, event)
    if proposal is not None:
        claimant = swarm.claimant_of(event, proposal)
        sender = ledger.turns[proposal.turn].agent if claimant is None else claimant
        return Command(event.request, sender, proposal, event.cause, "agent")
    control = control_of(ledger, event)
    if control is not None:
        sender = event.sender or AgentName("")
        stored = (event.since or 0) if isinstance(event, events.RequestFrozen) else 0
        return Command(event.request, sender, control, event.cause, "operator", stored=stored)
    return None


def _proposal_of(ledger: Ledger, event: AnyEvent) -> Proposal | None:
    move: Move
    match event:
        case events.TurnFailed(turn=turn, round=round_, error=error, report=report):
            if event.sender is None:
                return None
            return commands.ReportFailure(turn=turn, round=round_, error=error, report=report)
        case events.EffectDoubted(turn=turn, round=round_, effect=effect, report=report):
            return commands.ReportInDoubt(turn=turn, round=round_, effect=effect, report=report)
        case events.MoveDeferred(proposal=proposal):
            return proposal
        case events.HandoffAdmitted(work=work) if work.handoff.move == FALLBACK:
            return None
        case events.HandoffAdmitted():
            move = _handoff_move(ledger, event)
        case events.MoveRefused(move=refused):
            move = refused
        case events.TurnSuspended(ask=ask):
            move = ask
        case events.EscalationRaised(reason="asked", work=work):
            move = Escalate(summary=work.handoff.summary, facts=ledger.added_by(event))
        case events.RequestCompleted(control="", answer=answer):
            kept = ledger.kept_back(event.cause)
            leaves = () if kept is None else kept.facts
            brought, keys = as_asked(leaves, ledger.turns[event.turn].carried())
            move = Complete(
                answer=answer, remember=brought, remember_keys=keys, cancel_open=event.cancel_open
            )
        case events.TurnDelegated(tasks=tasks, join=join, cancel=cancel, within_s=within_s):
            asked = tuple(planned.task for planned in tasks)
            move = Delegate(tasks=asked, join=join, within_s=within_s, cancel=cancel)
        case events.TaskDelivered(summary=summary, facts=facts, artifacts=artifacts):
            move = Deliver(summary=summary, facts=facts, artifacts=artifacts, cancel_open=event.cancel_open)
        case events.TaskFailed(error=failed) if event.sender is not None:
            move = Fail(reason=failed.message, code=failed.code)
        case events.RequestFailed(reason=reason, code=code) if event.sender is not None:
            kept = ledger.kept_back(event.cause)
            gave_up = Fail(reason=reason, code=code)
            move = kept.move if kept is not None and kept.move is not None else gave_up
        case _:
            return None
    report, oversized = ledger.report_of(event), 0
    if isinstance(event, events.MoveRefused):
        oversized = event.oversized
    return commands.MoveProposed(
        turn=event.turn, round=event.round, move=move, report=report, oversized=oversized
    )


def _handoff_move(ledger: Ledger, event: events.HandoffAdmitted) -> Move:
    handoff, named = event.work.handoff, ledger.carried_after(event).artifacts
    facts, artifacts = ledger.added_by(event), tuple(named[name] for name in event.artifacts)
    if handoff.move == "hand_back":
        return HandBack(summary=handoff.summary, facts=facts, artifacts=artifacts, drop=event.dropped)
    return Transfer(
        to_agent=event.instead_of or handoff.to_agent,
        summary=handoff.summary,
        intent=handoff.intent,
        facts=facts,
        artifacts=artifacts,
        drop=event.dropped,
        constraints=event.asked,
        return_to=handoff.return_to,
        no_return=handoff.no_return,
    )
