"""Agents' own code, the real decider and the real journal in one process: no bus, no server, no storage.

`mesh run` takes a request through it in real time (`mesh/local/run.py`), the test kit without any waiting.
Rounds run one after the other, even those of a tree of tasks.
"""

import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from itertools import count
from pathlib import Path

import msgspec

from mesh.agent._execution import Execution, KeepPrompt, unkept
from mesh.agent._executor import encode_or_fail
from mesh.agent._fork import record_before
from mesh.agent._journal import Journal, never
from mesh.agent._steps import key_of
from mesh.agent._tasks import Send, nowhere
from mesh.agent.definition import Agent
from mesh.agent.errors import ApprovalNeeded, TurnError
from mesh.agent.turn import Turn
from mesh.artifacts import ArtifactStore
from mesh.artifacts.store import Folder
from mesh.bus.stores import StepTaken
from mesh.local.in_memory_guard import InMemoryGuard, NotDecided
from mesh.model.choice import ModelUnavailable
from protocol.domain.tasks import busy_with, lists
from protocol.domain.turns import TurnState
from protocol.wire import codec
from protocol.wire.commands import Proposal, ReportFailure
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Ask

_INSTANCES = count()
MOST_ROUNDS = 500


class MemorySteps:
    """One agent's steps. `written` counts the stored ones."""

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
    """A folder that is made on first use, and removed with its last user."""

    def __init__(self) -> None:
        """Make nothing yet: few tests save anything."""

    @cached_property
    def root(self) -> Path:  # type: ignore[override]  # a folder is given its root
        made = tempfile.mkdtemp(prefix="mesh-artifacts-")
        weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
        return Path(made)


class TemporaryStore(ArtifactStore):
    """The artifact store of a mesh, in a temporary folder that is removed with it."""

    def __init__(self) -> None:
        super().__init__(_TemporaryFolder())


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
    execution: Callable[..., Execution] = Execution,
) -> Turn:
    """Return a round as an agent gets it, read from its bytes, with a journal in memory.

    Args:
        version: version of the agent.
        execution: builds what runs the round.
    """
    work = msgspec.json.decode(codec.encode(work), type=Assignment)
    key = key_of(work.handoff.to_agent, request, work)
    steps = MemorySteps() if steps is None else steps
    journal = Journal(
        steps,
        key,
        nonce=f"n{next(_INSTANCES)}",
        version=version,
        past=work.past,
        before=record_before(steps, key.agent, work),
    )
    made = execution(
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
    return Turn(made)


class InMemoryFleet:
    """One request on its way through agents' own code. Time passes at once, and questions get no reply.

    Args:
        guard: the guard; events that it already has are part of the way.
        agents: their code, by name.
        keep_going: True if an error in an agent's code fails its turn, as on the bus; by default it is raised
            from here. `Retry` and the like always fail the turn.
    """

    def __init__(
        self, guard: InMemoryGuard, agents: Mapping[str, Agent], *, keep_going: bool = False
    ) -> None:
        self.guard, self._agents, self._keep_going = guard, agents, keep_going
        self.turns: list[Turn] = []
        """Every round that an agent's code ran."""
        self.broke: list[str] = []
        """Codes of the errors that agents' code raised."""
        self.approvals: list[Ask] = []
        """The approvals that were asked for."""
        self.store = TemporaryStore()
        """Where the agents save artifacts."""
        self._claimed: set[tuple[str, str]] = set()
        """Offers, each with the agent that claimed it."""
        self.journals: Mapping[str, MemorySteps] = defaultdict(MemorySteps)
        """The journal of each agent."""
        self.prompts: dict[str, bytes] = {}
        """The fixed parts of prompts, by their digest."""

    async def walk(self) -> None:
        """Follow the request until it ends, or until it waits for a person or a client.

        Raises NotDecided if it reaches no end, and an agent's error that is not one of `mesh.agent.errors`,
        with its traceback, unless it keeps going.
        """
        for _ in range(MOST_ROUNDS):
            if await self._claims():
                continue
            held = self._next()
            if held is None:
                return
            if held.state == "suspended":
                if not await self.reply_to(held):
                    return
            elif held.state == "working":
                await self.work_on(held)
            elif held.due_at is not None:
                await self.wait_until(held.due_at)
            else:
                return  # an effect in doubt, which cannot be settled here
        raise NotDecided(f"no end after {MOST_ROUNDS} rounds")

    async def reply_to(self, held: TurnState) -> bool:
        """Answer a turn's question; return False if there is no answer."""
        return False

    async def work_on(self, held: TurnState) -> None:
        """Run a turn's newest round, and let the guard decide its proposal."""
        self.guard.propose(await self.run_round(held))

    async def wait_until(self, at: int) -> None:
        """Let time pass until a moment (UTC µs) at which something falls due."""
        self.guard.wait(max(0.0, (at - self.guard.now) / 1e6))

    async def _claims(self) -> bool:
        """Let an agent that lists an offer's intent and has few claims claim it; return False if none can.

        If only offers are left that no agent may have, and no turn works, their time passes.
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
            await self.wait_until(self.guard.now + round(ledger.policy.claim_within_s * 1e6))
            return True
        return False

    def _next(self) -> TurnState | None:
        """Return the turn that continues: a working one, else one that asks, else the first that falls due.

        Turns of tasks work in the order in which they were opened. None if people have the request.
        """
        held = [turn for turn in self.guard.ledger.open.values() if turn.agent != HUMAN]
        for state in ("working", "suspended"):
            for turn in held:
                if turn.state == state:
                    return turn
        due = [turn for turn in held if turn.due_at is not None]
        return min(due or held, key=lambda turn: turn.due_at or 0, default=None)

    async def run_round(self, held: TurnState) -> Proposal:
        """Run an agent's code for a turn's newest round; return its proposal."""
        agent, steps = self._agents[held.agent], self.journals[held.agent]

        async def send(proposal: Proposal) -> None:
            self.guard.propose(proposal)

        async def keep_prompt(digest: str, body: bytes) -> None:
            self.prompts[digest] = body

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
            proposal, _ = encode_or_fail(moved)
            if proposal is not moved and not self._keep_going:
                codec.parse_proposal(codec.encode(moved))  # raises an error if it cannot be read
        except ModelUnavailable:
            raise  # the caller left something out
        except Exception as raised:
            error = execution.journal.broken or raised
            if not isinstance(error, TurnError) and not self._keep_going:
                if error is raised:
                    raise
                raise error from raised
            proposal = execution.stopped(error)
            if isinstance(error, ApprovalNeeded):  # code may have wrapped it in its own error
                self.approvals.append(error.ask)
        if isinstance(proposal, ReportFailure):
            self.broke.append(proposal.error.code)
        return proposal
