"""The page: how long a browser waits for a long request, and for a page of a long list of requests.

The long request goes to and fro between two agents as deep as a policy may let it; between its hops an
operator freezes and thaws it. The time is from the click to the first paint. Server, page and browser
(Debian's chromium, without a window) run on this machine.

The list is filled with made-up rows by `python -m bench.page ROWS FOLDER`; a folder that is filled already is
measured as it is. Both the query and the whole answer are timed, under each filter: the page is served on
loopback, over a mesh of its own, and asked as a browser asks it.
"""

import asyncio
import contextlib
import hashlib
import itertools
import os
import random
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import httpx
from playwright.async_api import Browser, async_playwright

from bench.figures import Figure, Target, spread
from bench.growth import long_story
from bench.place import FLOODED, OPERATOR, place
from bench.stories import Line, fill, fresh_id
from mesh.bus.roles import ADMIN
from mesh.fleet.setup import apply
from mesh.ops.hops import OPEN, HopCount, RefusalCount, RequestCounts, bucket_of
from mesh.ops.index import RequestIndex
from mesh.ops.rows import COSTS, IndexRow, Listed, words_of
from mesh.ops.statistics import statistics
from mesh.ops.where import Clause, filter_from
from mesh.testing import InMemoryGuard
from mesh.ui import Options, keys_in, serving
from mesh.ui.requests import PAGE
from protocol.wire.commands import Freeze, Thaw

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
PAINT_MS = 2_000.0
_POLICY = "long"
_HOPS = 1_000
_FLEET = FLOODED.model_copy(update={"policies": {_POLICY: {"max_depth": _HOPS}}})


def long_request(events: int) -> list[Line]:
    """Return the events of one request, as a guard would have written them."""
    request = fresh_id(1)
    guard = InMemoryGuard(_FLEET.fleet, _FLEET.rules, request=request)
    guard.submit("A request that takes its time", policy=_POLICY)
    pauses = max(0, events - _HOPS) // _HOPS // 2 + 1
    for number, move in enumerate(itertools.islice(long_story(), _HOPS)):
        for pause in range(pauses):
            name = f"pause-{number}-{pause}"
            guard.say(Freeze(id=name, by="Ada", reason=f"look {number}"), OPERATOR)
            guard.say(Thaw(id=f"{name}-over", by="Ada"), OPERATOR)
        guard.move(move)
        if len(guard.events) >= events:
            break
    return [Line(event.to, request, body) for event, body in zip(guard.events, guard.bodies, strict=True)]


