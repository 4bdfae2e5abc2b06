"""The human queue: what was put to people and is still open. It is read from the log, the only list."""

import asyncio

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.log import JetStreamLog
from mesh.cli.errors import NotFound
from mesh.cli.reading import ENDS, Kept, decoded, every, glance
from protocol.ids import HUMAN
from protocol.ledger import Ledger, Turn, fold
from protocol.subjects import inbox

_AT_ONCE = 16


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Something that people have to decide."""

    request: str
    turn: str
    what: str
    """`escalation`, or `question` of an agent's."""
    since: int
    """UTC µs."""
    reason: str
    summary: str
    from_agent: str
    person: str
    """Who looks at it, if it was assigned."""
    tier: int
    client: str
    text: str
    """What the client wrote."""


async def queue(bus: Bus) -> list[Waiting]:
    """Return everything that waits for people, the oldest first."""
    latest: dict[str, Kept] = {}
    async for kept in every(bus, "LOG", inbox(HUMAN)):
        latest[kept.subject.rpartition(".")[2]] = kept
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(request: str) -> list[Waiting]:
        async with room:
            log = JetStreamLog(bus, leader=False)
            head = await log.head(request)
            if head is None or glance(head.body).type in ENDS:
                return []
            return waiting_in(fold(decoded(stored.body for stored in await log.read(request))))

    found = await asyncio.gather(*(look(request) for request in latest))
    return sorted((each for part in found for each in part), key=lambda each: each.since)


def waiting_in(ledger: Ledger) -> list[Waiting]:
    """Return what waits for people in one request."""
    return [_waiting(ledger, turn) for turn in ledger.open.values() if _is_for_people(turn)]


def _is_for_people(turn: Turn) -> bool:
    return turn.agent == HUMAN or (turn.state == "suspended" and turn.asked == HUMAN)


def _waiting(ledger: Ledger, turn: Turn) -> Waiting:
    handoff = turn.work.handoff
    texts = (fact.value for fact in handoff.facts if fact.key == "text")
    return Waiting(
        request=str(ledger.request),
        turn=turn.id,
        what="escalation" if turn.agent == HUMAN else "question",
        since=turn.opened_at,
        reason=_reason(ledger, turn),
        summary=handoff.summary,
        from_agent=handoff.from_agent if turn.agent == HUMAN else turn.agent,
        person=turn.person or "",
        tier=turn.tier,
        client=str(ledger.client or ""),
        text=str(next(texts, "")),
    )


def _reason(ledger: Ledger, turn: Turn) -> str:
    """Return why people have it: what ended the agent's turn, or that it asked."""
    ended = None if turn.instead_of is None else ledger.turns.get(turn.instead_of)
    return (ended.reason if ended is not None else "") or "asked"


def escalation_in(ledger: Ledger) -> Turn:
    """Return the open turn of the human in a request. Raises NotFound."""
    for turn in ledger.open.values():
        if turn.agent == HUMAN:
            return turn
    if ledger.is_open:
        raise NotFound(f"{ledger.request} is open, but nothing in it waits for people")
    raise NotFound(f"{ledger.request} has ended: {ledger.status}")
