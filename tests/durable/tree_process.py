"""A member of a tree in a process of its own: `tree_process.py URL SEED NAME`, one of `AGENTS`.

Failpoints in `MESH_FAILPOINTS` end it. Every effect and every model call writes a line to the file in
`LEDGER`.
"""

import asyncio
import os
import sys
from pathlib import Path

from mesh.agent import Agent, Permanent, Task, Turn, agent, tool
from mesh.agent._runtime import Runtime
from mesh.bus.connection import connect
from mesh.model import Hear, Model, Prompt, Reply, Supervisor, Swarm, ToolCall
from mesh.model.prompt import Instructions
from protocol.wire.moves import Move

LEDGER = Path(os.environ["LEDGER"])
STEPS = [
    {"name": "one", "goal": "do one", "agent": "worker"},
    {"name": "two", "goal": "do two", "agent": "worker"},
    {"name": "both", "goal": "do both", "agent": "worker", "needs": ["one", "two"]},
]


def note(line: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")


@tool(effect="idempotent")
async def pay(what: str, idempotency_key: str = "") -> str:
    """Pay for a task."""
    note(f"pay {what} {idempotency_key}")
    return what


@agent()
async def worker(turn: Turn) -> Move:
    """Do a task."""
    await turn.call(pay, what=turn.task_name)
    return turn.deliver(f"did {turn.task_name}", facts={"used": sorted(turn.results)})


class Mind(Model):
    """Plans, and answers with what the results say."""

    mode = "mind"

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        note(f"asked {prompt.agent}")
        if prompt.agent == "lead-planner":
            return Reply(calls=(ToolCall("1", "plan", {"steps": STEPS}),))
        return Reply(text=f"{prompt.brief.count('(delivered, worker)')} steps are done")


LEAD = Supervisor(
    "lead", planner=Instructions("1", "Plan."), synthesizer=Instructions("1", "Answer."), model=Mind()
)


def readers() -> set[str]:
    lines = (line.split() for line in LEDGER.read_text().splitlines())
    return {words[-1] for words in lines if words[0] == "read"}


async def read(turn: Turn) -> Move:
    """Read beside another reader, and post what was seen: one who is quick would take both reads."""
    note(f"read {turn.task_name} {turn.agent}")
    try:
        async with asyncio.timeout(60.0):
            while len(readers()) < 2:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise Permanent(f"nobody reads beside {turn.agent}") from None
    await turn.post({"saw": turn.task_name})
    return turn.deliver(f"read {turn.task_name}")


@agent()
async def mender(turn: Turn) -> Move:
    """Write once, after all that was read."""
    await turn.call(pay, what=" and ".join(each.summary for each in turn.results.values()))
    return turn.complete(sorted(facts["saw"] for facts in turn.board.values()))


def looks(turn: Turn) -> list[Task]:
    return [turn.task(f"look-{n}", summary="Look.", intent="read") for n in range(2)]


SWARM = Swarm(mender, reads=looks)
READERS: dict[str, Agent] = {name: agent(name=name)(read) for name in ("reader-a", "reader-b")}
AGENTS: dict[str, Agent] = {"lead": LEAD, "worker": worker, "mender": SWARM, **READERS}


async def main() -> None:
    url, seed, name = sys.argv[1:]
    await Runtime(await connect(url, name=name, seed=seed, wait=True), AGENTS[name]).run()


if __name__ == "__main__":
    asyncio.run(main())
