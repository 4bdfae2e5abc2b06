"""Code that continues over several rounds: it awaits the outcome of a move as if its process lived on.

No process does. Each round runs the code from the top. A move of an earlier round is not made again: its
outcome is returned at once, and the journal answers each step before it. The first move without an outcome is
returned by this round. So the code must reach the same moves again, given the same inputs and the journal.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from mesh.agent.errors import Permanent
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.moves import Ask, Delegate, Escalate, Move


class MovesChanged(Permanent, code="course.changed"):
    """The code makes another move than an earlier round made at this point."""


class Returned(BaseException):
    """Ends this round with a move. No code may catch it as an error."""

    def __init__(self, move: Move) -> None:
        super().__init__()
        self.move = move


class MoveOutcomes:
    """The outcomes of a turn's moves, in the order in which its code reaches them.

    Args:
        past: how the turn's rounds ended.
    """

    def __init__(self, past: Iterable[RoundOutcome]) -> None:
        self._outcomes = deque(answers(past))

    async def make(self, move: Move) -> RoundOutcome:
        """Return a move's outcome. If it has none yet, end this round with the move.

        Raises MovesChanged.
        """
        if not self._outcomes:
            raise Returned(move)
        past = self._outcomes.popleft()
        if not can_be_of(past, move):
            raise MovesChanged(f"round {past.round} ended {past.how}, the code now asks to {move.name}")
        return past


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
    """Return True if this can be the outcome of that move, rather than of one that the code returned."""
    match past.how:
        case "replied" | "expired":
            return isinstance(move, Ask)
        case "resolved":
            return isinstance(move, Escalate)
        case "joined":
            return isinstance(move, Delegate)
    made = past.move
    return type(made) is type(move) and made.to_agent == move.to_agent
