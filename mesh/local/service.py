"""A service's process: a guard or an agent that is started, watched, and started again."""

import asyncio
import contextlib
import copy
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from pathlib import Path

from mesh.errors import MeshError
from mesh.local.server import ParentDeath

_RESTART_S = (0.5, 1.0, 2.0, 5.0, 15.0)
_SETTLED_S = 30.0
"""A service that ran this long before it ended is restarted as if it had never ended before."""
_TAIL_LINES = 12
COMMAND = (sys.executable, "-m", "mesh")
"""How a service's process begins; what it is to run follows."""


def near(path: Path) -> Path:
    """Return a path as one at this terminal would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


class LaunchFailed(MeshError, code="launch.failed"):
    """A service ended, or was not ready in time; the text ends with the last lines of its log."""


class Service:
    """One guard or agent: a process that can be started, watched and ended."""

    def __init__(
        self,
        name: str,
        identity: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.name = name
        """Whose credentials it has."""
        self.identity = identity
        """What this process is called: several may have one name."""
        self.log = log
        self._arguments = (*command, *arguments)
        self._environment = dict(environment)
        self._process: Process | None = None
        self._parent_death = ParentDeath()
        self.began = 0
        """Bytes of the log that earlier starts wrote."""

    def another(self) -> "Service":
        """Return the same service as another process, which is not started yet."""
        made = copy.copy(self)
        made._process, made._parent_death = None, ParentDeath()
        return made

    @property
    def pid(self) -> int:
        """Raises LaunchFailed when it was never started."""
        if self._process is None:
            raise LaunchFailed(f"{self.identity} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process, in a session of its own: a Ctrl-C at the terminal is for the launcher."""
        with self.log.open("ab") as log:
            self.began = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                preexec_fn=self._parent_death.preexec,
            )
        self._parent_death.watch(self._process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end and return its exit status; negative for a signal."""
        assert self._process is not None
        status = await self._process.wait()
        self._parent_death.release()
        return status

    async def stop(self, grace_s: float) -> None:
        """End it: SIGTERM, and SIGKILL after `grace_s`. Idempotent."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.ended()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self.ended()

    def written(self) -> list[str]:
        """Return the lines that were written since this start."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.began)
            return log.read().decode(errors="replace").splitlines()
        return []

    def tail(self) -> str:
        """Return the last of them."""
        return "\n".join(self.written()[-_TAIL_LINES:])


def next_try(tries: int, ran_s: float) -> tuple[int, float]:
    """Return how many starts in a row the next one of a service makes, and the pause (s) before it.

    Args:
        tries: starts in a row before this end.
        ran_s: how long the service ran; after a long run the shortest pause comes first again.
    """
    tries = 1 if ran_s > _SETTLED_S else tries + 1
    return tries, _RESTART_S[min(tries, len(_RESTART_S)) - 1]


def exit_words(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
