"""One round as the runtime runs it: its tool and model calls, its report, and the proposal that ends it.

The journal decides if a call runs at all. This module defines what running means for each kind of call.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mesh.agent._ahead import EndWatch
from mesh.agent._effects import (
    another_try,
    begun_in_lost_time,
    fact_digest,
    key_by_facts,
    outcome_before,
    require_approval,
    run_effect,
)
from mesh.agent._journal import MAX_STEP_BYTES, Journal, Produce, never
from mesh.agent._steps import Given, Recorded, RoundKey, digest_of, given, giving, prompt_of, text_of, to_json
from mesh.agent._tally import Account
from mesh.agent._tasks import Send, Tasks, nowhere
from mesh.agent._telemetry import SILENT, LiveOutput, tool_span
from mesh.agent._watch import Watcher, of_model, of_tool, timed
from mesh.agent.errors import (
    ActionNotAllowed,
    ApprovalNeeded,
    InDoubt,
    NotAMove,
    NotBegun,
    Superseded,
    Throttled,
    ToolError,
    ToolRefused,
    failure_of,
    raised,
)
from mesh.agent.tools import Tool
from mesh.errors import MeshError
from mesh.service.logs import get_logger
from protocol.wire.commands import (
    Doubt,
    Failure,
    MoveProposed,
    Proposal,
    Report,
    ReportFailure,
    ReportInDoubt,
    Usage,
)
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.handoff import Artifact
from protocol.wire.ids import derive
from protocol.wire.moves import Move
from protocol.wire.prices import price_list
from protocol.wire.records import RAISED, Reads

if TYPE_CHECKING:
    from mesh.artifacts.store import ArtifactStore, Data

_log = get_logger(__name__)

T = TypeVar("T")

MAX_RESULT_BYTES = MAX_STEP_BYTES - 4096
"""Limit of a result shown to a model; the rest of a step's room is for what is recorded beside it."""
MOST_KEPT_S = 5.0
"""Reserved of a round's time, at most a tenth of it, to report that the round waited in vain."""


KeepPrompt = Callable[[str, bytes], Awaitable[None]]


async def unkept(digest: str, body: bytes) -> None:
    """Keep no prompt: for rounds that are in no log."""


