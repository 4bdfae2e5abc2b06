"""A swarm: many read side by side, then one writes; or several debate on the board, and one decides.

    mender = Swarm(
        ClaudeAgent("mender", instructions=MENDER, tools=[edit, run_tests]),
        reads=lambda turn: [
            turn.task(f"look-{n}", summary="find the cause", intent="read_code") for n in range(3)
        ],
    )

Its tasks only read, whatever tools their agents have: the guard requires it and the runtime enforces it. So
nothing changes while they read, and only this agent's own turn writes.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mesh.agent._tasks import by_agent
from mesh.agent.definition import Agent
from mesh.agent.errors import Permanent
from mesh.model.rounds import RoundReplay, follow
from protocol.wire.handoff import Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Join, Task

if TYPE_CHECKING:
    from mesh.agent.turn import Turn
    from protocol.wire.moves import Move

Reads = Callable[["Turn"], Iterable[Task] | Awaitable[Iterable[Task]]]
"""Returns what a swarm reads first."""

ROUND = "debate_round"
"""The fact with the number of a debate's round, from 1."""

SEAT = "seat"
"""The fact that tells equal tasks of several agents apart, from 1."""

Board = Mapping[AgentName, Mapping[str, Any]]
"""The newest value of each key, by agent."""


class ReadsRefused(Permanent, code="swarm.refused"):
    """The guard refuses what a swarm would read. The text has its rule and its reason."""


class Swarm(Agent):
    """An agent whose root turns begin with parallel reads. For requests of topology `swarm`.

    Args:
        writer: the agent that continues when the reads are done: a `ClaudeAgent`, or any other. It finds
            them in `turn.results` and on `turn.board`; its name, tools and model are the swarm's.
        reads: returns the tasks (`turn.task`) of one round. Without `to`, they are offered to all agents of
            their intent, and no agent has two of them at a time. If a task's claimant fails, or is gone for
            the policy's `claim_within_s`, it is offered once more. Equal tasks get the fact `seat`. No tasks:
            there is nothing to read. It may be async and call tools by `turn.call`; otherwise it must depend
            on the turn's facts alone, since it runs again in each round.
        join, within_s: when the writer continues, as in `turn.delegate`. Tasks open then are cancelled.
        rounds: of a debate: the tasks are done so many times, each time with the fact `debate_round`. The
            agents see each other's posts on the board.
        agreed: returns True if the debate can end before its last round, judging by the board.

    Raises ValueError for less than one round.
    """

    def __init__(
        self,
        writer: Agent,
        *,
        reads: "Reads",
        join: Join = "all",
        within_s: float | None = None,
        rounds: int = 1,
        agreed: Callable[[Board], bool] = lambda board: False,
    ) -> None:
        if rounds < 1:
            raise ValueError(f"a swarm reads at least once: rounds={rounds}")

        async def gather(replay: RoundReplay) -> "Move":
            turn, open_ = replay.turn, tuple[str, ...]()
            for n in range(1, rounds + 1):
                found = reads(turn)
                tasks = _round_tasks(tuple(await found if isawaitable(found) else found), n, rounds)
                if not tasks:
                    break
                await _make(replay, turn.delegate(tasks, join=join, within_s=within_s, cancel=open_))
                open_ = replay.now.waiting
                if agreed(by_agent(replay.now.board)):
                    break
            if open_:
                await _make(replay, turn.delegate(cancel=open_))
            return await writer.handler(turn)

        async def handle(turn: "Turn") -> "Move":
            return await (writer.handler(turn) if turn.task_name else follow(turn, gather))

        own = {field.name: getattr(writer, field.name) for field in fields(Agent)}
        super().__init__(**{**own, "handler": handle})


def _round_tasks(tasks: Sequence[Task], n: int, rounds: int) -> Sequence[Task]:
    """Return the tasks of one round of a debate, each with something that makes it unique."""
    of = (Fact(key=ROUND, value=n),) if rounds > 1 else ()
    names = [task.name if n == 1 else f"{task.name}~{n}" for task in tasks]
    asked = [(task.to_agent, task.intent, task.facts) for task in tasks]
    seats = [(Fact(key=SEAT, value=at),) if asked.count(one) > 1 else () for at, one in enumerate(asked, 1)]
    return [  # any other agent may do an offered task, so a dead reader does not hold it up
        replace(task, name=name, facts=(*task.facts, *of, *seat), fallback=task.fallback or not task.to_agent)
        for task, name, seat in zip(tasks, names, seats, strict=True)
    ]


async def _make(replay: RoundReplay, move: "Move") -> None:
    refusal = (await replay.make(move)).refusal
    if refusal is not None:
        raise ReadsRefused(f"rule {refusal.rule} refused to let the swarm read: {refusal.detail}")
