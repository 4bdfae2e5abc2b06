"""What stops a round, whatever the code catches: the journal keeps it, and raises it again at every step.

None of these is for the code. A tool's no (`ToolError`) is an outcome, and stops nothing.
"""

from typing import ClassVar

from mesh.agent.failures import Permanent, TurnError
from protocol.wire.commands import Ask


class Fenced(TurnError):
    """Another instance, or a later round, has this turn; nothing may be done or proposed any more."""

    code: ClassVar[str] = "journal.fenced"


class JournalMismatch(TurnError):
    """The code does not do what its journal says it did."""

    code: ClassVar[str] = "journal_mismatch"

    def __init__(self, step: str, recorded: str, called: str, *, with_effect: bool) -> None:
        if recorded == called:
            called += " with other arguments"
        super().__init__(f"step {step} was {recorded}, the code now calls {called}")
        self.step = step
        self.permanent = with_effect  # with an effect in the journal no fresh round may be tried


class InDoubt(TurnError):
    """An effect has an intent and no result, and nobody but a person can say what became of it."""

    code: ClassVar[str] = "effect_in_doubt"

    def __init__(self, step: str, action: str, key: str) -> None:
        super().__init__(f"{action} at step {step}")
        self.step, self.action, self.key = step, action, key


class JournalFull(Permanent):
    """More steps, or a larger value, than a turn may journal."""

    code: ClassVar[str] = "journal_full"


class RoundOver(TurnError):
    """The code has returned its move, and something that it left running begins another step."""

    code: ClassVar[str] = "round_over"


class ApprovalNeeded(TurnError):
    """An effect waits for somebody's yes: the turn is suspended with this ask."""

    code: ClassVar[str] = "approval_needed"

    def __init__(self, ask: Ask) -> None:
        super().__init__(f"{ask.action} needs the approval of {ask.to_agent}")
        self.ask = ask


class BudgetExhausted(Permanent):
    """The turn has spent its grant: no further model call is made."""

    code: ClassVar[str] = "budget_exhausted"
