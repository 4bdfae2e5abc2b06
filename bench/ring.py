"""The yardstick: what nats-py itself can do with the same messages, and nothing but the messages.

Per request, in the same process layout, accounts, sizes and sync setting as the mesh's side:

* 14 durable publishes: submit, opened, timer, four proposals with their verdicts, a last proposal with
  the answer and what the log keeps back from the client. Each is acknowledged by JetStream before the
  message that it follows from is acknowledged.
* The guard only routes, by the sender's name in the subject; bodies are constant bytes that nobody decodes.
  No rules, no state, no ids of events, no hash chain, no compare-and-set, no headers, no partitions; the
  timer's message is stored like any other. The guard publishes opened and timer at once.
* One standing pull for hundreds of messages with a callback (a push consumer costs the same, and does not
  cross accounts), a task for each message, `publish_async`, which is nats-py's cheapest acknowledged publish.
* The driver's answer is the stored event itself, republished with its body: no second look.

A member is `python -m bench.ring driver|guard|AGENT URL KEYS SIZES`.
"""

import asyncio
import contextlib
import functools
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import nats
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from bench.crew import Crew, obey
from bench.load import Sizes, Task, run
from bench.place import AGENTS, CLIENT, Place
from mesh.bus.connection import Bus
from mesh.bus.credentials import read_key, seed_file
from mesh.bus.roles import ADMIN, GUARD, inbox_prefix
from mesh.service.run import collect_rarely
from protocol.wire.ids import NOBODY

DRIVER = "driver"
_NEXT = dict(itertools.pairwise((CLIENT, *AGENTS, CLIENT)))
_BATCH = 500
_EXPIRES_NS = 30 * 10**9

_STREAMS: dict[str, dict[str, Any]] = {
    "PROP": {"subjects": ["mesh.prop.*.*"], "retention": "workqueue"},
    "LOG": {
        "subjects": ["mesh.evt.*.*"],
        "republish": {"src": f"mesh.evt.{CLIENT}.*", "dest": f"mesh.note.{CLIENT}.{{{{wildcard(1)}}}}"},
    },
    "TIMER": {"subjects": ["mesh.timer.at.*"]},
}


@contextlib.asynccontextmanager
async def ring(place: Place, directory: Path, sizes: Sizes) -> AsyncIterator[Crew]:
    """Make the ring's streams at `place` and start the ring on it."""
    async with await place.connect_as(ADMIN) as admin:
        await _provision(admin)
    told = msgspec.json.encode(sizes).decode()
    async with Crew(directory) as crew:
        for roles in ((GUARD, *AGENTS), (DRIVER,)):
            await crew.start_all("bench.ring", roles, place.url, str(place.keys), told)
        yield crew


async def _provision(admin: Bus) -> None:
    for name, own in _STREAMS.items():
        await admin.api(f"STREAM.CREATE.{name}", {"name": name, "storage": "file", **own})
    await _consumer(admin, "PROP", "g0", "mesh.prop.>")
    for agent in AGENTS:
        await _consumer(admin, "LOG", f"in-{agent}", f"mesh.evt.{agent}.*")


async def _consumer(admin: Bus, stream: str, name: str, subject: str) -> None:
    config: dict[str, Any] = {"durable_name": name, "ack_policy": "explicit", "filter_subject": subject}
    config |= {"max_ack_pending": 1000, "ack_wait": 30 * 10**9}
    body = {"stream_name": stream, "config": config, "action": "create"}
    await admin.api(f"CONSUMER.CREATE.{stream}.{name}", body)


# --- the members ----------------------------------------------------------------------------------


_bytes = functools.cache(b"x".__mul__)


async def _publish(stream: JetStreamContext, subject: str, size: int) -> asyncio.Future[Any]:
    """Publish constant bytes; return what will be their acknowledgement."""
    return await stream.publish_async(subject, _bytes(size))


async def _pull(bus: Nats, stream: str, consumer: str, handle: Callable[[Msg], Awaitable[None]]) -> None:
    """Have `handle` run, as a task each, for whatever comes; never wait for a single message."""
    inbox, received = bus.new_inbox(), 0
    tasks: set[asyncio.Task[None]] = set()
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"

    async def more(batch: int) -> None:
        body = msgspec.json.encode({"batch": batch, "expires": _EXPIRES_NS})
        await bus.publish(subject, body, reply=inbox)

    async def take(message: Msg) -> None:
        nonlocal received
        if not message.reply:  # a pull that waited for long enough
            await more(_BATCH)
            return
        received += 1
        if received % (_BATCH // 2) == 0:
            await more(_BATCH // 2)
        task = asyncio.ensure_future(handle(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await bus.subscribe(inbox, cb=take)
    await more(_BATCH)


async def _agent(bus: Nats, name: str, sizes: Sizes) -> None:
    stream, size = bus.jetstream(), sizes.proposals[name]

    async def handle(message: Msg) -> None:
        request = message.subject.rpartition(".")[2]
        await (await _publish(stream, f"mesh.prop.{name}.{request}", size))
        await message.ack()

    await _pull(bus, "LOG", f"in-{name}", handle)
    await obey()


async def _guard(bus: Nats, sizes: Sizes) -> None:
    stream = bus.jetstream()

    async def handle(message: Msg) -> None:
        _, _, sender, request = message.subject.split(".")
        to = _NEXT[sender]
        started = []
        if to == CLIENT and NOBODY in sizes.events:
            started.append(await _publish(stream, f"mesh.evt.{NOBODY}.{request}", sizes.events[NOBODY]))
        started.append(await _publish(stream, f"mesh.evt.{to}.{request}", sizes.events[to]))
        if sender == CLIENT:
            started.append(await _publish(stream, f"mesh.timer.at.{request}", sizes.timer))
        for stored in started:
            await stored
        await message.ack()

    await _pull(bus, "PROP", "g0", handle)
    await obey()


async def _drive(bus: Nats, sizes: Sizes) -> None:
    stream, numbers = bus.jetstream(), itertools.count()
    waiting: dict[str, asyncio.Future[None]] = {}

    async def answer(message: Msg) -> None:
        waiting.pop(message.subject.rpartition(".")[2]).set_result(None)

    await bus.subscribe(f"mesh.note.{CLIENT}.*", cb=answer)
    await bus.flush()

    async def one() -> None:
        request = f"{CLIENT}_{next(numbers):026}"
        answered = waiting[request] = asyncio.get_running_loop().create_future()
        await (await _publish(stream, f"mesh.prop.{CLIENT}.{request}", sizes.proposals[CLIENT]))
        await answered

    async def task(told: Any) -> Any:
        return await run(one, msgspec.convert(told, Task))

    await obey(task)


async def _member(role: str, url: str, keys: Path, sizes: Sizes) -> None:
    name = CLIENT if role == DRIVER else role
    bus = await nats.connect(
        url, nkeys_seed_str=read_key(seed_file(keys, name)).seed, inbox_prefix=inbox_prefix(name)
    )
    try:
        if role == DRIVER:
            await _drive(bus, sizes)
        elif role == GUARD:
            await _guard(bus, sizes)
        else:
            await _agent(bus, name, sizes)
    finally:
        await bus.close()


if __name__ == "__main__":
    collect_rarely()  # as the mesh's services do
    told = msgspec.json.decode(sys.argv[4], type=Sizes)
    asyncio.run(_member(sys.argv[1], sys.argv[2], Path(sys.argv[3]), told))
