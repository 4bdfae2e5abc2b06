"""Realistic logs: requests played by the guard in memory, and many copies of them.

A played request is genuine to the last byte: its chain verifies. A copy has another request id and the
rest alike, so that a million events are there in seconds; it folds as its original does, and only the
chain and derived ids are the original's. Chains are therefore verified on originals alone.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from bench.load import ANSWER, FACTS, SUMMARY, TEXT
from bench.place import AGENTS, CLIENT
from mesh.bus.connection import Bus
from mesh.testing import InMemoryGuard
from protocol.wire.commands import Report, Usage
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, RequestId, request_id
from protocol.wire.moves import Complete, HandBack, Move, Transfer
from protocol.wire.subjects import evt

_START_US = 1_800_000_000_000_000
_STEP_US = 1500
_LIVE = 64
"""Requests under way at a time in a log that is made."""
FLEET = Fleet(
    name="bench",
    entry=AgentName(AGENTS[0]),
    agents={
        name: AgentEntry(name=AgentName(name), clearance=() if name == "c" else ("pii",)) for name in AGENTS
    },
    clients=(AgentName(CLIENT),),
    human=True,
    revision=1,
)
"""The fleet that plays them."""


class Line(NamedTuple):
    """One event to be stored."""

    to: str
    request: str
    body: bytes


def _to(agent: str) -> Transfer:
    return Transfer(to_agent=AgentName(agent), summary=SUMMARY)


_DONE = Complete(answer=ANSWER)
_BACK = HandBack(summary="Not mine to decide", facts=(Fact(key="refundable_cents", value=48_000),))
PLOTS: tuple[tuple[Move, ...], ...] = (
    (_to("b"), _DONE),
    (_to("b"), _to("c"), _to("d"), _to("e"), _DONE),
    (_to("b"), _to("c"), _to("b"), _BACK, _DONE),  # the second way to b is refused as a cycle
    (_to("b"), _BACK, _to("d"), _DONE),
)
"""What the holders of a request ask for, one after the other. `c` may not see the customer."""


def play(request: RequestId, plot: Iterable[Move]) -> list[Line]:
    """Return the events of one request, as a guard would have written them."""
    guard = InMemoryGuard(FLEET, request=request)
    facts = (Fact(key=FACTS[0].key, value=FACTS[0].value, labels=("pii",)), *FACTS[1:])
    guard.submit(TEXT, facts=facts, to=AgentName(AGENTS[0]))
    for move in plot:
        if guard.ledger.holder is None:
            break
        guard.now += _STEP_US
        guard.move(move, Report(usage=Usage(tokens=900, model_calls=1, nano_dollars=4_000_000), version="1"))
    return [Line(event.to, request, body) for event, body in zip(guard.events, guard.bodies, strict=True)]


def fresh_id(number: int) -> RequestId:
    """Return a request id; all are equally long."""
    return request_id(CLIENT, _START_US // 1000 + number, number.to_bytes(10))


def originals(count: int, *, first: int = 0) -> list[list[Line]]:
    """Return `count` played requests, numbered from `first` on, the plots in turn."""
    return [play(fresh_id(number), PLOTS[number % len(PLOTS)]) for number in range(first, first + count)]


def history(events: int) -> Iterator[Line]:
    """Yield so many events as they would lie in a log: `_LIVE` requests under way at a time."""
    return itertools.islice(_endless(), events)


def _endless() -> Iterator[Line]:
    templates = [
        [(line.to, line.body.split(line.request.encode())) for line in lines]
        for lines in originals(len(PLOTS))
    ]
    numbers = itertools.count(len(PLOTS))
    plots = itertools.cycle(templates)

    def copy() -> Iterator[Line]:
        request = fresh_id(next(numbers))
        encoded = request.encode()
        return (Line(to, request, encoded.join(parts)) for to, parts in next(plots))

    live = [copy() for _ in range(_LIVE)]
    while True:
        for index, story in enumerate(live):
            line = next(story, None)
            if line is None:
                live[index] = copy()
                line = next(live[index])
            yield line


# --- filling a log ---------------------------------------------------------------------------------

_WINDOW = 2000
"""Messages between two acknowledgements: fewer than the server would drop."""


class _Head(msgspec.Struct, frozen=True):
    type: str
    id: str


_HEADS = msgspec.json.Decoder(_Head)


async def fill(admin: Bus, lines: list[Line], already: int = 0) -> None:
    """Append `lines` to a log of `already` events, under the subjects and headers that a guard writes them
    with.

    Compare-and-set is left out and acknowledgements are asked for now and then only; what is stored is the
    same. Nobody else writes meanwhile, so the last acknowledgement shows that everything arrived.

    Raises RuntimeError when some were lost.
    """
    for start in range(0, len(lines), _WINDOW):
        window = lines[start : start + _WINDOW]
        for line in window[:-1]:
            admin.send(evt(line.to, line.request), line.body, _headers(line))
        last = window[-1]
        ack = await admin.publish_durable(evt(last.to, last.request), last.body, _headers(last))
        if ack.seq != already + start + len(window):
            raise RuntimeError(f"the log holds {ack.seq} events, not {already + start + len(window)}")


def _headers(line: Line) -> dict[str, str]:
    head = _HEADS.decode(line.body)
    return {
        "Nats-Expected-Stream": "LOG",
        "Mesh-Type": head.type,
        "Mesh-Id": head.id,
    }
