"""The page: how long a browser waits for a long request, from the click to the first paint.

The request goes to and fro between two agents as deep as a policy may let it; between its hops an operator
freezes and thaws it. Server, page and browser (Debian's chromium, without a window) run on this machine.
"""

import os
from itertools import islice
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from bench.figures import Figure, Target, spread
from bench.growth import long_story
from bench.place import FLOODED, OPERATOR, place
from bench.stories import Line, fill, fresh_id
from mesh.bus.roles import ADMIN
from mesh.fleet.setup import apply
from mesh.testing import InMemoryGuard
from mesh.ui import Options, keys_in, serving
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
    for number, move in enumerate(islice(long_story(), _HOPS)):
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


async def _opened(browser: Browser, address: str) -> tuple[float, float]:
    """Return when the answer had come and when it was first painted, ms after the request for it."""
    context = await browser.new_context()
    try:
        page = await context.new_page()
        await page.goto(address)
        await page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
        answered: float
        painted: float
        answered, painted = await page.evaluate(
            "[performance.getEntriesByType('navigation')[0].responseEnd,"
            " performance.getEntriesByName('first-contentful-paint')[0].startTime]"
        )
        return answered, painted
    finally:
        await context.close()
