"""Exported logs: one event a line, the very bytes that are stored, in the log's order."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from mesh.errors import Malformed


class _Line(msgspec.Struct, frozen=True):
    request: str
    n: int


_LINE = msgspec.json.Decoder(_Line)


def load(path: Path) -> dict[str, list[bytes]]:
    """Return each request's events in order of their numbers. Raises Malformed with the line's number."""
    return sort(path.read_bytes().splitlines())


def sort(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return stored events by request, each request's in order of their numbers. Raises Malformed."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            head = _LINE.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as broken:
            raise Malformed(f"line {number} is no event") from broken
        found.setdefault(head.request, []).append((head.n, line))
    return {
        request: [line for _, line in sorted(numbered, key=lambda item: item[0])]
        for request, numbered in found.items()
    }
