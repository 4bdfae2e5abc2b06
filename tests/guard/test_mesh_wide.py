"""Freezing the whole mesh: which message is obeyed when several guards hear several of them."""

import asyncio

import msgspec

from mesh.bus.reader import get
from mesh.guard.context import freeze_or_thaw
from protocol.wire.commands import Control, Freeze, Thaw
from protocol.wire.freeze import FreezeEntry, Span
from protocol.wire.subjects import FREEZE
from tests.guard.stage import Stage

HOUR_US = 3_600_000_000


async def entry(stage: Stage) -> FreezeEntry:
    found = await get(await stage.bus("guard"), "CONF", FREEZE)
    return FreezeEntry() if found is None else msgspec.json.decode(found.data, type=FreezeEntry)


async def obey(stage: Stage, control: Control, seq: int, at: int, identity: str = "") -> None:
    bus = await stage.bus("guard", identity)
    assert await freeze_or_thaw(bus, control, "op", "operator", seq, at) is None


async def test_only_a_newer_message_replaces_what_stands(stage: Stage) -> None:
    await stage.bus("admin")
    await obey(stage, Freeze(id="f", by="kim", reason="odd"), 5, 1000)
    assert await entry(stage) == FreezeEntry(
        frozen=True, by="kim", sender="op", reason="odd", since=1000, at=1000, seq=5
    )
    await obey(stage, Freeze(id="g", by="lee"), 6, 2000)
    assert ((await entry(stage)).by, (await entry(stage)).since) == ("lee", 1000)
    await obey(stage, Thaw(id="t"), 7, 3000)
    for seq, at in ((5, 1000), (6, 2000), (7, 3000)):  # each comes again
        await obey(stage, Freeze(id="f"), seq, at)
    spans = (Span(since=1000, until=3000),)
    assert await entry(stage) == FreezeEntry(by="op", sender="op", since=3000, at=3000, seq=7, spans=spans)
    await obey(stage, Freeze(id="h"), 1, HOUR_US)  # the queue was made anew
    assert ((await entry(stage)).frozen, (await entry(stage)).seq) == (True, 1)
    await obey(stage, Thaw(id="u"), 2, HOUR_US + 1)


async def test_guards_that_obey_at_the_same_time_end_with_the_newest(stage: Stage) -> None:
    at = 2 * HOUR_US
    said = [Freeze(id=f"f{n}") if n % 2 else Thaw(id=f"t{n}") for n in range(8)]
    async with asyncio.TaskGroup() as group:
        for number, control in enumerate(said):
            group.create_task(obey(stage, control, 100 + number, at + number, f"g{number}"))
    assert ((await entry(stage)).frozen, (await entry(stage)).seq) == (True, 107)
    await obey(stage, Thaw(id="last"), 200, at + 100)


async def test_an_entry_that_cannot_be_read_is_written_over(stage: Stage) -> None:
    await (await stage.bus("admin")).publish_durable(FREEZE, b"?")
    await obey(stage, Thaw(id="t"), 300, 3 * HOUR_US)
    assert (await entry(stage)).seq == 300
