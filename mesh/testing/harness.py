"""Agents' own code without a bus: one turn of it, or a request's whole path through a fleet.

    move = await greeter(turn(facts={"name": "Ada"}))

    walk = await FleetHarness(guard, {"front": front, "greeter": greeter}).go("Say hello")
    assert walk.path == ["front", "greeter"]

A harness journals every turn: a round after a refusal, a reply or a retry takes over what was done.
"""

import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent._execution import Execution, KeepPrompt, unkept
from mesh.agent._executor import sound
from mesh.agent._journal import Journal, never
from mesh.agent._steps import key_of
from mesh.agent._tasks import Send, nowhere
from mesh.agent.definition import Agent
from mesh.agent.errors import ApprovalNeeded, TurnError
from mesh.agent.turn import Turn
from mesh.agent.values import Facts, facts_of
from mesh.artifacts import ArtifactStore
from mesh.artifacts.store import Folder
from mesh.bus.stores import StepTaken
from mesh.local.mesh import fleet_of
from mesh.model.choice import ModelUnavailable
from mesh.ops.words import story
from mesh.replay.code import Recording
from mesh.replay.export import StoredStep
from mesh.testing.in_memory_guard import InMemoryGuard, NotDecided
from protocol.domain.tasks import busy_with, lists
from protocol.domain.turns import TurnState
from protocol.views.timeline import timeline
from protocol.wire import codec, events
from protocol.wire.commands import Proposal, Report, ReportFailure
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment, Posted, RoundOutcome, TaskError, TaskResult
from protocol.wire.handoff import Artifact, Constraints, Handoff, Refusal, Rule
from protocol.wire.ids import HUMAN, AgentName, TurnId
from protocol.wire.moves import Ask, Move
from protocol.wire.prices import Price
from protocol.wire.subjects import step

REQUEST = "client_01ARZ3NDEKTSV4RRFFQ69G5FAV"
_INSTANCES = count()
MOST_ROUNDS = 500


class MemorySteps:
    """One agent's steps. `written` counts what was stored."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, str, str], bytes] = {}

    @property
    def written(self) -> int:
        return len(self.steps)

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        return self.steps.get((request, turn, name))

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        if (request, turn, name) in self.steps:
            raise StepTaken(name)
        self.steps[request, turn, name] = body


class _TemporaryFolder(Folder):
    """A folder that is made at the first look, and gone with its last user."""

    def __init__(self) -> None:
        """Make nothing yet: few tests save anything."""

    @cached_property
    def root(self) -> Path:  # type: ignore[override]  # a folder is told its root
        made = tempfile.mkdtemp(prefix="mesh-artifacts-")
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return Path(made)


class TemporaryStore(ArtifactStore):
    """The store of a mesh, in a temporary folder that goes with it."""

    def __init__(self) -> None:
        super().__init__(_TemporaryFolder())


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
        facts: by key, or with their labels.
        path: holders before and including `agent`; just `agent` by default.
        peers: names of the other agents in the fleet.
        refused: (move, rule) of each round that the guard refused, in order.
        past: how further rounds ended, after those; see `replied` and `unanswered`.
        reported: what the rounds before this one reported, cumulative.
        steps: where this turn's journal is kept; its own by default. With the same for each `turn` of a test,
            the next one finds what the one before did, as after a crash.
        is_over: returns True if a guard has ended the turn.
        prices: what models' tokens cost, by model.
        topology: `supervised` or `swarm` for a turn in a tree of tasks.
        task: the name of the task that it does; empty for a root turn.
        results: of its tasks that ended since its last round; of a task, what it is given to use. See
            `delivered` and `undelivered`.
        waiting: names of its tasks that are still open.
        board: what stands on the board.
        send: gets what the turn posts.
        store: of artifacts; a `TemporaryStore` of its own by default.
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


def turn_of(
    request: str,
    work: Assignment,
    fleet: Fleet,
    steps: MemorySteps | None = None,
    *,
    version: str = "0",
    is_over: Callable[[], Awaitable[bool]] = never,
    send: Send = nowhere,
    keep_prompt: KeepPrompt = unkept,
    store: ArtifactStore | None = None,
) -> Turn:
    """Return a round as an agent gets it, read from its bytes, with a journal in memory.

    Args:
        version: the agent's.
    """
    work = msgspec.json.decode(codec.encode(work), type=Assignment)
    key = key_of(work.handoff.to_agent, request, work)
    journal = Journal(
        MemorySteps() if steps is None else steps,
        key,
        nonce=f"n{next(_INSTANCES)}",
        version=version,
        past=work.past,
    )
    execution = Execution(
        key,
        work,
        fleet,
        journal,
        is_over=is_over,
        version=version,
        send=send,
        keep_prompt=keep_prompt,
        store=store or TemporaryStore(),
    )
    return Turn(execution)


def turn_in(guard: InMemoryGuard) -> Turn:
    """Return the turn of the request's holder, with what the guard lets them see, and an empty journal.

    Raises NotDecided when it is nobody's.
    """
    return turn_of(guard.request, guard.holder.work, guard.fleet)


def replied(ask: Move, value: Any, *, round_: int = 0, by: str = "") -> RoundOutcome:
    """Return how a round ended that asked and got a reply; `ask` may be an approval's."""
    return RoundOutcome(round=round_, how="replied", reply=value, by=by, asked=_approval(ask))


