"""What people decide on work that waits for them: where it goes, an answer, what came of an effect."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from mesh.bus.connection import Bus
from mesh.client.follow import Question
from mesh.errors import Denied, UsageWrong
from mesh.ops.control import Obeyed, Replied, carry_out, obeyed, one_of, order_id, reply_as_client
from mesh.ops.log import decoded, request_bodies
from mesh.ops.queue import What, turn_in
from mesh.ops.roster import fleet_of
from protocol.domain.ledger import Ledger, fold
from protocol.domain.turns import TurnState
from protocol.wire.commands import Assign, Control, ReplyToAsk, Resolve, Settle
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Fact
from protocol.wire.ids import HUMAN, AgentName, TurnId
from protocol.wire.moves import Ask


async def _decide(
    bus: Bus, request: str, what: What, n: int | None, order_for: Callable[[TurnState], Control]
) -> AnyEvent:
    ledger = fold(decoded(await request_bodies(bus, request)))
    return await carry_out(bus, request, order_for(turn_in(ledger, what, n=n)))


async def resolve(
    bus: Bus,
    request: str,
    *,
    by: str,
    to: str | None = None,
    again: bool = False,
    answer: str | None = None,
    note: str = "",
    facts: Sequence[Fact] = (),
    budget: Budget | None = None,
    n: int | None = None,
) -> AnyEvent:
    """Decide an escalation: to an agent, again, or with an answer; else back to the agent that had it.

    Args:
        to: the agent that gets it. An unknown name is refused here: a guard would keep it as a dead letter.
        again: True if the agent whose turn was ended continues.
        note: what the next holder should know.
        budget: what it may spend from here on.
        n: number of the event that was shown, as for `turn_in`.

    Raises NotFound, Impossible, UsageWrong, and as `carry_out`.
    """
    await require_agent(bus, to)
    order_for = functools.partial(
        resolve_order, by=by, to=to, again=again, answer=answer, note=note, facts=facts, budget=budget
    )
    return await _decide(bus, request, "escalation", n, lambda turn: order_for(order_id(), turn.id))


async def require_agent(bus: Bus, name: str | None) -> None:
    """Raise UsageWrong for the name of no agent."""
    if name is not None and name not in (agents := (await fleet_of(bus)).agents):
        raise UsageWrong(f"{name!r} is no agent of this fleet; there are {', '.join(sorted(agents))}")


def resolve_order(
    id: str,
    turn: TurnId,
    *,
    by: str,
    to: str | None = None,
    again: bool = False,
    answer: str | None = None,
    note: str = "",
    facts: Sequence[Fact] = (),
    budget: Budget | None = None,
) -> Resolve:
    """Return the control message that decides an escalation, with the arguments of `resolve`."""
    return Resolve(
        id=id,
        by=by,
        turn=turn,
        to=None if to is None else AgentName(to),
        again=again,
        complete=answer is not None,
        answer=answer,
        summary=note,
        facts=tuple(facts),
        budget=budget,
    )


async def assign(bus: Bus, request: str, to: str, *, by: str, n: int | None = None) -> AnyEvent:
    """Assign a person to an escalation. Raises NotFound, Impossible, and as `carry_out`."""
    return await _decide(
        bus, request, "escalation", n, lambda turn: Assign(id=order_id(), by=by, turn=turn.id, to=to)
    )


async def settle(
    bus: Bus, request: str, *, by: str, done: bool, result: Any = None, n: int | None = None
) -> AnyEvent:
    """Settle an effect in doubt: it was done, with this result, or it was not. Raises as `assign`."""
    return await _decide(
        bus,
        request,
        "doubt",
        n,
        lambda turn: settle_order(order_id(), turn.id, turn.round, by=by, done=done, result=result),
    )


def settle_order(id: str, turn: TurnId, round: int, *, by: str, done: bool, result: Any = None) -> Settle:
    """Return the control message that settles an effect in doubt, with the arguments of `settle`."""
    outcome: Literal["done", "not_done"] = "done" if done else "not_done"
    return Settle(id=id, by=by, turn=turn, round=round, outcome=outcome, result=result)


async def reply(
    bus: Bus,
    request: str,
    value: Any,
    *,
    by: str,
    check: Callable[[Any, Any], None],
    connect_as: Callable[[str], Awaitable[Bus | None]],
    n: int | None = None,
    reason: str = "",
) -> Obeyed | Replied:
    """Reply to an agent's question to people, or to the client that this connection belongs to.

    Args:
        check: gets the question's schema and the value; an error that it raises stops the reply.
        connect_as: returns the connection of the client that was asked, or None without its key.
        n: number of the event that was shown, as for `turn_in`.

    Raises NotFound, Impossible, and as `carry_out` and `reply_as_client`.
    """

    def order_for(asked: Question) -> ReplyToAsk:
        check(asked.schema, value)
        return ReplyToAsk(
            id=order_id(), by=by, turn=TurnId(asked.turn), round=asked.round, value=value, reason=reason
        )

    try:
        happened = decoded(await request_bodies(bus, request))
    except Denied:  # a client may only read what is addressed to it
        return await reply_as_client(bus, request, order_for, n=n)
    ledger = fold(happened)
    asked = _question_in(ledger, bus.name, n)
    if asked.to_agent not in (HUMAN, bus.name) and (own := await connect_as(asked.to_agent)) is not None:
        async with own:
            return await reply_as_client(own, request, order_for, n=n)
    turn = turn_in(ledger, "ask", bus.name, n)
    check(asked.schema, value)
    order = ReplyToAsk(id=order_id(), by=by, turn=turn.id, round=turn.round, value=value, reason=reason)
    return obeyed(await carry_out(bus, request, order))


def _question_in(ledger: Ledger, own: str, n: int | None) -> Ask:
    """Return the question that is meant: one to people or `own`, else one to another client.

    Raises as `turn_in`.
    """
    asking = {turn.since_n: turn.ask for turn in ledger.open.values() if turn.ask is not None}
    ours = {at: ask for at, ask in asking.items() if ask.to_agent in (HUMAN, own)}
    if n in asking:
        return asking[n]
    if n is None and asking and not ours:
        return one_of(str(ledger.request), {at: (ask, ask.question) for at, ask in asking.items()}, n)
    return asking[turn_in(ledger, "ask", own, n).since_n]
