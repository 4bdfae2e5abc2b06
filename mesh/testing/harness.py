"""Agents' own code without a bus: one turn of it, or a request's whole path through a fleet.

    move = await greeter(turn(facts={"name": "Ada"}))

    walk = await FleetHarness(guard, {"front": front, "greeter": greeter}).go("Say hello")
    assert walk.path == ["front", "greeter"]

A harness journals every turn: a round after a refusal, a reply or a retry reuses what was done.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mesh.agent._journal import never
from mesh.agent._tasks import Send, nowhere
from mesh.agent.turn import Turn
from mesh.agent.values import Facts, facts_of
from mesh.artifacts import ArtifactStore
from mesh.local.in_memory import InMemoryFleet, MemorySteps, turn_of
from mesh.local.in_memory_guard import InMemoryGuard
from mesh.local.mesh import fleet_of
from mesh.ops.words import story
from mesh.replay.code import Recording
from mesh.replay.export import StoredStep
from protocol.domain.turns import TurnState
from protocol.views.timeline import timeline
from protocol.wire import events
from protocol.wire.commands import Report
from protocol.wire.event_parts import Assignment, Posted, RoundOutcome, TaskError, TaskResult
from protocol.wire.handoff import Artifact, Constraints, Handoff, Refusal, Rule
from protocol.wire.ids import HUMAN, AgentName, TurnId
from protocol.wire.moves import Ask, Move
from protocol.wire.prices import Price
from protocol.wire.subjects import step

REQUEST = "client_01ARZ3NDEKTSV4RRFFQ69G5FAV"


# --- one turn -------------------------------------------------------------------------------------


def turn(
    *,
    agent: str = "agent",
    summary: str = "",
    facts: Facts = None,
    artifacts: Iterable[Artifact] = (),
    intent: str | None = None,
    move: str = "submit",
    from_agent: str = "client",
    path: Iterable[str] | None = None,
    peers: Iterable[str] = (),
    refused: Iterable[tuple[Move, str]] = (),
    constraints: Constraints | None = None,
    human: bool = True,
    past: Iterable[RoundOutcome] = (),
    reported: Report | None = None,
    steps: MemorySteps | None = None,
    is_over: Callable[[], Awaitable[bool]] = never,
    prices: Mapping[str, Price] | None = None,
    topology: str = "handoff",
    task: str = "",
    results: Iterable[TaskResult] = (),
    waiting: Iterable[str] = (),
    board: Iterable[Posted] = (),
    send: Send = nowhere,
    store: ArtifactStore | None = None,
) -> Turn:
    """Return the first round of a turn, or a later one after refusals.

    Args:
        facts: by key, or as `Fact` with labels.
        path: holders up to and including `agent`; just `agent` by default.
        peers: names of the other agents in the fleet.
        refused: (move, rule) of each round that the guard refused, in order.
        past: how further rounds after those ended; see `replied` and `unanswered`.
        reported: what the earlier rounds reported, cumulative.
        steps: where this turn's journal is kept; its own by default. If all turns of a test share one, each
            turn finds what the one before did, as after a crash.
        is_over: returns True if a guard has ended the turn.
        prices: prices of tokens, by model.
        topology: `supervised` or `swarm` for a turn in a tree of tasks.
        task: the name of the task that it does; empty for a root turn.
        results: of its tasks that ended since its last round; in a task, those that it is given to use. See
            `delivered` and `undelivered`.
        waiting: names of its open tasks.
        board: the posts on the board.
        send: gets what the turn posts.
        store: the artifact store; a `TemporaryStore` of its own by default.
    """
    refusals = (
        RoundOutcome(
            round=round_,
            how="refused",
            move=asked,
            refusal=Refusal(rule=Rule(rule), detail=f"refused: {rule}"),
        )
        for round_, (asked, rule) in enumerate(refused)
    )
    ended = (*refusals, *past)
    fleet = fleet_of(agent, *peers, human=human)
    handoff = Handoff(
        move=move,
        from_agent=AgentName(from_agent),
        to_agent=AgentName(agent),
        summary=summary,
        intent=intent,
        facts=facts_of(facts),
        artifacts=tuple(artifacts),
        constraints=constraints or Constraints(),
    )
    held = tuple(AgentName(name) for name in (path or (agent,)))
    work = Assignment(
        turn=TurnId("turn"),
        round=len(ended),
        handoff=handoff,
        path=held,
        depth=len(held) - 1,
        past=ended,
        reported=reported or Report(),
        prices=msgspec.to_builtins(prices or {}),
        topology=topology,
        task=task,
        results=tuple(results),
        waiting=tuple(waiting),
        board=tuple(board),
    )
    return turn_of(REQUEST, work, fleet, steps, is_over=is_over, send=send, store=store)


def turn_in(guard: InMemoryGuard) -> Turn:
    """Return the turn of the request's holder, as the guard lets the holder see it, with an empty journal.

    Raises NotDecided if the request has no holder.
    """
    return turn_of(guard.request, guard.holder.work, guard.fleet)


def replied(ask: Move, value: Any, *, round_: int = 0, by: str = "") -> RoundOutcome:
    """Return the outcome of a round that asked and got a reply; `ask` may be an approval's."""
    return RoundOutcome(round=round_, how="replied", reply=value, by=by, asked=_approval(ask))


