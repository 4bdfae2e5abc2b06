"""The verdict: one message in, one event out. Pure and total.

    decide(ledger, command, policy, world) -> event

The caller has made sure that the message may be decided (`protocol.domain.admission`). A proposal whose
handoff hides something from its reader takes two events: `decide` first returns `facts.withheld`,
and, with that in the ledger, the verdict itself; so the caller goes on until the proposal is decided.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from protocol.domain import budget, layers, rules
from protocol.domain.control import ASKED, decide_control
from protocol.domain.envelope import E, World, for_client, place, stamp
from protocol.domain.layers import Bringer, Load, Marks
from protocol.domain.ledger import Ledger
from protocol.domain.rules import Case
from protocol.domain.submit import decide_submit
from protocol.domain.turns import TurnState, next_round, remembered, retry_at
from protocol.wire import events
from protocol.wire.commands import (
    Ask,
    Command,
    Complete,
    Escalate,
    Fail,
    HandBack,
    Move,
    MoveProposed,
    Proposal,
    ReportFailure,
    ReportInDoubt,
    Submit,
    Transfer,
)
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, Assignment, RoundOutcome
from protocol.wire.handoff import Constraints, Handoff, Refusal
from protocol.wire.ids import HUMAN, NOBODY, AgentName, TurnId, event_id


def target_of(ledger: Ledger, command: Command) -> AgentName | None:
    """Return the name that a message gives work to, or asks; None if it names nobody itself."""
    what = command.what
    if isinstance(what, Submit):
        return what.to
    if not isinstance(what, MoveProposed):
        return getattr(what, "to", None)
    match what.move:
        case Transfer(to_agent=named):
            return named
        case HandBack():
            back = ledger.segment.resumed()
            return None if back is None else ledger.segment.path[back].agent
        case Escalate():
            return HUMAN
        case Ask(to_agent=asked):
            return asked
    return None


def decide(ledger: Ledger, command: Command, policy: Policy | None, world: World) -> AnyEvent:
    """Return the event to append for one message; never raises for what a peer may send.

    Args:
        ledger: the message's own request, up to its head.
        command: the message; `admission` accepted it.
        policy: what to judge by; None if the submit named none that exists.
        world: what the verdict rests on besides.
    """
    what = command.what
    if isinstance(what, Submit):
        return decide_submit(ledger, command, what, policy, world)
    if isinstance(what, MoveProposed | ReportFailure | ReportInDoubt):
        return _decide_proposal(ledger, command, what, policy or ledger.policy, world)
    return decide_control(ledger, command, what, world)


def _decide_proposal(
    ledger: Ledger, command: Command, proposal: Proposal, policy: Policy, world: World
) -> AnyEvent:
    turn = ledger.turns[proposal.turn]
    place_ = {"turn": turn.id, "round": turn.round}
    request = str(ledger.request)
    match proposal:
        case ReportFailure(error=error):
            return stamp(
                events.TurnFailed,
                ledger,
                world,
                command.cause,
                NOBODY,
                request,
                **place_,
                error=error,
                retry_at=retry_at(turn, error, policy, world.now, command.cause),
                report=proposal.report,
                sender=command.sender,
            )
        case ReportInDoubt(effect=effect):
            return stamp(
                events.EffectDoubted,
                ledger,
                world,
                command.cause,
                NOBODY,
                request,
                **place_,
                effect=effect,
                report=proposal.report,
            )
        case MoveProposed() if ledger.frozen_at is not None:
            return stamp(
                events.MoveDeferred,
                ledger,
                world,
                command.cause,
                NOBODY,
                request,
                **place_,
                proposal=proposal,
                sender=command.sender,
            )
        case MoveProposed():
            return _Verdict(ledger, command, proposal, turn, policy, world).event()


class _Verdict:
    """One move being judged."""

    def __init__(
        self,
        ledger: Ledger,
        command: Command,
        proposal: MoveProposed,
        turn: TurnState,
        policy: Policy,
        world: World,
    ) -> None:
        self.ledger, self.command, self.proposal = ledger, command, proposal
        self.turn, self.policy, self.world = turn, policy, world
        self.move = proposal.move
        self.spent = ledger.spent_after(turn, proposal.report)
        self.rest = budget.left(ledger.frames[turn.id].ceiling, self.spent)
        self.target = target_of(ledger, command)

    def event(self) -> AnyEvent:
        case = self._case()
        refusal = rules.judge(case)
        if refusal is not None:
            return self._refused(refusal)
        match self.move:
            case Transfer() | HandBack():
                return self._admitted(case)
            case Ask():
                return self._suspended(self.move)
            case Escalate():
                return self._escalated(case, self.move)
            case Complete(answer=answer):
                return self._for_client(events.RequestCompleted, answer=answer, sender=self._sender)
            case Fail(reason=reason):
                return self._failed("failed", reason)
        raise AssertionError("known_move refuses every other move")

    @property
    def _sender(self) -> AgentName:
        return self.command.sender

    def _stamp(self, kind: type[E], to: str, **payload: Any) -> E:
        return stamp(
            kind,
            self.ledger,
            self.world,
            self.command.cause,
            to,
            str(self.ledger.request),
            turn=self.turn.id,
            round=self.turn.round,
            report=self.proposal.report,
            grounds=self.world.grounds,
            **payload,
        )

    def _for_client(
        self, kind: type[E], to: str = "", move: Move | None = None, **payload: Any
    ) -> E | events.FactsWithheld:
        return for_client(
            kind,
            self.ledger,
            self.world,
            self.command.cause,
            to or str(self.ledger.client),
            str(self.ledger.request),
            report=self.proposal.report,
            move=move,
            turn=self.turn.id,
            round=self.turn.round,
            **payload,
        )

    def _case(self) -> Case:
        before = load = self.ledger.load()
        labels = self.ledger.history.labels
        match self.move:
            case Transfer() | HandBack() as move:
                bringer = self._bringer()
                load = layers.merge(before, move.facts, move.artifacts, move.drop, bringer, labels)
            case Escalate():
                load = layers.merge(before, self.move.facts, bringer=self._bringer(), labels=labels)
        handoff = self._handoff(load)
        return Case(
            ledger=self.ledger,
            turn=self.turn,
            move=self.move,
            report=self.proposal.report,
            policy=self.policy,
            world=self.world,
            target=self.target,
            before=before,
            load=load,
            handoff=handoff,
            marks=self._marks(before, load),
            known=None if handoff is None else self._known(handoff),
            rest=self.rest,
        )

    def _bringer(self) -> Bringer:
        held, sender = self.turn.work.handoff, self.world.grounds.sender
        return Bringer(
            {fact.key: fact for fact in held.facts},
            {item.name: item for item in held.artifacts},
            frozenset(() if sender is None else sender.clearance),
            self.ledger.history.own(self.turn.agent),
            self.ledger.marks(),
        )

    def _known(self, handoff: Handoff) -> Handoff:
        """Return the handoff as its giver knows it, without a trace of what is withheld from them."""
        held, move = self.turn.work.handoff, self.move
        assert isinstance(move, Transfer | HandBack | Escalate)
        drop = () if isinstance(move, Escalate) else move.drop
        things = () if isinstance(move, Escalate) else move.artifacts
        asked = move.constraints.must_carry if isinstance(move, Transfer) else ()
        facts = {fact.key: fact for fact in held.facts if fact.key not in drop}
        artifacts = {item.name: item for item in (*held.artifacts, *things)}
        return replace(
            handoff,
            facts=tuple((facts | {fact.key: fact for fact in move.facts}).values()),
            artifacts=tuple(artifacts.values()),
            constraints=replace(handoff.constraints, must_carry=asked),
        )

    def _marks(self, before: Load, load: Load) -> Marks:
        """Return which layers must be carried on: those that had to be until now, and those asked for.

        Who asks for a key means what they see under it, or bring. A hand-back restores what it goes back to.
        """
        segment, marks = self.ledger.segment, self.ledger.marks()
        back = segment.resumed()
        if isinstance(self.move, HandBack) and back is not None:
            marks = segment.path[back].marks
        marks = layers.followed(marks, before, load)
        if not isinstance(self.move, Transfer):
            return marks
        meant = ((key, self._meant(key, before, load)) for key in self.move.constraints.must_carry)
        return marks.union((key, place) for key, place in meant if place is not None)

    def _meant(self, key: str, before: Load, load: Load) -> int | None:
        """Return the place of what the mover sees under a key after its move, or has put there unseen."""
        after, bringer = load.facts.get(key, ()), self._bringer()
        brought = layers.difference_at(before.facts.get(key, ()), after)
        if brought is not None:
            return brought
        seen = layers.place_of(after, bringer.facts.get(key))
        return layers.last_place_of(after, bringer.own.get(key)) if seen is None else seen

    def _handoff(self, load: Load) -> Handoff | None:
        """Return what the move would hand over, whole; None for a move that hands nothing over."""
        segment, own = self.ledger.segment, self.ledger.frames[self.turn.id].constraints
        match self.move:
            case Transfer() as move:
                asked = move.constraints
                granted = budget.grant(asked.budget, self.rest)
                deadlines = (own.deadline, rules.absolute_deadline(asked, self.world.now))
                return self._handoff_of(
                    load,
                    to=move.to_agent,
                    summary=move.summary,
                    intent=move.intent,
                    constraints=Constraints(
                        deadline=min((at for at in deadlines if at is not None), default=None),
                        allowed_actions=own.allowed_actions
                        if asked.allowed_actions is None
                        else tuple(sorted(asked.allowed_actions)),
                        budget=budget.public(granted),
                    ),
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
                    load,
                    to=frame.agent,
                    summary=move.summary,
                    intent=frame.intent,
                    constraints=replace(frame.constraints, budget=left),
                    return_to=frame.return_to,
                    no_return=frame.sealed,
                )
            case Escalate() as move:
                return self._handoff_of(
                    load,
                    to=HUMAN,
                    summary=move.summary,
                    intent=self.turn.work.handoff.intent,
                    constraints=replace(own, budget=budget.public(self.rest)),
                )
        return None

    def _handoff_of(self, load: Load, *, to: str, **rest: Any) -> Handoff:
        name = str(self.move.__struct_config__.tag)
        return Handoff(
            move=name,
            from_agent=self.turn.agent,
            to_agent=AgentName(to),
            parent=self.turn.id,
            facts=load.fact_tuple,
            artifacts=load.artifact_tuple,
            **rest,
        )

    def _admitted(self, case: Case) -> AnyEvent:
        handoff = case.handoff
        assert handoff is not None
        assert isinstance(self.move, Transfer | HandBack)
        placed = place(self.ledger, self.world, self.command.cause, handoff, case.load, case.marks)
        if isinstance(placed, events.FactsWithheld):
            return placed
        names = self.ledger.segment.names
        back = self.ledger.segment.resumed()
        path = (*names, handoff.to_agent) if isinstance(self.move, Transfer) else names[: (back or 0) + 1]
        return self._opening(
            events.HandoffAdmitted,
            handoff.to_agent,
            asked=_asked(self.move),
            work=lambda turn: Assignment(
                turn=turn,
                round=0,
                handoff=placed.handoff,
                path=path,
                depth=self.ledger.segment.depth + 1,
                withheld=placed.withheld,
                beneath=placed.beneath,
            ),
        )

    def _opening(self, kind: type[E], to: str, *, work: Callable[[TurnId], Assignment], **payload: Any) -> E:
        """Return an event that opens a turn: `work` is told the turn's id, which is the event's own."""
        type_ = events.type_of(kind)
        turn = event_id(self.command.cause, type_, self.ledger.count(self.command.cause, type_))
        return self._stamp(kind, to, work=work(TurnId(turn)), **payload)

    def _refused(self, refusal: Refusal) -> AnyEvent:
        past = RoundOutcome(round=self.turn.round, how="refused", move=self.move, refusal=refusal)
        left = self.turn.refusals < self.policy.max_refusals
        return self._stamp(
            events.MoveRefused,
            self.turn.agent if left else NOBODY,
            move=self.move,
            refusal=refusal,
            work=next_round(self.turn, remembered(past), self.proposal.report) if left else None,
        )

    def _suspended(self, move: Ask) -> AnyEvent:
        latest = min(
            at
            for at in (self.ledger.deadline, self.ledger.frames[self.turn.id].constraints.deadline)
            if at is not None
        )
        asked_until = latest if move.expires_s is None else self.world.now + int(move.expires_s * 1e6)
        return self._for_client(
            events.TurnSuspended, move.to_agent, ask=move, expires_at=min(asked_until, latest)
        )

    def _escalated(self, case: Case, move: Escalate) -> AnyEvent:
        if self.ledger.escalations >= self.policy.max_escalations:
            most = self.policy.max_escalations
            return self._failed("max_escalations", f"the policy lets a person be asked {most} times", move)
        handoff = case.handoff
        assert handoff is not None
        placed = place(self.ledger, self.world, self.command.cause, handoff, case.load, case.marks)
        if isinstance(placed, events.FactsWithheld):
            return placed
        return self._opening(
            events.EscalationRaised,
            HUMAN,
            reason=ASKED,
            work=lambda turn: Assignment(
                turn=turn,
                round=0,
                handoff=placed.handoff,
                path=self.ledger.segment.names,
                depth=self.ledger.segment.depth,
                past=self.turn.past,
                beneath=placed.beneath,
            ),
        )

    def _failed(self, code: str, reason: str, move: Move | None = None) -> AnyEvent:
        return self._for_client(
            events.RequestFailed, code=code, reason=reason, move=move, sender=self._sender
        )


def _asked(move: Transfer | HandBack) -> Constraints:
    """Return the constraints as they were asked for; must-carry keys stand in the handoff alone."""
    return replace(move.constraints, must_carry=()) if isinstance(move, Transfer) else Constraints()