class Execution:
    """One round under way. `mesh.model` uses it; an agent's own code has the `Turn` around it.

    Args:
        is_over: returns True if a guard ended the turn.
        live: shows the client the round's work.
        send: stores a proposal that does not end the round.
        keep_prompt: stores the fixed part of a prompt, by its digest, before it is first sent.
        store: the store of artifacts; None for the one that the fleet names.
        open_at: when the turn was open for certain (monotonic seconds).
    """

    def __init__(
        self,
        key: RoundKey,
        work: Assignment,
        fleet: Fleet,
        journal: Journal,
        *,
        is_over: Callable[[], Awaitable[bool]] = never,
        prompt_version: str = "",
        version: str = "",
        build: str = "",
        live: LiveOutput = SILENT,
        send: Send = nowhere,
        keep_prompt: KeepPrompt = unkept,
        store: "ArtifactStore | None" = None,
        open_at: float = -math.inf,
    ) -> None:
        self.key, self.work, self.fleet, self.journal = key, work, fleet, journal
        self.request, self.agent = key.request, key.agent
        self.live = live
        self._keep_prompt = keep_prompt
        self.prices = price_list(work.prices)
        """Prices of tokens, by model."""
        code = Report(prompt=prompt_version, version=version, build=build)
        self.account = Account(work, journal.tally, journal.stop, code)
        self.ended = EndWatch(is_over, open_at=open_at)
        self._store = store
        self.for_tools: Callable[[Execution, dict[str, str]], object] | None = None
        """Makes the turn for a tool that takes it, and records in a dict which facts the tool reads."""
        self.watcher: Watcher | None = None
        """Is told of the calls that are made."""
        self._ordinals: dict[tuple[str, str], int] = {}
        self._patient_until = time.monotonic() + work.timeout_s - min(MOST_KEPT_S, work.timeout_s / 10)
        self.tasks = Tasks(work, journal, send)
        own = fleet.agents.get(self.agent)
        limits = (work.handoff.constraints.allowed_actions, () if own is None else own.actions)
        given = [frozenset(limit) for limit in limits if limit is not None]
        self.allowed_actions = frozenset.intersection(*given) if given else None
        """Names of the tools that may be called; None if there is no limit."""

    is_watched = True
    """True if the round really happens, so that hooks may watch it."""

    async def require_open(self) -> None:
        """Raise Superseded if a guard ended this turn. Called before each call that counts or costs.

        A model's loop begins the probe ahead, with the step before the call. A round that has just begun
        needs none, since its event shows that the turn is open (`EndWatch`).
        """
        await self.journal.settled()  # before the probe, which has to be fresh at the call
        if await self.ended.is_over():
            raise self.journal.stop(Superseded("the turn was ended"))

    def close(self) -> None:
        """Cancel what was begun ahead. Idempotent."""
        self.ended.close()
        self.journal.close()
        self.watcher = None  # which knows this round: without it, both are freed at once

    # --- tools ------------------------------------------------------------------------------------

    async def call(self, tool: Tool, arguments: Mapping[str, Any], *, for_model: bool) -> Any:
        """Return a tool's result, recorded or new. Raises as `Turn.call` does.

        Args:
            for_model: True if a model reads the outcome and nothing else uses it before the next step, so
                that it is available ahead of its record. A reading tool that broke, a result that is too
                large and a forbidden tool are then recorded as ToolRefused, too. Every round gets the same
                error.
        """
        forbidden = self.forbids(tool)
        if forbidden and not for_model:
            raise ActionNotAllowed(forbidden)
        facts, takes = self.work.handoff.facts, tool.injected
        values = {fact.key: fact.value for fact in facts}
        arguments = takes.with_facts(tool.name, tool.fn, arguments, values, for_model=for_model)
        tool.check(arguments)
        reads_turn = takes.turn and tool.effect is None  # it may run again at will: all facts count
        digest = digest_of([arguments, fact_digest(facts)] if reads_turn else arguments)
        key, shown = self._key(tool.name, digest), given(arguments, tool.secret)
        if takes.turn and tool.effect is not None:
            await self.journal.load()
            shown = shown._replace(reads=Reads(call=key, facts=dict[str, str]()))
            key = key_by_facts(self.journal.earlier, key, facts)
        if not forbidden:
            self.account.actions.add(tool.name)
            if tool.effect is not None and self.work.topology != "handoff":  # only these have read-only turns
                self.account.effects.add(tool.name)

        def allow() -> None:
            if forbidden:
                raise Recorded(ActionNotAllowed.code, forbidden, begun=False)
            if tool.approve is not None:
                require_approval(self.work, self.request, tool, arguments, key)

        call = ("call" if tool.effect is None else "effect", tool.name, digest)
        caught: list[Exception] = []
        run = partial(self._run, tool, arguments, key, forbidden, for_model, caught, shown.reads)
        try:
            if tool.effect is None:
                return await self.journal.step(call, run, given=shown, refusals=for_model, ahead=for_model)
            await self.require_open()
            again = None if forbidden else self.another_try(tool, key, run)
            return await run_effect(
                self.journal,
                call,
                key,
                run,
                given=shown,
                again=again,
                allow=allow,
                outcome=partial(outcome_before, self.journal, self.work, call, shown, key, forbidden),
                lost=partial(begun_in_lost_time, self.journal, self.request, again),
            )
        except Recorded as no:
            for error in (*caught, no.raised):
                if error is not None:
                    raise error from error.__cause__
            raise ToolRefused(no.reason, str(no)) from None

    def forbids(self, tool: Tool) -> str:
        """Return why a tool may not be called in this turn; empty if it may."""
        if self.allowed_actions is not None and tool.name not in self.allowed_actions:
            return f"{tool.name} is not among the allowed actions"
        if tool.effect is not None and self.work.handoff.constraints.read_only:
            return f"{tool.name} has an effect, and this turn may only read"
        return ""

    def _key(self, tool: str, digest: str) -> str:
        """Return the key under which this call's effect happens once, in whatever round.

        The ordinal tells calls with equal arguments apart; the round is no part of the key.
        """
        ordinal = self._ordinals.get((tool, digest), 0)
        self._ordinals[tool, digest] = ordinal + 1
        return derive(self.request, self.work.journal_id, tool, digest, ordinal)

    async def _run(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        key: str,
        forbidden: str,
        for_model: bool,
        caught: list[Exception],
        reads: Reads | None,
    ) -> Any:
        """Run a tool. Its refusal is recorded as an outcome, and so is what a reading tool raises.

        Args:
            forbidden: why it may not be called; empty if it may.
            caught: gets the exception of a reading tool, to be raised on once it is recorded.
            reads: gets the facts that an effect's tool reads.
        """
        if forbidden:
            raise Recorded(ActionNotAllowed.code, forbidden, begun=False)
        reads_for_model = for_model and tool.effect is None
        if tool.effect is None:  # a recorded result needs no probe
            await self.require_open()
            if tool.approve is not None:
                try:
                    require_approval(self.work, self.request, tool, arguments, key)
                except ApprovalNeeded as needed:
                    raise self.journal.stop(needed) from None
        try:
            told = of_tool(self.watcher, tool, arguments)
            with self.live.doing("tool", tool.name), tool_span(self.key, tool.name, key), timed(told) as kept:
                turn = None
                if tool.injected.turn and self.for_tools is not None:
                    turn = self.for_tools(self, {} if reads is None else reads.facts)
                value = kept.keep(to_json(await self.run_of(tool)(arguments, idempotency_key=key, turn=turn)))
        except ToolError as no:
            raise Recorded(no.code, str(no), begun=not isinstance(no, NotBegun)) from no
        except Exception as broken:
            if tool.effect is not None or self.journal.broken is not None:
                raise
            if isinstance(broken, MeshError) or not for_model:
                caught.append(broken)
                text = text_of(broken, otherwise=raised(tool.name, broken), is_secret=bool(tool.secret))
                raise Recorded(RAISED, text, raised=broken) from broken
            _log.warning("tool_broke", tool=tool.name, error=type(broken).__name__, exc_info=True)
            raise Recorded("tool.broke", f"{tool.name} broke: {type(broken).__name__}") from broken
        if reads_for_model and (size := len(msgspec.json.encode(value))) > MAX_RESULT_BYTES:
            text = f"{tool.name} returned {size} bytes; at most {MAX_RESULT_BYTES} can be told"
            raise Recorded("tool.too_large", f"{text}. Ask for less.")
        if for_model:
            self.ended.probe_ahead()  # the model is asked as soon as this is stored
        return value

    def run_of(self, tool: Tool) -> Callable[..., Awaitable[Any]]:
        """Return the function that runs a tool, once all checks have passed. A replay runs nothing."""
        return tool.run

    def another_try(self, tool: Tool, key: str, run: Produce) -> Produce | None:
        """Return what settles an effect whose result is not recorded; None if only a person can."""
        return another_try(self.journal, tool, key, run, lease_s=self.fleet.lease_s)

    # --- models -----------------------------------------------------------------------------------

    async def model(
        self,
        name: str,
        prompt: Any,
        produce: Produce,
        kind: type[T],
        *,
        cost: Callable[[T], Usage] | None = None,
        began: Any = None,
        ahead: bool = False,
        parts: tuple[Any, Any, Any] | None = None,
    ) -> tuple[T, bool]:
        """Return a model's reply to `prompt`, and True if this round pays for it.

        The prompt is recorded by its digest, the reply as JSON.

        Args:
            cost: returns the cost of a reply. It is recorded with the reply, so that a process that dies
                afterwards takes nothing of the bill with it.
            began: for a conversation's first call: its beginning, for `journal.begun`.
            ahead: as for `Journal.step`.
            parts: of the prompt: the fixed part, the turn as text, and the transcript so far. The step
                names their digests, and the fixed part is stored.

        Raises BudgetExhausted before a call that the budget does not allow; a recorded reply costs nothing.
        Raises Throttled if the round's time ends before the model may be asked.
        """
        paid = True
        shown, fixed = (None, b"") if parts is None else prompt_of(*parts)

        told = of_model(self.watcher, name, prompt, kind)

        async def ask() -> Any:
            while True:
                await self.require_open()
                await self.journal.require_held(self.journal.progressed_at)
                self.account.require_left()
                if shown is not None:
                    await self._keep_prompt(shown.fixed, fixed)
                try:
                    with (
                        self.live.doing("model", name),
                        timed(told) as kept,
                    ):
                        return kept.keep(to_json(await produce()))
                except Throttled as throttled:
                    await self._wait_out(throttled)

        def reused() -> None:
            nonlocal paid
            paid = False

        priced = None if cost is None else (lambda value: cost(msgspec.convert(value, kind)))
        call = ("model", name, digest_of(prompt))
        kept = None if began is None else to_json(began)
        value = await self.journal.step(
            call, ask, cost=priced, on_reuse=reused, began=kept, given=Given(prompt=shown), ahead=ahead
        )
        return msgspec.convert(value, kind), paid

    async def _wait_out(self, throttled: Throttled) -> None:
        """Wait until a model may be asked again. Raises `throttled` if the round's time ends first."""
        pause_s, left_s = throttled.after_s or 0.0, self._patient_until - time.monotonic()
        if pause_s >= left_s:
            text = f"{throttled}; the round may take {self.work.timeout_s:g} s"
            text += ", and they are used up" if left_s <= 0 else f", and {left_s:.0f} s of it are left"
            throttled.args = (text,)
            raise throttled
        await asyncio.sleep(pause_s)

    def knows(self, name: str, prompt: Any) -> bool:
        """Return True if a reply to this prompt is recorded. Call it after `journal.begun`."""
        return self.journal.holds(("model", name, digest_of(prompt)))

    # --- artifacts --------------------------------------------------------------------------------

    @cached_property
    def store(self) -> "ArtifactStore":
        """The store of artifacts. Raises ArtifactError if it cannot be opened here."""
        if self._store is not None:
            return self._store
        from mesh.artifacts.store import store_at
        from mesh.settings import load_settings, store_in

        return store_at(store_in(load_settings().artifacts or self.fleet.artifacts, Path.cwd()))

    async def save(self, name: str, data: "Data", *, media_type: str, labels: Sequence[str]) -> Artifact:
        """Save an artifact as a step. Once it is recorded, this round does not read its data again."""

        async def put() -> Any:
            await self.require_open()
            return to_json(await self.store.save(name, data, media_type=media_type, labels=labels))

        call = ("save", name, digest_of([media_type, *labels, self._stretch]))
        return msgspec.convert(await self.journal.step(call, put), Artifact)

    # --- notes ------------------------------------------------------------------------------------

    async def note(self, kind: str, value: Any, about: str = "") -> Any:
        """Record a value that comes from no tool, and return it; the same when this round runs again."""

        return await self.journal.step((kind, "", digest_of([about, self._stretch])), giving(value))

    @property
    def _stretch(self) -> int:
        """Number of the rounds before this one, for values that belong to one round, such as its time.

        Rounds that asked for an approval do not count: the yes must find the very call that asked.
        """
        return self.work.round - sum(bool(past.asked) for past in self.work.past)

    async def set_up(self, made: Mapping[str, Any]) -> Any:
        """Record what code makes of a round for its model; return it, the same when this round runs again.

        A replay gets what the code makes of it now, so that changed code is found.
        """
        call = ("context", "round", digest_of([self._stretch]))
        return await self.journal.step(call, giving(to_json(made)), ahead=True)

    async def first(self, kind: str, value: Any, *, name: str) -> Any:
        """Record a value the first time; every later round gets the recorded value, whatever it passes."""

        return await self.journal.step((kind, name, ""), giving(to_json(value)))

    # --- the end ----------------------------------------------------------------------------------

    @property
    def report(self) -> Report:
        """This turn's work in all its rounds, as the guard gets it with the proposal."""
        return self.account.report

    def moved(self, move: Move, handler: object = None) -> MoveProposed:
        """Return the proposal of a move, as `handler` returned it. Raises NotAMove for any other value."""
        if not isinstance(move, Move):
            raise NotAMove(move, handler)
        return MoveProposed(turn=self.work.turn, round=self.work.round, move=move, report=self.report)

    def failed(self, failure: Failure) -> ReportFailure:
        """Return the proposal of a failed round."""
        return ReportFailure(turn=self.work.turn, round=self.work.round, error=failure, report=self.report)

    def crashed(self) -> ReportFailure:
        """Return the proposal of a turn that ended its process again and again."""
        message = "the turn ended its process again and again"
        return self.failed(Failure(code="crash_loop", message=message, permanent=True))

    def stopped(self, error: Exception) -> Proposal:
        """Return the proposal of a round that an error ended: an ask, a doubt, or a failure."""
        match error:
            case ApprovalNeeded(ask=ask):
                return self.moved(ask)
            case InDoubt(step=step, action=action, key=key, why=why):
                doubt = Doubt(step=step, action=action, key=key, message=why)
                return ReportInDoubt(
                    turn=self.work.turn, round=self.work.round, effect=doubt, report=self.report
                )
        return self.failed(failure_of(error))
