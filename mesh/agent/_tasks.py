"""A round in a tree of tasks: the results of its tasks, kept for later rounds, and its posts to the board.

The event of a lead's round holds only the tasks that ended since the last round. The journal keeps what each
round was given, so every later round of any instance has all of it. A round of an agent that leads no tasks
records nothing.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mesh.agent._journal import MAX_STEP_BYTES, Journal
from mesh.agent._steps import digest_of, giving, to_json
from mesh.agent.errors import PostUnusable
from mesh.service.failpoints import failpoint
from protocol.wire import codec
from protocol.wire.commands import FactsPost, Proposal
from protocol.wire.errors import Malformed
from protocol.wire.event_parts import Assignment, Posted, TaskResult
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Delegate, Move

_KIND = "results"
"""Kind of the record that keeps what a round was given."""

_PART_BYTES = MAX_STEP_BYTES // 2

Send = Callable[[Proposal], Awaitable[None]]


class TaskNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one round learned of its tasks: results, the board, and which tasks were open."""

    results: tuple[TaskResult, ...] = ()
    board: tuple[Posted, ...] = ()
    waiting: tuple[str, ...] = ()

    def plus(self, more: "TaskNews") -> "TaskNews":
        return TaskNews(self.results + more.results, self.board + more.board, self.waiting + more.waiting)

    def parts(self) -> Iterator["TaskNews"]:
        """Yield it in parts that fit into a step; usually there is one."""
        size, taken = len(msgspec.json.encode((self.board, self.waiting))), 0
        for at, result in enumerate(self.results):
            more = len(msgspec.json.encode(result))
            if at > taken and size + more > _PART_BYTES:
                yield TaskNews(self.results[taken:at], *((self.board, self.waiting) if not taken else ()))
                size, taken = 0, at
            size += more
        yield TaskNews(self.results[taken:], *((self.board, self.waiting) if not taken else ()))


def by_agent(board: Iterable[Posted]) -> dict[AgentName, dict[str, Any]]:
    """Return a board by agent and key."""
    posted: dict[AgentName, dict[str, Any]] = {}
    for each in board:
        posted.setdefault(each.by, {})[each.fact.key] = each.fact.value
    return posted


async def nowhere(proposal: Proposal) -> None:
    """Store nothing: for rounds that are not judged."""


class Tasks:
    """What one round knows of its tasks.

    Args:
        send: stores a proposal that does not end the round.
    """

    def __init__(self, work: Assignment, journal: Journal, send: Send) -> None:
        self._work, self._journal, self._send = work, journal, send
        self._now = TaskNews(work.results, work.board, work.waiting)
        self._posts = itertools.count()
        self.news: Mapping[int, TaskNews] = {work.round: self._now}
        """What each round learned, by round."""

    @property
    def _is_resumed(self) -> bool:
        """True if tasks of this very turn were joined before."""
        return any(past.how == "joined" for past in self._work.past)

    @property
    def results(self) -> tuple[TaskResult, ...]:
        """All results so far, in order."""
        known = {each.name: each for news in self.news.values() for each in news.results}
        return tuple(known.values())

    async def catch_up(self) -> None:
        """Record what this round learned, and read what earlier ones did. Call it before the code runs."""
        if not self._is_resumed:
            return
        if self._now != TaskNews():
            await self._record()
        else:
            await self._journal.load()
        news: dict[int, TaskNews] = {}
        for name, record in self._journal.kept(_KIND):
            round_ = int(name.partition("-")[0])
            news[round_] = news.get(round_, TaskNews()).plus(msgspec.convert(record.value, TaskNews))
        self.news = dict(sorted({**news, self._work.round: self._now}.items()))

    async def pass_on(self, move: Move) -> None:
        """Record the results that a task was given to use, before those of its own tasks replace them."""
        if isinstance(move, Delegate) and self._now.results and not self._is_resumed:
            await self._record()

    async def _record(self) -> None:
        for part in self._now.parts():
            await self._journal.step((_KIND, "", digest_of(part)), giving(to_json(part)))

    async def post(self, facts: tuple[Fact, ...], require_open: Callable[[], Awaitable[None]]) -> None:
        """Put facts on the board, once. Raises PostUnusable.

        Args:
            require_open: raises Superseded if the turn was ended.
        """
        work = self._work
        if work.topology != "swarm":
            raise PostUnusable(f"topology {work.topology!r} has no board")
        post = FactsPost(turn=work.turn, round=work.round, post=next(self._posts), facts=facts)
        try:
            codec.parse_proposal(codec.encode(post))
        except Malformed as wrong:
            raise PostUnusable(f"nobody could read these facts: {wrong}") from wrong

        async def put() -> None:
            await require_open()
            await self._send(post)
            failpoint("post.stored")

        await self._journal.step(("post", "", digest_of(facts)), put)
