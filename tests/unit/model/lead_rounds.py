"""A lead's rounds without a guard: its tasks are done by a function, and its joins close as they should."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mesh.agent import Agent, Turn
from mesh.local.in_memory import turn_of
from mesh.testing import MemorySteps
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.event_parts import Assignment, Posted, RoundOutcome, TaskResult
from protocol.wire.handoff import Fact, Handoff, Refusal, Rule
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Delegate, Move, Task

Work = Callable[[Task], TaskResult]


def entry(name: str, *intents: str) -> AgentEntry:
    return AgentEntry(name=AgentName(name), intents=intents or None)


class Rounds:
    """One turn of a lead, round after round.

    Args:
        refuse: returns why a delegate is refused; None admits it.
    """

    def __init__(
        self,
        agent: Agent,
        workers: Iterable[AgentEntry],
        work: Work,
        *,
        refuse: Callable[[Delegate], str | None] = lambda move: None,
        topology: str = "supervised",
        task: str = "",
    ) -> None:
        self._agent, self._work, self._refuse = agent, work, refuse
        name = AgentName(agent.name)
        agents: dict[str, AgentEntry] = {name: AgentEntry(name=name), **{each.name: each for each in workers}}
        self.fleet = Fleet(name="test", entry=name, agents=agents, human=True)
        self.steps = MemorySteps()
        self.delegates: list[Delegate] = []
        self.turns: list[Turn] = []
        self.open: dict[str, Task] = {}
        self._past: list[RoundOutcome] = []
        self._new: tuple[TaskResult, ...] = ()
        self._topology, self._task = topology, task
        self.boards: Sequence[Mapping[str, Mapping[str, Any]]] = ()
        """By round: what stands on the board; nothing where it is not said."""

    async def go(self) -> Move:
        """Run round after round; return the move that is no delegate."""
        while True:
            move = await self.round()
            if not isinstance(move, Delegate):
                return move
            self.judged(move)

    async def round(self) -> Move:
        """Run the present round; again, it does the same."""
        agent = AgentName(self._agent.name)
        handoff = Handoff(
            move="submit",
            from_agent=AgentName("client"),
            to_agent=agent,
            summary="Find out.",
            facts=(Fact(key="text", value="Why is the sky blue?"),),
        )
        work = Assignment(
            turn=TurnId("turn"),
            round=len(self._past),
            handoff=handoff,
            path=(agent,),
            depth=0,
            past=tuple(self._past),
            topology=self._topology,
            task=self._task,
            results=self._new,
            waiting=tuple(self.open),
            board=tuple(self._board(len(self._past))),
        )
        turn = turn_of("client_01ARZ3NDEKTSV4RRFFQ69G5FAV", work, self.fleet, self.steps)
        self.turns.append(turn)
        return await self._agent(turn)

    def _board(self, round_: int) -> Iterator[Posted]:
        for by, facts in (self.boards[round_] if round_ < len(self.boards) else {}).items():
            yield from (Posted(by=AgentName(by), fact=Fact(key=key, value=facts[key])) for key in facts)

    def judged(self, move: Delegate) -> None:
        """Admit a delegate and do its tasks until its join closes; or refuse it."""
        why = self._refuse(move)
        self.delegates.append(move)
        if why is not None:
            refusal = Refusal(rule=Rule.KNOWN_AGENT, detail=why)
            self._past.append(RoundOutcome(round=len(self._past), how="refused", move=move, refusal=refusal))
            self._new = ()
            return
        self.open = {name: task for name, task in self.open.items() if name not in move.cancel}
        self.open |= {task.name: task for task in move.tasks}
        done: list[TaskResult] = []
        wanted = {"all": len(self.open), "any": 1}.get(str(move.join), move.join)
        while self.open and sum(each.status == "delivered" for each in done) < int(wanted):
            done.append(self._work(self.open.pop(next(iter(self.open)))))
        self._new = tuple(done)
        self._past.append(RoundOutcome(round=len(self._past), how="joined"))


def plan(*steps: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a planner's call; a step is its name, its agent, and what it needs."""
    return "plan", {"steps": [{"goal": f"do {step['name']}", **step} for step in steps]}