def unanswered(ask: Move, *, round_: int = 0) -> RoundOutcome:
    """Return how a round ended that asked and got no reply in time."""
    return RoundOutcome(round=round_, how="expired", asked=_approval(ask))


JOINED = RoundOutcome(round=0, how="joined")
"""How a round ended that delegated tasks and whose join is reached."""


def delivered(name: str, summary: str = "", facts: Facts = None, *, agent: str = "worker") -> TaskResult:
    """Return the result of a task that was done."""
    task = TurnId(f"turn-of-{name}")
    done = TaskResult(name=name, task=task, status="delivered", agent=AgentName(agent))
    return msgspec.structs.replace(done, summary=summary, facts=facts_of(facts))


def undelivered(name: str, code: str, message: str = "", *, agent: str = "worker") -> TaskResult:
    """Return the result of a task that failed."""
    error = TaskError(code=code, message=message, agent=AgentName(agent), lineage=(AgentName(agent),))
    failed = TaskResult(name=name, task=TurnId(f"turn-of-{name}"), status="failed", agent=AgentName(agent))
    return msgspec.structs.replace(failed, error=error)


def _approval(ask: Move) -> str:
    assert isinstance(ask, Ask)
    return (ask.digest or "") if ask.action else ""


# --- a whole path ---------------------------------------------------------------------------------


