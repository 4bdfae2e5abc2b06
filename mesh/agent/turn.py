"""A turn as its code sees it: what is known, what was refused, the tools, and the moves.

A `Turn` is one *round* of a turn. After a refusal, a retry or a reply the same code runs again from
the top with a new one, in which `refusals`, `failures` or `reply` say what happened.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from mesh.agent.failures import ActionNotAllowed, Superseded
from mesh.agent.journal import Recorded
from mesh.agent.tools import NOT_DONE, ToolError, ToolRefused
from protocol.events import Past, Work
from protocol.fleet import AgentEntry, Fleet
from protocol.handoff import Artifact, Constraints, Fact, Handoff
from protocol.ids import AgentName, derive, submitter_of
from protocol.messages import (
    Ask,
    Complete,
    Escalate,
    Fail,
    Failure,
    HandBack,
    Move,
    Report,
    Transfer,
    Usage,
)
from protocol.refusals import Refusal as RefusalOf

if TYPE_CHECKING:
    from mesh.agent.journal import Journal
    from mesh.agent.tools import Tool

LEASE_S = 6.0
"""The inbox's lease: nobody who lost a turn still works on it after this."""

T = TypeVar("T")
Produce = Callable[[], Awaitable[Any]]

Facts = Mapping[str, Any] | Iterable[Fact] | None


class Refusal(NamedTuple):
    """A move of an earlier round that the guard refused, and why."""

    move: Move
    rule: str
    detail: str
    hint: str


