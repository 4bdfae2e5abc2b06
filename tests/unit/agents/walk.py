"""One request's walk through a fleet without a bus: the agents' own code, judged by `protocol.decide`.

What JetStream and the guard's service do between the two is left out: one turn at a time, nothing is
lost, no time passes. The verdicts are the guard's own.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mesh.agent import ApprovalNeeded
from mesh.agent.definition import Agent
from mesh.agent.failures import failure_of
from mesh.agent.turn import Turn
from mesh.fleet import FleetFile
from protocol import codec, events
from protocol.decide import decide, target_of
from protocol.due import due
from protocol.events import AnyEvent
from protocol.handoff import Fact
from protocol.held import Turn as LedgerTurn
from protocol.ids import HUMAN, AgentName, Cause, RequestId, request_id
from protocol.ledger import Ledger
from protocol.messages import Ask, Hearing, MoveProposed, Reply, Submit, TurnFailed, id_of, submit_id
from protocol.world import Grounds, World
from tests.unit.agents.crews import Crew
from tests.unit.agents.requests import Sample

START_US = 1_800_000_000_000_000
MOST_ROUNDS = 40
_numbers = itertools.count(1)


@dataclass
class Walk:
    """How far a request came, and what every agent was given on the way."""

    request: RequestId
    ledger: Ledger = field(default_factory=Ledger)
    path: list[str] = field(default_factory=list)
    """Holders in order, hand-backs included; people are none."""
    refused: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    """Every round that an agent's code ran."""
    answer: str = ""
    broke: list[str] = field(default_factory=list)
    """Codes of what handlers raised."""
    asked: list[Ask] = field(default_factory=list)
    """Approvals that were asked for."""

    @property
    def status(self) -> str:
        return "escalated" if self.waits_for_people else self.ledger.status

    @property
    def waits_for_people(self) -> bool:
        holder = self.ledger.holder
        return holder is not None and HUMAN in (holder.agent, holder.asked)

    def take(self, event: AnyEvent) -> None:
        self.ledger.apply(event, codec.encode(event))
        match event:
            case events.RequestOpened() | events.HandoffAdmitted():
                self.path.append(event.work.handoff.to_agent)
            case events.MoveRefused():
                self.refused.append(str(event.refusal.rule))
            case events.RequestCompleted():
                self.answer = str(event.answer)


async def walk(
    crew: Crew,
    text: str,
    facts: tuple[Fact, ...] = (),
    *,
    client: str = "app",
    replies: Iterable[Any] = (),
) -> Walk:
    """Submit a request and follow it until it ends, or until people have it.

    Args:
        replies: what people say to what they are asked, in order; after the last they say nothing.
    """
    file, said = crew.file, iter(replies)
    n = next(_numbers)
    going = Walk(request_id(client, START_US // 1000, n.to_bytes(10)))
    submit = Submit(text=text, facts=facts)
    hearing = Hearing(
        request=going.request,
        sender=AgentName(client),
        what=submit,
        cause=Cause(submit_id(going.request)),
        role="client",
    )
    _judge(going, file, hearing)
    for _ in range(MOST_ROUNDS):
        holder = going.ledger.holder
        if holder is None or holder.agent == HUMAN:
            return going
        if holder.state == "suspended":
            value = next(said, None)
            if value is None:
                return going
            _judge(going, file, _reply(going, holder, file, value))
            continue
        turn = Turn(going.request, holder.work, file.fleet)
        going.turns.append(turn)
        _judge(going, file, await _proposal(going, crew.agents[holder.agent], turn))
    raise AssertionError(f"no end after {MOST_ROUNDS} rounds: {going.path}")


async def _proposal(going: Walk, agent: Agent, turn: Turn) -> Hearing:
    proposal: MoveProposed | TurnFailed
    try:
        move = await agent(turn)
        proposal = MoveProposed(turn=turn.id, round=turn.round, move=move, report=turn.report)
    except ApprovalNeeded as needed:
        going.asked.append(needed.ask)
        proposal = MoveProposed(turn=turn.id, round=turn.round, move=needed.ask, report=turn.report)
    except Exception as error:
        going.broke.append(failure_of(error).code)
        proposal = TurnFailed(turn=turn.id, round=turn.round, error=failure_of(error), report=turn.report)
    return Hearing(
        request=going.request,
        sender=turn.agent,
        what=proposal,
        cause=Cause(id_of(going.request, proposal)),
        role="agent",
    )


def _reply(going: Walk, asking: LedgerTurn, file: FleetFile, value: Any) -> Hearing:
    """Return what people say to a turn that waits for them."""
    reply = Reply(id=f"reply-{asking.id}-{asking.round}", turn=asking.id, round=asking.round, value=value)
    return Hearing(
        request=going.request,
        sender=AgentName(next(iter(file.operators))),
        what=reply,
        cause=Cause(reply.id),
        role="operator",
    )


def disagreements(found: Walk, sample: Sample) -> list[str]:
    """Return each thing that is not as a sample expects it."""
    expect = sample.expect
    pairs = {
        "broke": (found.broke, []),
        "status": (found.status, expect.status),
        "path": (tuple(found.path), expect.path),
        "refused": (found.refused, list(expect.refused)),
    }
    wrong = [
        f"{name}: {was!r}, expected {should!r}" for name, (was, should) in pairs.items() if was != should
    ]
    lacking = [part for part in expect.answer_has if part not in found.answer]
    return wrong + [f"answer: {found.answer!r}, expected {part!r} in it" for part in lacking]


def _judge(going: Walk, file: FleetFile, hearing: Hearing) -> None:
    """Let the guard decide one message, and whatever follows from that."""
    while not going.ledger.knows(hearing.cause):
        going.take(decide(going.ledger, hearing, file.rules["default"], _world(going, file, hearing)))
    for _ in range(MOST_ROUNDS):
        waiting = going.ledger.holder
        if waiting is not None and waiting.state == "suspended":
            return  # its expiry would be the next thing due, and no time passes here
        late = START_US if waiting is None or waiting.due_at is None else waiting.due_at
        consequence = due(going.ledger, None, _world(going, file, None, now=max(late, _head(going))))
        if consequence is None or isinstance(consequence, Hearing):
            return
        going.take(consequence)


def _head(going: Walk) -> int:
    return START_US if going.ledger.head is None else going.ledger.head.at


def _world(going: Walk, file: FleetFile, hearing: Hearing | None, now: int | None = None) -> World:
    fleet = file.fleet
    seen: dict[str, Any] = {}
    if hearing is not None:
        target = target_of(going.ledger, hearing)
        if isinstance(hearing.what, Submit):
            target = hearing.what.to or fleet.entry
        seen = {
            "sender": fleet.agents.get(hearing.sender),
            "target": None if target is None else fleet.agents.get(target),
        }
    return World(
        now=now or _head(going),
        salt="0" * 32,
        grounds=Grounds(human=fleet.human, served=True, **seen),
        policy=file.rules["default"],
    )
