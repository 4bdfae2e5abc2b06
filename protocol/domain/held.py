"""A turn as the ledger holds it: one agent's work on one handoff, as far as the log tells."""

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from protocol.domain import budget
from protocol.wire.commands import Report
from protocol.wire.events import AnyEvent, Past, Work
from protocol.wire.ids import AgentName, TurnId

State = Literal["working", "failed", "refused", "suspended", "doubted", "ended"]

NO_REPORT = Report()


@dataclass(slots=True)
class Turn:
    """One agent's work on one handoff, as far as the log tells."""

    id: TurnId
    agent: AgentName
    work: Work
    """As the newest round was opened."""
    opened_at: int
    round: int = 0
    round_n: int = 0
    """Number of the event that opened the newest round."""
    clock: int = 0
    """UTC µs from which the newest round's time counts: its opening, moved on by what it was frozen."""
    state: State = "working"
    since_n: int = 0
    """Number of the event that brought it into its state."""
    due_at: int | None = None
    """When what it waits for comes: a retry or an ask's expiry."""
    reason: str = ""
    """Why it has to escalate, once it has to; of a person's turn, why it was raised first."""
    refusals: int = 0
    failures: int = 0
    asks: int = 0
    asked: AgentName | None = None
    """Who has to reply while it is suspended."""
    approval: str = ""
    """The digest that a suspended turn's ask wants approved; empty for an ordinary question."""
    doubted: str = ""
    """The step whose effect is in doubt."""
    past: tuple[Past, ...] = ()
    report: Report = NO_REPORT
    reported: bool = False
    unaccounted: bool = False
    """Whether a guard ended a round of it by the clock that had begun: nobody said what that cost."""
    tier: int = 0
    """Of an escalation: how often it was raised."""
    instead_of: TurnId | None = None
    """Of a person's turn: the agent's turn that the escalation ended."""
    person: str = ""
    """Of a person's turn: whom it was assigned to."""
    ended_by: AnyEvent | None = None
    """What ended it."""


def summed_up(turn: Turn, report: Report) -> Report:
    """Return a turn's newest report, its usage not less than what was reported before."""
    if turn.report is NO_REPORT:
        return report
    usage = budget.larger(report.usage, turn.report.usage)
    return report if usage == report.usage else replace(report, usage=usage)