class Turn:
    """One round. Made by the runtime; `mesh.testing.turn` makes one for tests."""

    def __init__(
        self,
        request: str,
        work: Work,
        fleet: Fleet,
        *,
        journal: "Journal | None" = None,
        is_over: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._work = work
        self._journal = journal
        self._is_over = is_over
        self._fleet = fleet
        self._actions = set(work.reported.actions)
        self._calls: dict[tuple[str, str], int] = {}
        self._usage: Usage = work.reported.usage
        self.request = request
        """The request's id."""
        self.id = work.turn
        self.round = work.round
        """0 the first time this turn's code runs."""
        self.handoff: Handoff = work.handoff
        """The whole of what was handed over."""
        self.facts: Mapping[str, Any] = MappingProxyType(
            {fact.key: fact.value for fact in work.handoff.facts}
        )
        """Facts by key, values only; `handoff.facts` has the labels too."""

    @property
    def agent(self) -> AgentName:
        return self.handoff.to_agent

    @property
    def client(self) -> AgentName:
        """Who submitted the request."""
        return submitter_of(self.request)

    @property
    def path(self) -> tuple[AgentName, ...]:
        """Holders from the entry agent to this one."""
        return self._work.path

    @property
    def depth(self) -> int:
        """Agent-to-agent hops so far."""
        return self._work.depth

    @property
    def peers(self) -> Mapping[str, AgentEntry]:
        """Agents that this one may hand to, by name."""
        own = self._fleet.agents.get(self.agent)
        allowed = None if own is None else own.to
        return {
            name: entry
            for name, entry in self._fleet.agents.items()
            if name != self.agent and (allowed is None or name in allowed)
        }

    @property
    def has_human(self) -> bool:
        """Whether `escalate` can be admitted."""
        return self._fleet.human

    @property
    def past(self) -> tuple[Past, ...]:
        """How the rounds before this one ended."""
        return self._work.past

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Moves that were refused in earlier rounds of this turn, in order."""
        return tuple(
            Refusal(past.move, str(why.rule), why.detail, why.hint)
            for past in self.past
            if isinstance(why := past.refusal, RefusalOf) and past.move is not None
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Why earlier rounds of this turn broke, in order."""
        return tuple(past.failure for past in self.past if past.failure is not None)

    @property
    def reply(self) -> Any:
        """The reply to the newest ask; None if there was none or it expired."""
        return next((past.reply for past in reversed(self.past) if past.how in ("replied", "expired")), None)

    @property
    def withheld(self) -> tuple[str, ...]:
        """Labels of what this agent may not see and is carried past it."""
        return () if self._work.withheld is None else self._work.withheld.labels

    # --- doing ------------------------------------------------------------------------------------

    @property
    def allowed_actions(self) -> frozenset[str] | None:
        """Names of the tools that may be called; None if there is no limit."""
        own = self._fleet.agents.get(self.agent)
        limits = [self.handoff.constraints.allowed_actions, None if own is None else own.actions]
        given = [frozenset(limit) for limit in limits if limit is not None]
        return frozenset.intersection(*given) if given else None

    async def call(self, tool: "Tool", /, **arguments: Any) -> Any:
        """Run a tool and return its result, as JSON makes it; a step that was recorded is not run again.

        Raises ActionNotAllowed before anything is run, ToolArgumentsInvalid for arguments that do not
        fit, ToolRefused for the tool's own no, Superseded when the turn was ended meanwhile, and whatever
        else the tool raises. What the journal raises is not for the code to catch.
        """
        allowed = self.allowed_actions
        if allowed is not None and tool.name not in allowed:
            raise ActionNotAllowed(f"{tool.name} is not among the allowed actions")
        tool.check(arguments)
        self._actions.add(tool.name)
        digest = _digest(arguments)
        key = self._key(tool.name, digest)
        run = self._running(tool, arguments, key)
        try:
            if self._journal is None:
                return await run()
            if tool.effect is None:
                return await self._journal.step(("call", tool.name, digest), run)
            await self._require_open()
            again = self._again(tool, run, key)
            return await self._journal.effect(("effect", tool.name, digest), key, run, again=again)
        except Recorded as no:
            raise ToolRefused(no.reason, str(no)) from None

    def _running(self, tool: "Tool", arguments: Mapping[str, Any], key: str) -> Produce:
        """Return what runs the tool; its no becomes an outcome that can be recorded."""

        async def run() -> Any:
            try:
                return plain(await tool.run(arguments, idempotency_key=key))
            except ToolError as no:
                raise Recorded(no.code, str(no)) from no

        return run

    def _again(self, tool: "Tool", run: Produce, key: str) -> Produce | None:
        """Return what to do about this effect after a crash in the middle of it; None: nobody can say."""
        if tool.effect == "once":
            return None
        if tool.effect == "idempotent":
            return run

        async def reconcile() -> Any:
            await asyncio.sleep(LEASE_S)  # whoever began it may still be at it until their lease has ended
            found = await tool.ask(key)
            return await run() if found is NOT_DONE else plain(found)

        return reconcile

    def _key(self, tool: str, digest: str) -> str:
        """Return the key under which this call's effect happens once, in whatever round it is made.

        The ordinal tells calls with equal arguments apart; the round is no part of the key.
        """
        ordinal = self._calls.get((tool, digest), 0)
        self._calls[tool, digest] = ordinal + 1
        return derive(self.request, self._work.continues or self.id, tool, digest, ordinal)

    async def _require_open(self) -> None:
        """Raise Superseded if a guard ended this turn; asked before whatever counts or costs."""
        if self._is_over is not None and await self._is_over():
            raise Superseded("the turn was ended")

    async def model(self, name: str, prompt: Any, produce: Produce, kind: type[T]) -> tuple[T, bool]:
        """Return a model's reply to `prompt`, and whether this round is the one that pays for it.

        The prompt is recorded by its digest, the reply as JSON.
        """
        paid = True

        async def ask() -> Any:
            await self._require_open()
            return plain(await produce())

        def reused() -> None:
            nonlocal paid
            paid = False

        if self._journal is None:
            return await produce(), True
        value = await self._journal.step(("model", name, _digest(prompt)), ask, on_reuse=reused)
        return msgspec.convert(value, kind), paid

    async def remark(self, text: str) -> None:
        """Put a line into the journal, for whoever reads it later."""
        await self._noted("remark", text, text)

    async def now(self) -> int:
        """Return the time (UTC µs); the same when this round runs again."""
        return int(await self._noted("now", "", time.time_ns() // 1000))

    async def random(self) -> float:
        """Return a number from 0 up to 1, exclusive; the same when this round runs again."""
        return float(await self._noted("random", "", random.SystemRandom().random()))

    async def _noted(self, kind: str, said: str, value: Any) -> Any:
        async def produce() -> Any:
            return value

        if self._journal is None:
            return value
        # Each of these is its own: an earlier round's time is not this round's.
        digest = _digest([said, self.round])
        return await self._journal.step((kind, "", digest), produce)

    def spend(self, *, nano_dollars: int = 0, tokens: int = 0, model_calls: int = 0) -> None:
        """Account for what a model call cost."""
        self._usage = Usage(
            nano_dollars=self._usage.nano_dollars + nano_dollars,
            tokens=self._usage.tokens + tokens,
            model_calls=self._usage.model_calls + model_calls,
        )

    @property
    def report(self) -> Report:
        """What this turn did in all its rounds, as it goes to the guard with the proposal."""
        steps, digest = self._work.reported.steps, self._work.reported.digest
        if self._journal is not None and self._journal.steps:
            steps += self._journal.steps
            digest = hashlib.sha256(f"{digest}{self._journal.digest}".encode()).hexdigest()
        return Report(usage=self._usage, actions=tuple(sorted(self._actions)), steps=steps, digest=digest)

    # --- moves ------------------------------------------------------------------------------------

    def transfer(
        self,
        to: str,
        *,
        summary: str,
        intent: str | None = None,
        facts: Facts = None,
        artifacts: Sequence[Artifact] = (),
        drop: Sequence[str] = (),
        constraints: Constraints | None = None,
        return_to: str | None = None,
        no_return: bool = False,
    ) -> Move:
        """Give the work to another agent.

        Args:
            summary: one line: what is wanted and why.
            facts: what is new. What was handed to this turn is carried on by itself.
            drop: keys of facts not to carry on.
            constraints: only where they narrow this turn's own.
            return_to: whom a hand-back goes to, if on the path; by default to this agent.
            no_return: nobody from there on gives the work back to this agent or beneath.
        """
        return Transfer(
            to_agent=AgentName(to),
            summary=_line(summary),
            intent=intent,
            facts=_facts(facts),
            artifacts=tuple(artifacts),
            drop=tuple(drop),
            constraints=constraints or Constraints(),
            return_to=None if return_to is None else AgentName(return_to),
            no_return=no_return,
        )

    def hand_back(
        self,
        reason: str,
        *,
        to: str | None = None,
        facts: Facts = None,
        artifacts: Sequence[Artifact] = (),
        drop: Sequence[str] = (),
    ) -> Move:
        """Give the work back along the path, with what was found out."""
        return HandBack(
            summary=_line(reason),
            to_agent=None if to is None else AgentName(to),
            facts=_facts(facts),
            artifacts=tuple(artifacts),
            drop=tuple(drop),
        )

    def ask(
        self,
        question: str,
        *,
        of: str | None = None,
        schema: Mapping[str, Any] | None = None,
        expires_s: float | None = None,
    ) -> Move:
        """Ask the client (or `human`) and suspend the turn; the code runs again with `turn.reply`."""
        asked = AgentName(of) if of is not None else self.client
        return Ask(to_agent=asked, question=question, schema=schema, expires_s=expires_s)

    def complete(self, answer: Any) -> Move:
        """Answer the request; any JSON value, mostly a string."""
        return Complete(answer=answer)

    def escalate(self, reason: str, *, facts: Facts = None) -> Move:
        """Give the work to a person."""
        return Escalate(summary=_line(reason), facts=_facts(facts))

    def fail(self, reason: str) -> Move:
        """Give the request up."""
        return Fail(reason=reason)


def _line(text: str) -> str:
    return " ".join(text.split())


def _facts(facts: Facts) -> tuple[Fact, ...]:
    if facts is None:
        return ()
    if isinstance(facts, Mapping):
        return tuple(Fact(key=key, value=value) for key, value in facts.items())
    return tuple(facts)


def _digest(value: Any) -> str:
    """Return SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic", enc_hook=str)).hexdigest()


def plain(value: Any) -> Any:
    """Return a value as JSON makes it, the first time as every time that it is read from the journal."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))
