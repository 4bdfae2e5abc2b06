"""A turn as its code sees it: what is known, what was refused, the tools, and the moves.

A `Turn` is one *round* of a turn. After a refusal, a retry or a reply the same code runs again from
the top with a new one, in which `refusals`, `failures` or `reply` say what happened.
"""

import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from mesh.agent._live import SILENT, LiveOutput
from mesh.agent._moves import Moves
from mesh.agent._tool_calls import Produce, ToolCalls, digest_of, plain
from mesh.agent.errors import BudgetExhausted, Superseded, TurnError
from protocol.domain import budget
from protocol.wire.commands import Failure, Move, Report, Usage
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.events import Assignment, RoundOutcome
from protocol.wire.handoff import Budget, Handoff
from protocol.wire.handoff import Refusal as RefusalOf
from protocol.wire.ids import AgentName, submitter_of
from protocol.wire.prices import Price

if TYPE_CHECKING:
    from mesh.agent._journal import Journal
    from mesh.agent.tools import Tool

T = TypeVar("T")


class Refusal(NamedTuple):
    """A move of an earlier round that the guard refused, and why."""

    move: Move
    rule: str
    detail: str
    hint: str


class Turn(Moves):
    """One round. Made by the runtime; `mesh.testing.turn` makes one for tests."""

    def __init__(
        self,
        request: str,
        work: Assignment,
        fleet: Fleet,
        *,
        journal: "Journal | None" = None,
        is_over: Callable[[], Awaitable[bool]] | None = None,
        prices: Mapping[str, Price] | None = None,
        prompt_version: str = "",
        live: LiveOutput = SILENT,
    ) -> None:
        self._work = work
        self._journal = journal
        self._is_over = is_over
        self._fleet = fleet
        self._actions = set(work.reported.actions)
        self._usage: Usage = work.reported.usage
        self._calls = ToolCalls(self, work, self._actions, journal, fleet.lease_s)
        self.prices: Mapping[str, Price] = prices or {}
        """What models' tokens cost, by model."""
        self._prompt_version = prompt_version
        self.live = live
        """What the client is shown while this turn works."""
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
        allowed = () if own is None else own.to  # who is not in the fleet (any more) may do nothing there
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
    def past(self) -> tuple[RoundOutcome, ...]:
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
        """The reply to the newest `turn.ask`; None if there was none or it expired (`expired` tells)."""
        return None if self._answered is None else self._answered.reply

    @property
    def expired(self) -> bool:
        """Whether the newest `turn.ask` expired without a reply."""
        return self._answered is not None and self._answered.how == "expired"

    @property
    def _answered(self) -> RoundOutcome | None:
        """The newest ask's end. Approvals are none of the code's business: their calls find them."""
        ends = (past for past in reversed(self.past) if past.how in ("replied", "expired"))
        return next((past for past in ends if not past.asked), None)

    @property
    def stretch(self) -> int:
        """The round, counted without those that ended in an approval: after one, all goes on as before."""
        return self.round - sum(bool(past.asked) for past in self.past)

    @property
    def withheld(self) -> tuple[str, ...]:
        """Labels of what this agent may not see and is carried past it."""
        return () if self._work.withheld is None else self._work.withheld.labels

    @property
    def budget_left(self) -> Budget:
        """What this turn may still spend; None in what has no limit, below 0 where more was spent.

        It counts what the rounds before this one cost, and this one's model calls as far as the code
        has come; so it is the same at the same place whenever this round runs again.
        """
        return budget.left(self.handoff.constraints.budget or budget.UNLIMITED, self._spent)

    # --- doing ------------------------------------------------------------------------------------

    @property
    def allowed_actions(self) -> frozenset[str] | None:
        """Names of the tools that may be called; None if there is no limit."""
        own = self._fleet.agents.get(self.agent)
        limits = [self.handoff.constraints.allowed_actions, () if own is None else own.actions]
        given = [frozenset(limit) for limit in limits if limit is not None]
        return frozenset.intersection(*given) if given else None

    async def call(self, tool: "Tool", /, **arguments: Any) -> Any:
        """Run a tool and return its result, as JSON makes it; a step that was recorded is not run again.

        Raises ActionNotAllowed before anything is run, ToolArgumentsInvalid for arguments that do not
        fit, ToolRefused for the tool's own no and for an approval that was not given, Superseded when the
        turn was ended meanwhile, ApprovalNeeded to suspend the turn, and whatever else the tool raises.
        What stops the round (`mesh.agent.errors`) is not for the code to catch; an effect that broke does.
        """
        self._calls.require_allowed(tool)
        return await self._calls.call(tool, arguments, for_model=False)

    async def outcome(self, tool: "Tool", arguments: Mapping[str, Any]) -> Any:
        """Run a tool for a model, as `call` does, but for what the model is told instead of a result.

        What it is told, its next words rest on. So a reading tool that broke, a result that is too large
        and a tool that is not allowed are recorded as ToolRefused too, and told again in every round.
        """
        return await self._calls.call(tool, arguments, for_model=True)

    async def require_open(self) -> None:
        """Raise Superseded if a guard ended this turn; asked before whatever counts or costs."""
        if self._is_over is not None and await self._is_over():
            raise self._stopped(Superseded("the turn was ended"))

    def _require_budget(self) -> None:
        """Raise BudgetExhausted if nothing is left of something that the grant limits."""
        granted, left = self.handoff.constraints.budget, self.budget_left
        gone = [
            name for name in left.__struct_fields__ if (rest := getattr(left, name)) is not None and rest <= 0
        ]
        if gone:
            spent = (f"{getattr(self._spent, name)} of {getattr(granted, name)} {name}" for name in gone)
            raise self._stopped(BudgetExhausted(f"spent {', '.join(spent)}"))

    def _stopped(self, error: TurnError) -> TurnError:
        """Return an error that the code cannot swallow."""
        return error if self._journal is None else self._journal.stop(error)

    async def model(
        self,
        name: str,
        prompt: Any,
        produce: Produce,
        kind: type[T],
        *,
        cost: Callable[[T], Usage] | None = None,
        began: Any = None,
    ) -> tuple[T, bool]:
        """Return a model's reply to `prompt`, and whether this round is the one that pays for it.

        The prompt is recorded by its digest, the reply as JSON.

        Args:
            cost: what a reply cost. It is recorded with the reply, so that a process that dies
                afterwards takes nothing of the bill with it.
            began: of a conversation's first call: what it begins with, for `begun` to return from now on.

        Raises BudgetExhausted before a call that the budget does not allow; a recorded reply costs nothing.
        """
        paid = True

        async def ask() -> Any:
            await self.require_open()
            self._require_budget()
            with self.live.doing("model", name):
                return plain(await produce())

        def reused() -> None:
            nonlocal paid
            paid = False

        if self._journal is None:
            self._require_budget()
            reply: T = await produce()
            self._usage = budget.plus(self._usage, budget.NOTHING if cost is None else cost(reply))
            return reply, True
        priced = None if cost is None else (lambda value: cost(msgspec.convert(value, kind)))
        call = ("model", name, digest_of(prompt))
        kept = None if began is None else plain(began)
        value = await self._journal.step(call, ask, cost=priced, on_reuse=reused, began=kept)
        return msgspec.convert(value, kind), paid

    def knows(self, name: str, prompt: Any) -> bool:
        """Say whether a reply to this prompt is recorded; asked after `begun`."""
        return self._journal is not None and self._journal.holds(("model", name, digest_of(prompt)))

    async def begun(self) -> tuple[Any, ...]:
        """Return what the turn's conversations with models began with, as it was recorded, in their order.

        Without those that the code took up; what begins only now, `model` is told with its first call.
        """
        return () if self._journal is None else await self._journal.begun()

    def take_up(self, began: Any) -> None:
        """Go on with one of the conversations that `begun` gave."""
        if self._journal is not None:
            self._journal.take_up(began)

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
        # Each of these is its own: an earlier round's time is not this round's. But an approval's yes
        # must find the very call that asked for it, whatever its arguments were made of.
        digest = digest_of([said, self.stretch])
        return await self._journal.step((kind, "", digest), produce)

    def spend(self, *, nano_dollars: int = 0, tokens: int = 0, model_calls: int = 0) -> None:
        """Account for a cost that no step records: one of a model call by other means than `turn.model`."""
        more = Usage(nano_dollars=nano_dollars, tokens=tokens, model_calls=model_calls)
        self._usage = budget.plus(self._usage, more)

    @property
    def _spent(self) -> Usage:
        """What the turn has cost, up to where its code is now."""
        if self._journal is None:
            return self._usage
        tally = self._journal.tally
        return budget.plus(self._usage, budget.plus(tally.owed, tally.spent))

    @property
    def report(self) -> Report:
        """What this turn did in all its rounds, as it goes to the guard with the proposal."""
        steps, digest = self._work.reported.steps, self._work.reported.digest
        usage, actions = self._usage, self._actions
        if self._journal is not None:
            tally = self._journal.tally
            usage = budget.plus(usage, budget.plus(tally.owed, tally.paid))
            actions = actions | tally.owed_actions
            if tally.steps:
                steps += tally.steps
                digest = hashlib.sha256(f"{digest}{tally.digest}".encode()).hexdigest()
        return Report(
            usage=usage,
            actions=tuple(sorted(actions)),
            steps=steps,
            digest=digest,
            prompt=self._prompt_version,
        )
