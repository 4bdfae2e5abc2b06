"""Turns and tasks as the oracle of trees has them, each with what it may spend and what it spent.

Spending is added up anew from the bottom whenever it is asked for, so that no account is kept that could be
kept wrongly in the same way.
"""

from dataclasses import dataclass, field

from protocol.wire.commands import Report
from protocol.wire.event_parts import PlannedTask
from protocol.wire.handoff import Budget

DIMENSIONS = ("nano_dollars", "tokens", "model_calls")
Amounts = dict[str, int]


@dataclass(eq=False)
class Job:
    """A task of a lead."""

    plan: PlannedTask
    lead: "Node"
    agent: str
    turn: str
    status: str = "planned"
    nodes: list["Node"] = field(default_factory=list)
    off: bool = False
    told: bool = False
    fell_back: bool = False
    uses: tuple["Job", ...] = ()
    revises: "Job | None" = None
    """What its names meant when it was planned."""

    @property
    def revision(self) -> int:
        """How often its work was done before."""
        return 0 if self.revises is None else self.revises.revision + 1

    @property
    def name(self) -> str:
        return self.plan.task.name

    @property
    def live(self) -> bool:
        return self.status in ("planned", "open")

    def spent(self, dimension: str) -> int:
        return sum(node.spent(dimension) for node in self.nodes)

    def held(self, dimension: str) -> int:
        """What its lead cannot spend for it."""
        grant = getattr(self.plan.constraints.budget or Budget(), dimension)
        spent = self.spent(dimension)
        return max(grant, spent) if self.live and grant is not None else spent


@dataclass(eq=False)
class Node:
    """A turn."""

    turn: str
    agent: str
    path: tuple[str, ...]
    grant: Budget
    read_only: bool
    job: Job | None = None
    jobs: dict[str, Job] = field(default_factory=dict)
    state: str = "working"
    join: object = "all"
    own: Amounts = field(default_factory=lambda: dict.fromkeys(DIMENSIONS, 0))
    fine: Amounts = field(default_factory=lambda: dict.fromkeys(DIMENSIONS, 0))
    """What it was charged that nobody reported."""
    silent: bool = False
    """True while a round of it that the clock ended was not accounted for."""

    vain: int = 0
    """How often it was resumed without a result."""
    asks: int = 0
    asked: str = ""
    round: int = 0
    before: dict[str, Job] = field(default_factory=dict)
    """The tasks of the turn that it continues."""
    heard: bool = False
    """True once it reported anything."""

    @property
    def known(self) -> dict[str, Job]:
        return {**self.before, **self.jobs}

    def spent(self, dimension: str) -> int:
        below = sum(job.spent(dimension) for job in self.jobs.values())
        return self.own[dimension] + self.fine[dimension] + below

    def left(self, dimension: str, more: int = 0) -> int | None:
        grant = getattr(self.grant, dimension)
        if grant is None:
            return None
        held = sum(job.held(dimension) for job in self.jobs.values())
        return int(grant - self.own[dimension] - self.fine[dimension] - more - held)

    def more(self, report: Report) -> Amounts:
        """What a report adds; reports are cumulative."""
        return {name: max(0, getattr(report.usage, name) - self.own[name]) for name in DIMENSIONS}

    def learn(self, report: Report) -> None:
        for name, amount in self.more(report).items():
            self.own[name] += amount
        self.silent, self.heard = False, True

    def charge_rest(self) -> None:
        rest = {name: max(0, self.left(name) or 0) for name in DIMENSIONS}
        for name, amount in rest.items():
            self.fine[name] += amount
