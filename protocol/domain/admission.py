"""Admission: may a message be decided at all, before any rule is checked?

`Accepted`: it is decided. `Late`: it was decided before, or its turn or request is over. It is acknowledged
without an event, and a notice tells its sender that the turn ended. `Rejected`: it never becomes an event,
because otherwise anyone could make another request's history grow. It becomes a dead letter, with a notice.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from protocol.domain.ledger import Ledger
from protocol.domain.tasks import busy_with
from protocol.domain.turns import TurnState
from protocol.wire import commands
from protocol.wire.commands import Command, Control, Proposal, Submit
from protocol.wire.handoff import Rule
from protocol.wire.ids import HUMAN, proposal_id


class Accepted(NamedTuple):
    """The message may be decided."""


class Late(NamedTuple):
    """The message was decided already, or its turn or request is over."""

    turn: str
    round: int
    ended: str
    """The reason: the request's end, `decided`, or `ended` for a turn that is over."""


class Rejected(NamedTuple):
    """The message may not be decided. The sender's notice and the dead letter have code and detail."""

    code: str
    detail: str


Admission = Accepted | Late | Rejected
UNKNOWN_REQUEST = "unknown_request"
BUSY = "busy"
"""Reason for a claim by an agent that has another open task of the same lead. It may claim again."""


def admission(ledger: Ledger, command: Command) -> Admission:
    """Check whether `command` may be decided on this ledger."""
    return _OF.get(type(command.what), _of_control)(ledger, command, command.what)


def _of_submit(ledger: Ledger, command: Command, submit: Submit) -> Admission:
    if command.role not in ("client", "operator"):
        return Rejected("not_allowed", f"{command.sender} is no client or operator, and only these submit")
    if submit.forked_from is not None and command.role != "operator":
        told = f"{command.sender} is no operator, and only these fork a request"
        return Rejected("not_allowed", f"{told}: its agents take up what they recorded in another one")
    if ledger.status == "unknown":
        return Accepted()
    if ledger.submit_digest == command.digest:
        return Late("", 0, "decided" if ledger.is_open else ledger.status)
    return Rejected("request_exists", "this id belongs to a request with other content; make a new id")


def _of_round(ledger: Ledger, command: Command, proposal: Proposal) -> Admission:
    turn = _turn_of(ledger, command, proposal)
    if not isinstance(turn, TurnState):
        return turn
    if turn.state == "ended":
        return Late(turn.id, proposal.round, "ended")
    waits = ledger.frozen_at is not None and ledger.is_deferred(turn.id, proposal.round)
    if proposal.round < turn.round or turn.state != "working" or waits:
        return Late(turn.id, proposal.round, "decided")
    return Accepted()


def _turn_of(ledger: Ledger, command: Command, proposal: Proposal) -> TurnState | Late | Rejected:
    """Return the turn that a proposal is for, or why its sender may not propose for it."""
    sender = command.sender
    if ledger.status == "unknown":
        return Rejected(UNKNOWN_REQUEST, "no such request")
    turn = ledger.turns.get(proposal.turn)
    if turn is None:
        return Rejected("unknown_turn", "no such turn was opened in this request")
    if turn.agent != sender or sender == HUMAN:  # people speak by control messages
        return Rejected("not_the_holder", f"the turn is not {sender}'s")
    if proposal.round > turn.round:
        return Rejected(
            "unknown_round", f"round {proposal.round} was not opened; the turn is in {turn.round}"
        )
    return turn if ledger.is_open else Late(turn.id, proposal.round, ledger.status)


def _no_swarm(ledger: Ledger) -> Rejected | None:
    """Return the rejection of a claim or post whose request is not a swarm; None if it is."""
    policy = ledger.policy
    if ledger.status == "unknown" or policy.topology == "swarm":
        return None
    lacks = f"topology {policy.topology!r} has no claims and no board"
    elsewhere = f"they take a submit with a policy whose topology is swarm, not {policy.name!r}"
    return Rejected(Rule.KNOWN_MOVE, f"{lacks}; {elsewhere}")


def _of_post(ledger: Ledger, command: Command, post: commands.FactsPost) -> Admission:
    """Check whether a post may be decided: once, unless something else than its own move ended its turn.

    Different guards may take a post and the turn's later move, and the move may be decided first. So posts
    are accepted even after the turn's own move.
    """
    turn = _no_swarm(ledger) or _turn_of(ledger, command, post)
    if not isinstance(turn, TurnState):
        return turn
    waits = ledger.waits_for_thaw(command.cause)
    if waits and ledger.frozen_at is not None:
        return Late(turn.id, post.round, "move.deferred")
    if ledger.knows(command.cause) and not waits:
        return Late(turn.id, post.round, "decided")
    return Accepted() if may_post(turn, command.request) else Late(turn.id, post.round, "ended")


def may_post(turn: TurnState, request: str) -> bool:
    """Return True unless something else than its own move ended the turn."""
    return turn.end is None or str(turn.end.cause) == proposal_id(request, turn.id, turn.round)


