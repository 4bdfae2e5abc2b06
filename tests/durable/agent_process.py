"""An agent in a process of its own that dies where it is told to: `agent_process.py URL SEED VERSION`.

Every tool writes a line to the file in `LEDGER`: the world, which remembers what really happened. The
facts of the request say what to do: `script` is a list of tool names, and a name with `!` dies there,
in the middle of the effect; `die` dies between two steps, once, `die-approved` only after an approval;
`flip` calls another thing once the process has died; `made` dies while a model works.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.agent import Tool, Turn, agent, tool
from mesh.agent._runtime import Runtime
from mesh.agent.tools import NOT_DONE
from mesh.bus.connection import connect
from protocol.wire.commands import Usage

if TYPE_CHECKING:
    from mesh.model.port import Reply

LEDGER = Path(os.environ["LEDGER"])
DIED = LEDGER.with_suffix(".died")


def note(line: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")


def die(marker: str) -> None:
    """End this process as `kill -9` does; once for each marker."""
    seen = DIED.read_text().split() if DIED.exists() else []
    if marker in seen:
        return
    with DIED.open("a") as died:
        died.write(marker + "\n")
    os.kill(os.getpid(), signal.SIGKILL)


@tool
async def look(what: str) -> str:
    note(f"look {what}")
    return what


@tool(effect="idempotent")
async def pay(what: str, idempotency_key: str) -> str:
    note(f"pay {idempotency_key}")
    die(f"pay-{what}") if what.endswith("!") else None
    return idempotency_key


def find(key: str) -> object:
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return key if f"ship {key}" in lines else NOT_DONE


@tool(effect="reconcilable", reconcile=find)
async def ship(what: str, idempotency_key: str) -> str:
    note(f"ship {idempotency_key}")
    die(f"ship-{what}") if what.endswith("!") else None
    return idempotency_key


@tool(effect="once")
async def call(what: str) -> str:
    note(f"call {what}")
    die(f"call-{what}") if what.endswith("!") else None
    return "called"


@tool(effect="idempotent", approve="human")
async def wire(what: str, idempotency_key: str) -> str:
    note(f"wire {idempotency_key}")
    die(f"wire-{what}") if what.endswith("!") else None
    return idempotency_key


@tool(effect="once", approve="human")
async def post(what: str) -> str:
    note(f"post {what}")
    die(f"post-{what}") if what.endswith("!") else None
    return "posted"


TOOLS: dict[str, Tool] = {"look": look, "pay": pay, "ship": ship, "call": call, "wire": wire, "post": post}


async def ask_model(turn: Turn, prompt: str) -> str:
    async def reply() -> str:
        note(f"model {prompt}")
        return f"re: {prompt}"

    said, _ = await turn.model("m", prompt, reply, str, cost=lambda _: Usage(tokens=10, model_calls=1))
    return said


async def driven(turn: Turn) -> object:
    """Let a model look something up, and answer."""
    from mesh.model.loop import drive
    from mesh.testing import StrictModel, calls, says

    def asked(reply: "Reply") -> "Reply":
        note("model")
        return reply

    first, second = calls(("look", {"what": "up"})), says("done")
    model = StrictModel(lambda _: asked(first), lambda _: asked(second))
    return await drive(turn, model, instructions="", tools=(look,))


async def made(turn: Turn) -> object:
    """Let a model look something up under instructions that each process makes otherwise."""
    from mesh.model.loop import drive
    from mesh.model.port import Hear, Model, Prompt
    from mesh.testing import calls, says

    class Told(Model):
        mode = "told"

        async def reply(self, prompt: Prompt, hear: Hear | None = None) -> "Reply":
            note(f"model {prompt.instructions}")
            if not prompt.transcript:
                return calls(("look", {"what": "up"}))
            die("made")
            return says("done")

    return await drive(turn, Told(), instructions=lambda turn: f"of {os.getpid()}", tools=(look,))


async def handler(turn: Turn) -> object:
    done = []
    for step in turn.facts["script"]:
        name, _, argument = step.partition(" ")
        if name == "die" or (name == "die-approved" and any(past.asked for past in turn.past)):
            die(f"between-{argument}")
        elif name == "flip":
            done.append(await turn.call(look, what="second" if DIED.exists() else "first"))
        elif name == "model":
            done.append(await ask_model(turn, argument))
        elif name == "drive":
            return await driven(turn)
        elif name == "made":
            return await made(turn)
        elif name == "crash":
            note("crash")
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "slow":
            await asyncio.sleep(float(argument))
        elif name == "refused" and not turn.refusals:
            return turn.transfer("nobody", summary="cannot be")
        elif name in TOOLS:
            done.append(await turn.call(TOOLS[name], what=argument))
    return turn.complete(done)


async def main(url: str, seed: str, version: str) -> None:
    bus = await connect(url, name="a", seed=seed, wait=True)
    grace_s = float(os.environ.get("GRACE", "30"))
    made = agent(name="a", version=version, version_grace_s=grace_s)(handler)  # type: ignore[arg-type]
    await Runtime(bus, made).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