class FleetHarness:
    """One request on its way.

    Args:
        guard: the guard; events that are in it already are part of the way.
        agents: the code by name.
        keep_going: what code raises, `Retry` and its like aside, fails its turn as on the bus; by default it
            ends the test where it was raised.
    """

    def __init__(
        self, guard: InMemoryGuard, agents: Mapping[str, Agent], *, keep_going: bool = False
    ) -> None:
        self.guard, self._agents, self._keep_going = guard, agents, keep_going
        self.turns: list[Turn] = []
        """Every round that an agent's code ran."""
        self.broke: list[str] = []
        """Codes of what agents' code raised."""
        self.approvals: list[Ask] = []
        """What somebody was asked to say yes to."""
        self.store = TemporaryStore()
        """Where the agents save artifacts."""
        self._claimed: set[tuple[str, str]] = set()
        """Offers with the agents that claimed them."""
        self._journals: Mapping[str, MemorySteps] = defaultdict(MemorySteps)
        self._prompts: dict[str, bytes] = {}

    async def go(self, text: str, *, replies: Iterable[Any] = (), **submit: Any) -> "FleetHarness":
        """Submit, and follow the request until it ends or no reply is left for it.

        Args:
            replies: what people and clients answer when they are asked, in order.
            submit: further fields of the submit.

        Raises NotDecided when it comes to no end, and an agent's error that is none of `mesh.agent.errors`,
        with its traceback, unless it keeps going.
        """
        self.guard.submit(text, **submit)
        return await self.go_on(replies=replies)

    async def go_on(self, *, replies: Iterable[Any] = ()) -> "FleetHarness":
        """Follow the request from where it stands, as `go` does: after a person's word, for instance."""
        said = iter(replies)
        for _ in range(MOST_ROUNDS):
            if self._claims():
                continue
            held = self._next()
            if held is None:
                return self
            if held.state == "suspended":
                value = next(said, None)
                if value is None:
                    return self
                self.guard.reply(value, turn=held)
            elif held.state == "working":
                self.guard.propose(await self._round(held))
            elif held.due_at is not None:
                self.guard.wait(max(0.0, (held.due_at - self.guard.now) / 1e6))
            else:
                return self  # an effect in doubt: nobody settles it here
        raise NotDecided(f"no end after {MOST_ROUNDS} rounds: {self.path}")

    def _claims(self) -> bool:
        """Let an agent that lists an offer's intent claim it, one that claimed few; False if nobody does.

        Where offers are left that nobody may have, and no turn works, their time passes.
        """
        ledger, entries = self.guard.ledger, self.guard.fleet.agents
        offers = [task for task in ledger.offers.values() if task.state == "offered"]
        for task in offers:
            for name in sorted(self._agents, key=lambda name: sum(name == by for _, by in self._claimed)):
                listed = name in entries and lists(entries[name], str(task.planned.task.intent))
                busy = busy_with(ledger.turns[task.lead].tasks.values(), name)
                if listed and busy is None and (task.turn, name) not in self._claimed:
                    self._claimed.add((task.turn, name))
                    self.guard.claim(task.turn, name)
                    return True
        if offers and not any(turn.state == "working" for turn in ledger.open.values()):
            self.guard.wait(ledger.policy.claim_within_s)
            return True
        return False

    def _next(self) -> TurnState | None:
        """Return the turn that goes on: one that works, else one that was asked, else the first that is due.

        Turns of tasks work in the order in which they were opened; None where people have the request.
        """
        held = [turn for turn in self.guard.ledger.open.values() if turn.agent != HUMAN]
        for state in ("working", "suspended"):
            for turn in held:
                if turn.state == state:
                    return turn
        due = [turn for turn in held if turn.due_at is not None]
        return min(due or held, key=lambda turn: turn.due_at or 0, default=None)

    async def _round(self, held: TurnState) -> Proposal:
        agent, steps = self._agents[held.agent], self._journals[held.agent]

        async def send(proposal: Proposal) -> None:
            self.guard.propose(proposal)

        async def keep_prompt(digest: str, body: bytes) -> None:
            self._prompts[digest] = body

        turn = turn_of(
            self.guard.request,
            held.work,
            self.guard.fleet,
            steps,
            version=agent.version,
            send=send,
            keep_prompt=keep_prompt,
            store=self.store,
        )
        self.turns.append(turn)
        execution = turn.execution
        try:
            move = await agent(turn)
            await execution.journal.finish()
            moved = execution.moved(move, agent.handler)
            proposal, _ = sound(moved)
            if proposal is not moved and not self._keep_going:
                codec.parse_proposal(codec.encode(moved))  # raises what is wrong with it
        except ModelUnavailable:
            raise  # it is the test that lacks something
        except Exception as raised:
            error = execution.journal.broken or raised
            if not isinstance(error, TurnError) and not self._keep_going:
                if error is raised:
                    raise
                raise error from raised
            proposal = execution.stopped(error)
            if isinstance(error, ApprovalNeeded):  # code may have wrapped it in an error of its own
                self.approvals.append(error.ask)
        if isinstance(proposal, ReportFailure):
            self.broke.append(proposal.error.code)
        return proposal

    # --- what came of it --------------------------------------------------------------------------

    @property
    def recording(self) -> Recording:
        """What its agents journaled, with the fleet: what `mesh.replay` runs their code over."""
        kept = Recording(fleet=self.guard.fleet)
        kept.prompts |= self._prompts
        for by, memory in self._journals.items():
            kept.take(StoredStep(step(by, *place), body) for place, body in memory.steps.items())
        return kept

    def __str__(self) -> str:
        """The request as `mesh request show` prints it."""
        return "\n".join(line.plain for line in story(timeline(self.guard.events)))

    @property
    def path(self) -> list[str]:
        """Holders in order, hand-backs included; people are none."""
        given = (events.RequestOpened, events.HandoffAdmitted)
        return [event.to for event in self.guard.events if isinstance(event, given)]

    @property
    def tasks(self) -> dict[str, str]:
        """Tasks in the order of their plans: how each stands or ended; of equal names, the newest."""
        return {task.name: task.state for task in self.guard.ledger.tasks.values()}

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
