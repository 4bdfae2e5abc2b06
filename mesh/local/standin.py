"""A stand-in for a model's vendor, in a process of its own that is gone when this one is.

It follows the rules of the agents that it is given, and speaks HTTP on a port of 127.0.0.1 that the system
chooses; the first line that it prints says which.
"""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from mesh.errors import MeshError
from mesh.local.vendor_keys import without_keys
from mesh.service.parent_death import VARIABLE as LEASH
from mesh.service.parent_death import die_with_parent, leash_here

_MODULE = "mesh.testing.scripted_claude"
_READY_S = 60.0
_TAIL_LINES = 4


class StandInFailed(MeshError):
    """The stand-in did not start; the text ends with what it said."""

    code: ClassVar[str] = "stand_in.failed"


class StandIn:
    """`async with StandIn(["agents.support.triage:agent"], log) as stand_in:` then `stand_in.url`.

    Args:
        agents: `MODULE:NAME` of each agent whose rules it follows.
        log: the file that it writes what goes wrong to; its directory is made.
        search: directories in which it looks for the agents' modules.
        on_trouble: told in one line if it ends by itself.
    """

    def __init__(
        self,
        agents: Sequence[str],
        log: Path,
        *,
        search: Sequence[Path] = (),
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        self.url = ""
        """Where it listens, once it is started."""
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._agents = tuple(agents)
        self._log = log
        self._search = tuple(search)
        self._on_trouble = on_trouble or (lambda line: None)
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Raises StandInFailed before it is started."""
        if self._process is None:
            raise StandInFailed("the stand-in is not started")
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it listens. Raises StandInFailed."""
        leash = leash_here()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                *self._agents,
                stdin=PIPE if leash == "pipe" else DEVNULL,
                stdout=PIPE,
                stderr=log,
                env=self._environment() | ({LEASH: leash} if leash == "pipe" else {}),
                start_new_session=True,
                preexec_fn=die_with_parent() if leash == "signal" else None,
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_READY_S):
                said = await self._process.stdout.readline()
        except TimeoutError:
            await self.stop()
            raise StandInFailed(f"the stand-in did not listen within {_READY_S:g} s") from None
        except BaseException:
            await self.stop()
            raise
        if not said.endswith(b"\n"):
            await self.stop()
            raise StandInFailed(f"the stand-in ended as it started\n{self._tail()}")
        self.url = said.decode().strip()
        self._keeper = asyncio.create_task(self._keep(self._process))

    def _environment(self) -> dict[str, str]:
        kept = without_keys(os.environ)
        paths = [*map(str, self._search), *filter(None, [kept.get("PYTHONPATH")])]
        return kept | {"PYTHONPATH": os.pathsep.join(paths)}

    async def _keep(self, process: Process) -> None:
        status = await process.wait()
        self._on_trouble(f"the stand-in (process {process.pid}) ended with {status}; its log: {self._log}")

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        return ""

    async def stop(self) -> None:
        """End it; it holds nothing. Idempotent."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
