"""Replay of agents' code in separate processes: user code gets no credentials, and cannot stop the replay.

Each process has a share of the requests. A process that dies, or is silent for too long within a round, is
replaced by one that begins after that round; the round counts as different.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from mesh.bus.credentials import VARIABLES as TLS_VARIABLES
from mesh.errors import UsageWrong
from mesh.model.vendors import secrets
from mesh.replay.code import Replayed
from mesh.replay.differences import KINDS, CodeDifference
from mesh.replay.worker import Dead, Job, WorkerMessage
from protocol.domain.budget import NOTHING, plus
from protocol.wire.commands import Usage

NOT_REPLAYABLE = "not replayable"
LIMIT_S = 10.0
"""How long a round may be silent (s)."""
_HIDDEN = ("NATS_URL", "MESH_CREDENTIALS", "MESH_NAME", "MESH_HEALTH", *TLS_VARIABLES)
_MESSAGE = msgspec.json.Decoder(WorkerMessage)


def hidden_variables() -> frozenset[str]:
    """Return the names of environment variables that an agent's code is not to see."""
    return frozenset((*_HIDDEN, *secrets()))


class RoundTally:
    """The outcomes of all rounds so far."""

    def __init__(self, *, keep_same: bool = False) -> None:
        self.rounds: Counter[tuple[str, str]] = Counter()
        """By agent, and kind of difference; `same` and `not replayable` also count as kinds."""
        self.reasons: Counter[tuple[str, str]] = Counter()
        """Why rounds are not replayable, by agent and reason."""
        self.different: list[Replayed] = []
        self.unreadable: list[Replayed] = []
        """Requests whose log cannot be read."""
        self.same: list[tuple[str, str, int]] | None = [] if keep_same else None
        """Request, agent and event of each unchanged round, if asked for."""
        self.left_out: list[Replayed] = []
        """Rounds that are not replayable, if the same ones are wanted."""
        self.models: Usage = NOTHING
        """What models cost in rounds where one is to be asked anew, or was."""

    @property
    def judged(self) -> int:
        """How many rounds were judged as the same or as different."""
        return sum(count for (_, kind), count in self.rounds.items() if kind != NOT_REPLAYABLE)

    @property
    def by_request(self) -> list[list[Replayed]]:
        """Return the different rounds of each request, in the order of its events."""
        found: dict[str, list[Replayed]] = {}
        for each in self.different:
            found.setdefault(each.request, []).append(each)
        return [
            sorted(rounds, key=lambda each: -1 if each.n is None else each.n) for rounds in found.values()
        ]

    def table(self) -> tuple[tuple[str, ...], list[tuple[str | int, ...]]]:
        """Return the rounds of each agent by kind: the heads of a table, and its rows."""
        there = {kind for _, kind in self.rounds}
        shown = [kind for kind in ("same", *KINDS, NOT_REPLAYABLE) if kind in there]
        rows: list[tuple[str | int, ...]] = []
        for agent in sorted({agent for agent, _ in self.rounds if agent}):
            counts = [self.rounds[agent, kind] for kind in shown]
            rows.append((agent, sum(counts), *counts))
        return ("agent", "rounds", *shown), rows

    def add_same(self, request: str, agent: str, n: int) -> None:
        self.rounds[agent, "same"] += 1
        if self.same is not None:
            self.same.append((request, agent, n))

    def add(self, each: Replayed) -> None:
        self.models = plus(self.models, each.models or NOTHING)
        if each.result == "same":
            self.add_same(each.request, each.agent, -1 if each.n is None else each.n)
            return
        if each.difference is not None:
            self.rounds[each.agent, each.difference.kind] += 1
            self.different.append(each)
            return
        self.rounds[each.agent, NOT_REPLAYABLE] += 1
        self.reasons[each.agent, each.why] += 1
        if not each.agent:
            self.unreadable.append(each)
        elif self.same is not None:
            self.left_out.append(each)

    def replace(self, rounds: Collection[Replayed], again: "RoundTally") -> None:
        """Take some different rounds out, and take in what came of the same ones in a second replay."""
        for each in rounds:
            assert each.difference is not None
            self.rounds[each.agent, each.difference.kind] -= 1
        self.different = [each for each in self.different if each not in rounds] + again.different
        self.rounds += again.rounds  # without those that came to nothing
        self.reasons += again.reasons
        self.unreadable += again.unreadable
        self.left_out += again.left_out
        if self.same is not None:
            self.same += again.same or []


async def replay_file(
    job: Job,
    *,
    jobs: int = 1,
    limit_s: float = LIMIT_S,
    keep_same: bool = False,
    on_round: Callable[[int], None] = lambda rounds: None,
) -> RoundTally:
    """Return the outcomes of the rounds in an export.

    Args:
        job: whose code, over which file.
        jobs: number of processes.
        limit_s: how long a round may be silent.
        keep_same: True to keep which rounds are unchanged.
        on_round: called now and then with the number of rounds.

    Raises UsageWrong for code that cannot be loaded, and for a file that is not an export.
    """
    tally = RoundTally(keep_same=keep_same)
    async with asyncio.TaskGroup() as group:
        for index in range(jobs):
            share = _Process(replace(job, index=index, of=jobs), tally, limit_s, on_round)
            group.create_task(share.run())
    return tally


