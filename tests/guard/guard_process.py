"""A guard that dies as with `kill -9` at a point: `<url> <keys> <identity> <point>`.

A point is `append:<event type>` (that event is stored, nothing after it is done; `append:<event type>#3`: of
the third), `armed` (the timer stands, the message is not acknowledged), `buried` (the dead letter is stored),
`frozen` (the whole mesh is, the message is not acknowledged), `told` (one agent's turn is said to be over,
the next one's is not), `remembered` (the first fact of a conversation is), `ticked` (a schedule's tick is
written, its request is not), a failpoint of the guard
(`guard.heard#3`: as it is passed for the third time; `guard.armed@request.opened`: as soon as it is passed
after such an event was stored, however often messages came twice before; `guard.heard@task.opened#4`: after
four of them were) or `never`.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from mesh.bus import stores
from mesh.bus.connection import Bus, connect
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.event_log import JetStreamLog
from mesh.guard import lane, processor, service, writer
from mesh.guard.service import Guard
from protocol.wire.subjects import FREEZE
from tests.dying import die, die_after_storing

FATAL = {
    "buried": "mesh.dead.",
    "frozen": FREEZE,
    "remembered": "mesh.mem.",
    "ticked": "mesh.conf.tick.",
    "told": "mesh.end.",
}
"""By point: the subjects of what is the last thing that the guard writes."""
STORED = Counter[str]()
"""By type: how many events this guard appended."""
PASSED = Counter[str]()
"""By failpoint: how often this guard came by."""


class FatalLog(JetStreamLog):
    """A log that is the last thing its guard writes to."""

    point = "never"

    async def append(
        self, to: str, request: str, body: bytes, *, after: int, headers: Mapping[str, str] | None = None
    ) -> int:
        seq = await super().append(to, request, body, after=after, headers=headers)
        type_ = msgspec.json.decode(body)["type"]
        STORED[type_] += 1
        if self.point in (f"append:{type_}", f"append:{type_}#{STORED[type_]}"):
            die()
        return seq


def die_at(point: str) -> None:
    """Die at a failpoint of the guard."""

    def passed(name: str) -> None:
        PASSED[name] += 1
        after = [f"{name}@{type_}{times}" for type_, n in STORED.items() for times in ("", f"#{n}")]
        if point in (name, f"{name}#{PASSED[name]}", *after):
            die()

    for module in (processor, writer, lane):
        vars(module)["failpoint"] = passed


def only_ready(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    if event["event"] != "guard_ready":
        raise structlog.DropEvent
    return "guard_ready"


async def main() -> None:
    url, keys, identity, point = sys.argv[1:]
    structlog.configure(processors=[only_ready])
    FatalLog.point = point
    vars(service)["JetStreamLog"] = FatalLog
    if point.startswith("guard."):
        die_at(point)
    if point == "armed":
        arm = stores.arm_schedule

        async def armed(
            bus: Bus, request: str, at_us: int, partitions: int, *, after: int | None = None
        ) -> int:
            seq = await arm(bus, request, at_us, partitions, after=after)
            die()
            return seq

        stores.arm_schedule = armed
    async with await connect(url, name="guard", seed=read_key(seed_file(Path(keys), "guard")).seed) as bus:
        if point in FATAL:
            die_after_storing(bus, FATAL[point])
        await Guard(bus, identity=identity).run()


if __name__ == "__main__":
    asyncio.run(main())
