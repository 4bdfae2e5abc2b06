"""A turn without a bus, to test an agent's code by itself: `move = await greeter(turn(facts={…}))`."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import Any

from mesh.agent._journal import Journal
from mesh.agent.turn import Turn
from mesh.testing.in_memory_guard import InMemoryGuard
from mesh.testing.memory import MemorySteps
from protocol.wire.commands import Ask, Move, Report
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.events import Assignment, RoundOutcome
from protocol.wire.grounds import Refusal, Rule
from protocol.wire.handoff import Constraints, Fact, Handoff
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.prices import Price, price_list

REQUEST = "client_01ARZ3NDEKTSV4RRFFQ69G5FAV"
_INSTANCES = count()


def turn(
    *,
    agent: str = "agent",
    summary: str = "",
    facts: Mapping[str, Any] | Iterable[Fact] = (),
    intent: str | None = None,
    move: str = "submit",
    from_agent: str = "client",
    path: Iterable[str] | None = None,
    peers: Iterable[str] = (),
    refused: Iterable[tuple[Move, str]] = (),
    constraints: Constraints | None = None,
    human: bool = True,
    past: Iterable[RoundOutcome] = (),
    reported: Report | None = None,
    steps: MemorySteps | None = None,
    is_over: Callable[[], Awaitable[bool]] | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Turn:
    """Return the first round of a turn, or a later one after refusals.

    Args:
        facts: by key, or with their labels.
        path: holders before and including `agent`; just `agent` by default.
        peers: names of the other agents in the fleet.
        refused: (move, rule) of each round that the guard refused, in order.
        past: how further rounds ended, after those; see `replied` and `unanswered`.
        reported: what the rounds before this one reported, cumulative.
        steps: where this turn's journal is kept. The same for each `turn` of a test, and what one of them
            did the next one finds, as after a crash; without it, nothing is journaled.
        is_over: what says whether a guard has ended the turn.
        prices: what models' tokens cost, by model.
    """
    given = (
        tuple(Fact(key=key, value=value) for key, value in facts.items())
        if isinstance(facts, Mapping)
        else tuple(facts)
    )
    refusals = (
        RoundOutcome(
            round=round_,
            how="refused",
            move=asked,
            refusal=Refusal(rule=Rule(rule), detail=f"refused: {rule}"),
        )
        for round_, (asked, rule) in enumerate(refused)
    )
    ended = (*refusals, *past)
    names = (agent, *peers)
    fleet = Fleet(
        name="test",
        entry=AgentName(names[0]),
        agents={name: AgentEntry(name=AgentName(name)) for name in names},
        human=human,
    )
    handoff = Handoff(
        move=move,
        from_agent=AgentName(from_agent),
        to_agent=AgentName(agent),
        summary=summary,
        intent=intent,
        facts=given,
        constraints=constraints or Constraints(),
    )
    held = tuple(AgentName(name) for name in (path or (agent,)))
    work = Assignment(
        turn=TurnId("turn"),
        round=len(ended),
        handoff=handoff,
        path=held,
        depth=len(held) - 1,
        past=ended,
        reported=reported or Report(),
    )
    journal = None
    if steps is not None:
        journal = Journal(
            steps,
            request=REQUEST,
            turn=work.turn,
            round_=work.round,
            nonce=f"n{next(_INSTANCES)}",
            version="0",
            past=ended,
        )
    return Turn(REQUEST, work, fleet, journal=journal, is_over=is_over, prices=prices)


def turn_in(guard: InMemoryGuard) -> Turn:
    """Return the turn of whoever holds the request, with what the guard lets them see. Nothing is journaled.

    Raises NotDecided when it is nobody's.
    """
    work = guard.holder.work
    return Turn(guard.request, work, guard.fleet, prices=price_list(work.prices))


def replied(ask: Move, value: Any, *, round_: int = 0, by: str = "") -> RoundOutcome:
    """Return how a round ended that asked and got a reply; `ask` may be an approval's."""
    return RoundOutcome(round=round_, how="replied", reply=value, by=by, asked=_approval(ask))


def unanswered(ask: Move, *, round_: int = 0) -> RoundOutcome:
    """Return how a round ended that asked and got no reply in time."""
    return RoundOutcome(round=round_, how="expired", asked=_approval(ask))


def _approval(ask: Move) -> str:
    assert isinstance(ask, Ask)
    return (ask.digest or "") if ask.action else ""
