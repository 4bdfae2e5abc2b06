"""An exported log shared among processes: what comes of it is what one process makes of it."""

import asyncio
import errno
import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from mesh.errors import Malformed
from mesh.ops.chain_parts import chains_in, joined, parts_of
from mesh.ops.log import Chains, chains_of
from mesh.replay import export
from mesh.replay.export import StoredStep, of_each, of_parts, step_line
from mesh.replay.rejudge import rejudge
from mesh.replay.whatif import compare
from protocol.domain.hash_chain import redacted
from protocol.domain.recorded import Other
from protocol.wire.config import Policy
from tests.servers import until
from tests.unit.cli.conftest import STORY, Mesh, here, mesh

__all__ = ["here", "mesh"]

T = TypeVar("T")

LINES = STORY.read_bytes().splitlines()
REQUEST = b"c1_01HF7YAT00040G2081040G2081"
REQUESTS = [b"c1_01HF7YAT000000000000000%03d" % number for number in range(20)]
STEP = step_line(
    StoredStep(f"mesh.step.a.{REQUESTS[3].decode()}.t.1", b'{"request":"' + REQUESTS[3] + b'","n":7}')
)
OTHER_ORDER = b'{"work":{"request":"' + REQUESTS[5] + b'"},"n":0,"request":"' + REQUESTS[6] + b'"}'
TWICE = b'{"request":"' + REQUESTS[5] + b'","n":0,"request":"' + REQUESTS[6] + b'"}'


def written(path: Path, *more: bytes) -> Path:
    """Write twenty requests that were under way at once, and one after them whose chain holds."""
    lines = [line.replace(REQUEST, request) for line in LINES for request in REQUESTS]
    path.write_bytes(b"\n".join([STEP, b"", *lines, STEP, *more, *LINES]) + b"\n")
    return path


def in_processes(
    count: int, path: Path, work: Callable[[list[bytes]], T], monkeypatch: pytest.MonkeyPatch
) -> list[T]:
    with monkeypatch.context() as patch:
        patch.setattr(export, "_processes_for", lambda _: count)
        try:
            return asyncio.run(of_each(path, work))
        finally:
            assert not multiprocessing.active_children()


def checked(bodies: list[bytes]) -> tuple[object, ...]:
    chains = chains_of(bodies)
    return chains.events, chains.requests, chains.breaks


def own_id(bodies: list[bytes]) -> int:
    return os.getpid()


def alone(parent: int, bodies: list[bytes]) -> int:
    """Be killed in any process but one."""
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(bodies)


def breaks_off(bodies: list[bytes]) -> int:
    if REQUESTS[7] in bodies[0]:
        raise Malformed("the eighth cannot be")
    return len(bodies)


@pytest.mark.parametrize("processes", [2, 3, 30])
@pytest.mark.parametrize(
    "work", [rejudge, functools.partial(compare, other=Other({"*": Policy(max_depth=1)})), checked, b"".join]
)
def test_several_processes_find_what_one_finds_in_its_order(
    work: Callable[[list[bytes]], object], processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "log.jsonl")
    found = in_processes(1, file, work, monkeypatch)
    assert len(found) == len(REQUESTS) + 1
    assert in_processes(processes, file, work, monkeypatch) == found


@pytest.mark.parametrize("processes", [1, 2, 30])
def test_a_file_as_the_log_wrote_it_is_verified_in_parts_each_event_decoded_once(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts = [LINES[0].replace(REQUEST, request) for request in REQUESTS]
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join([STEP, b"", LINES[0], *firsts, STEP, *LINES[1:]]))
    monkeypatch.setattr(export, "_processes_for", lambda _: processes)
    monkeypatch.setattr(export, "sort", None)
    monkeypatch.setattr(export, "_share", None)
    chains = asyncio.run(chains_in(file))
    assert (chains.events, chains.requests) == (len(LINES) + len(REQUESTS), 1 + len(REQUESTS))
    assert chains.breaks == []


@pytest.mark.parametrize("processes", [1, 2, 3, 30])
def test_the_parts_of_a_file_have_every_event_once(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "log.jsonl")
    monkeypatch.setattr(export, "_processes_for", lambda _: processes)
    parts = asyncio.run(of_parts(file, list))
    assert parts is not None
    assert len(parts) == processes
    lines = [line for line in file.read_bytes().splitlines() if line not in (b"", STEP)]
    assert [line for part in parts for line in part] == lines


def test_a_small_file_is_verified_by_one_process() -> None:
    chains = asyncio.run(chains_in(STORY))
    assert (chains.events, chains.requests, chains.breaks) == (len(LINES), 1, [])


def test_redacted_events_of_all_parts_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(map(redacted, LINES)))
    monkeypatch.setattr(export, "_processes_for", lambda _: 3)
    assert asyncio.run(chains_in(file)).redacted == [(REQUEST.decode(), n) for n in range(len(LINES))]


