"""Default sizes follow the store: usual where it is large, halved where it is small, and nothing shrinks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import pytest

from mesh.bus.connection import Bus
from mesh.bus.credentials import seed_file
from mesh.bus.provision import provision
from mesh.bus.reader import Listing, listing
from mesh.bus.roles import quoted
from mesh.bus.sizes import (
    HALVINGS,
    LEAST_BYTES,
    LEAST_FOR_LOG,
    fitted,
    left_for_log,
    small_in_words,
    usual_sizes,
)
from mesh.bus.streams import DEFAULT_STORAGE, MIB, Limits, Storage, stream_table
from mesh.cli.exits import Exit
from mesh.errors import StoreTooSmall
from mesh.fleet.file import parse_fleet
from mesh.ops import health
from mesh.ops.health import Look
from mesh.ops.servers import varz_of
from mesh.testing import EmbeddedBus
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName
from tests.servers import FLEET
from tests.system.terminal import Folder

TABLE, USUAL = stream_table(FLEET), usual_sizes(FLEET, DEFAULT_STORAGE)
NOTHING = Listing({}, frozenset())


async def sizes_in(room: int, there: Listing = NOTHING, storage: Storage = DEFAULT_STORAGE) -> dict[str, int]:
    """Return the sizes that a store with so much room gets, of streams that have one."""

    async def fits(size: int) -> bool:
        return size <= room

    made = await fitted(stream_table(FLEET, storage), usual_sizes(FLEET, storage), there, fits)
    return {name: config["max_bytes"] for name, config in made.items() if config.get("max_bytes", 0) > 0}


def stored(sizes: Mapping[str, int], log: int = 0) -> Listing:
    """Return streams as a server lists them."""
    infos = {name: {"config": {"max_bytes": size}, "state": {"bytes": 0}} for name, size in sizes.items()}
    return Listing({**infos, "LOG": {"config": {"max_bytes": -1}, "state": {"bytes": log}}}, frozenset())


# --- what is chosen ---------------------------------------------------------------------------------


async def test_in_a_store_that_has_room_for_the_log_too_each_stream_has_its_usual_size() -> None:
    assert USUAL["STEPS-a"] == 256 * MIB
    assert await sizes_in(sum(USUAL.values()) + LEAST_FOR_LOG) == USUAL


async def test_else_all_are_halved_until_they_fit_with_room_for_the_log() -> None:
    half = await sizes_in(sum(USUAL.values()) + LEAST_FOR_LOG - 1)
    assert half == {name: max(min(size, LEAST_BYTES), size // 2) for name, size in USUAL.items()}
    for room in range(200 * MIB, sum(USUAL.values()) + LEAST_FOR_LOG, 100 * MIB):
        chosen = await sizes_in(room)
        assert all(LEAST_BYTES <= size <= USUAL[name] for name, size in chosen.items())
        least = {name: min(USUAL[name], max(LEAST_BYTES, USUAL[name] >> HALVINGS)) for name in USUAL}
        total = sum(chosen.values())
        assert total + left_for_log(total) <= room or chosen == least


async def test_a_size_that_the_file_gives_stays_even_if_it_is_the_usual_one() -> None:
    file = parse_fleet(
        'name = "x"\nentry = "a"\n[agents.a]\n[agents.b]\nlimits = { steps_mib = 256 }\n'
        "[clients.c1]\nlimits = { mib = 32 }\n[memory]\nmib = 8\n"
    )
    usual = usual_sizes(file.fleet, file.storage)
    assert {"STEPS-b", "PROP-c1", "MEM-c1"}.isdisjoint(usual)
    assert {"STEPS-a", "PROP-a", "PROP-b", "CTL-c1", "ENDS"} <= usual.keys()
    every = parse_fleet('name = "x"\nentry = "a"\n[agents.a]\n[limits]\nmib = 64\nsteps_mib = 256\n')
    assert {"STEPS-a", "PROP-a"}.isdisjoint(usual_sizes(every.fleet, every.storage))


async def test_a_second_run_chooses_the_same_and_a_larger_store_lets_streams_grow() -> None:
    room = 1500 * MIB
    first = await sizes_in(room)
    assert await sizes_in(room - sum(first.values()), stored(first)) == first
    assert await sizes_in(room - sum(first.values()), stored(first, log=900 * MIB)) == first
    assert await sizes_in(1 << 40, stored(first)) == USUAL


async def test_nothing_shrinks_in_a_store_that_has_become_smaller() -> None:
    assert await sizes_in(0, stored(USUAL)) == USUAL
    grown = stored({name: size for name, size in USUAL.items() if name != "STEPS-e"})
    chosen = await sizes_in(LEAST_FOR_LOG + 40 * MIB, grown)
    assert {name: size for name, size in chosen.items() if size < USUAL[name]} == {"STEPS-e": 32 * MIB}


def test_streams_below_their_usual_size_are_named_in_one_line() -> None:
    assert small_in_words(USUAL, stored(USUAL)) == ""
    words = small_in_words(USUAL, stored({**USUAL, "STEPS-b": 64 * MIB}))
    assert f"1 of {len(USUAL)} streams" in words
    assert "STEPS-b with 64 of 256 MiB" in words


# --- a real server ----------------------------------------------------------------------------------

MANY = msgspec.structs.replace(
    FLEET,
    agents={**FLEET.agents, **{(name := AgentName(f"n{n}")): AgentEntry(name=name) for n in range(20)}},
)


def bounded(directory: Path, size: int, fleet: Fleet = FLEET) -> EmbeddedBus:
    """Return a mesh whose server promises so many bytes."""
    mesh = EmbeddedBus(fleet, directory)
    store = quoted(str(mesh.server.store))
    mesh.server._extra = f"jetstream {{ store_dir: {store}, max_file_store: {size} }}"
    return mesh


@contextlib.asynccontextmanager
async def admin_of(mesh: EmbeddedBus) -> AsyncIterator[Bus]:
    await mesh.server.start()
    try:
        async with mesh.connected_as("admin") as admin:
            yield admin
    finally:
        await mesh.server.kill()


async def limits(admin: Bus) -> dict[str, int]:
    found = (await listing(admin)).streams
    return {
        name: each["config"]["max_bytes"] for name, each in found.items() if each["config"]["max_bytes"] > 0
    }


async def test_many_agents_fit_a_small_store_and_setup_doctor_and_a_later_run_agree(tmp_path: Path) -> None:
    usual = usual_sizes(MANY, DEFAULT_STORAGE)
    assert sum(usual.values()) > 8 << 30
    mesh = bounded(tmp_path, 3 << 30, MANY)
    async with admin_of(mesh) as admin:
        await provision(admin, MANY)
        first = await limits(admin)
        assert first["STEPS-n7"] == 32 * MIB, "an eighth"
        assert (await admin.api("STREAM.NAMES"))["streams"].count("ROOM") == 0
        assert await provision(admin, MANY) == []
        assert await provision(admin, MANY, dry_run=True) == []
        assert await limits(admin) == first
        look = Look(admin, await varz_of(mesh.server.monitor_url))
        assert [each.state for each in await health.run("limits", look)] == ["ok"]
        assert "below their usual size" in small_in_words(usual, await listing(admin))
    larger = bounded(tmp_path, 20 << 30, MANY)
    async with admin_of(larger) as admin:
        assert await provision(admin, MANY, dry_run=True) == [], "no run of doctor asks for more"
        assert {change.action for change in await provision(admin, MANY)} == {"update"}
        assert await limits(admin) == usual
    smaller = bounded(tmp_path, 20 << 30, MANY)
    async with admin_of(smaller) as admin:
        assert await provision(admin, MANY) == []
        assert await limits(admin) == usual


async def test_a_store_that_has_not_even_room_for_the_least_is_refused_with_the_sum(tmp_path: Path) -> None:
    async with admin_of(bounded(tmp_path, 100 * MIB, MANY)) as admin:
        with pytest.raises(StoreTooSmall, match=r"of \d+ that the new streams reserve together"):
            await provision(admin, MANY)
        assert not (await admin.api("STREAM.NAMES"))["streams"]


async def test_what_is_given_is_kept_and_the_rest_makes_room(tmp_path: Path) -> None:
    given = Storage(limits_of={"a": Limits(step_bytes=1 << 30)})
    async with admin_of(bounded(tmp_path, 3 << 30)) as admin:
        await provision(admin, FLEET, given)
        made = await limits(admin)
        assert made["STEPS-a"] == 1 << 30
        assert made["STEPS-b"] < 256 * MIB
        assert await provision(admin, FLEET, given) == []


FILE = """
name = "test"
entry = "a"
[agents.a]
[agents.b]
limits = { steps_mib = 256 }
[clients.c1]
"""


async def test_setup_says_in_one_line_that_streams_are_smaller_each_time(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "mesh.toml").write_text(FILE)
    mesh = bounded(tmp_path / "bus", 2 << 30)
    async with admin_of(mesh) as admin:
        key = {
            "NATS_URL": mesh.url,
            "MESH_NAME": "admin",
            "MESH_CREDENTIALS": str(seed_file(tmp_path / "bus" / "keys", "admin")),
        }
        for _ in range(2):
            done = await asyncio.to_thread(folder.mesh, "setup", **key)
            assert done.status == Exit.DONE, done
            (line,) = [line for line in done.err.splitlines() if "below their usual size" in line]
            assert "the store is small" in line
        assert "is up to date" in done.out
        made = await limits(admin)
        assert made["STEPS-b"] == 256 * MIB, "the file gives it"
        assert made["STEPS-a"] < 256 * MIB
        doctor = await asyncio.to_thread(folder.mesh, "doctor", "--monitor", mesh.server.monitor_url, **key)
        lines = [line for line in doctor.out.splitlines() if line.split()[1] in ("streams:", "limits:")]
        assert [line.split()[0] for line in lines] == ["ok", "ok"], doctor
