"""An exported log: one event per line, exactly the stored bytes, in the log's order.

An export may also hold the steps of journals, each on its own line with its subject. Such a line is not an
event.

Requests do not depend on each other, so the machine's cores share a large file. Each process reads all of it,
decodes only its own requests, and works on these (`of_each`). Work that does not need whole requests takes a
part of the file in each process, and decodes each event once (`of_parts`).
"""

import asyncio
import base64
import contextlib
import gc
import json
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from mmap import ACCESS_READ, ACCESS_WRITE, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from mesh.errors import ExportInvalid, Malformed, MeshError
from mesh.service.logs import get_logger

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_log = get_logger(__name__)

T = TypeVar("T")


class StoredStep(NamedTuple):
    """A stored step of a journal, or something that steps refer to: a prompt, a document's revision."""

    subject: str
    data: bytes
    rev: int = 0
    """A document's revision."""
    by: str = ""
    """Who wrote a document."""


class _Line(msgspec.Struct, frozen=True):
    request: str = ""
    n: int = -1
    step: str = ""
    """The subject of a step, a prompt or a document; empty for an event."""
    rev: int = 0
    by: str = ""
    body: msgspec.Raw = msgspec.Raw()
    base64: str = ""
    """The bytes of a step that are not JSON on one line."""


_LINE = msgspec.json.Decoder(_Line)


def step_line(stored: StoredStep) -> bytes:
    """Return a step as one line of an export, from which `steps_in` reads exactly the same bytes."""
    named = b'{"step":' + msgspec.json.encode(stored.subject)
    if stored.rev:
        named += b',"rev":%d,"by":' % stored.rev + msgspec.json.encode(stored.by)
    line = named + b',"body":' + stored.data + b"}"
    if not _is_plain_json(line) or bytes(_LINE.decode(line).body) != stored.data:
        line = named + b',"base64":"' + base64.b64encode(stored.data) + b'"}'
    return line


def _is_plain_json(line: bytes) -> bool:
    """Return True for JSON on one line that every JSON reader accepts."""
    try:
        json.loads(line)
        _LINE.decode(line)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return False
    return not set(b"\r\n") & set(line)


def steps_in(path: Path) -> list[StoredStep]:
    """Return everything in an export besides events: steps of journals, prompts, revisions of documents.

    Raises ExportInvalid with the file and the line's number.
    """
    found = []
    with placed_in(path):
        for head, _ in _lines(path.read_bytes().splitlines()):
            if head.step:
                data = base64.b64decode(head.base64) if head.base64 else bytes(head.body)
                found.append(StoredStep(head.step, data, head.rev, head.by))
    return found


@contextlib.contextmanager
def placed_in(path: Path) -> Iterator[None]:
    """Name the file in what its lines raise. Raises ExportInvalid."""
    try:
        yield
    except ExportInvalid:
        raise
    except Malformed as wrong:
        raise ExportInvalid(f"{path}: {wrong}") from wrong


def load(path: Path) -> dict[str, list[bytes]]:
    """Return each request's events in order of their numbers.

    Raises ExportInvalid with the file and the line's number. A file without any event is invalid, too: it
    would otherwise pass every check.
    """
    with placed_in(path):
        found = sort(path.read_bytes().splitlines())
    if not found:
        raise ExportInvalid(f"{path} holds no event")
    return found


