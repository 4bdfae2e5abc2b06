"""An agent as a process of its own: `<url> <keys> <name> <behaviour> <grace>`. It says `began <request>`, and
`leaving` once a signal has reached it.

Behaviours: `die-before-propose`, `die-after-propose` and `die-after-burying` (a dead letter is stored, its
event not given up) kill the process, as with -9, at that point; `wait:<file>` completes when the file is
there; `block:<file>` waits for it without letting go of the loop.
"""

import asyncio
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from mesh.agent._runtime import Runtime
from mesh.agent.definition import Agent
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.bus.credentials import seed_file
from mesh.cli.options import serve
from mesh.settings import Access
from protocol.wire.moves import Move
from tests.dying import die, die_after_storing

_LOOK_S = 0.01


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def block_until(path: Path) -> None:
    """Do what an agent must not: hold the loop."""
    while not path.exists():
        time.sleep(_LOOK_S)


def handler_of(behaviour: str) -> Any:
    """Return the agent's code."""
    kind, _, file = behaviour.partition(":")
    path = Path(file)

    async def handle(turn: Turn) -> Move:
        say(f"began {turn.request}")
        if kind == "die-before-propose":
            die()
        if kind == "block":
            block_until(path)
        while kind == "wait" and not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(_LOOK_S)
        return turn.complete(f"from process {os.getpid()}")

    return handle


FATAL = {"die-after-propose": "mesh.prop.", "die-after-burying": "mesh.dead."}
"""By behaviour: the subjects of what is the last thing that the process stores."""


class Told(Runtime):
    """A runtime that says when it is told to end."""

    async def drain(self, grace_s: float) -> None:
        say("leaving")
        await super().drain(grace_s)


def main() -> None:
    url, keys, name, behaviour, grace = sys.argv[1:]
    agent = Agent(name, handler_of(behaviour))

    def make(bus: Bus) -> Runtime:
        runtime = Told(bus, agent)
        if behaviour in FATAL:
            die_after_storing(bus, FATAL[behaviour])
            runtime._executor._lane._close(math.inf)  # everything is stored
        return runtime

    access = Access(url=url, name=name, credentials=seed_file(Path(keys), name))
    serve(access, make, grace_s=float(grace))


if __name__ == "__main__":
    main()
