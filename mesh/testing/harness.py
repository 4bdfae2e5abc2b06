"""A request's whole path through a fleet without a bus: the agents' own code, judged by a guard in memory.

    walk = await FleetHarness(guard, {"front": front, "greeter": greeter}).go("Say hello")
    assert walk.path == ["front", "greeter"]

Turns are journaled, so that a round after a refusal, a reply or a retry takes over what was done.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from mesh.agent._journal import Journal
from mesh.agent.definition import Agent
from mesh.agent.errors import ApprovalNeeded, failure_of
from mesh.agent.turn import Turn
from mesh.model.agent import ModelUnavailable
from mesh.testing.in_memory_guard import InMemoryGuard, NotDecided
from mesh.testing.memory import MemorySteps
from protocol.domain.turns import TurnState as Held
from protocol.wire import events
from protocol.wire.commands import Ask, MoveProposed, Proposal, ReportFailure
from protocol.wire.ids import HUMAN
from protocol.wire.prices import price_list

MOST_ROUNDS = 50


class FleetHarness:
    """One request on its way.

    Args:
        guard: the guard; whatever was said in it before is part of the way.
        agents: the code by name.
    """

    def __init__(self, guard: InMemoryGuard, agents: Mapping[str, Agent]) -> None:
        self.guard, self._agents = guard, agents
        self.turns: list[Turn] = []
        """Every round that an agent's code ran."""
        self.broke: list[str] = []
        """Codes of what agents' code raised."""
        self.approvals: list[Ask] = []
        """What somebody was asked to say yes to."""
        self._journals: Mapping[str, MemorySteps] = defaultdict(MemorySteps)
        self._deliveries = 0

    async def go(self, text: str, *, replies: Iterable[Any] = (), **submit: Any) -> "FleetHarness":
        """Submit, and follow the request until it ends or waits for somebody who says nothing.

        Args:
            replies: what whoever is asked says, in order.
            submit: further fields of the submit.

        Raises NotDecided when it comes to no end.
        """
        self.guard.submit(text, **submit)
        said = iter(replies)
        for _ in range(MOST_ROUNDS):
            held = self.guard.ledger.holder
            if held is None or held.agent == HUMAN:
                return self
            if held.state == "suspended":
                value = next(said, None)
                if value is None:
                    return self
                self.guard.reply(value)
            elif held.state == "working":
                self.guard.propose(await self._round(held))
            elif held.due_at is not None:
                self.guard.wait(max(0.0, (held.due_at - self.guard.now) / 1e6))
            else:
                return self  # an effect in doubt: nobody settles it here
        raise NotDecided(f"no end after {MOST_ROUNDS} rounds: {self.path}")

    async def _round(self, held: Held) -> Proposal:
        agent = self._agents[held.agent]
        self._deliveries += 1
        journal = Journal(
            self._journals[held.agent],
            request=self.guard.request,
            turn=held.work.continues or held.id,
            round_=held.round,
            nonce=f"n{self._deliveries}",
            version=agent.version,
            past=held.work.past,
        )
        prices = price_list(held.work.prices)
        turn = Turn(self.guard.request, held.work, self.guard.fleet, journal=journal, prices=prices)
        self.turns.append(turn)
        place: dict[str, Any] = {"turn": turn.id, "round": turn.round}
        try:
            move = await agent(turn)
            await journal.finish()
        except ApprovalNeeded as needed:
            self.approvals.append(needed.ask)
            return MoveProposed(move=needed.ask, report=turn.report, **place)
        except ModelUnavailable:
            raise  # it is the test that lacks something
        except Exception as error:
            stopped = journal.broken or error
            self.broke.append(failure_of(stopped).code)
            return ReportFailure(error=failure_of(stopped), report=turn.report, **place)
        return MoveProposed(move=move, report=turn.report, **place)

    # --- what came of it --------------------------------------------------------------------------

    @property
    def path(self) -> list[str]:
        """Holders in order, hand-backs included; people are none."""
        given = (events.RequestOpened, events.HandoffAdmitted)
        return [event.to for event in self.guard.events if isinstance(event, given)]

    @property
    def refused(self) -> list[str]:
        """Rules that refused a move, in order."""
        refusals = (event for event in self.guard.events if isinstance(event, events.MoveRefused))
        return [str(event.refusal.rule) for event in refusals]

    @property
    def answer(self) -> Any:
        """What the request was answered; None while it is not."""
        end = self.guard.ledger.ended
        return end.answer if isinstance(end, events.RequestCompleted) else None

    @property
    def status(self) -> str:
        """The request's; `escalated` while it waits for people."""
        held = self.guard.ledger.holder
        waits = held is not None and HUMAN in (held.agent, held.asked)
        return "escalated" if waits else self.guard.ledger.status
