"""What models cost, from the fleet file to the requests that begin then."""

from pathlib import Path

from mesh.bus.provision import Change
from mesh.fleet.file import FleetFile, parse_fleet
from mesh.fleet.setup import apply
from mesh.testing import LocalBus
from protocol.wire import subjects
from protocol.wire.events import RequestOpened
from protocol.wire.prices import unsaid
from tests.guard.stage import Stage
from tests.servers import until

FILE = 'name = "desk"\nentry = "a"\n[agents.a]\n[clients.c1]\n[operators.op]\n'
WRITTEN = Change("write", subjects.PRICES)


def said(prices: str) -> FleetFile:
    return parse_fleet(FILE + prices)


async def test_prices_that_are_taken_out_of_the_fleet_file_are_gone(tmp_path: Path) -> None:
    priced, bare = said("[prices]\nm = {input = 1, output = 2}\n"), said("")
    async with LocalBus(bare.fleet, tmp_path / "mesh") as mesh:
        stage = Stage(mesh)
        await stage.open()
        admin, guard = await stage.bus("admin"), await stage.guard()

        async def opened() -> RequestOpened:
            request = await (await stage.client()).submit("hello")
            (event,) = await stage.reaches(request, "request.opened")
            assert isinstance(event, RequestOpened)
            return event

        try:
            await apply(admin, bare)
            await stage.ready(guard)
            assert WRITTEN not in await apply(admin, bare)
            assert await apply(admin, priced) == [WRITTEN]
            await until(lambda: bool(guard._context._prices))
            assert (await opened()).work.prices == {"m": {"input": 1, "output": 2, **unsaid(1)}}
            assert await apply(admin, bare, dry_run=True) == [WRITTEN]
            assert await apply(admin, bare) == [WRITTEN]
            await until(lambda: not guard._context._prices)
            event = await opened()
            assert (event.prices, event.work.prices) == ({}, {})
            assert await apply(admin, bare) == []
        finally:
            await stage.close()


async def test_setup_writes_anew_what_guards_cannot_read(tmp_path: Path) -> None:
    file = said("[prices]\nm = {input = 1, output = 2}\n[policies.strict]\nmax_depth = 2\n")
    documents = (subjects.FLEET, subjects.PRICES, subjects.policy("strict"), subjects.policy("default"))
    async with LocalBus(file.fleet, tmp_path / "mesh") as mesh:
        stage = Stage(mesh)
        await stage.open()
        admin, guard = await stage.bus("admin"), await stage.guard()
        try:
            await apply(admin, file)
            await stage.ready(guard)
            for document in documents:
                await admin.publish_durable(document, b"?")
            await until(lambda: len(guard._context._unreadable) == 2)
            assert {change.what for change in await apply(admin, file)} >= set(documents)
            await until(lambda: not guard._context._unreadable)
            for policy in ("default", "strict"):
                request = await (await stage.client()).submit("hello", policy=policy)
                await stage.reaches(request, "request.opened")
            assert await apply(admin, file) == []
        finally:
            await stage.close()