def sort(lines: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return stored events by request, in order of their numbers. Raises Malformed."""
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
        if line.strip():
            yield _Read(line_head(line, number), line)


def line_head(line: bytes, number: int) -> _Line:
    """Return the beginning of an event or a step. Raises Malformed for any other line."""
    try:
        head = _LINE.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as broken:
        raise Malformed(f"line {number} is no event") from broken
    if not head.step and (not head.request or head.n < 0):
        raise Malformed(f"line {number} is no event")
    return head


# --- shared among processes -------------------------------------------------------------------------

SHARE_BYTES = 1 << 20
"""Bytes of a file that are worth starting a process for: verifying them takes 15 ms, a process about 10."""
_REQUEST, _STEP = b'"request":"', b'{"step":'
_BUFFER_BYTES = 1 << 20
_REPORT_S = 1.0


Requests = Iterator[tuple[int, list[bytes]]]
"""Requests of a file, each with the number of its first line, and its events in order of their numbers."""


async def of_each(path: Path, work: Callable[[list[bytes]], T]) -> list[T]:
    """Return the result of `work` on each request's events, in the order in which requests begin.

    Args:
        work: gets the events in order of their numbers. Its result must be picklable.

    Raises as `of_shares`.
    """

    def each(requests: Requests) -> list[tuple[int, T]]:
        return [(place, work(bodies)) for place, bodies in requests]

    shares = await of_shares(path, each)
    return [
        result for _, result in sorted((one for share in shares for one in share), key=lambda one: one[0])
    ]


async def of_shares(
    path: Path,
    work: Callable[[Requests], T],
    *,
    jobs: int | None = None,
    on_progress: Callable[[int], None] = lambda events: None,
) -> list[T]:
    """Return the result of `work` on each process's share of the requests.

    Only places of events are kept in memory. If a process meets an odd line, fails or dies, this process
    repeats all of the work, and raises the error itself.

    Args:
        work: its result must be picklable.
        jobs: limit of processes; by default one per core.
        on_progress: called now and then with the number of events processed.

    Raises ExportInvalid with the line's number, also for a file without any event, and as `work`.
    """
    processes = min(_processes_for(path), jobs or sys.maxsize)
    if processes > 1:
        progress = Progress(processes)
        arguments = (path, work, progress)
        found: list[T] | None = await _of_processes(
            processes, _send_share, arguments, lambda: on_progress(progress.events)
        )
        if found is not None and progress.events:
            return found
    return [work(_reporting(_share(path, 0, 1), on_progress))]


def _reporting(requests: Requests, on_progress: Callable[[int], None]) -> Requests:
    events, reported = 0, time.monotonic()
    for place, bodies in requests:
        yield place, bodies
        events += len(bodies)
        if time.monotonic() > reported + _REPORT_S:
            reported = time.monotonic()
            on_progress(events)


class Progress:
    """How many events each process has worked on: memory that they and their parent share."""

    def __init__(self, processes: int) -> None:
        self._size = 8 * processes
        self._counts = mmap(-1, self._size, access=ACCESS_WRITE)

    @property
    def events(self) -> int:
        return sum(array("Q", self._counts[: self._size]))

    def count(self, process: int, events: int) -> None:
        """Count events of a process: each process writes its own number."""
        at = slice(8 * process, 8 * process + 8)
        self._counts[at] = (int.from_bytes(self._counts[at], sys.byteorder) + events).to_bytes(
            8, sys.byteorder
        )


async def of_parts(path: Path, work: Callable[[Iterator[bytes]], T]) -> list[T] | None:
    """Return the result of `work` on the events of each part of a file, in the file's order.

    There is one part per process, in order; a request may have events in several. Return None if a line is
    not as a guard writes it, or if `work` raises MeshError: then use `of_each`, which reports what is wrong.

    Args:
        work: its result must be picklable.
    """
    processes = _processes_for(path)
    ends = [_size_of(path) * index // processes for index in range(processes + 1)]
    if processes > 1:
        found: list[T] | None = await _of_processes(processes, _send_part, (path, work, ends))
        return found
    try:
        return [work(_events_between(path, 0, ends[-1]))]
    except MeshError:
        return None


def _processes_for(path: Path) -> int:
    """Return how many processes a file is worth; 1 if forking is not safe."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), _size_of(path) // SHARE_BYTES))


def _size_of(path: Path) -> int:
    return path.stat().st_size


async def _of_processes(
    processes: int,
    send: Callable[..., None],
    arguments: tuple[Any, ...],
    now_and_then: Callable[[], None] = lambda: None,
) -> Any:
    """Return the results of all processes in order; None if one has none. The processes end with this call.

    Args:
        send: sends (a number, result) for each result of its process; results are ordered by these numbers.
        now_and_then: called meanwhile.
    """
    from multiprocessing import get_context  # a small file does not need it

    forking = get_context("fork")
    found: list[tuple[int, Any]] = []
    try:
        with contextlib.ExitStack() as stack:
            pipes = []
            for index in range(processes):
                receiving, sending = forking.Pipe(duplex=False)
                stack.enter_context(receiving)
                with sending:
                    own = (sending, os.getpid(), index, processes)
                    process = forking.Process(target=send, args=(*own, *arguments))
                    process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
                pipes.append(receiving)
            async with asyncio.TaskGroup() as group:
                shares = [group.create_task(_received(each)) for each in pipes]
                reporting = group.create_task(_report(now_and_then))
                await asyncio.wait(shares, return_when=asyncio.FIRST_EXCEPTION)
                reporting.cancel()
            found = [each for share in shares for each in share.result()]
    except* OSError:
        pass  # one cannot begin, or has no results, so the others need not continue
    return [result for _, result in sorted(found, key=lambda each: each[0])] or None


async def _report(now_and_then: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(_REPORT_S)
        now_and_then()


async def _received(pipe: "Connection") -> list[tuple[int, Any]]:
    """Return a process's results when they arrive. Raises OSError if it ended without any."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(pipe.fileno())
    try:
        share: list[tuple[int, Any]] = pipe.recv()
    except EOFError:
        raise OSError("a process ended without results") from None
    return share


def _begin_share() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent ends this process
    gc.freeze()  # collecting the parent's objects would copy them


def _send_part(
    pipe: "Connection",
    parent: int,
    index: int,
    of: int,
    path: Path,
    work: Callable[[Iterator[bytes]], object],
    ends: list[int],
) -> None:
    """Send the result on one part of a file; nothing if it has none."""
    _begin_share()
    try:
        pipe.send([(index, work(_events_between(path, ends[index], ends[index + 1])))])
    except Exception as failed:  # the parent repeats the work, more slowly, and reports the error
        _log.debug("part_given_up", path=str(path), index=index, error=type(failed).__name__)


def _events_between(path: Path, begin: int, end: int) -> Iterator[bytes]:
    """Yield the events whose lines begin from one place in a file up to another.

    Raises Malformed for a line that is not as a guard writes it.
    """
    at = max(0, begin - 1)
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        file.seek(at)
        if begin:
            at += len(file.readline())  # the rest of a line that begins before
        for line in file:
            if at >= end:
                break
            at += len(line)
            if line.startswith(_STEP):
                line_head(line, 0)
            elif b"\r" in line:
                raise Malformed("a line within a line")
            elif line != b"\n":
                yield line.removesuffix(b"\n")


def _send_share(
    pipe: "Connection",
    parent: int,
    index: int,
    of: int,
    path: Path,
    work: Callable[[Requests], object],
    progress: Progress,
) -> None:
    """Send the result on one share; nothing if it has none."""
    _begin_share()

    def counted() -> Requests:
        for place, bodies in _share(path, index, of):
            if os.getppid() != parent:
                raise OSError("nothing waits any more")
            yield place, bodies
            progress.count(index, len(bodies))

    try:
        pipe.send([(index, work(counted()))])
    except Exception as failed:  # any error: the parent repeats the work and raises it
        _log.debug("share_given_up", path=str(path), index=index, error=type(failed).__name__)


def _share(path: Path, index: int, of: int) -> Requests:
    """Yield the requests of one share, each with the number of its first line.

    A line belongs to the share that the first request's id in it falls to, found without decoding. Whose it
    is checks it, and that the id was the event's. One share alone takes lines as they are, of any spelling.
    Only the places of events are kept in memory. Raises ExportInvalid.
    """
    places: dict[bytes, array[int]] = {}
    with placed_in(path), path.open("rb", buffering=_BUFFER_BYTES) as file, contextlib.ExitStack() as stack:
        text = stack.enter_context(mmap(file.fileno(), 0, access=ACCESS_READ)) if of > 1 else None
        for number, begin, line in _numbered(file):
            end = begin + len(line)
            if text is not None and end > len(text):
                raise Malformed(f"line {number} was not there before")
            start = line.find(_REQUEST) + len(_REQUEST)
            request = line[start : line.find(b'"', start)]
            if (of > 1 and crc32(request) % of != index) or not line.strip():
                continue
            head = line_head(line, number)
            if head.step:
                continue
            if of == 1:
                request = head.request.encode()
            elif head.request.encode() != request or b"\r" in line:
                raise Malformed(f"line {number} is not as a guard writes it")
            places.setdefault(request, array("Q")).extend((head.n, number, begin, end))
        if of == 1 and not places:
            raise ExportInvalid(f"{path} holds no event")
        for found in places.values():
            each = sorted((found[at : at + 4] for at in range(0, len(found), 4)), key=_number_of)
            spans = ((begin, end) for _, _, begin, end in each)
            yield (
                found[1],
                [
                    (os.pread(file.fileno(), end - begin, begin) if text is None else text[begin:end]).strip(
                        b"\r\n"
                    )
                    for begin, end in spans
                ],
            )


def _number_of(place: "array[int]") -> int:
    return place[0]


def _numbered(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield each line with its number and place. A carriage return also ends a line, as in `splitlines`."""
    number, begin = 0, 0
    for whole in file:
        for line in whole.splitlines(keepends=True) if b"\r" in whole else (whole,):
            number += 1
            yield number, begin, line
            begin += len(line)