def unanswered(ask: Move, *, round_: int = 0) -> RoundOutcome:
    """Return the outcome of a round that asked and got no reply in time."""
    return RoundOutcome(round=round_, how="expired", asked=_approval(ask))


JOINED = RoundOutcome(round=0, how="joined")
"""The outcome of a round that delegated tasks and whose join is reached."""


def delivered(name: str, summary: str = "", facts: Facts = None, *, agent: str = "worker") -> TaskResult:
    """Return the result of a completed task."""
    task = TurnId(f"turn-of-{name}")
    done = TaskResult(name=name, task=task, status="delivered", agent=AgentName(agent))
    return msgspec.structs.replace(done, summary=summary, facts=facts_of(facts))


def undelivered(name: str, code: str, message: str = "", *, agent: str = "worker") -> TaskResult:
    """Return the result of a failed task."""
    error = TaskError(code=code, message=message, agent=AgentName(agent), lineage=(AgentName(agent),))
    failed = TaskResult(name=name, task=TurnId(f"turn-of-{name}"), status="failed", agent=AgentName(agent))
    return msgspec.structs.replace(failed, error=error)


def _approval(ask: Move) -> str:
    assert isinstance(ask, Ask)
    return (ask.digest or "") if ask.action else ""


# --- a whole path ---------------------------------------------------------------------------------


class FleetHarness(InMemoryFleet):
    """One request on its way through a fleet. Time passes at once.

    Args:
        guard: the guard; events that it already has are part of the way.
        agents: their code, by name.
        keep_going: True if an error in an agent's code fails its turn, as on the bus; by default it ends the
            test where it was raised. `Retry` and the like always fail the turn.
    """

    _replies: Iterator[Any] = iter(())

    async def go(self, text: str, *, replies: Iterable[Any] = (), **submit: Any) -> "FleetHarness":
        """Submit, and follow the request until it ends or no reply is left for it.

        Args:
            replies: the answers of people and clients, in order.
            submit: further fields of the submit.

        Raises NotDecided if it reaches no end, and an agent's error that is not one of `mesh.agent.errors`,
        with its traceback, unless it keeps going.
        """
        self.guard.submit(text, **submit)
        return await self.go_on(replies=replies)

    async def go_on(self, *, replies: Iterable[Any] = ()) -> "FleetHarness":
        """Follow the request from its present state, as `go` does; such as after a person has replied."""
        self._replies = iter(replies)
        await self.walk()
        return self

    async def reply_to(self, held: TurnState) -> bool:
        value = next(self._replies, None)
        if value is not None:
            self.guard.reply(value, turn=held)
        return value is not None

    # --- the outcome --------------------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """What its agents journaled, and the fleet: the input for `mesh.replay` to run their code again."""
        kept = Recording(fleet=self.guard.fleet)
        kept.prompts = dict(self.prompts)
        for by, memory in self.journals.items():
            kept.take(StoredStep(step(by, *place), body) for place, body in memory.steps.items())
        return kept

    def __str__(self) -> str:
        """The request as `mesh request show` prints it."""
        return "\n".join(line.plain for line in story(timeline(self.guard.events)))

    @property
    def path(self) -> list[str]:
        """The holders in order, hand-backs included; without people."""
        given = (events.RequestOpened, events.HandoffAdmitted)
        return [event.to for event in self.guard.events if isinstance(event, given)]

    @property
    def tasks(self) -> dict[str, str]:
        """Tasks in the order of their plans, with their state or end; of equal names, the newest."""
        return {task.name: task.state for task in self.guard.ledger.tasks.values()}

    @property
    def refused(self) -> list[str]:
        """Rules that refused a move, in order."""
        refusals = (event for event in self.guard.events if isinstance(event, events.MoveRefused))
        return [str(event.refusal.rule) for event in refusals]

    @property
    def answer(self) -> Any:
        """The request's answer; None as long as there is none."""
        end = self.guard.ledger.ended
        return end.answer if isinstance(end, events.RequestCompleted) else None

    @property
    def status(self) -> str:
        """The request's status; `escalated` while it waits for people."""
        held = self.guard.ledger.holder
        waits = held is not None and HUMAN in (held.agent, held.asked)
        return "escalated" if waits else self.guard.ledger.status
