"""An agent on our runtime whose code does what the fact `do` says, as a process."""

import asyncio
import os
import signal
from pathlib import Path

from mesh.agent import Move, Turn, agent
from mesh.agent._runtime import Runtime
from mesh.bus.connection import connect
from mesh.bus.credentials import read_key

NAME = os.environ["MESH_NAME"]


@agent(name=NAME, description="Does as it is told")
async def obedient(turn: Turn) -> Move:
    match turn.facts["do"]:
        case "complete":
            return turn.complete(turn.facts["text"])
        case "refused" if turn.refusals:
            return turn.complete(str(turn.refusals[-1].rule))
        case "refused":
            return turn.transfer("nobody", summary="to nobody")
        case "transfer" if turn.handoff.move == "hand_back":
            return turn.complete(turn.facts["found"])
        case "transfer":
            return turn.transfer("counterpart", summary="look")
        case "ask":
            return turn.ask("What?") if turn.reply is None else turn.complete(turn.reply)
        case "large":
            return turn.complete("x" * 300_000)
        case "wait":
            await asyncio.sleep(turn.facts["for_s"])
            return turn.complete("waited")
    raise RuntimeError("broken")


async def main() -> None:
    seed = read_key(Path(os.environ["MESH_CREDENTIALS"])).seed
    bus = await connect(os.environ["NATS_URL"], name=NAME, seed=seed, wait=True)
    runtime = Runtime(bus, obedient)
    running = asyncio.create_task(runtime.run())
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    await runtime.drain(5.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main())