class _InHand(NamedTuple):
    request: str
    agent: str
    turn: str
    round: int
    n: int | None
    version: str

    def came_to(self, how: str) -> Replayed:
        difference = CodeDifference("raises", how)
        return Replayed(*self[:2], self.turn, self.round, self.n, self.version, "different", difference)


class _Process:
    """One share: a process, or several one after the other."""

    def __init__(self, job: Job, tally: RoundTally, limit_s: float, on_round: Callable[[int], None]) -> None:
        self._job, self._tally, self._limit_s, self._on_round = job, tally, limit_s, on_round
        self._in_hand: _InHand | None = None
        self._last_at = 0.0
        self._pending: list[WorkerMessage] = []
        """Messages about the current request: they count once the request is done."""

    async def run(self) -> None:
        """Do the whole share. Raises UsageWrong."""
        while True:
            how = await self._one_process()
            if how is None:
                return
            if self._in_hand is None:
                raise UsageWrong(f"the code cannot be loaded: it {how}")
            dead = self._in_hand
            known = Dead(dead.request, dead.turn, dead.round, how)
            self._job = replace(self._job, dead=(*self._job.dead, known))

    async def _one_process(self) -> str | None:
        """Return None once the share is done, else what became of the process."""
        loop = asyncio.get_running_loop()
        self._in_hand, self._last_at = None, loop.time()
        self._pending.clear()
        reading, writing = os.pipe()
        async with contextlib.AsyncExitStack() as stack:
            pipe = stack.enter_context(os.fdopen(reading, "rb", 0))
            process = await stack.enter_async_context(_started(writing, with_keys=bool(self._job.live)))
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(self._job) + b"\n")
            reader = asyncio.StreamReader(limit=64 << 20)
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
            watch = asyncio.create_task(self._silence(loop, process.pid))
            listen = asyncio.create_task(self._listen(reader, loop))
            try:
                await asyncio.wait({watch, listen}, return_when=asyncio.FIRST_COMPLETED)
                if not listen.done():
                    return f"comes to no end within {self._limit_s:g} s"
                if listen.result():
                    return None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._limit_s):
                        await process.wait()
                return _describe_end(process.returncode)
            finally:
                for task in (watch, listen):
                    task.cancel()
                await asyncio.gather(watch, listen, return_exceptions=True)
                transport.close()

    async def _silence(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        """Return once a round has been silent for too long although it had processor time."""
        since, cpu_s = 0.0, 0.0
        while True:
            silent_s = 0.0 if self._in_hand is None else loop.time() - self._last_at
            if silent_s < self._limit_s:
                await asyncio.sleep(self._limit_s - silent_s)
                continue
            if since != self._last_at:
                since, cpu_s = self._last_at, _state_of(pid).cpu_s
            state, now_s = _state_of(pid)
            if state not in "RT" or now_s - cpu_s >= self._limit_s:
                return
            await asyncio.sleep(self._limit_s / 4)  # it may wait on a busy machine, or be stopped

    async def _listen(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> bool:
        """Read what a process reports; return True if its share is done, False if it ended first."""
        while line := await reader.readline():
            if not line.endswith(b"\n"):
                return False
            message, self._last_at = _MESSAGE.decode(line), loop.time()
            if message.wrong is not None:
                raise UsageWrong(message.wrong)
            if message.ended:
                return True
            if message.begins is not None:
                self._in_hand = _InHand(*message.begins)
            elif message.done:
                self._count()
            else:
                self._in_hand = None
                self._pending.append(message)
        return False

    def _count(self) -> None:
        self._in_hand = None
        self._job = replace(self._job, start=self._job.start + 1)
        for message in self._pending:
            if message.same is not None:
                self._tally.add_same(*message.same)
            elif message.came is not None:
                self._tally.add(_replayed(message.came))
        if self._pending:
            self._on_round(self._tally.rounds.total())
        self._pending.clear()


def _replayed(came: Mapping[str, Any]) -> Replayed:
    difference, models = came["difference"], came["models"]
    found = None if difference is None else CodeDifference(**difference)
    cost = None if models is None else msgspec.convert(models, Usage)
    return Replayed(**{**came, "difference": found, "models": cost})


class _State(NamedTuple):
    state: str
    """As in `/proc`: R runs or is ready, S waits, T is stopped."""
    cpu_s: float


def _state_of(pid: int) -> _State:
    """Return the state of a process; a waiting one if nothing can be known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _State("S", 0.0)
    return _State(fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


def _describe_end(status: int | None) -> str:
    """Return what became of a process, as a continued sentence."""
    if status is None:
        return "closes its output"
    if status < 0:
        return f"ends its process by {signal.Signals(-status).name}"
    return f"ends its process with exit status {status}"


@contextlib.asynccontextmanager
async def _started(writing: int, *, with_keys: bool) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process in this block, without credentials, and end it with the block.

    Args:
        with_keys: the keys of vendors of models stay.
    """
    hidden = hidden_variables() - (set(secrets()) if with_keys else set())
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mesh.replay.worker", str(writing)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(writing,),
            env=environment,
            cwd=Path.cwd(),
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _ended(await starting)  # it has begun, even if it is no longer waited for
        raise
    finally:
        os.close(writing)
    try:
        yield process
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a process, and wait for its end, however often this is cancelled meanwhile."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    waiting, cancelled = asyncio.ensure_future(process.wait()), False
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
