"""One round of an agent of another SDK: its calls are steps, and the move that ends it.

An SDK runs its own loop. The round gives it three things: a model whose calls are steps (`reply`), tools
whose calls are steps (`call`), and moves as tools (`moves`, `outcome_of`). A move that has no outcome yet
ends the run with `Returned`. Should the SDK swallow that, `made` still holds the move, and no call follows.

A later round runs the SDK from the top. Recorded replies lead it to the same moves, which then have outcomes.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import msgspec

from mesh.adapters._order import CallOrder
from mesh.adapters._tool import ForeignTool, foreign_tool, reading
from mesh.agent._rounds import Returned, answers, can_be_of
from mesh.agent.definition import Agent, checked_name
from mesh.agent.errors import ToolsUnusable, TurnError
from mesh.agent.hooks import Hooks
from mesh.agent.tools import Approver, Effect
from mesh.agent.turn import ToolTurn, Turn
from mesh.errors import MeshError
from mesh.model.edges import Edge, edges_of, set_up
from mesh.model.loop import replied
from mesh.model.moves import ASK, DELEGATE, ESCALATE, GIVE_UP, HAND_BACK, MoveTools
from mesh.model.port import Model, Prompt, Reply, ToolCall, ToolSpec
from mesh.model.pricing import Pricing
from mesh.model.prompt import PromptContext, context_now, outcome_line
from mesh.model.transcript import is_transcript
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.handoff import TEXT_FACT
from protocol.wire.moves import Move

MOVES = frozenset({ASK, ESCALATE, HAND_BACK, GIVE_UP})
"""Moves that an existing agent's model is offered if `moves` names them."""


class SdkNotInstalled(MeshError, code="adapter.not_installed"):
    """The SDK of an adapter is not installed. The text names the extra."""


@contextmanager
def from_extra(extra: str, *packages: str) -> Iterator[None]:
    """Within this block, a missing package is a missing extra. Raises SdkNotInstalled."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in packages:
            raise
        raise SdkNotInstalled(f"this adapter needs its SDK: install handoff-mesh[{extra}]") from missing


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How an existing agent is to work in the mesh: the arguments that every `mesh_agent` takes."""

    effects: Mapping[str, Effect] = field(default_factory=dict)
    """How tools change the world, by name; all others only read."""
    reconcile: Mapping[str, Callable[[str], Any]] = field(default_factory=dict)
    """For reconcilable effects: as `tool(reconcile=…)`."""
    handoffs: Collection[str | Edge] = ()
    """Agents that it may hand to, or delegate to, as `ClaudeAgent` takes them."""
    moves: Collection[str] = ()
    """Further moves that its model is offered, of `MOVES`."""
    approver: Approver = "human"
    """Who approves the calls for which its SDK wants an approval."""
    prompt: Callable[[Turn], Any] | None = None
    """Makes what the agent is asked; by default `words_of`."""
    live: bool = True
    """True if the request's client may read along."""

    def __post_init__(self) -> None:
        edges_of(self.handoffs)
        if isinstance(self.moves, str):
            raise ValueError("`moves` is a list of names")
        if unknown := sorted({*self.moves} - MOVES):
            raise ValueError(f"no such moves: {', '.join(unknown)}; there are {', '.join(sorted(MOVES))}")
        for tool, effect in self.effects.items():
            if effect not in get_args(Effect):
                known = ", ".join(get_args(Effect))
                raise ValueError(f"no such effect of {tool}: {effect!r}; one of {known}")
            if (effect == "reconcilable") != (tool in self.reconcile):
                raise ValueError(f"{tool}: a reconcilable effect, and no other, has a `reconcile`")
        if unknown := sorted({*self.reconcile} - {*self.effects}):
            raise ValueError(f"`reconcile` names no effect: {', '.join(unknown)}")
        if self.approver not in get_args(Approver):
            raise ValueError(f"nobody is called {self.approver!r}; approver is human or client")

    @property
    def edges(self) -> tuple[Edge, ...]:
        return edges_of(self.handoffs) or ()


def words_of(turn: Turn) -> str:
    """Return what an existing agent is asked: the words of the work, then its facts, one line each."""
    facts = {key: value for key, value in turn.facts.items() if not is_transcript(key)}
    text = facts.pop(TEXT_FACT, None)
    words = text if turn.handoff.move == "submit" and isinstance(text, str) else turn.handoff.summary
    if words != text and text is not None:
        facts[TEXT_FACT] = text
    lines = [f"- {key}: {msgspec.json.encode(value).decode()}" for key, value in facts.items()]
    return "\n".join([words, *(["", "Facts:", *lines] if lines else [])])


