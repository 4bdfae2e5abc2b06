"""Many processes at one vendor that takes fewer calls than they would make.

The stand-in takes so many calls within any minute and refuses the others with status 429 and `retry-after`
in whole seconds. No process knows of the others, and the fleet sets no limit. There is always more to ask
than may be asked. The first minute does not count: there the vendor takes all it may at once.
"""

import asyncio
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from bench.crew import obey, run_member, serve_agent
from bench.figures import Figure, Target, spread
from bench.place import site
from mesh.agent import Agent, Move, Turn
from mesh.bus.nats_protocol import Incoming
from mesh.model.loop import drive
from mesh.model.vendors.claude import ROUTING, ClaudeModel
from protocol.wire import codec
from protocol.wire.events import type_of
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, fails, says

PER_MINUTE, MINUTE_S = 100, 60.0
USED, TO_PEOPLE = Target("at least", 90.0), Target("at most", 0.0)
AGENT, STUB = "a", "stub"


async def limits(directory: Path, *, processes: int, minutes: int) -> list[Figure]:
    """Measure so many minutes, after the first one."""
    types: Counter[str] = Counter()
    async with site(directory) as here:
        stub = await here.crew.start(STUB, "bench.limits", STUB)
        await here.start_guard()
        url = await stub.ask("url")
        await asyncio.gather(
            *(here.start("bench.limits", AGENT, url, name=f"{AGENT}-{n}") for n in range(processes))
        )
        await here.admin.subscribe("mesh.evt.>", lambda message: _heard(message, types))
        for _ in range((minutes + 2) * PER_MINUTE):
            await here.client.submit("Where is my parcel?", to=AGENT)
        await asyncio.sleep((minutes + 1) * MINUTE_S)
        used, refused = await stub.ask(minutes)
        if types["request.completed"] >= (minutes + 2) * PER_MINUTE:
            raise RuntimeError("there was nothing left to ask")
    return [
        Figure(
            f"{processes} processes: calls taken in a minute, of {PER_MINUTE}", "", spread(used), target=USED
        ),
        Figure("calls refused in a minute", "", spread(refused)),
        Figure(
            "rounds that failed, requests that went to a person",
            "",
            spread([float(types["turn.failed"] + types["escalation.raised"])]),
            target=TO_PEOPLE,
        ),
    ]


def _heard(message: Incoming, types: Counter[str]) -> None:
    if message.data:  # not the server's own notes on a subject
        types[type_of(codec.decode_event(message.data))] += 1


# --- inside a member ------------------------------------------------------------------------------


class _Vendor:
    """Takes `PER_MINUTE` calls within any minute."""

    def __init__(self) -> None:
        self._lately: deque[float] = deque()
        self.taken: list[float] = []
        self.refused: list[float] = []

    def answer(self, _: Mapping[str, Any]) -> Answer:
        now = time.monotonic()
        while self._lately and self._lately[0] <= now - MINUTE_S:
            self._lately.popleft()
        if len(self._lately) >= PER_MINUTE:
            self.refused.append(now)
            return fails(429, retry_after_s=ceil(self._lately[0] + MINUTE_S - now))
        self._lately.append(now)
        self.taken.append(now)
        return says("It is on its way.")

    def by_minute(self, times: list[float], minutes: int) -> list[float]:
        """Return how many of `times` lie in each minute, the first one left out."""
        counts = Counter(int((at - self.taken[0]) / MINUTE_S) for at in times)
        return [float(counts[minute]) for minute in range(1, minutes + 1)]


async def _stub() -> None:
    vendor = _Vendor()
    async with StubClaude(vendor.answer) as stub:

        async def told(line: Any) -> Any:
            if line == "url":
                return f'"{stub.url}"'
            return [vendor.by_minute(times, line) for times in (vendor.taken, vendor.refused)]

        await obey(told)


async def _agent(url: str, keys: Path, stub: str) -> None:
    model = ClaudeModel(ROUTING, base_url=stub, api_key="stub")

    async def work(turn: Turn) -> Move:
        return await drive(turn, model, instructions="You answer.", tools=())

    await serve_agent(url, keys, Agent(name=AGENT, handler=work))


if __name__ == "__main__":
    os.environ.pop("ANTHROPIC_API_KEY", None)
    told = sys.argv[1:]
    run_member(_stub() if told[0] == STUB else _agent(told[1], Path(told[2]), told[3]))
