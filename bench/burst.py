"""Burst: how much memory a guard takes when large messages come faster than it decides.

A client stores so many messages of nearly the largest size at once, and a guard decides them. What it holds
at most is the kernel's own high-water mark of its resident memory.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from bench.crew import Crew
from bench.figures import Figure, Target, spread
from bench.place import CLIENT, FLEET, place
from bench.usage import peak_mib
from mesh.bus.roles import ADMIN, GUARD
from mesh.client import Client
from mesh.fleet.setup import apply
from protocol.wire.commands import Submit
from protocol.wire.handoff import Fact

SIZE = 245_000
"""Bytes of a message: nearly the largest that the queue takes."""
PEAK_MIB = Target("at most", 300.0)
_KINDS: dict[str, Callable[[], object]] = {
    "text": lambda: "x" * SIZE,
    "numbers": lambda: [7] * (SIZE // 2),
    "lists": lambda: [[]] * (SIZE // 3),
}
"""What a message is made of. As Python objects, numbers take four times their bytes, empty lists twenty."""
_PATIENCE_S = 300.0


async def burst(directory: Path, *, messages: int, rounds: int) -> list[Figure]:
    """Return the peak of a guard's memory for each kind of message, and before the first of them."""
    peaks: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    quiet: list[float] = []
    for number in range(rounds):
        for kind in _KINDS:
            before, peak = await _round(directory / f"{number}-{kind}", kind, messages)
            quiet.append(before)
            peaks[kind].append(peak)
    return [
        Figure("a guard's memory before a burst", "MiB", spread(quiet)),
        *(
            Figure(
                f"its peak: {messages} messages of {SIZE // 1000} KB, {kind}",
                "MiB",
                spread(found),
                target=PEAK_MIB,
            )
            for kind, found in peaks.items()
        ),
    ]


async def _round(directory: Path, kind: str, messages: int) -> tuple[float, float]:
    async with (
        place(directory, sync_always=False) as at,
        await at.connect_as(ADMIN) as admin,
        Crew(directory) as crew,
        await Client.connect(at.url, name=CLIENT, seed=at.prepared.keys[CLIENT].seed) as client,
    ):
        await apply(admin, FLEET)
        guard = await crew.start("guard", "bench.recovery", GUARD, at.url, str(at.keys), "guard")
        before = peak_mib(guard.pid)
        submit = Submit(text="burst", facts=(Fact(key="large", value=_KINDS[kind]()),))
        async with asyncio.timeout(_PATIENCE_S):
            requests = await asyncio.gather(*(client.submit_whole(submit) for _ in range(messages)))
            for request in requests:
                await client.wait(request)
        return before, peak_mib(guard.pid)