BROKEN = msgspec.json.encode({**msgspec.json.decode(LINES[1]), "at": 1})


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([], id="nothing"),
        pytest.param([STEP], id="no event"),
        pytest.param([LINES[1], LINES[0], *LINES[2:]], id="another order"),
        pytest.param([LINES[0], *LINES[2:]], id="one is missing"),
        pytest.param([LINES[0], BROKEN, *LINES[2:]], id="an altered one"),
        pytest.param([*LINES[:3], LINES[3][:-40]], id="one that is cut"),
        pytest.param([*LINES, b"rubbish"], id="rubbish"),
        pytest.param([*LINES, b'{"step":"mesh.step"'], id="half a step"),
        pytest.param([*LINES, OTHER_ORDER], id="fields in another order"),
        pytest.param([*LINES, TWICE], id="a field twice"),
        pytest.param([LINES[0].replace(b",", b",\r"), *LINES[1:]], id="a line within a line"),
    ],
)
def test_any_other_file_is_not_and_what_is_found_is_what_sorting_it_finds(
    lines: list[bytes], processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    monkeypatch.setattr(export, "_processes_for", lambda _: processes)
    parts = asyncio.run(of_parts(file, parts_of))
    assert parts is None or joined(parts) is None
    told = []
    for check in (chains_in, sorted_first):
        try:
            chains = asyncio.run(check(file))
            told.append(str((chains.events, chains.requests, chains.breaks)))
        except Malformed as wrong:
            told.append(str(wrong))
    assert told[0] == told[1]


async def sorted_first(file: Path) -> Chains:
    chains = Chains()
    for one in await of_each(file, chains_of):
        chains.add(one)
    return chains


def test_requests_are_shared_among_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = set(in_processes(2, written(tmp_path / "log.jsonl"), own_id, monkeypatch))
    assert len(at_work) == 2
    assert os.getpid() not in at_work


@pytest.mark.parametrize("line", [OTHER_ORDER, TWICE, LINES[0].replace(b",", b",\r")], ids=str)
def test_a_line_that_no_guard_wrote_so_is_told_as_by_one_process(
    line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "log.jsonl", line)
    told = []
    for processes in (1, 2):
        try:
            told.append(str(in_processes(processes, file, rejudge, monkeypatch)))
        except Malformed as wrong:
            told.append(str(wrong))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "line", [LINES[3][:-40], b"rubbish", b'{"request":"a","n":-1}', b'{"request":"\xff","n":0}'], ids=str
)
def test_a_broken_line_is_named_by_its_number(
    line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "log.jsonl", line)
    number = 2 + len(LINES) * len(REQUESTS) + 2
    for processes in (1, 2):
        with pytest.raises(Malformed, match=f"line {number} is no event"):
            in_processes(processes, file, checked, monkeypatch)


def test_a_file_without_events_is_malformed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(STEP + b"\n")
    for processes in (1, 2):
        with pytest.raises(Malformed, match="holds no event"):
            in_processes(processes, file, checked, monkeypatch)


def test_an_error_of_the_work_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "log.jsonl")
    for processes in (1, 2):
        with pytest.raises(Malformed, match="the eighth cannot be"):
            in_processes(processes, file, breaks_off, monkeypatch)


def test_this_process_does_the_work_of_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = functools.partial(alone, os.getpid())
    found = in_processes(2, written(tmp_path / "log.jsonl"), work, monkeypatch)
    assert found == [len(LINES)] * (len(REQUESTS) + 1)


def test_where_no_process_can_be_started_this_one_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, forked = os.fork, list[int]()

    def once() -> int:
        if forked:
            raise BlockingIOError(errno.EAGAIN, "too many processes")
        forked.append(fork())
        return forked[0]

    monkeypatch.setattr(os, "fork", once)
    found = in_processes(2, written(tmp_path / "log.jsonl"), own_id, monkeypatch)
    assert forked, "one process was there, and ended with the call"
    assert found == [os.getpid()] * (len(REQUESTS) + 1)


def test_of_a_file_that_grows_no_event_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "log.jsonl")
    before = file.stat().st_size - len(LINES[-1])
    monkeypatch.setattr(export, "mmap", lambda number, _, access: mmap(number, before, access=access))
    assert in_processes(2, file, b"".join, monkeypatch) == in_processes(1, file, b"".join, monkeypatch)


def test_processes_end_with_a_call_that_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tmp_path / "begun"
    file = written(tmp_path / "log.jsonl")
    monkeypatch.setattr(export, "_processes_for", lambda _: 2)
    ends, ours = os.pipe()  # nobody writes: a reader waits until this process closes its end, or dies

    def hang(bodies: list[bytes]) -> None:
        os.close(ours)
        begun.touch()
        os.read(ends, 1)

    async def cancelled() -> None:
        working = asyncio.create_task(of_each(file, hang))
        await until(begun.exists)
        working.cancel()
        await asyncio.wait([working])
        assert working.cancelled()

    try:
        asyncio.run(cancelled())
        assert not multiprocessing.active_children()
    finally:
        os.close(ours)
        os.close(ends)


@pytest.mark.parametrize("command", [("replay",), ("log", "verify")])
@pytest.mark.parametrize("more", [(), (b"rubbish",)], ids=["whole", "broken"])
def test_commands_print_the_same_however_many_processes_work(
    mesh: Mesh, command: tuple[str, ...], more: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    file = written(here / "log.jsonl", *more)
    said = []
    for processes in (1, 2):
        monkeypatch.setattr(export, "_processes_for", lambda _, count=processes: count)
        said += [
            (each.exit_code, each.output) for each in (mesh(*command, file), mesh(*command, file, "--json"))
        ]
    assert said[:2] == said[2:]
