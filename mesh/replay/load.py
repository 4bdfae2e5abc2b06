"""Exported logs: one event a line, the very bytes that are stored, in the log's order.

An export may also hold the steps of journals, each a line of its own that names its subject. Such a line is
no event, and what judges a log passes it over.
"""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from mesh.errors import Malformed


class StoredStep(NamedTuple):
    """A step of a journal, as it is stored."""

    subject: str
    data: bytes


class _Line(msgspec.Struct, frozen=True):
    request: str = ""
    n: int = -1
    step: str = ""
    """The subject of a step; empty for an event."""
    body: msgspec.Raw = msgspec.Raw()
    base64: str = ""
    """The bytes of a step that are no JSON on one line."""


_LINE = msgspec.json.Decoder(_Line)


def step_line(stored: StoredStep) -> bytes:
    """Return a step as one line of an export, from which `steps_in` reads the very bytes again."""
    named = b'{"step":' + msgspec.json.encode(stored.subject)
    line = named + b',"body":' + stored.data + b"}"
    if not _stands_alone(line) or _LINE.decode(line).body != stored.data:
        line = named + b',"base64":"' + base64.b64encode(stored.data) + b'"}'
    return line


def _stands_alone(line: bytes) -> bool:
    """Return True for JSON on one line that any reader of JSON takes."""
    try:
        json.loads(line)
        _LINE.decode(line)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return not set(b"\r\n") & set(line)


def steps_in(path: Path) -> list[StoredStep]:
    """Return the steps of journals that an export holds. Raises Malformed with the line's number."""
    found = []
    for head, _ in _lines(path.read_bytes().splitlines()):
        if head.step:
            data = base64.b64decode(head.base64) if head.base64 else bytes(head.body)
            found.append(StoredStep(head.step, data))
    return found


def load(path: Path) -> dict[str, list[bytes]]:
    """Return each request's events in order of their numbers. Raises Malformed with the line's number.

    A file without any event is Malformed, too: that nothing was found wrong with it would mean nothing.
    """
    found = sort(path.read_bytes().splitlines())
    if not found:
        raise Malformed(f"{path} holds no event")
    return found


def sort(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return stored events by request, each request's in order of their numbers. Raises Malformed."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for head, line in _lines(lines):
        if not head.step:
            found.setdefault(head.request, []).append((head.n, line))
    return {
        request: [line for _, line in sorted(numbered, key=lambda item: item[0])]
        for request, numbered in found.items()
    }


class _Read(NamedTuple):
    head: _Line
    line: bytes


def _lines(lines: Iterable[bytes]) -> Iterable[_Read]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            head = _LINE.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as broken:
            raise Malformed(f"line {number} is no event") from broken
        if not head.step and (not head.request or head.n < 0):
            raise Malformed(f"line {number} is no event")
        yield _Read(head, line)
