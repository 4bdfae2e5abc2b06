"""A supervised request as a guard in memory decided it, stage by stage: what views of trees are tested on.

A lead asks a searcher and a checker. The searcher has a task of its own, which fails; so it gives up, and the
lead tries again with another plan.
"""

from mesh.testing import InMemoryGuard, fleet_of
from protocol.domain.turns import TurnState
from protocol.wire.commands import Failure, MoveProposed, Report, ReportFailure, Usage
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget, Fact
from protocol.wire.ids import HUMAN, AgentName
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Fail, Move, Task

FLEET = fleet_of("lead", "searcher", "checker", "fetcher", "writer")
POLICY = Policy(topology="supervised", budget=Budget(nano_dollars=10**9, model_calls=100), max_retries=1)


class TreeStory:
    """The request. Each method brings it to its next stage."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.guard = InMemoryGuard(FLEET, {"default": policy})
        self.guard.submit("Who won in 1998, and says who?")

    def whole(self) -> "TreeStory":
        self.refused()
        self.searching()
        self.failed()
        self.again()
        self.answered()
        return self

    def refused(self) -> None:
        """A plan with a task for nobody is refused."""
        self._move("lead", Delegate(tasks=(_task("find", "nobody"),)))

    def searching(self) -> None:
        """One task is done; the other waits for a task of its own."""
        self._move("lead", Delegate(tasks=(_task("find", "searcher"), _task("check", "checker"))), 2)
        self._move("checker", Deliver(summary="1998 it was", facts=(Fact(key="year", value=1998),)), 1)
        self._move("searcher", Delegate(tasks=(_task("fetch", "fetcher"),)), 1)

    def failed(self) -> None:
        """The task below fails, and with it the one above."""
        turn = self.turn("fetcher")
        error = Failure(code="site_down", message="the site answers 503", permanent=True)
        self.guard.wait(1.0)
        self.guard.propose(ReportFailure(turn=turn.id, round=turn.round, error=error))
        self._move("searcher", Fail(reason="no source could be fetched"), 2)

    def again(self) -> None:
        """The lead waits for the first of two others."""
        hint = (Fact(key="hint", value="try the archive"),)
        other = Task(
            name="again", summary="find it", to_agent=AgentName("searcher"), revises="find", facts=hint
        )
        self._move("lead", Delegate(tasks=(_task("write", "writer"), other), join="any"), 3)

    def answered(self) -> None:
        """One is done, and the lead answers without the other."""
        self._move("writer", Deliver(summary="written"), 4)
        self._move("lead", Complete(answer="France", cancel_open=True), 5)

    def asked(self) -> None:
        """Two tasks wait for people, each with a question of its own."""
        self._move("lead", Delegate(tasks=(_task("find", "searcher"), _task("check", "checker"))), 2)
        for agent in ("searcher", "checker"):
            self._move(agent, Ask(to_agent=HUMAN, question=f"{agent} asks"))

    def turn(self, agent: str) -> TurnState:
        """Return an agent's open turn."""
        return next(turn for turn in self.guard.ledger.open.values() if turn.agent == agent)

    def _move(self, agent: str, move: Move, spent: int = 0) -> None:
        """Let an agent ask for a move a second later.

        Args:
            spent: model calls of its turn so far; each costs a thousandth of a dollar and has 100 tokens.
        """
        self.guard.wait(1.0)
        turn = self.turn(agent)
        usage = Usage(nano_dollars=spent * 1_000_000, tokens=spent * 100, model_calls=spent)
        report = Report(usage=usage)
        self.guard.propose(MoveProposed(turn=turn.id, round=turn.round, move=move, report=report))


def _task(name: str, agent: str) -> Task:
    return Task(name=name, summary=f"{name} it", to_agent=AgentName(agent))
