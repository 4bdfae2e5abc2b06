"""`python -m tests.drill.lost_time`: a mesh is backed up at work, loses its server for good, and is restored.

Each cut is a mesh of its own. At a drawn moment it is backed up under load. Work goes on until a drawn
number of deeds is done that the backup does not have. Then everything is killed with SIGKILL, and the store
is thrown away. A new store is filled from the backup, in every second cut beside services that run already.
Clients submit again what the log does not have, and people answer what they are asked. In the end every
request has to be over, and the ledger has to have each effect once.
"""

import asyncio
import contextlib
import os
import random
import secrets
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.roles import ADMIN
from mesh.cli.exits import EPILOG, Exit, Leave, ReportingGroup, ended_by_signals
from mesh.cli.options import A_PATH, framed, run_quietly
from mesh.cli.output import emit, remark, say
from mesh.client import Client
from mesh.errors import BusError
from mesh.local.fleet import LocalFleet
from mesh.local.project import data_environment
from mesh.ops.backup import backup
from mesh.ops.restore import restore
from protocol.wire.commands import Submit
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.ids import request_id
from tests.drill import ledger, results
from tests.drill.evidence import Deed
from tests.drill.fleet import drill_fleet
from tests.drill.people import People
from tests.drill.processes import Processes
from tests.drill.stories import Story, story
from tests.drill.watch import Watch
from tests.servers import ROOT

COMMAND = "python -m tests.drill.lost_time"
STORIES = (
    *("plain", "every-tool", "chain", "there-and-back", "retried", "broken", "withheld"),
    *("asks-client", "asks-human", "approved", "escalates", "delegates", "nested"),
)
"""Stories in which each call is made by one turn, whatever is lost: so each effect has one key."""
MOMENTS = ("request.opened", "handoff.admitted", "turn.suspended", "deed")
"""When a mesh is backed up: after so many events of a type, or deeds."""
LEASE_S = 2.0
_CONCURRENCY = 32
_LOOK_S = 0.02
_AGAIN_S = 0.1
STILL_S = 180.0
"""How long a restored mesh may append nothing while a request is open (s)."""
_PEOPLE = ("app", "ops", "audit")


class Moment(NamedTuple):
    """When a mesh is backed up and killed."""

    what: str
    """One of `MOMENTS`."""
    after: int
    """The backup begins after so many of them."""
    lost: int
    """Deeds after the backup until everything is killed."""
    beside: bool
    """True if services run while the store is filled."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one cut, or several, came to."""

    requests: int = 0
    after_backup: int = 0
    """Requests that the backup did not have."""
    lost_deeds: int = 0
    """Deeds between the backup and the kill."""
    events: int = 0
    """In the log, at the end."""
    deeds: int = 0
    """In the ledger, at the end."""
    doubts: int = 0
    """Effects that a person settled after the restore."""
    lost: tuple[str, ...] = ()
    """Requests that did not come to their end, with what is known of it."""
    twice: tuple[str, ...] = ()
    """Effects that happened under two keys, or that their tool would have told about."""
    silent: tuple[str, ...] = ()
    """Effects that are `once` and were begun again."""

    @property
    def passed(self) -> bool:
        return not (self.lost or self.twice or self.silent)


