"""The mesh's side: request, A to E, answer, with everything that ships switched on.

Driver, guard and five agents are processes of their own. The agents answer at once: what is measured is
the mesh. A member is `python -m bench.chain driver|guard|AGENT URL KEYS`.
"""

import contextlib
import itertools
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from bench.crew import Crew, Member, join, obey, run_member, serve
from bench.load import ANSWER, FACTS, SUMMARY, TEXT, Sizes, Task, run, sampled
from bench.place import AGENTS, CLIENT, FLEET, Place
from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.roles import ADMIN, GUARD
from mesh.client import Client
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import apply
from mesh.guard.service import Guard
from protocol.wire.moves import Move

DRIVER = "driver"
_NEXT = dict(itertools.pairwise(AGENTS))
_CONCURRENCY = 64
_TIMEOUT_S = 60.0


@contextlib.asynccontextmanager
async def chain(place: Place, directory: Path, fleet: FleetFile = FLEET) -> AsyncIterator[Crew]:
    """Provision `place` for `fleet` and start the mesh on it."""
    async with await place.connect_as(ADMIN) as admin:
        await apply(admin, fleet)
    async with Crew(directory) as crew:
        for roles in ((GUARD, *AGENTS), (DRIVER,)):
            await crew.start_all("bench.chain", roles, place.url, str(place.keys))
        yield crew


async def sizes(place: Place, driver: Member) -> Sizes:
    """Send one request and return how large its messages were."""
    async with await place.connect_as(ADMIN) as admin, sampled(admin) as found:
        await driver.ask(Task(1, 1))
        await admin.flush()
        return found.sizes()


# --- the members ----------------------------------------------------------------------------------


async def pass_on(turn: Turn) -> Move:
    """Give the work to the next agent in line; the last one answers."""
    following = _NEXT.get(turn.agent)
    return turn.complete(ANSWER) if following is None else turn.transfer(following, summary=SUMMARY)


async def _agent(name: str, url: str, keys: Path) -> None:
    async with await join(url, keys, name) as bus:
        runtime = Runtime(bus, Agent(name=name, handler=pass_on, concurrency=_CONCURRENCY))
        await serve(runtime, ready=False)


async def _guard(url: str, keys: Path) -> None:
    async with await join(url, keys, GUARD) as bus:
        await serve(Guard(bus, identity="bench"), ready=False)


async def _drive(url: str, keys: Path) -> None:
    seed = read_key(seed_file(keys, CLIENT)).seed
    async with await Client.connect(url, name=CLIENT, seed=seed) as client:

        async def one() -> None:
            request = await client.submit(TEXT, facts=FACTS)
            outcome = await client.wait(request, timeout_s=_TIMEOUT_S)
            if outcome.answer != ANSWER:
                raise RuntimeError(f"{request} {outcome.status}: {outcome.reason}")

        async def task(told: Any) -> Any:
            return await run(one, msgspec.convert(told, Task))

        await obey(task)


def _member(role: str, url: str, keys: Path) -> Coroutine[Any, Any, None]:
    if role == DRIVER:
        return _drive(url, keys)
    return _guard(url, keys) if role == GUARD else _agent(role, url, keys)


if __name__ == "__main__":
    run_member(_member(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