async def pages(directory: Path, *, events: int, rounds: int) -> list[Figure]:
    """Measure the first paint, and when the answer was there: the page's own part of it."""
    lines = long_request(events)[:events]
    async with place(directory / "mesh", fleet=_FLEET, sync_always=False) as at:
        async with await at.connect_as(ADMIN) as admin:
            await apply(admin, _FLEET)
            await fill(admin, lines)
        keys = keys_in(at.url, at.keys, reader=OPERATOR)
        async with (
            serving(keys, Options(store=directory / "store")) as address,
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            try:
                took = [
                    await _opened(browser, f"{address}/requests/{lines[0].request}") for _ in range(rounds)
                ]
            finally:
                await browser.close()
    name = f"page of a request of {len(lines):,} events"
    answers, paints = zip(*took, strict=True)
    return [
        Figure(f"{name}: first paint", "ms", spread(paints), target=Target("at most", PAINT_MS)),
        Figure(f"{name}: answered", "ms", spread(answers)),
    ]


_FIRST_PAINT = """new Promise(resolve => new PerformanceObserver(list => {
    const [paint] = list.getEntriesByName('first-contentful-paint');
    if (paint) resolve(paint.startTime);
}).observe({type: 'paint', buffered: true}))"""


async def _opened(browser: Browser, address: str) -> tuple[float, float]:
    """Return when the answer had come and when it was first painted, ms after the request for it."""
    context = await browser.new_context()
    try:
        page = await context.new_page()
        await page.goto(address)
        # Waited for by an observer: waiting for an expression would be `eval`, which the page's own
        # policy forbids as soon as it is asked a second time.
        painted: float = await page.evaluate(_FIRST_PAINT)
        answered: float = await page.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
        return answered, painted
    finally:
        await context.close()


# --- the list of requests --------------------------------------------------------------------------

_ROUNDS = 5
_AT_ONCE = 5_000
_APART = 2_500_000
"""Between two requests, µs: 1,000,000 of them span 29 days."""
_AGENTS = ("triage", "billing", "refunds", "legal", "tech")
_STATES = {"completed": 88, "failed": 4, "refused": 4, "open": 2, "human": 1, "expired": 1}


def rows(count: int) -> Iterator[tuple[int, IndexRow]]:
    """Yield so many requests, each with the place of its first event: six events; the last one is of now."""
    chance = random.Random(1)
    began = time.time_ns() // 1_000 - count * _APART
    vocabulary = [f"word{number}" for number in range(5_000)]
    for number in range(1, count + 1):
        status = chance.choices(tuple(_STATES), tuple(_STATES.values()))[0]
        cost = int(chance.lognormvariate(16, 2))
        names, client = chance.sample(_AGENTS, 2), chance.choice(("app", "web", "mail"))
        rule = chance.choice(("max_visits", "max_depth", "actions")) if chance.random() < 0.05 else ""
        text = f"{' '.join(chance.choices(vocabulary, k=12))} please refund"
        tags = {f"status:{status}", f"client:{client}", *(f"agent:{name}" for name in names)}
        tags |= ({f"rule:{rule}"} if rule else set()) | ({"status:open"} if status == "human" else set())
        tags |= {f"cost:{power}" for power in COSTS if cost >= 10**power}
        counts = _counts(chance, (client, *names), rule, cost, is_over=status not in ("open", "human"))
        listed = Listed(
            hops=len(counts.hops),
            depth=1,
            request=f"{client}_{number:026d}",
            last=number * 6 + 5,
            status=status,
            holder="",
            client=client,
            opened=began + number * _APART,
            at=began + number * _APART + 500,
            events=6,
            type=f"request.{status}",
            nano_dollars=cost,
            tokens=cost // 1_000,
            model_calls=3,
            refusals=int(bool(rule)),
            rule=rule,
            trail=" → ".join(names),
            text=text,
        )
        yield number * 6, IndexRow(listed, frozenset(tags), words_of(text), counts)


def _counts(
    chance: random.Random, names: tuple[str, ...], rule: str, cost: int, *, is_over: bool
) -> RequestCounts:
    """Return two hops, a third in one request of ten, and the refusal if there was one."""
    edges = list(itertools.pairwise(names))
    edges += [(names[-1], names[-2])] if chance.random() < 0.1 else []
    took = [int(chance.lognormvariate(15, 1.5)) if is_over else 0 for _ in edges]
    hops = [
        HopCount(
            giver, taker, bucket_of(us) if is_over else OPEN, 1, us, us // 3, 1, us // 9, cost // len(edges)
        )
        for (giver, taker), us in zip(edges, took, strict=True)
    ]
    refusals = [RefusalCount(rule, names[-2], names[-1], 1)] if rule else []
    return RequestCounts(1, 0, tuple(hops), tuple(refusals))


FILTERS: Mapping[str, Mapping[str, str]] = {
    "all": {},
    "status open": {"status": "open"},
    "an agent": {"agent": "legal"},
    "a client": {"client": "web"},
    "a rule": {"rule": "max_visits"},
    "agent, status and rule": {"agent": "legal", "status": "failed", "rule": "max_depth"},
    "four tags that few have": {"client": "app", "agent": "legal", "rule": "actions", "status": "human"},
    "$1 or more": {"cost": "1"},
    "a word in every text": {"text": "refund"},
    "a word in one of 400": {"text": "word4999"},
    "the beginning of 1,111 words": {"text": "word3"},
    "two words": {"text": "word4999 word3"},
    "words of all, tags of few": {"text": "please refund", "status": "human", "rule": "actions"},
    "words of all, tag of most, age": {"text": "refund", "status": "completed", "until": "7d"},
    "younger than a week": {"since": "7d"},
    "older than a week, an agent": {"until": "7d", "agent": "legal"},
    "the beginning of an id": {"text": "app_0000"},
}
"""What a visitor asks for, as the page's address has it."""


def main(arguments: list[str]) -> None:
    count, folder = int(arguments[0]), Path(arguments[1])
    file = folder / "listing.sqlite3"
    listed = RequestIndex(file, _log_of(file) or f"{count} rows")
    if listed.seq == 0:
        began, left = time.perf_counter(), rows(count)
        while part := list(itertools.islice(left, _AT_ONCE)):
            listed.put(part, listed.seq, part[-1][0] + 5)
        _say(f"{count} rows written in {time.perf_counter() - began:.0f} s")
    listed.close()
    _say(f"{file.stat().st_size / 1e6:.0f} MB")
    asyncio.run(_measure(folder, count))


async def _measure(folder: Path, count: int) -> None:
    async with _page_over(folder) as (listed, browser):
        _say(f"{'':32} {'query, ms':>20} {'whole answer, ms':>30}")
        _say(f"{'a page with':32} {'median':>10} {'worst':>9} {'median':>10} {'worst':>9} {'deep':>9}")
        for name, said in FILTERS.items():
            counted = sorted([_counted(listed, said) for _ in range(_ROUNDS)])
            _say(f"{f'statistics: {name}':32} {counted[_ROUNDS // 2]:10.1f} {counted[-1]:9.1f}")
        for name, said in FILTERS.items():
            queried = sorted([_queried(listed, said) for _ in range(_ROUNDS)])
            answered = sorted([await _answered(browser, said) for _ in range(_ROUNDS)])
            deep = await _answered(browser, {**said, "before": str(count * 3)})
            figures = (queried[_ROUNDS // 2], queried[-1], answered[_ROUNDS // 2], answered[-1], deep)
            first, second, *rest = figures
            _say(f"{name:32} {first:10.1f} {second:9.1f} " + " ".join(f"{each:9.1f}" for each in rest))


@contextlib.asynccontextmanager
async def _page_over(folder: Path) -> AsyncIterator[tuple[RequestIndex, httpx.AsyncClient]]:
    """Serve the page over the filled list, as if it had been fed."""
    async with place(folder / "mesh", fleet=FLOODED, sync_always=False) as at:
        async with await at.connect_as(ADMIN) as admin:
            await apply(admin, FLOODED)
            log = str((await admin.api("STREAM.INFO.LOG"))["created"])
        file = folder / "listing.sqlite3"
        with sqlite3.connect(file) as opened:
            opened.execute("UPDATE place SET log = ?, seq = 0", (log,))
        opened.close()
        name = f"requests-{hashlib.sha256(log.encode()).hexdigest()[:12]}"
        shown = folder / f"{name}.sqlite3"
        shown.symlink_to(file.name)
        try:
            options = Options(store=folder)
            keys = keys_in(at.url, at.keys, reader=OPERATOR)
            async with (
                serving(keys, options) as address,
                httpx.AsyncClient(base_url=address, timeout=60) as browser,
            ):
                with contextlib.closing(RequestIndex(file, log)) as listed:
                    yield listed, browser
        finally:
            shown.unlink()


def _log_of(file: Path) -> str | None:
    """Return the log of which a file has the list; None if there is no such file."""
    if not file.exists():
        return None
    with contextlib.closing(sqlite3.connect(file)) as opened:
        return str(opened.execute("SELECT log FROM place").fetchone()[0])


def _queried(listed: RequestIndex, said: Mapping[str, str]) -> float:
    wanted, began = filter_from(Clause(*each) for each in said.items()), time.perf_counter()
    listed.page(wanted, before=None, limit=PAGE + 1)
    return (time.perf_counter() - began) * 1_000


def _counted(listed: RequestIndex, said: Mapping[str, str]) -> float:
    wanted, began = filter_from(Clause(*each) for each in said.items()), time.perf_counter()
    statistics(listed, wanted)
    return (time.perf_counter() - began) * 1_000


async def _answered(browser: httpx.AsyncClient, said: Mapping[str, str]) -> float:
    began = time.perf_counter()
    answer = await browser.get("/requests", params=dict(said))
    took = (time.perf_counter() - began) * 1_000
    answer.raise_for_status()
    return took


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