class AdaptedRound:
    """One round of an existing agent. Made by `begin`."""

    def __init__(self, turn: Turn, seen: PromptContext, how: Adaptation, edges: Sequence[Edge]) -> None:
        self.turn, self.how = turn, how
        self._edges = edges
        self.made: Move | None = None
        """The move that ends this round, once the SDK has come to it."""
        self._moves = MoveTools(turn, seen, edges=edges)
        self._offered = [spec for spec in self._moves.specs if self._is_offered(spec.name, seen)]
        self._answered = deque(answers(turn.past[seen.past :]))
        self._is_recorded = True
        """True if the newest reply is from an earlier round, or an earlier delivery of this one."""
        self._known: set[str] = set()
        self._order = CallOrder()
        self._failed: Exception | None = None

    @classmethod
    async def begin(cls, turn: Turn, how: Adaptation) -> "AdaptedRound":
        """Return the round, with the moves as the turn's first round was offered them."""
        now = await turn.execution.first("context", context_now(turn), name="moves")
        offered = (await set_up(turn, "", how.edges)).edges or ()
        return cls(turn, msgspec.convert(now, PromptContext), how, offered)

    def _is_offered(self, name: str, seen: PromptContext) -> bool:
        if name == HAND_BACK and any(edge.agent == seen.back for edge in self._edges):
            return True
        if name == DELEGATE:
            return bool(self._edges)
        return name in self.how.moves or any(edge.tool == name for edge in self._edges)

    # --- what the SDK is given --------------------------------------------------------------------

    @property
    def moves(self) -> tuple[ToolSpec, ...]:
        """The moves, as tools of the model."""
        return tuple(self._offered)

    def is_move(self, name: str) -> bool:
        return any(spec.name == name for spec in self._offered)

    def forbids(self, tool: str) -> bool:
        """Return True if this turn may not call a tool: then the model is not offered it."""
        return bool(self.turn.execution.forbids(self._tool(tool, _never)))

    def require_effects(self, tools: Iterable[str]) -> None:
        """Raise ToolsUnusable if `effects` names no tool: a mistyped effect would count as a read.

        Args:
            tools: the tools that the agent has so far; each call adds to them.
        """
        self._known.update(tools)
        if unknown := sorted({*self.how.effects} - self._known):
            has = ", ".join(sorted(self._known)) or "none"
            raise ToolsUnusable(
                f"`effects` of {self.turn.agent} names no tool: {', '.join(unknown)}; there are {has}"
            )

    async def reply(self, model: Model, prompt: Prompt) -> Reply:
        """Return a model's reply, new or recorded.

        Raises as `replied` does, and Returned. After a failure each further call raises it again: an SDK that
        tries once more by itself would take another way when the round runs again.
        """
        self._require_unmade()
        hear = self.turn.execution.live.hear if self.how.live else None
        try:
            reply, is_paid_now = await replied(self.turn, model, Pricing(self.turn, model), prompt, hear=hear)
        except Exception as error:
            self._failed = error
            raise
        self._is_recorded = not is_paid_now
        return reply

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        run: Callable[[], Awaitable[Any]],
        *,
        approve: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Return what a tool returned, new or recorded.

        Args:
            arguments: as JSON: they make the step's digest, and a person reads them.
            run: runs the tool in its SDK, and returns JSON.
            approve: True if the SDK wants an approval of this call.
            timeout_s: how long an effect may take; None: as long as the round.

        Raises as `Turn.call` does, and Returned.
        """
        tool = self._tool(name, run, approve=approve, timeout_s=timeout_s)
        async with self._order.place(alone=approve or tool.effect is not None):
            self._require_unmade()
            return await self.turn.execution.call(tool, arguments, for_model=False)

    def read(self, name: str, arguments: Mapping[str, Any]) -> Move:
        """Return the move that a call asks for. Raises ToolArgumentsInvalid, whose text the model reads."""
        return self._moves.read(ToolCall("", name, arguments))

    async def outcome_of(self, move: Move) -> str:
        """Return the outcome of a move as text, as `outcome` does."""
        past = await self.outcome(move)
        return outcome_line(past, self.turn.execution.tasks.news.get(past.round + 1))

    async def outcome(self, move: Move) -> RoundOutcome:
        """Return the outcome of a move, if an earlier round made it. Otherwise end this round with it.

        Raises Returned, with the move.
        """
        async with self._order.place(alone=True):
            self._require_unmade()
            return self._outcome(move)

    def _outcome(self, move: Move) -> RoundOutcome:
        if self._is_recorded and self._answered and can_be_of(self._answered[0], move):
            return self._answered.popleft()
        self.made = move
        raise Returned(move)

    def answered(self, value: Any) -> Move:
        """Return the move that the agent's final output asks for.

        Args:
            value: the output, as JSON.
        """
        return self._moves.answered(value)

    def _tool(
        self,
        name: str,
        run: Callable[[], Awaitable[Any]],
        *,
        approve: bool = False,
        timeout_s: float | None = None,
    ) -> ForeignTool:
        how = self.how
        return foreign_tool(
            name,
            run,
            effect=how.effects.get(name),
            reconcile=how.reconcile.get(name),
            approve=how.approver if approve else None,
            timeout_s=timeout_s,
        )

    def _require_unmade(self) -> None:
        """Raise what ended this round if the SDK goes on after it."""
        if self._failed is not None:
            raise self._failed
        if self.made is not None:
            raise Returned(self.made)


Run = Callable[[AdaptedRound], Awaitable[Move]]
"""Runs an existing agent for one round, and returns its move; may raise Returned."""


def adapted(
    name: str,
    how: Adaptation,
    run: Run,
    *,
    version: str,
    description: str,
    concurrency: int,
    hooks: Hooks | None = None,
    prepare: Callable[[], Awaitable[None]] | None = None,
) -> Agent:
    """Return the agent of the mesh. Raises ValueError for a name that cannot be one."""
    return Agent(
        name=checked_name(name),
        handler=partial(_handle, how, run),
        version=version,
        description=description,
        concurrency=concurrency,
        hooks=hooks,
        prepare=prepare,
    )


async def _handle(how: Adaptation, run: Run, turn: Turn) -> Move:
    round_ = await AdaptedRound.begin(turn, how)
    with reading(ToolTurn(turn.execution, {})):
        try:
            return await run(round_)
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if round_.made is not None:
                return round_.made
            raise _own(error) from error.__cause__


def _own(error: BaseException) -> BaseException:
    """Return the error of ours that an SDK wrapped in its own; otherwise the error itself."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, TurnError):
        inner = inner.__cause__
    return error if inner is None else inner


async def _never() -> Any:
    raise AssertionError("only asked whether it may be called")
