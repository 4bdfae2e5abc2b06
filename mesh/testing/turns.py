"""A turn without a bus, to test an agent's code by itself: `move = await greeter(turn(facts={…}))`."""

from collections.abc import Iterable, Mapping
from typing import Any

from mesh.agent.turn import Turn
from protocol.events import Past, Work
from protocol.fleet import AgentEntry, Fleet
from protocol.handoff import Constraints, Fact, Handoff
from protocol.ids import AgentName, TurnId
from protocol.messages import Move
from protocol.refusals import Refusal, Rule

REQUEST = "client_01ARZ3NDEKTSV4RRFFQ69G5FAV"


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
) -> Turn:
    """Return the first round of a turn, or a later one after refusals.

    Args:
        facts: by key, or with their labels.
        path: holders before and including `agent`; just `agent` by default.
        peers: names of the other agents in the fleet.
        refused: (move, rule) of each round that the guard refused, in order.
    """
    given = (
        tuple(Fact(key=key, value=value) for key, value in facts.items())
        if isinstance(facts, Mapping)
        else tuple(facts)
    )
    past = tuple(
        Past(
            round=round_,
            how="refused",
            move=asked,
            refusal=Refusal(rule=Rule(rule), detail=f"refused: {rule}"),
        )
        for round_, (asked, rule) in enumerate(refused)
    )
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
    work = Work(
        turn=TurnId("turn"),
        round=len(past),
        handoff=handoff,
        path=held,
        depth=len(held) - 1,
        past=past,
    )
    return Turn(REQUEST, work, fleet)
