"""A turn as its code sees it: its facts, earlier refusals, tools and moves.

A `Turn` is one *round* of a turn. After a refusal, a retry, a reply or a join, the same code runs again from
the top with a new `Turn`. Its `refusals`, `failures`, `reply` or `results` tell what happened.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from mesh.agent._effects import ALL_FACTS, fact_digest
from mesh.agent._execution import Execution
from mesh.agent._injected import GivenToTools
from mesh.agent._journal import Produce
from mesh.agent._moves import Moves
from mesh.agent._rounds import MoveOutcomes
from mesh.agent._tasks import by_agent
from mesh.agent.errors import FactUnusable
from mesh.agent.tools import Tool
from mesh.agent.values import Facts, KnownFacts, Result, Results, fact_as, facts_of, form_as, keys_of
from protocol.wire.commands import Failure, Usage
from protocol.wire.config import AgentEntry
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.handoff import Artifact, Budget, Handoff, Refusal
from protocol.wire.ids import AgentName, submitter_of
from protocol.wire.moves import Move

if TYPE_CHECKING:
    from mesh.artifacts.store import Data

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class RefusedMove(NamedTuple):
    """A move of an earlier round that the guard refused, and why."""

    move: Move
    rule: str
    detail: str
    hint: str


class Turn(Moves, GivenToTools):
    """One round. Made by the runtime; `mesh.testing.turn` makes one for tests."""

    def __init__(self, execution: Execution) -> None:
        work = execution.work
        self.execution = execution
        """The round as the runtime runs it. An agent's code does not need it."""
        execution.for_tools = ToolTurn  # the class, so that a finished round is freed at once
        self.request = execution.request
        """The request's id."""
        self.client = submitter_of(self.request)
        """Name of the request's submitter."""
        self.id = work.turn
        self.round = work.round
        """0 the first time this turn's code runs."""
        self.handoff: Handoff = work.handoff
        """All that was handed over."""
        self.agent: AgentName = work.handoff.to_agent
        self.facts: Mapping[str, Any] = MappingProxyType(
            KnownFacts((fact.key, fact.value) for fact in work.handoff.facts)
        )
        """Facts by key, values only; `handoff.facts` also has the labels."""
        self.path: tuple[AgentName, ...] = work.path
        """The agents that held the work, from the entry agent to this one."""
        self.depth = work.depth
        """Agent-to-agent hops so far."""
        self.withheld: tuple[str, ...] = () if work.withheld is None else work.withheld.labels
        """Labels of facts and artifacts that this agent may not see and that travel on without it."""
        self.past: tuple[RoundOutcome, ...] = work.past
        """How the rounds before this one ended."""
        self.has_human = execution.fleet.human
        """True if `escalate` can be admitted."""
        self.allowed_actions = execution.allowed_actions
        """Names of the tools that may be called; None if there is no limit."""
        self.read_only = work.handoff.constraints.read_only
        """True if no tool with an effect may be called."""
        self.topology = work.topology
        """`handoff`, `supervised` or `swarm`: it fixes which moves there are."""
        self.task_name = work.task
        """The name of the task that this turn does; empty for a root turn."""
        self.waiting: tuple[str, ...] = work.waiting
        """Names of this turn's open tasks."""

    @cached_property
    def results(self) -> Mapping[str, Result]:
        """All results so far, by task name: those that this task was given to use, then its own tasks'."""
        return MappingProxyType(Results(self.execution.tasks.results))

    @property
    def board(self) -> Mapping[AgentName, Mapping[str, Any]]:
        """The board of a swarm when this round was opened: by agent, the newest value of each key."""
        return MappingProxyType(by_agent(self.execution.work.board))

    @property
    def peers(self) -> Mapping[str, AgentEntry]:
        """Agents that this one may hand work to, by name."""
        agents = self.execution.fleet.agents
        own = agents.get(self.agent)
        allowed = () if own is None else own.to  # an agent that has left the fleet may do nothing
        return {
            name: entry
            for name, entry in agents.items()
            if name != self.agent and (allowed is None or name in allowed)
        }

    @property
    def refusals(self) -> tuple[RefusedMove, ...]:
        """Moves that were refused in earlier rounds of this turn, in order."""
        return tuple(
            RefusedMove(past.move, str(why.rule), why.detail, why.hint)
            for past in self.past
            if isinstance(why := past.refusal, Refusal) and past.move is not None
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Why earlier rounds of this turn failed, in order."""
        return tuple(past.failure for past in self.past if past.failure is not None)

    @property
    def reply(self) -> Any:
        """The reply to the newest `turn.ask`; None if there was none or it expired (see `expired`)."""
        return None if self._answered is None else self._answered.reply

    @property
    def expired(self) -> bool:
        """True if the newest `turn.ask` expired without a reply."""
        return self._answered is not None and self._answered.how == "expired"

    @property
    def _answered(self) -> RoundOutcome | None:
        """The end of the newest ask. Approvals are left out: their calls find them."""
        ends = (past for past in reversed(self.past) if past.how in ("replied", "expired"))
        return next((past for past in ends if not past.asked), None)

    @property
    def budget_left(self) -> Budget:
        """What this turn may still spend; None for what has no limit, below 0 if more was spent.

        It counts the cost of earlier rounds, and of this round's model calls up to where its code is. For a
        lead it also counts what its tasks have cost, and what the open ones have reserved. So it is the same
        at the same place whenever this round runs again.
        """
        return self.execution.account.left

    def fact(self, key: str, kind: type[T]) -> T:
        """Return a fact as an object of `kind`: a pydantic model, or any type that pydantic reads.

        Raises FactUnusable if there is no such fact, or it does not fit: then a person gets the turn.
        """
        return fact_as(self.handoff.facts, key, kind, withheld=self.withheld)

    def form(self, kind: type[T]) -> T:
        """Return the facts that a pydantic model names, as an object of it: what an edge carries.

        Raises FactUnusable if they do not fit: then a person gets the turn.
        """
        facts = self.facts
        return form_as({key: facts[key] for key in keys_of(kind) if key in facts}, kind, self.withheld)

    # --- doing ------------------------------------------------------------------------------------

    async def call(self, tool: Tool[P, R, Any], /, *args: P.args, **arguments: P.kwargs) -> R:
        """Run a tool and return its result, with the tool's own type; a recorded step is not run again.

        The journal keeps the result as JSON. What has no JSON type (an object, a date, a decimal) is
        converted back from it, the first time as well as later.

        Raises ActionNotAllowed before anything is run, and ToolArgumentsInvalid for arguments that do not
        fit. Raises ToolRefused if the tool refuses, or if an approval was not given. Raises Superseded if the
        turn was ended meanwhile, ApprovalNeeded to suspend it, and any other error of the tool. The code must
        not catch an error that stops the round (`mesh.agent.errors`), such as that of a broken effect, or
        ResultUnusable for a result that does not have the type of the tool's annotation.
        """
        value = await self.execution.call(tool, tool.named(args, arguments), for_model=False)
        result: R = tool.result(value)
        return result

    async def model(
        self,
        name: str,
        prompt: Any,
        produce: Produce,
        kind: type[T],
        *,
        cost: Callable[[T], Usage] | None = None,
    ) -> tuple[T, bool]:
        """Return a model's reply to `prompt`, and True if this round pays for it.

        The prompt is recorded by its digest, the reply as JSON together with its cost, as `cost` returns it.

        Raises BudgetExhausted before a call that the budget does not allow; a recorded reply costs nothing.
        """
        return await self.execution.model(name, prompt, produce, kind, cost=cost)

    async def make(self, move: Move) -> RoundOutcome:
        """Make a move, and return its outcome. The code continues after it, in one flow over several rounds.

            reply = (await turn.make(turn.ask("Which seat?"))).reply

        If the move has no outcome yet, this round ends here with it, as if the code had returned it. Later
        rounds run the code from the top, and get the outcome at once. So the code has to reach the same moves
        in the same order; steps before them are in the journal. An outcome's `how` tells how it ended: an ask
        is `replied` or `expired`, any move may be `refused` (with its `refusal`), tasks are `joined`.

        Raises MovesChanged if an earlier round made another kind of move at this point.
        """
        return await self._outcomes.make(move)

    @cached_property
    def _outcomes(self) -> MoveOutcomes:
        return MoveOutcomes(self.past)

    async def post(self, facts: Facts) -> None:
        """Put facts on the board of a swarm, for every turn that opens or resumes; this round continues.

        It happens once, however often this code runs. A key that this agent posted before is replaced.
        Raises PostUnusable if there is no board, or for facts that cannot be read.
        """
        await self.execution.tasks.post(facts_of(facts), self.execution.require_open)

    async def say(self, text: str) -> None:
        """Show a line to the request's client while this round works: a sentence, or how far it is.

        It is a live note: lost if no client listens, in no log, and not withheld by labels. After a crash it
        is not shown again before steps that are recorded; a later round, which runs from the top, shows it
        again. A tool that takes the turn may use it, too.
        """
        journal = self.execution.journal
        await journal.load()
        if not journal.places.has_more:
            self.execution.live.hear(f"{text.removesuffix(chr(10))}\n")

    async def remark(self, text: str) -> None:
        """Put a line into the journal, for people who read it later."""
        await self.execution.note("remark", text, about=text)

    async def now(self) -> int:
        """Return the time (UTC µs); the same when this round runs again."""
        return int(await self.execution.note("now", time.time_ns() // 1000))

    async def random(self) -> float:
        """Return a number from 0 up to 1, exclusive; the same when this round runs again."""
        return float(await self.execution.note("random", SystemRandom().random()))

    async def save(
        self, name: str, data: "Data", *, media_type: str = "", labels: Sequence[str] = ()
    ) -> Artifact:
        """Save what is too large for a handoff, and return a reference to hand on (`artifacts=[…]`).

        It is a step: when this round runs again, it returns the recorded reference and does not read `data`.
        A later round saves again; equal bytes are one object.

        Args:
            name: name by which later agents ask for it.
            data: bytes, a `Path`, or an async iterator of bytes for data that should not be in memory at
                once.
            labels: what an agent must be cleared for to see the reference.

        Raises ArtifactError: ArtifactDenied, StoreUnreachable, StoreUnusable.
        """
        return await self.execution.save(name, data, media_type=media_type, labels=labels)

    async def load(self, artifact: Artifact | str, *, max_bytes: int | None = None) -> bytes:
        """Return an artifact's bytes; not recorded, since the digest pins them.

        Args:
            artifact: an artifact that was handed over or returned, or the name of one that was handed over.
            max_bytes: how many bytes may be read into memory; 64 MiB by default. For more, use `load_to`.

        Raises FactUnusable for a name that was not handed over, and ArtifactError: ArtifactMissing,
        ArtifactDigestMismatch, ArtifactForeign, ArtifactTooLarge, ArtifactDenied, StoreUnreachable,
        StoreUnusable.
        """
        limit = {} if max_bytes is None else {"max_bytes": max_bytes}
        return await self.execution.store.load(self._artifact(artifact), **limit)

    async def load_to(self, artifact: Artifact | str, path: str | os.PathLike[str]) -> Path:
        """Write an artifact's bytes to a file, which appears once they are verified; return its path.

        Raises as `load`, and OSError for a path that cannot be written.
        """
        return await self.execution.store.load_to(self._artifact(artifact), path)

    def _artifact(self, which: Artifact | str) -> Artifact:
        if isinstance(which, Artifact):
            return which
        handed = {each.name: each for each in self.execution.work.handoff.artifacts}
        if which not in handed:
            hidden = f"; withheld from this agent: {', '.join(self.withheld)}" if self.withheld else ""
            raise FactUnusable(f"no artifact {which!r}: there are {', '.join(handed) or 'none'}{hidden}")
        return handed[which]

    def spend(self, *, nano_dollars: int = 0, tokens: int = 0, model_calls: int = 0) -> None:
        """Account for a cost that is in no step: that of a model call by other means than `turn.model`."""
        self.execution.account.spend(Usage(nano_dollars=nano_dollars, tokens=tokens, model_calls=model_calls))


# --- what a tool sees -----------------------------------------------------------------------------


class ToolTurn(Turn):
    """The round as seen by a tool that takes the turn (`turn: Turn`). It only reads: a tool is itself one
    step.

    `reads` holds the facts that it read: a digest by key, empty for a fact that does not exist.
    """

    def __init__(self, execution: Execution, reads: dict[str, str]) -> None:
        super().__init__(execution)
        self._note = partial(_note, reads, self._whole)  # not a method, which would make a reference cycle
        self.facts = _ReadFacts(self.facts, self._note)

    @property
    def handoff(self) -> Handoff:
        """All that was handed over; reading it counts as reading all facts."""
        self._note(ALL_FACTS)
        return self._whole

    @handoff.setter
    def handoff(self, whole: Handoff) -> None:
        self._whole = whole

    def fact(self, key: str, kind: type[T]) -> T:
        self._note(key)
        return fact_as(self._whole.facts, key, kind, withheld=self.withheld)

    async def _none_of_its_own(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "a tool is a step itself, and a hook is none: their turn only reads, without steps"
        )

    call = model = make = post = remark = now = random = save = _none_of_its_own

    def spend(self, **_: Any) -> None:
        raise RuntimeError("a tool's cost is of no step: spend in the code that calls it")


class SeenTurn(ToolTurn):
    """The round as a hook sees it: a copy that only reads."""

    def __init__(self, execution: Execution) -> None:
        seen = copy.copy(execution)
        seen.work = copy.deepcopy(execution.work)
        super().__init__(seen, {})

    @cached_property
    def results(self) -> Mapping[str, Result]:
        return MappingProxyType(Results(copy.deepcopy(self.execution.tasks.results)))


def _note(reads: dict[str, str], handoff: Handoff, key: str) -> None:
    reads[key] = fact_digest(handoff.facts, key)


class _ReadFacts(Mapping[str, Any]):
    """Facts by key that record which of them were read."""

    def __init__(self, facts: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self._facts, self._note = facts, note

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return self._facts[key]

    def __iter__(self) -> Iterator[str]:
        self._note(ALL_FACTS)
        return iter(self._facts)

    def __len__(self) -> int:
        self._note(ALL_FACTS)
        return len(self._facts)
