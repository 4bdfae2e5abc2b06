"""Commands for many requests: what one such command costs, as a process of its own.

`python -m bench.bulk [REQUESTS]`. One guard decides; nobody serves the agents. Before each command the index
of requests is brought up to date, as the page or an earlier command does. Printed are the processor's and the
wall's seconds from the start of the process to its end.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.place import CLIENT, FLOODED, OPERATOR, Site, site
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import ADMIN
from mesh.service import logs
from protocol.wire import codec, subjects
from protocol.wire.commands import MoveProposed, Submit, Thaw
from protocol.wire.events import AnyEvent, EscalationRaised
from protocol.wire.ids import TurnId
from protocol.wire.moves import Escalate

_AT_ONCE = 64


class Took(NamedTuple):
    cpu_s: float
    wall_s: float
    said: str


def given(at: Site, name: str, *words: str) -> Took:
    """Run `mesh` as `name`, and return what it took. Raises RuntimeError unless it ends well."""
    environment = os.environ | {
        "NATS_URL": at.at.url,
        "MESH_NAME": name,
        "MESH_CREDENTIALS": str(at.at.keys / f"{name}.nk"),
    }
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        output = [(os.POSIX_SPAWN_DUP2, said.fileno(), number) for number in (1, 2)]
        command = [sys.executable, "-m", "mesh", *words]
        pid = os.posix_spawn(sys.executable, command, environment, file_actions=output)
        _, status, used = os.wait4(pid, 0)
        said.seek(0)
        text = said.read().decode()
    if status:
        raise RuntimeError(f"{' '.join(words)}: {os.waitstatus_to_exitcode(status)}\n{text}")
    return Took(used.ru_utime + used.ru_stime, time.perf_counter() - began, text.splitlines()[-1])


async def until(at: Site, requests: int, wanted: Callable[[AnyEvent], bool]) -> list[AnyEvent]:
    """Wait until so many events fit; return the events."""
    while True:
        log = JetStreamLog(at.admin).follow(tail=False)
        found = [event async for stored in log if wanted(event := codec.decode_event(stored.data))]
        if len(found) >= requests:
            return found
        await asyncio.sleep(0.5)


async def stored(bus: Bus, messages: Sequence[tuple[str, bytes]]) -> None:
    """Store messages, several at a time."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def store(subject: str, body: bytes) -> None:
        async with room:
            await bus.publish_durable(subject, body)

    await asyncio.gather(*(store(*message) for message in messages))


async def measure(directory: Path, requests: int) -> dict[str, Took]:
    """Return what each command took for so many requests."""
    took = dict[str, Took]()
    async with site(directory, fleet=FLOODED) as at:
        await at.start_guard()
        names = [at.client.new_id() for _ in range(requests)]
        submit = codec.encode(Submit(text="Please pay it back"))
        async with await at.at.connect_as(CLIENT) as bus:
            await stored(bus, [(subjects.prop(CLIENT, name), submit) for name in names])
        opened = await until(at, requests, lambda event: event.n == 0)
        async with await at.at.connect_as(OPERATOR) as bus:
            order = codec.encode(Thaw(id="x", by="bench"))  # a dead letter each: nothing is frozen
            await stored(bus, [(subjects.ctl(OPERATOR, name), order) for name in names])

        async def command(name: str, *words: str, who: str = OPERATOR) -> None:
            await asyncio.to_thread(given, at, OPERATOR, "request", "ls", "--all")
            took[name] = await asyncio.to_thread(given, at, who, *words, "--yes")

        everything = ("--where", f"client={CLIENT}")
        await command("request freeze", "request", "freeze", *everything)
        await command("dead resend", "dead", "resend", *everything, who=ADMIN)
        async with await at.at.connect_as("a") as bus:
            please = Escalate(summary="a person, please")
            moves = {
                event.request: MoveProposed(turn=TurnId(event.id), round=0, move=please) for event in opened
            }
            await stored(
                bus, [(subjects.prop("a", name), codec.encode(move)) for name, move in moves.items()]
            )
        await until(at, requests, lambda event: isinstance(event, EscalationRaised))
        await command("human resolve --again", "human", "resolve", "--again", *everything)
        await command("request cancel", "request", "cancel", *everything)
        await command("request rerun", "request", "rerun", *everything)
    return took


def main() -> None:
    logs.silence()
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with tempfile.TemporaryDirectory(prefix="bench-bulk-") as folder:
        os.chdir(folder)  # the index of requests lies where a command is given
        took = asyncio.run(measure(Path(folder) / "mesh", requests))
    for name, each in took.items():
        sys.stdout.write(f"{name}: {each.cpu_s:.2f} s of CPU, {each.wall_s:.1f} s  ({each.said})\n")


if __name__ == "__main__":
    main()
