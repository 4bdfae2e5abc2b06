"""The timeline: one request told in order, for people and for programs.

It is derived from the events alone, so that a log file tells the same story as the bus. Its form is that of
`protocol.told`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import msgspec

from protocol.carry import Load, brought, dropped
from protocol.domain import budget
from protocol.ledger import Ledger
from protocol.spending import unpriced_in
from protocol.told import MoveTold, Spent, StepTold, Timeline, TurnTold, Waiting, named
from protocol.wire import events
from protocol.wire.commands import Submit, Usage, move_name, move_summary
from protocol.wire.events import AnyEvent, Work
from protocol.wire.ids import HUMAN
from protocol.wire.prices import Price, price_list


def _spent(usage: Usage, prices: Mapping[str, Price]) -> Spent:
    return Spent(
        nano_dollars=usage.nano_dollars,
        tokens=usage.tokens,
        model_calls=usage.model_calls,
        unpriced=bool(unpriced_in(usage, prices)),
    )


def prices_in(happened: Iterable[AnyEvent]) -> dict[str, Price]:
    """Return the prices that a request began with."""
    said = (event.prices for event in happened if isinstance(event, events.RequestOpened))
    return price_list(next(said, {}))


def timeline(
    happened: Sequence[AnyEvent], journals: Mapping[str, Sequence[StepTold]] | None = None
) -> Timeline:
    """Return the story of one request from its events, in order from the first.

    Args:
        journals: steps by journal.

    Raises ValueError without events, BrokenLog where some are missing.
    """
    if not happened:
        raise ValueError("no events, no timeline")
    ledger = Ledger()
    told: list[MoveTold] = []
    trail: list[str] = []
    for event in happened:
        before = ledger.load()
        ledger.apply(event)
        if not isinstance(event, events.FactsWithheld):
            told.append(_tell(ledger, event, before))
        work = getattr(event, "work", None)
        if isinstance(work, Work) and str(work.turn) == event.id:
            trail.append(work.handoff.to_agent)
    prices = prices_in(happened)
    settled = [_with_turn_as_it_ended(ledger, move, prices) for move in told]
    running = [_turn(ledger, turn_id, prices) for turn_id in ledger.open]
    reported = [turn.report.usage for turn in ledger.turns.values()]
    unpriced = any(unpriced_in(usage, prices) for usage in reported)
    if journals:
        settled, running = _with_steps(settled, running, happened, journals)
    heard_of = {move.turn.id for move in settled if move.turn is not None}
    segment = ledger.segment if ledger.turns else None
    submitted = _submitted(happened)
    return Timeline(
        request=str(ledger.request),
        status=ledger.status,
        policy=ledger.policy.name,
        topology=ledger.policy.topology,
        client=str(ledger.client or ""),
        conversation=submitted.conversation,
        rerun_of=submitted.rerun_of,
        entry=trail[0] if trail else None,
        path=() if segment is None else segment.names,
        trail=tuple(trail),
        depth=0 if segment is None else segment.depth,
        answer=ledger.ended.answer if isinstance(ledger.ended, events.RequestCompleted) else None,
        error=_error(ledger.ended),
        cost=_sum(reduce(budget.plus, reported, budget.NOTHING), unpriced),
        charged=_sum(ledger.spent, unpriced),
        waiting=tuple(_waiting(ledger, happened)),
        moves=tuple(settled),
        running=tuple(turn for turn in running if turn is not None and turn.id not in heard_of),
    )


def _sum(usage: Usage, unpriced: bool) -> Spent:
    """Return what turns spent together: a model may have cost something in one of them and not in another."""
    return msgspec.structs.replace(_spent(usage, {}), unpriced=unpriced)


def _error(ended: AnyEvent | None) -> dict[str, str] | None:
    match ended:
        case events.RequestRefused(refusal=refusal):
            return {"code": str(refusal.rule), "detail": refusal.detail}
        case events.RequestFailed(code=code, reason=reason):
            return {"code": code, "detail": reason}
        case events.RequestExpired():
            return {"code": "expired", "detail": "the request's deadline passed"}
        case events.RequestCancelled(by=by, sender=sender, reason=reason):
            who = named(by, sender)
            return {"code": "cancelled", "detail": f"by {who}: {reason}" if reason else f"by {who}"}
    return None


class _Submitted(NamedTuple):
    conversation: str | None = None
    rerun_of: str | None = None


def _submitted(happened: Sequence[AnyEvent]) -> _Submitted:
    """Return what the submit said and no later event repeats."""
    for event in happened[:2]:  # the first may hold what is withheld from the entry agent
        match event:
            case events.RequestOpened():
                return _Submitted(event.conversation, event.rerun_of)
            case events.RequestRefused(submit=Submit() as submit):
                return _Submitted(submit.conversation, submit.rerun_of)
    return _Submitted()


def _waiting(ledger: Ledger, happened: Sequence[AnyEvent]) -> Iterable[Waiting]:
    if not ledger.is_open:
        return
    if ledger.frozen_at is not None:
        frozen = next(event for event in reversed(happened) if isinstance(event, events.RequestFrozen))
        why = f"{named(frozen.by, frozen.sender)} froze it" + (f": {frozen.reason}" if frozen.reason else "")
        yield Waiting(for_="thaw", since=ledger.frozen_at, why=why)
    for turn in ledger.open.values():
        why = {
            "working": "a person has not resolved it" if turn.agent == HUMAN else "its turn is not done",
            "failed": "the turn failed and is tried again",
            "refused": "the turn has no round left",
            "suspended": "a question waits for its reply",
            "doubted": "an effect is in doubt",
        }.get(turn.state, turn.state)
        who = {"suspended": str(turn.asked), "doubted": HUMAN}.get(turn.state, turn.agent)
        since = turn.clock if turn.state == "working" else happened[turn.since_n].at
        yield Waiting(for_=who, since=since, why=why)


def _tell(ledger: Ledger, event: AnyEvent, before: Load) -> MoveTold:
    work = getattr(event, "work", None)
    after = ledger.load() if ledger.is_open else before
    opens = isinstance(work, Work) and str(work.turn) == event.id
    said = _SAID.get(type(event), _other)(ledger, event)
    fields: dict[str, Any] = {
        "seq": event.n,
        "id": event.id,
        "at": event.at,
        "verdict": "recorded",
        "facts": brought(before.facts, after.facts) if opens else (),
        "dropped": dropped(before.facts, after.facts) if opens else (),
        "withheld": work.withheld if isinstance(work, Work) else None,
        "turn": _turn(ledger, _about(ledger, event), {}),
        "sender": getattr(event, "sender", None) if getattr(event, "control", "") else None,
    }
    return MoveTold(**(fields | said))


def _about(ledger: Ledger, event: AnyEvent) -> str | None:
    """Return which turn an event is about: the one it names, or opens, or ends from outside."""
    if isinstance(event, events.RequestCancelled | events.RequestExpired):
        return next((turn.id for turn in ledger.turns.values() if turn.ended_by is event), None)
    work = getattr(event, "work", None)
    return getattr(event, "turn", work.turn if isinstance(work, Work) else None)


def _turn(ledger: Ledger, turn_id: str | None, prices: Mapping[str, Price]) -> TurnTold | None:
    turn = ledger.turns.get(turn_id) if turn_id else None  # type: ignore[call-overload]
    if turn is None:
        return None
    return TurnTold(
        id=turn.id,
        agent=turn.agent,
        rounds=turn.round + 1,
        usage=_spent(turn.report.usage, prices),
        status=turn.state,
    )


def _with_turn_as_it_ended(ledger: Ledger, move: MoveTold, prices: Mapping[str, Price]) -> MoveTold:
    """Return the entry with its turn as it stands now: usage and rounds are known only afterwards."""
    if move.turn is None:
        return move
    return msgspec.structs.replace(move, turn=_turn(ledger, move.turn.id, prices))


def _with_steps(
    told: Sequence[MoveTold],
    running: Sequence[TurnTold | None],
    happened: Sequence[AnyEvent],
    journals: Mapping[str, Sequence[StepTold]],
) -> tuple[list[MoveTold], list[TurnTold | None]]:
    """Return entries and open turns, each with its steps."""
    by_seq = {event.n: event for event in happened}
    left: dict[str, list[StepTold]] = {}
    for event in happened:
        work = getattr(event, "work", None)
        if isinstance(work, Work):
            known = journals.get(work.continues or work.turn, ())
            own = sorted((step for step in known if step.round == work.round), key=lambda step: step.n)
            before = [event.at, *(step.at for step in own)]
            left.setdefault(work.turn, []).extend(
                msgspec.structs.replace(step, after=max(0, step.at - at))
                for step, at in zip(own, before, strict=False)
            )
    last = {move.turn.id: move.seq for move in told if move.turn is not None}
    found = []
    for move in told:
        if move.turn is not None:
            is_last = last[move.turn.id] == move.seq
            through = None if is_last else getattr(by_seq[move.seq], "round", -1)
            turn = _with_those_through(through, move.turn, left)
            move = msgspec.structs.replace(move, turn=turn)
        found.append(move)
    return found, [turn and _with_those_through(None, turn, left) for turn in running]


def _with_those_through(round_: int | None, turn: TurnTold, left: dict[str, list[StepTold]]) -> TurnTold:
    """Return a turn with its steps up to a round, or all, that are left; they are not left afterwards."""
    steps = left.pop(turn.id, [])
    left[turn.id] = [step for step in steps if round_ is not None and step.round > round_]
    own = tuple(step for step in steps if round_ is None or step.round <= round_)
    return msgspec.structs.replace(turn, steps=own)


def _opened(ledger: Ledger, event: events.RequestOpened) -> dict[str, Any]:
    handoff = event.work.handoff
    return {
        "move": "submit",
        "from_": event.client,
        "to": handoff.to_agent,
        "summary": handoff.summary,
        "verdict": "admitted",
    }


def _refused_submit(ledger: Ledger, event: events.RequestRefused) -> dict[str, Any]:
    return {
        "move": "submit",
        "from_": event.client,
        "to": event.submit.to,
        "summary": event.submit.text.strip().partition("\n")[0],
        "verdict": "refused",
        "rule": str(event.refusal.rule),
        "detail": event.refusal.detail,
        "hint": event.refusal.hint,
    }


def _admitted(ledger: Ledger, event: events.HandoffAdmitted) -> dict[str, Any]:
    handoff = event.work.handoff
    return {
        "move": handoff.move,
        "from_": handoff.from_agent,
        "to": handoff.to_agent,
        "summary": handoff.summary,
        "verdict": "admitted",
    }


def _refused(ledger: Ledger, event: events.MoveRefused) -> dict[str, Any]:
    return {
        "move": move_name(event.move),
        "from_": ledger.turns[event.turn].agent,
        "to": getattr(event.move, "to_agent", None),
        "summary": move_summary(event.move),
        "verdict": "refused",
        "rule": str(event.refusal.rule),
        "detail": event.refusal.detail,
        "hint": event.refusal.hint,
    }


def _deferred(ledger: Ledger, event: events.MoveDeferred) -> dict[str, Any]:
    return {
        "move": "proposal",
        "from_": event.sender,
        "verdict": "deferred",
        "detail": "the request is frozen",
    }


def _failed_turn(ledger: Ledger, event: events.TurnFailed) -> dict[str, Any]:
    by_the_clock = event.sender is None  # then the agent said nothing: a guard ended the round
    agent = ledger.turns[event.turn].agent
    return {
        "move": "turn_failed",
        "from_": "guard" if by_the_clock else agent,
        "to": agent if by_the_clock else None,
        "summary": event.error.message,
        "detail": event.error.code,
    }


def _again(ledger: Ledger, event: Any) -> dict[str, Any]:
    past = event.work.past[-1] if event.work.past else None
    name = {"replied": "reply", "expired": "expire", "settled": "settle"}.get(
        past.how if past else "", "retry"
    )
    person = past.by if past is not None else ""
    sender = getattr(event, "sender", None) or "guard"
    said: dict[str, Any] = {"move": name, "from_": person or sender, "to": event.to}
    if past is not None and past.settled is not None:
        said["detail"] = past.settled
    if past is not None and past.reply is not None:
        said["summary"] = (
            past.reply if isinstance(past.reply, str) else msgspec.json.encode(past.reply).decode()
        )
    return said


def _suspended(ledger: Ledger, event: events.TurnSuspended) -> dict[str, Any]:
    return {
        "move": "ask",
        "from_": ledger.turns[event.turn].agent,
        "to": event.ask.to_agent,
        "summary": event.ask.question,
        "verdict": "admitted",
    }


def _escalated(ledger: Ledger, event: events.EscalationRaised) -> dict[str, Any]:
    by_move = event.reason == "asked"
    return {
        "move": "escalate",
        "from_": ledger.turns[event.turn].agent if by_move else "guard",
        "to": HUMAN,
        "summary": event.work.handoff.summary,
        "verdict": "admitted" if by_move else "recorded",
        "detail": None if by_move else f"{event.reason}, tier {event.tier}",
    }


def _resolved(ledger: Ledger, event: events.EscalationResolved) -> dict[str, Any]:
    return {"move": "resolve", "from_": event.by, "to": event.work.handoff.to_agent, "summary": event.summary}


def _completed(ledger: Ledger, event: events.RequestCompleted) -> dict[str, Any]:
    answer = event.answer
    return {
        "move": "complete",
        "from_": event.by or event.sender,
        "to": event.to,
        "summary": answer if isinstance(answer, str) else msgspec.json.encode(answer).decode(),
        "verdict": "recorded" if event.control else "admitted",
    }


def _failed(ledger: Ledger, event: events.RequestFailed) -> dict[str, Any]:
    return {
        "move": "fail",
        "from_": event.sender or "guard",
        "to": event.to,
        "summary": event.reason,
        "verdict": "recorded" if event.sender is None else "admitted",
        "detail": event.code,
    }


def _other(ledger: Ledger, event: AnyEvent) -> dict[str, Any]:
    """Tell of a control message or of an end by the clock."""
    names = {
        events.RequestFrozen: "freeze",
        events.RequestThawed: "thaw",
        events.RequestCancelled: "cancel",
        events.RequestExpired: "expire",
        events.EscalationAssigned: "assign",
        events.EffectDoubted: "doubt",
    }
    person = getattr(event, "person", None)
    by = getattr(event, "by", "") or getattr(event, "sender", None)
    effect = getattr(event, "effect", None)
    return {
        "move": names.get(type(event), events.type_of(event)),
        "from_": by or (ledger.turns[effect_turn].agent if (effect_turn := _turn_of(event)) else "guard"),
        "to": person,
        "summary": getattr(event, "reason", "") or (f"{effect.action} is in doubt" if effect else ""),
    }


def _turn_of(event: AnyEvent) -> Any:
    return event.turn if isinstance(event, events.EffectDoubted) else None


_SAID: dict[type, Any] = {
    events.RequestOpened: _opened,
    events.RequestRefused: _refused_submit,
    events.HandoffAdmitted: _admitted,
    events.MoveRefused: _refused,
    events.MoveDeferred: _deferred,
    events.TurnFailed: _failed_turn,
    events.TurnRetried: _again,
    events.TurnResumed: _again,
    events.EffectSettled: _again,
    events.TurnSuspended: _suspended,
    events.EscalationRaised: _escalated,
    events.EscalationResolved: _resolved,
    events.RequestCompleted: _completed,
    events.RequestFailed: _failed,
}
