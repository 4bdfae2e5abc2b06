"""One process's share of an export: whole requests with their journals, without all of it in memory.

A request belongs to the share that its id maps to. Only the places of its lines are kept; the lines are read
when the request's turn comes. So an export of a million events takes a few tens of megabytes.
"""

import base64
from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple, Self
from zlib import crc32

from mesh.errors import ExportInvalid, Malformed
from mesh.replay.code import Recording
from mesh.replay.export import StoredStep, line_head, placed_in
from protocol.wire.ids import submitted_ms

_STEP, _REQUEST = b'{"step":"mesh.', b'"request":"'
_JOURNAL_STEP = b"step."


class Whole(NamedTuple):
    """One request of the export."""

    request: str
    bodies: list[bytes]
    """Its events, in order."""
    steps: list[StoredStep]


class Share:
    """The requests of one share, in the order in which they begin.

    Args:
        index, of: which share of how many.
        agents: requests in which none of them had work are passed over.
        since: requests that were submitted before (UTC µs) are, too.
        only: the ids of those that are not; None: of all.

    Raises ExportInvalid with the line's number.
    """

    def __init__(
        self,
        path: Path,
        agents: frozenset[str],
        *,
        index: int = 0,
        of: int = 1,
        since: int = 0,
        only: Collection[str] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._marks = [b'"to_agent":"%s"' % name.encode() for name in agents]
        self._places: dict[bytes, array[int]] = {}
        """Where each line of a request begins."""
        self._prompts: dict[str, tuple[int, int]] = {}
        self.recording = Recording()
        """Fleets by revision. The fixed parts of prompts are read on demand."""
        self._since, self._share = since, (index, of)
        self._only = None if only is None else frozenset(only)
        self._path = path

    def __enter__(self) -> Self:
        file = self._stack.enter_context(self._path.open("rb", buffering=1 << 20))
        end = 0
        with placed_in(self._path):
            for number, line in enumerate(file, start=1):
                begin, end = end, end + len(line)
                if line.startswith(_STEP):
                    self._take(line, number, begin)
                elif line.strip():
                    self._of(_between(line, _REQUEST), begin, number)
        if not end:
            raise ExportInvalid(f"{self._path} holds no event")
        self._text = self._stack.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ))
        self.recording.prompts = _Prompts(self._text, self._prompts)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _of(self, request: bytes, begin: int, number: int) -> None:
        index, of = self._share
        if not request:
            raise Malformed(f"line {number} is no event")
        if crc32(request) % of == index:
            places = self._places.get(request)
            if places is None:
                places = self._places[request] = array("Q")
            places.append(begin)

    def _take(self, line: bytes, number: int, begin: int) -> None:
        subject = line[len(_STEP) : line.find(b'"', len(_STEP))]
        if subject.startswith(_JOURNAL_STEP):
            parts = subject.split(b".")
            if len(parts) == 5:
                self._of(parts[2], begin, number)
        elif subject.startswith(b"prompt."):
            self._prompts[subject.rpartition(b".")[2].decode()] = (begin, len(line))
        else:
            self.recording.take([_stored(line, number)])

    def __len__(self) -> int:
        return len(self._places)

    def requests(self, start: int = 0) -> Iterator[Whole | None]:
        """Yield the requests from one on; None for one that is passed over. Raises ExportInvalid."""
        for request, places in list(self._places.items())[start:]:
            name = request.decode(errors="replace")
            if self._only is not None and name not in self._only:
                yield None
                continue
            lines = [self._line(begin) for begin in places]
            events = [line for line in lines if not line.startswith(_STEP)]
            if not any(mark in line for line in events for mark in self._marks) or self._is_before(name):
                yield None
                continue
            with placed_in(self._path):
                whole = self._whole(name, places, lines)
            yield whole

    def _whole(self, name: str, places: "array[int]", lines: list[bytes]) -> Whole:
        numbered, steps = list[tuple[int, bytes]](), list[StoredStep]()
        for begin, line in zip(places, lines, strict=True):
            try:
                if line.startswith(_STEP):
                    steps.append(_stored(line, 0))
                    continue
                head = line_head(line, 0)
            except Malformed:
                raise Malformed(f"line {self._number(begin)} is no event") from None
            if head.request != name:
                raise Malformed(f"line {self._number(begin)} is not as a guard writes it")
            numbered.append((head.n, line))
        return Whole(name, [line for _, line in sorted(numbered, key=lambda each: each[0])], steps)

    def _number(self, begin: int) -> int:
        return self._text[:begin].count(b"\n") + 1

    def _line(self, begin: int) -> bytes:
        end = self._text.find(b"\n", begin)
        return self._text[begin : len(self._text) if end < 0 else end]

    def _is_before(self, request: str) -> bool:
        if not self._since:
            return False
        try:
            return submitted_ms(request) * 1000 < self._since
        except ValueError:
            return False


class _Prompts(Mapping[str, bytes]):
    """Fixed parts of prompts, read from the export."""

    def __init__(self, text: mmap, places: Mapping[str, tuple[int, int]]) -> None:
        self._text, self._places = text, places

    def __getitem__(self, digest: str) -> bytes:
        begin, length = self._places[digest]
        return _stored(self._text[begin : begin + length], 0).data

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _between(line: bytes, mark: bytes) -> bytes:
    start = line.find(mark)
    return line[start + len(mark) : line.find(b'"', start + len(mark))] if start >= 0 else b""


def _stored(line: bytes, number: int) -> StoredStep:
    head = line_head(line, number)
    data = base64.b64decode(head.base64) if head.base64 else bytes(head.body)
    return StoredStep(head.step, data, head.rev, head.by)
