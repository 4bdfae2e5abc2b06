"""Runs the checks over one agent, and says what was found."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import NamedTuple

from mesh.conformance.checks import CHECKS, Check
from mesh.conformance.stage import Stage, Wrong

STARTS = Check("takes work", "Pulling", Stage.takes_work)
"""Comes before all others, which cannot be tried without."""


class Finding(NamedTuple):
    """What came of one check."""

    check: str
    ok: bool
    wrong: str
    """What the agent did, or did not do; empty if all was well."""
    section: str
    """Of docs/protocol.md: what is right."""


async def check_agent(
    name: str, command: str, directory: Path, *, kill: str | None = None, checks: Iterable[Check] = CHECKS
) -> AsyncIterator[Finding]:
    """Start the agent `name` on a scratch mesh and try it; yield what was found, check by check.

    Args:
        command: a shell command that runs the agent. It finds NATS_URL, MESH_NAME and MESH_CREDENTIALS.
        directory: an empty one, for the scratch mesh.
        kill: a shell command that ends the agent as a crash would, where a signal to `command` does not.
    """
    try:
        async with Stage(name, command, directory, kill=kill) as stage:
            yield _finding(STARTS)
            for check in checks:
                yield await _tried(check, stage)
                if not stage.process.running:
                    stage.process.start()
                    await stage.takes_work()
    except Wrong as wrong:
        yield _finding(STARTS, str(wrong))


async def _tried(check: Check, stage: Stage) -> Finding:
    try:
        await check.run(stage)
    except Wrong as wrong:
        return _finding(check, str(wrong))
    except TimeoutError:
        return _finding(check, "it did not, in all the time there was")
    return _finding(check)


def _finding(check: Check, wrong: str = "") -> Finding:
    return Finding(check.name, not wrong, wrong, check.section)
