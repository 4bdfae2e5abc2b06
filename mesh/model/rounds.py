"""A lead's code over its rounds, with the results of its tasks. How rounds are gone over: `Turn.make`."""

from collections.abc import Awaitable, Callable, Mapping

from mesh.agent._rounds import MoveOutcomes, Returned
from mesh.agent._tasks import Told
from mesh.agent.errors import Permanent
from mesh.agent.turn import Turn
from mesh.agent.values import Result, Results
from protocol.wire.event_parts import RoundOutcome, TaskResult
from protocol.wire.moves import Move


class TopologyWrong(Permanent, code="topology.wrong"):
    """A lead got a request whose topology has no tasks."""


class RoundReplay(MoveOutcomes):
    """How far a turn's code has come in this round, and what is known by then."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn.past)
        self.turn = turn
        self._told: dict[str, TaskResult] = {}
        self.now = Told()
        """What the newest join told."""

    @property
    def results(self) -> Mapping[str, Result]:
        """Results of tasks that are known at this point of the replay."""
        return Results(self._told.values())

    async def make(self, move: Move) -> RoundOutcome:
        past = await super().make(move)
        if past.how == "joined":
            self.now = self.turn.execution.tasks.told.get(past.round + 1, Told())
            self._told |= {each.name: each for each in self.now.results}
        return past


async def follow(turn: Turn, code: Callable[[RoundReplay], Awaitable[Move]]) -> Move:
    """Return this round's move, by running the code from the top. Raises TopologyWrong."""
    if turn.topology == "handoff":
        raise TopologyWrong(f"{turn.agent} leads tasks: give the policy topology `supervised` or `swarm`")
    try:
        return await code(RoundReplay(turn))
    except Returned as returned:
        return returned.move