def _of_claim(ledger: Ledger, command: Command, claim: commands.OfferClaimed) -> Admission:
    if ledger.status == "unknown":
        return Rejected(UNKNOWN_REQUEST, "no such request")
    task = ledger.offers.get(claim.turn)
    if (no_swarm := _no_swarm(ledger)) is not None:
        return no_swarm
    if command.role != "agent":
        return Rejected("not_allowed", f"{command.sender} is no agent, and only agents claim offers")
    if task is None:
        return Rejected("unknown_turn", "no such offer was made in this request")
    if claim.round:
        return Rejected("unknown_round", "an offer has no rounds: a claim names round 0")
    waits = any((each.turn, each.sender) == (claim.turn, command.sender) for each in ledger.deferred)
    if waits and ledger.frozen_at is not None:
        return Late(claim.turn, claim.round, "move.deferred")
    if ledger.knows(command.cause) and not waits:  # repeat the earlier outcome
        return Late(claim.turn, claim.round, "task.opened" if command.sender in task.agents else "decided")
    if not ledger.is_open:
        return Late(claim.turn, claim.round, ledger.status)
    if not task.may_be_claimed(claim.turn):
        return Late(claim.turn, claim.round, "ended")
    if busy_with(ledger.turns[task.lead].tasks.values(), command.sender):
        return Late(claim.turn, claim.round, BUSY)
    return Accepted()


def _of_control(ledger: Ledger, command: Command, control: Control) -> Admission:
    if command.role not in ("client", "operator"):
        return Rejected("not_allowed", f"{command.sender} may not send control messages")
    if ledger.status == "unknown":
        return Rejected(UNKNOWN_REQUEST, "no such request")
    if ledger.knows(command.cause):
        return Late(control.turn or "", control.round, "decided")
    if command.role == "client" and ledger.client != command.sender:
        return Rejected("not_allowed", "a client controls its own requests only")
    if command.role == "client" and not isinstance(control, commands.Cancel | commands.ReplyToAsk):
        return Rejected("not_allowed", "a client may cancel and reply; the rest is for operators")
    if not ledger.is_open:
        return Late(control.turn or "", control.round, ledger.status)
    return _of_open_control(ledger, command, control)


def _of_open_control(ledger: Ledger, command: Command, control: Control) -> Admission:
    match control:
        case commands.Cancel():
            return Accepted()
        case commands.Freeze():
            frozen = ledger.frozen_at is not None
            return Rejected("frozen", "the request is frozen already") if frozen else Accepted()
        case commands.Thaw():
            thawed = ledger.frozen_at is None
            return Rejected("not_frozen", "the request is not frozen") if thawed else Accepted()
        case commands.Assign() | commands.Resolve():
            turn = ledger.turns.get(control.turn)
            if turn is None or turn.agent != HUMAN:
                return Rejected("unknown_turn", "no such escalation in this request")
            if turn.state == "ended":
                return Late(turn.id, turn.round, "ended")
            return Accepted()
        case commands.ReplyToAsk() | commands.Settle():
            most = ledger.policy.max_handoff_bytes
            return _of_waiting(ledger.turns.get(control.turn), command, control, most)
        case commands.Forget():
            return Rejected(
                "not_allowed", "a conversation belongs to no request: send it to the whole mesh, `_`"
            )


def _of_waiting(
    turn: TurnState | None, command: Command, control: commands.ReplyToAsk | commands.Settle, most: int
) -> Admission:
    if turn is None:
        return Rejected("unknown_turn", "no such turn was opened in this request")
    if control.round > turn.round:
        return Rejected("unknown_round", f"round {control.round} was not opened; the turn is in {turn.round}")
    awaited = "suspended" if isinstance(control, commands.ReplyToAsk) else "doubted"
    if control.round < turn.round or turn.state != awaited:
        return Late(turn.id, control.round, "ended" if turn.state == "ended" else "decided")
    may_answer = {command.sender, HUMAN} if command.role == "operator" else {command.sender}
    if isinstance(control, commands.ReplyToAsk) and turn.asked not in may_answer:
        return Rejected("not_allowed", f"the question was put to {turn.asked}")
    value = control.value if isinstance(control, commands.ReplyToAsk) else control.result
    why = control.reason if isinstance(control, commands.ReplyToAsk) else ""
    if len(msgspec.json.encode(value)) + len(why.encode()) > most:
        return Rejected("too_large", f"more than {most} bytes; put large things in a store and say where")
    return Accepted()


_OF: Mapping[type, Callable[[Ledger, Command, Any], Admission]] = {
    Submit: _of_submit,
    commands.MoveProposed: _of_round,
    commands.ReportFailure: _of_round,
    commands.ReportInDoubt: _of_round,
    commands.OfferClaimed: _of_claim,
    commands.FactsPost: _of_post,
}
"""The checks of all messages that are not control messages."""
