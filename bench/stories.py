"""Realistic logs: requests played through the pure domain as a guard does, and many copies of them.

A played request is genuine to the last byte: its chain verifies. A copy has another request id and the
rest alike, so that a million events are there in seconds; it folds as its original does, and only the
chain and derived ids are the original's. Chains are therefore verified on originals alone.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bench.load import ANSWER, FACTS, SUMMARY, TEXT
from bench.place import AGENTS, CLIENT
from protocol.decide import decide, target_of
from protocol.ledger import Ledger
from protocol.wire import codec
from protocol.wire.commands import (
    Complete,
    HandBack,
    Hearing,
    Move,
    MoveProposed,
    Report,
    Submit,
    Transfer,
    Usage,
    id_of,
    submit_id,
)
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.events import FactsWithheld
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName, Cause, RequestId, request_id
from protocol.world import Grounds, World

_START_US = 1_800_000_000_000_000
_STEP_US = 1500
_LIVE = 64
"""Requests under way at a time in a log that is made."""
_FLEET = {
    name: AgentEntry(name=AgentName(name), clearance=() if name == "c" else ("pii",)) for name in AGENTS
}


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
    ledger, policy, lines = Ledger(), Policy(), []
    clock = itertools.count(_START_US, _STEP_US)

    def hear(hearing: Hearing) -> None:
        target = target_of(ledger, hearing) or AgentName(AGENTS[0])
        while True:
            now = next(clock)
            grounds = Grounds(
                fleet=1, sender=_FLEET.get(hearing.sender), target=_FLEET.get(target), human=True
            )
            event = decide(ledger, hearing, policy, World(now=now, salt=f"{now:032x}", grounds=grounds))
            body = codec.encode(event)
            ledger.apply(event, body)
            lines.append(Line(event.to, request, body))
            if not isinstance(event, FactsWithheld):
                return

    facts = (Fact(key=FACTS[0].key, value=FACTS[0].value, labels=("pii",)), *FACTS[1:])
    submit = Submit(text=TEXT, facts=facts, to=AgentName(AGENTS[0]))
    digest = codec.body_digest(codec.encode(submit))
    hear(Hearing(request, AgentName(CLIENT), submit, Cause(submit_id(request)), "client", digest))
    for move in plot:
        turn = ledger.holder
        if turn is None:
            break
        report = Report(usage=Usage(tokens=900, model_calls=1, nano_dollars=4_000_000))
        proposal = MoveProposed(turn=turn.id, round=turn.round, move=move, report=report)
        hear(Hearing(request, turn.agent, proposal, Cause(id_of(request, proposal)), "agent"))
    return lines


def fresh_id(number: int) -> RequestId:
    """Return a request id; all are equally long."""
    return request_id(CLIENT, _START_US // 1000 + number, number.to_bytes(10))


def originals(count: int) -> list[list[Line]]:
    """Return `count` played requests, the plots in turn."""
    plots = itertools.cycle(PLOTS)
    return [play(fresh_id(number), next(plots)) for number in range(count)]


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
