"""A lead's code over its rounds, with the results of its tasks. `Turn.make` describes the rounds."""

from collections.abc import Awaitable, Callable, Mapping

from mesh.agent._rounds import MoveOutcomes, Returned
from mesh.agent._tasks import TaskNews
from mesh.agent.errors import Permanent
from mesh.agent.turn import Turn
from mesh.agent.values import Result, Results
from protocol.wire.event_parts import RoundOutcome, TaskResult
from protocol.wire.moves import Move


class TopologyWrong(Permanent, code="topology.wrong"):
    """A lead got a request whose topology has no tasks."""


class RoundReplay(MoveOutcomes):
    """How far a turn's code has come in this round, and what is known at that point."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn.past)
        self.turn = turn
        self._known: dict[str, TaskResult] = {}
        self.now = TaskNews()
        """What the newest join reported."""

    @property
    def results(self) -> Mapping[str, Result]:
        """Results of tasks that are known at this point of the replay."""
        return Results(self._known.values())

    async def make(self, move: Move) -> RoundOutcome:
        past = await super().make(move)
        if past.how == "joined":
            self.now = self.turn.execution.tasks.news.get(past.round + 1, TaskNews())
            self._known |= {each.name: each for each in self.now.results}
        return past


async def follow(turn: Turn, code: Callable[[RoundReplay], Awaitable[Move]]) -> Move:
    """Return this round's move, by running the code from the top. Raises TopologyWrong."""
    if turn.topology == "handoff":
        raise TopologyWrong(f"{turn.agent} leads tasks: give the policy topology `supervised` or `swarm`")
    try:
        return await code(RoundReplay(turn))
    except Returned as returned:
        return returned.move