def moment(rng: random.Random, requests: int, cut: int) -> Moment:
    """Draw when a mesh with so many requests is backed up and killed."""
    count = rng.randint(1, max(1, requests // 3))
    return Moment(rng.choice(MOMENTS), count, rng.randint(1, max(1, requests // 2)), bool(cut % 2))


def check(deeds: Iterable[Deed]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the effects that happened twice, and those that are `once` and were begun again.

    An idempotent effect may be asked for under its key as often as anybody likes.
    """
    keys: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    times = Counter[tuple[str, str, str]]()
    kinds: dict[tuple[str, str, str], str] = {}
    for deed in deeds:
        which = (deed.request, deed.tool, deed.call)
        keys[which].add(deed.key)
        times[which] += 1
        kinds[which] = deed.kind
    twice = [
        f"{' '.join(which)}: {times[which]} deeds under {len(keys[which])} keys"
        for which, kind in kinds.items()
        if (kind == "idempotent" and len(keys[which]) > 1) or (kind == "reconcilable" and times[which] > 1)
    ]
    silent = [
        f"{' '.join(which)}: {times[which]} deeds"
        for which, kind in kinds.items()
        if kind == "once" and times[which] > 1
    ]
    return tuple(twice), tuple(silent)


# --- a mesh with people in it -----------------------------------------------------------------------


class _Crew:
    """Clients, people and a reader of the log on a mesh, until it is killed or its requests are over.

    Args:
        buses: connections of the client, the operator and the viewer.
        stories: by request; those that are sent are added.
    """

    def __init__(
        self, buses: Sequence[Bus], processes: Processes, book: Path, stories: dict[str, Story]
    ) -> None:
        client, operator, viewer = buses
        self.seen = Counter[str]()
        """Events by type."""
        self._changed = asyncio.Event()
        self._book, self._stories, self._bus = book, stories, client
        self.watch = Watch(JetStreamLog(viewer), self._hear, decided=True)
        self.people = People(client, operator, book, processes, stories, self.watch.give_up)

    def _hear(self, event: AnyEvent) -> None:
        self.seen[type_of(event)] += 1
        self.people.hear(event)
        self._changed.set()

    async def send(self, work: Mapping[str, Story], held: Callable[[str], bool]) -> None:
        """Submit these requests, some at a time; each makes room for the next as it comes to its end."""
        client, slots = await Client.on(self._bus, self._bus.name), asyncio.Semaphore(_CONCURRENCY)

        async def one(request: str, asked: Story) -> None:
            async with slots:
                submit = Submit(
                    text=asked.text,
                    to=None,
                    facts=asked.all_facts,
                    constraints=asked.constraints,
                    policy=asked.policy,
                )
                self._stories[request] = asked
                while not held(request):
                    try:
                        await client.submit_whole(submit, request=request)
                        break
                    except BusError:
                        await asyncio.sleep(_AGAIN_S)  # the same id and bytes: it is the same request
                await self.watch.until(request)

        async with asyncio.TaskGroup() as tasks:
            for request, asked in work.items():
                tasks.create_task(one(request, asked))

    async def until(self, what: str, count: int, work: asyncio.Task[None]) -> None:
        """Wait until there are so many events of a type, or deeds, or until all work is over."""
        while not work.done() and count > self._count(what):  # noqa: ASYNC110 - tools write the ledger
            await asyncio.sleep(_LOOK_S)

    def _count(self, what: str) -> int:
        return deeds_in(self._book) if what == "deed" else self.seen[what]

    async def over(self, work: asyncio.Task[None], still_s: float) -> None:
        """Wait until all work is over, or until nothing was appended for `still_s`."""
        while not work.done():
            self._changed.clear()
            change = asyncio.create_task(self._changed.wait())
            either: set[asyncio.Task[Any]] = {work, change}
            done, _ = await asyncio.wait(either, timeout=still_s, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            if not done:
                return
        work.result()

    def left(self, request: str) -> str:
        """Say how far a request came that did not end, and what people could not do for it."""
        undone = [each.why for each in self.people.undone if each.request == request]
        return ", ".join((f"{request}: after {self.watch.last(request)}", *undone))


@contextlib.asynccontextmanager
async def _crew(
    fleet: LocalFleet, processes: Processes, book: Path, stories: dict[str, Story]
) -> AsyncIterator[_Crew]:
    async with contextlib.AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(await fleet.connect_as(name)) for name in _PEOPLE]
        crew = _Crew(buses, processes, book, stories)
        tasks = [asyncio.create_task(each) for each in (crew.watch.run(), crew.people.run())]
        try:
            yield crew
        finally:
            await _cancelled(*tasks)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# --- one cut ----------------------------------------------------------------------------------------


async def cut(at: Moment, work: Sequence[Story], folder: Path, *, still_s: float = STILL_S) -> Found:
    """Run one cut in a folder of its own. Raises what breaks it: then it proved nothing."""
    book, stories = folder / "ledger.jsonl", dict[str, Story]()
    environment = {ledger.VARIABLE: str(book), **data_environment(folder)}
    (folder / "failpoints").mkdir(parents=True)
    fleet = LocalFleet(
        drill_fleet(LEASE_S, LEASE_S / 2),
        folder / "mesh",
        guards=2,
        sync_always=False,
        environment=environment,
        search=(ROOT,),
    )
    async with fleet:
        processes = Processes(fleet, folder / "failpoints")
        async with _crew(fleet, processes, book, stories) as crew, await fleet.connect_as(ADMIN) as admin:
            sent = {_fresh_id(): each for each in work}
            sending = asyncio.create_task(crew.send(sent, lambda _: False))
            await crew.until(at.what, at.after, sending)
            known = deeds_in(book)
            await backup(admin, folder / "backup")
            await crew.until("deed", known + at.lost, sending)
            await _killed(fleet)
            await _cancelled(sending)
        lost_deeds = deeds_in(book) - known
        await asyncio.to_thread(shutil.rmtree, fleet.server.store)
        await fleet.server.start()
        if at.beside:
            await _started(fleet)
        async with await fleet.connect_as(ADMIN) as admin:
            await restore(admin, folder / "backup")
            held = {each.subject.rpartition(".")[2] async for each in JetStreamLog(admin).follow(tail=False)}
        if not at.beside:
            await _started(fleet)
        async with _crew(fleet, processes, book, stories) as crew:
            sending = asyncio.create_task(crew.send(sent, held.__contains__))
            await crew.over(sending, still_s)
            lost = tuple(crew.left(request) for request in sent if not crew.watch.rests(request))
            await _cancelled(sending)
        deeds = ledger.deeds(book)
        twice, silent = check(deeds)
        return Found(
            requests=len(sent),
            after_backup=len(sent.keys() - held),
            lost_deeds=lost_deeds,
            events=sum(crew.seen.values()),
            deeds=len(deeds),
            doubts=crew.seen["effect.doubted"],
            lost=lost,
            twice=twice,
            silent=silent,
        )


def _fresh_id() -> str:
    return request_id(_PEOPLE[0], time.time_ns() // 1_000_000, os.urandom(10))


def deeds_in(book: Path) -> int:
    """Return how many deeds a ledger has."""
    return book.read_bytes().count(b"\n") if book.exists() else 0


async def _killed(fleet: LocalFleet) -> None:
    """Kill the server, the guards and the agents."""
    for service in fleet.services.values():
        service.signal(signal.SIGKILL)
    await fleet.server.kill()
    await asyncio.gather(*(service.ended() for service in fleet.services.values()))


async def _started(fleet: LocalFleet) -> None:
    for service in fleet.services.values():
        await service.start()


# --- several ----------------------------------------------------------------------------------------


async def cuts(
    count: int,
    requests: int,
    seed: int,
    folder: Path,
    tell: Callable[[str], None] = lambda line: None,
    *,
    first: int = 0,
    keep: Path | None = None,
) -> Found:
    """Run so many cuts, each with a seed of its own; return their sum. Each folder is removed afterwards.

    Args:
        first: the number of the first of them.
        keep: where the folder of a cut that found something goes.
    """
    found = list[Found]()
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {number}")
        at = moment(rng, requests, number)
        work = [story(STORIES[each % len(STORIES)], rng) for each in range(requests)]
        rng.shuffle(work)
        place = folder / str(number)
        one = await cut(at, work, place)
        found.append(one)
        how = "beside services" if at.beside else "before services"
        tell(
            f"cut {number}: backup after {at.after} {at.what}, {one.lost_deeds} deeds and {one.after_backup} "
            f"requests lost, restored {how}, {one.doubts} doubts: {_sums(one)}"
        )
        if keep is not None and not one.passed:
            await asyncio.to_thread(shutil.copytree, place, keep / f"{seed}-{number}")
        await asyncio.to_thread(shutil.rmtree, place)
    return _added(found)


def _added(found: Sequence[Found]) -> Found:
    fields = Found.__struct_fields__
    whole = {name: getattr(Found(), name) for name in fields}
    for each in found:
        whole = {name: whole[name] + getattr(each, name) for name in fields}
    return Found(**whole)


def _line(found: Found, seed: int) -> results.Run:
    """Return the line of a cut in the book of runs."""
    twice = len(found.twice) + len(found.silent)
    return results.Run(
        date=results.today(),
        commit=results.commit(),
        seed=seed,
        servers=1,
        requests=found.requests,
        faults={"server-lost": 1},
        steps=found.events + found.deeds + 1,
        lost=len(found.lost),
        duplicated=twice,
        in_doubt=0,
        breaches=len(found.lost) + twice,
    )


def _sums(found: Found) -> str:
    return f"{len(found.lost)}/{len(found.twice)}/{len(found.silent)}"


@click.group(
    COMMAND,
    cls=ReportingGroup,
    epilog=EPILOG,
    invoke_without_command=True,
    subcommand_metavar="",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--cuts", "count", type=click.IntRange(min=1), default=2, show_default=True, help="Meshes.")
@click.option(
    "--requests", type=click.IntRange(min=1), default=30, show_default=True, help="Requests in each."
)
@click.option("--seed", type=int, help="What is drawn; else another each time.")
@click.option(
    "--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first cut."
)
@click.option("--keep", type=A_PATH, help="Leave what a cut that found something wrote in this directory.")
@click.option("--record", type=A_PATH, help="Add a line for each cut to this book of runs.")
@framed
def app(
    *,
    count: int,
    requests: int,
    seed: int | None,
    first: int,
    keep: Path | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Lose a mesh at work, restore it from a backup, and look for what is lost or done twice."""
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    remark(f"{COMMAND} --cuts {count} --requests {requests} --seed {chosen} --first {first}")
    run_quietly(_run(count, requests, chosen, first, keep, record, as_json))


async def _run(
    count: int,
    requests: int,
    seed: int,
    first: int,
    keep: Path | None,
    record: Path | None,
    as_json: bool,
) -> None:
    each = list[Found]()
    with tempfile.TemporaryDirectory(prefix="mesh-lost-", ignore_cleanup_errors=True) as made:
        async with ended_by_signals():
            for number in range(first, first + count):
                one = await cuts(1, requests, seed, Path(made), remark, first=number, keep=keep)
                each.append(one)
                if record is not None:
                    results.record(record, _line(one, seed))
    found = _added(each)
    if as_json:
        emit(found)
    else:
        for line in (*found.lost, *found.twice, *found.silent):
            say(line)
        say(
            f"{count} cuts, {found.requests} requests, {found.lost_deeds} deeds of lost time, {found.doubts} "
            f"doubts; lost/done twice/begun again without a doubt: {_sums(found)}"
        )
    if not found.passed:
        raise Leave(Exit.FAILED)


if __name__ == "__main__":
    app()
