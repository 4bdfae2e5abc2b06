"""A turn's code over its rounds: it awaits the outcome of a move, as if its process lived on.

No process does. Each round runs the code from the top. A move of an earlier round is not made again: its
outcome is returned at once, and the journal answers each model call before it. The first move without an
outcome is what this round returns. So the code must reach the same moves again, by the journal, the results
and the board alone.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from mesh.agent._tasks import Told
from mesh.agent.errors import Permanent
from mesh.agent.turn import Turn
from mesh.agent.values import Result, Results
from protocol.wire.event_parts import RoundOutcome, TaskResult
from protocol.wire.moves import Ask, Delegate, Escalate, Move


class MovesChanged(Permanent, code="course.changed"):
    """The code comes to another move than the one that an earlier round made at this point."""


class TopologyWrong(Permanent, code="topology.wrong"):
    """A lead got a request whose topology has no tasks."""


class _Returned(BaseException):
    """This round ends with a move. No code may take it for an error."""

    def __init__(self, move: Move) -> None:
        super().__init__()
        self.move = move


class RoundReplay:
    """How far a turn's code has come in this round, and what is known by then."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._outcomes = deque(answers(turn.past))
        self._told: dict[str, TaskResult] = {}
        self.now = Told()
        """What the newest join told."""

    @property
    def results(self) -> Mapping[str, Result]:
        """Results of tasks that are known at this point of the replay."""
        return Results(self._told.values())

    async def make(self, move: Move) -> RoundOutcome:
        """Return a move's outcome; if it has none yet, this round ends here, with the move.

        Raises MovesChanged.
        """
        if not self._outcomes:
            raise _Returned(move)
        past = self._outcomes.popleft()
        if not can_be_of(past, move):
            raise MovesChanged(f"round {past.round} ended {past.how}, the code now asks to {move.name}")
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
    except _Returned as returned:
        return returned.move


# --- outcomes of moves -------------------------------------------------------------------------------


def answers(rounds: Iterable[RoundOutcome]) -> Iterator[RoundOutcome]:
    """Yield the outcomes of moves, without failures and approvals: an approved call finds its own."""
    for past in rounds:
        of_a_move = past.how in ("refused", "replied", "expired", "joined") or (
            past.how == "resolved" and past.move
        )
        for_approval = past.asked or (isinstance(past.move, Ask) and past.move.action)
        if of_a_move and not for_approval:
            yield past


def can_be_of(past: RoundOutcome, move: Move) -> bool:
    """Return True if this can be the outcome of that move, and not of one that the code made by itself."""
    match past.how:
        case "replied" | "expired":
            return isinstance(move, Ask)
        case "resolved":
            return isinstance(move, Escalate)
        case "joined":
            return isinstance(move, Delegate)
    made = past.move
    return type(made) is type(move) and made.to_agent == move.to_agent
