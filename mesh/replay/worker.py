"""A process that runs agents' code over a share of an export: `python -m mesh.replay.worker`.

It reads its job as one JSON document from standard input, and reports on a separate pipe, one line each. It
sends `begins` before a round, so the parent knows which round ends or blocks the process. Code may print,
exit, or never return: that costs the current round. The process ends with its parent.
"""

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent.definition import Agent, load
from mesh.artifacts.store import ArtifactStore, store_at
from mesh.errors import MeshError
from mesh.replay.code import Replayed, Replayer
from mesh.replay.differences import CodeDifference
from mesh.replay.rounds import RecordedRound
from mesh.replay.shares import Share
from mesh.service import logs


class Dead(msgspec.Struct, frozen=True):
    """A round that ended its process, or did not end."""

    request: str
    turn: str
    round: int
    how: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a process."""

    path: str
    agents: dict[str, str]
    """`MODULE:NAME`, by name."""
    index: int = 0
    of: int = 1
    since: int = 0
    only: tuple[str, ...] | None = None
    """The requests that are wanted; None: all of them."""
    start: int = 0
    """How many requests of the share are done."""
    dead: tuple[Dead, ...] = ()
    """Rounds that are not run again."""
    allowed: dict[str, tuple[str, ...]] = {}
    artifacts: str = ""
    """The store; empty: none."""
    live: tuple[tuple[str, str, int], ...] = ()
    """Rounds whose models are asked what the record does not answer; then they alone are run."""


class WorkerMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line that a process reports."""

    begins: tuple[str, str, str, int, int | None, str] | None = None
    """Request, agent, turn, round, number of the event, version."""
    came: dict[str, Any] | None = None
    """A round that is different, or not replayable."""
    same: tuple[str, str, int] | None = None
    """Request, agent and number of the event of an unchanged round."""
    done: bool = False
    """A request is done."""
    wrong: str | None = None
    """Why it cannot continue."""
    ended: bool = False


class _Worker:
    def __init__(self, job: Job, out: int) -> None:
        self._job, self._out = job, out
        self._lines: list[bytes] = []
        self._dead = {(each.request, each.turn, each.round): each.how for each in job.dead}

    def say(self, line: WorkerMessage, *, at_once: bool = False) -> None:
        self._lines.append(msgspec.json.encode(line) + b"\n")
        if at_once:
            left, self._lines = b"".join(self._lines), []
            while left:
                left = left[os.write(self._out, left) :]

    def before(self, recorded: RecordedRound) -> Replayed | None:
        n = None if recorded.event is None else recorded.event.n
        version = "" if recorded.why else recorded.proposal.report.version
        place = recorded.request, recorded.work.turn, recorded.work.round
        known = Replayed(recorded.request, recorded.agent, place[1], place[2], n, version, "same")
        if place in self._dead:
            difference = CodeDifference("raises", self._dead[place])
            return known._replace(result="different", difference=difference)
        if not recorded.why:
            self.say(
                WorkerMessage(begins=(place[0], recorded.agent, place[1], place[2], n, version)), at_once=True
            )
        return None

    async def work(self) -> None:
        job = self._job
        agents: dict[str, Agent] = {name: load(reference) for name, reference in job.agents.items()}
        store: ArtifactStore | None = store_at(job.artifacts) if job.artifacts else None
        with Share(
            Path(job.path),
            frozenset(agents),
            index=job.index,
            of=job.of,
            since=job.since,
            only=job.only,
        ) as share:
            replayer = Replayer(
                agents,
                share.recording,
                allowed=job.allowed,
                store=store,
                live=job.live,
                before=self.before,
            )
            for whole in share.requests(job.start):
                if whole is not None:
                    share.recording.take(whole.steps)
                    for each in await replayer.replay(whole.bodies):
                        self._report(each)
                    share.recording.forget_steps()
                self.say(WorkerMessage(done=True))
                if len(self._lines) > 1_000:
                    self.say(WorkerMessage(), at_once=True)
        self.say(WorkerMessage(ended=True), at_once=True)

    def _report(self, each: Replayed) -> None:
        if each.result == "same" and each.models is None:
            self.say(WorkerMessage(same=(each.request, each.agent, -1 if each.n is None else each.n)))
        else:
            came = each._asdict()
            came |= {"difference": each.difference and each.difference._asdict()}
            self.say(WorkerMessage(came=came))


def _end_with_parent() -> None:
    while os.read(0, 1 << 16):
        pass
    os._exit(1)


def main() -> None:
    """Do the job on standard input; report the outcome on the file descriptor in argv."""
    out = int(sys.argv[1])
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logs.silence()
    worker = _Worker(job, out)
    try:
        asyncio.run(worker.work())
    except MeshError as error:
        worker.say(WorkerMessage(wrong=str(error)), at_once=True)
    except Exception as error:  # such as importing an author's module
        worker.say(
            WorkerMessage(wrong=f"the code cannot be loaded: {type(error).__name__}: {error}"), at_once=True
        )
    sys.stdout.flush()
    os._exit(0)  # threads of the code may still be running


if __name__ == "__main__":
    main()
