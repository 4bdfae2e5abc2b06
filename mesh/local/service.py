"""The process of a guard or an agent: started, watched and restarted, with its output."""

import asyncio
import contextlib
import copy
import json
import linecache
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mesh.errors import MeshError
from mesh.local.server import ParentDeath

RESTART_S = (0.5, 1.0, 2.0, 5.0, 15.0)
"""Pauses before a service that ended is started again: the first, the second, and so on."""
_SETTLED_S = 30.0
"""A service that ran this long before it ended (s) is restarted as if it had never ended before."""
_TAIL_LINES = 12
COMMAND = (sys.executable, "-m", "mesh")
"""How a service's process begins; its arguments follow."""


def near(path: Path) -> Path:
    """Return a path as a person at this terminal would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


class LaunchFailed(MeshError, code="launch.failed"):
    """A service ended, or was not ready in time. The text ends with the last lines of its log."""


class ServiceProcess:
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
        """The member whose credentials it has."""
        self.identity = identity
        """The name of this process: several processes may serve one member."""
        self.log = log
        self._arguments = (*command, *arguments)
        self._environment = dict(environment)
        self._process: Process | None = None
        self._parent_death = ParentDeath()
        self.began = 0
        """Size of the log in bytes when this start began."""

    def another(self) -> "ServiceProcess":
        """Return the same service as another process, not started yet."""
        made = copy.copy(self)
        made._process, made._parent_death = None, ParentDeath()
        return made

    @property
    def pid(self) -> int:
        """The process id. Raises LaunchFailed if it was never started."""
        if self._process is None:
            raise LaunchFailed(f"{self.identity} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process in its own session: a Ctrl-C at the terminal is for the launcher."""
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
        """Return the lines written since this start."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(self.began)
            return log.read().decode(errors="replace").splitlines()
        return []

    def tail(self) -> str:
        """Return the last of these lines."""
        return "\n".join(self.written()[-_TAIL_LINES:])


def next_try(tries: int, ran_s: float, pauses_s: Sequence[float] = RESTART_S) -> tuple[int, float]:
    """Return how many starts in a row the next one makes, and the pause before it (s).

    Args:
        tries: starts in a row before this end.
        ran_s: how long the service ran; after a long run the pauses begin with the shortest again.
        pauses_s: the pauses to choose from, shortest first.
    """
    tries = 1 if ran_s > _SETTLED_S else tries + 1
    return tries, pauses_s[min(tries, len(pauses_s)) - 1]


def describe_exit(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


# --- what it writes --------------------------------------------------------------------------------

_SHOWN = {"warning", "error", "critical"}
_OWN_LINE = {"event", "level", "timestamp", "exception", "trace_id", "span_id", "trace_flags"}
_OF_SERVER = re.compile(r"\[\d+\] \S+ \S+ \[(?P<level>[A-Z]{3})\] (?P<text>.*)")
"""A line of a nats-server's log: process, date, time, level."""
_SERVERS_LEVELS = {"WRN": "warning", "ERR": "error", "FTL": "critical"}
_DENIED = " Violation - "
"""In a line about a client without permission. The client gets the error, and some commands only try."""
_NOT_OWN = {"site-packages", "dist-packages", ".venv"}


class OutputLine(NamedTuple):
    """A line for the terminal."""

    text: str
    kind: str
    """`printed`, `warning`, `error`, `critical`, or `place` and `frame` for the lines of a traceback."""


class Output:
    """The part of a service's log file from a place on, as a person at this terminal reads it.

    A service logs JSON, one event per line. Any other line was printed by an agent's code, or by Python as it
    ended the process, and is shown as it is. A traceback begins with the file and line of the reader's own
    code: the frame in `home` that is nearest to the error.

    Args:
        home: the reader's own project.
        start: how many bytes of the file to skip.
    """

    def __init__(self, log: Path, home: Path, start: int) -> None:
        self._log, self._home, self._read = log, home, start
        self._rest = b""

    def more(self) -> Iterator[OutputLine]:
        """Yield what was written since the last call."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._read)
                written = log.read()
        except FileNotFoundError:
            return
        self._read += len(written)
        *lines, self._rest = (self._rest + written).split(b"\n")
        for line in lines:
            yield from as_shown(line.decode(errors="replace"), self._home)


def as_shown(line: str, home: Path) -> Iterator[OutputLine]:
    """Yield one line of a service's log for a person; nothing if it is routine."""
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or "event" not in record:
        if server := _OF_SERVER.match(line):
            level = _SERVERS_LEVELS.get(server["level"])
            if level is not None and _DENIED not in line:
                yield OutputLine(f"{level}: {server['text']}", level)
        elif line.strip():
            yield OutputLine(line, "printed")
        return
    level = str(record.get("level", "info"))
    if level not in _SHOWN:
        return
    values = " ".join(f"{key}={_shown(value)}" for key, value in record.items() if key not in _OWN_LINE)
    yield OutputLine(f"{level}: {record['event']} {values}".rstrip(), level)
    stacks = record.get("exception")
    if isinstance(stacks, list):
        yield from _traceback(stacks, home)


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value)


def _traceback(stacks: Sequence[Mapping[str, Any]], home: Path) -> Iterator[OutputLine]:
    """Yield an exception: first where it left the reader's code, then every frame, the error last.

    Args:
        stacks: an exception and its causes, newest first, as structlog writes them.
    """
    newest = stacks[0]
    error = f"{newest.get('exc_type')}: {newest.get('exc_value', '')}".removesuffix(": ")
    frames = [frame for stack in reversed(stacks) for frame in stack.get("frames", ())]
    own = next((frame for frame in reversed(frames) if _is_own(frame["filename"], home)), None)
    if own is not None:
        yield OutputLine(f"  {_place(own, home)}: {error}", "place")
        linecache.checkcache(own["filename"])  # it may have been edited since
        source = linecache.getline(own["filename"], own["lineno"]).strip()
        if source:
            yield OutputLine(f"    {source}", "place")
    for stack in reversed(stacks):
        for frame in stack.get("frames", ()):
            yield OutputLine(f"    {_place(frame, home)}", "frame")
        value = f"{stack.get('exc_type')}: {stack.get('exc_value', '')}".removesuffix(": ")
        yield OutputLine(f"    {value}", "frame")


def _place(frame: Mapping[str, Any], home: Path) -> str:
    """Return `file:line in function`, the file as an editor at `home` opens it."""
    file = Path(frame["filename"])
    if file.is_relative_to(home):
        file = file.relative_to(home)
    return f"{file}:{frame['lineno']} in {frame['name']}"


def _is_own(filename: str, home: Path) -> bool:
    file = Path(filename)
    return file.is_relative_to(home) and not _NOT_OWN & set(file.relative_to(home).parts)
