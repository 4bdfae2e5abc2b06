"""What services write, as a person at this terminal reads it: warnings, errors, and what code prints.

A service logs JSON, a line an event, into a file of its own. Everything that is no such line was printed by
somebody's code, or by Python as it ended the process, and is shown as it stands. Of a traceback, the file and
line of the reader's own code come first: the frame in `home` that is nearest to the error.
"""

import json
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_SHOWN = {"warning", "error", "critical"}
_OWN_LINE = {"event", "level", "timestamp", "exception", "trace_id", "span_id", "trace_flags"}
_OF_SERVER = re.compile(r"\[\d+\] \S+ \S+ \[(?P<level>[A-Z]{3})\] (?P<text>.*)")
"""A line of a nats-server's log: process, date, time, level."""
_SERVERS_LEVELS = {"WRN": "warning", "ERR": "error", "FTL": "critical"}
_DENIED = " Violation - "
"""In a line about a client without permission. The client hears of it, and some commands only try."""
_NOT_OWN = {"site-packages", "dist-packages", ".venv"}


class OutputLine(NamedTuple):
    """A line for the terminal."""

    text: str
    kind: str
    """`printed`, `warning`, `error`, `critical`, or `place` and `frame` for a traceback's lines."""


class Output:
    """The part of a service's log file from a place on.

    Args:
        home: the reader's own project.
        start: bytes of the file that are not shown.
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
    """Yield what one line of a service's log says to a person; nothing for what is routine."""
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    if not isinstance(said, dict) or "event" not in said:
        if server := _OF_SERVER.match(line):
            level = _SERVERS_LEVELS.get(server["level"])
            if level is not None and _DENIED not in line:
                yield OutputLine(f"{level}: {server['text']}", level)
        elif line.strip():
            yield OutputLine(line, "printed")
        return
    level = str(said.get("level", "info"))
    if level not in _SHOWN:
        return
    values = " ".join(f"{key}={_shown(value)}" for key, value in said.items() if key not in _OWN_LINE)
    yield OutputLine(f"{level}: {said['event']} {values}".rstrip(), level)
    stacks = said.get("exception")
    if isinstance(stacks, list):
        yield from _traceback(stacks, home)


def _shown(value: object) -> str:
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value)


def _traceback(stacks: Sequence[Mapping[str, Any]], home: Path) -> Iterator[OutputLine]:
    """Yield an exception: first where it left the reader's code, then every frame, the error last.

    Args:
        stacks: an exception and what it came of, the newest first, as structlog writes them.
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
