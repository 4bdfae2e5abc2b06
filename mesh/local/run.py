"""A request through agents in this process: for a first try, a script, a notebook.

    print(mesh.run_sync([front, greeter], "Ada").answer)

The guard's decider and the journal are those of a deployment, and the same file can later run as services.
Time is real, and models and tools are called. Nothing outlives the call: a crash loses the request.
"""

import asyncio
import contextlib
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from mesh.agent._reply_schema import SchemaUnusable, check_reply
from mesh.agent.definition import Agent, AgentNotFound, close_toolboxes, prepared
from mesh.agent.values import Facts, facts_of
from mesh.client import SubmitRejected
from mesh.client.follow import Outcome, Question, outcome_of
from mesh.errors import MeshError
from mesh.local.in_memory import InMemoryFleet
from mesh.local.in_memory_guard import InMemoryGuard, NotDecided
from mesh.local.mesh import fleet_of
from mesh.model.choice import close_models
from mesh.tasks import LoopThread
from protocol.domain.turns import TurnState
from protocol.wire.commands import Submit
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, Ended
from protocol.wire.ids import HUMAN, request_id

T = TypeVar("T")
OnQuestion = Callable[[Question], Any]
"""Returns the reply, or an awaitable of it."""


class RequestWaits(MeshError, code="run.waits"):
    """A request has no end here: a person has it, or a question got no reply. `events` is its log so far."""

    def __init__(self, request: str, why: str, events: Sequence[AnyEvent]) -> None:
        super().__init__(f"the request has no end: {why}")
        self.request, self.events = request, tuple(events)


async def run(
    agents: Agent | Iterable[Agent],
    text: str,
    *,
    facts: Facts = None,
    on_question: OnQuestion | None = None,
    policy: Policy | None = None,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
    **submit: Any,
) -> Outcome:
    """Take a request through these agents, and return how it ended.

    Args:
        agents: one, or all that may hand work to each other; the first gets the request.
        on_question: answers questions to the client or a person, including approvals; may be a coroutine.
        policy: the limits that the guard keeps.
        on_event: called with each event of the request's log.
        submit: further fields of the submit, as in `Client.submit`.

    Raises RequestWaits if only a person could continue, SubmitRejected, ReplyInvalid, and errors of agents'
    code.
    """
    wanted = Submit(text=text, facts=facts_of(facts), **submit)
    return await run_whole(agents, wanted, on_question=on_question, policy=policy, on_event=on_event)


def run_sync(
    agents: Agent | Iterable[Agent],
    text: str,
    *,
    on_question: OnQuestion | None = None,
    **how: Any,
) -> Outcome:
    """Do as `run` does, without `async`; it also works inside a running event loop, as in a notebook.

    `on_question` is called in a thread, so it may call `input`. An interrupt ends the run.
    """

    async def asked(question: Question) -> Any:
        assert on_question is not None
        return await asyncio.to_thread(on_question, question)

    async def running() -> Outcome:
        try:
            return await run(agents, text, on_question=None if on_question is None else asked, **how)
        finally:
            await close_models()  # their connections belong to this loop, which ends with the run

    with contextlib.closing(LoopThread("mesh-run", "the run")) as loop:
        return loop.run(running())


async def run_whole(
    agents: Agent | Iterable[Agent],
    wanted: Submit,
    *,
    on_question: OnQuestion | None = None,
    policy: Policy | None = None,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
) -> Outcome:
    """Do as `run` does, for a complete `Submit`."""
    code = _by_name((agents,) if isinstance(agents, Agent) else tuple(agents))
    fleet, now = fleet_of(*code), _now()
    guard = InMemoryGuard(
        fleet,
        None if policy is None else {wanted.policy: policy},
        request=request_id(fleet.clients[0], now // 1000, os.urandom(10)),
        now=now,
        on_event=on_event,
    )
    tools = [tool for agent in code.values() for tool in agent.tools]
    try:
        for agent in code.values():
            await prepared(agent)
        try:
            guard.submit_whole(wanted)
        except NotDecided as wrong:
            raise SubmitRejected(guard.request, "malformed", str(wrong)) from None
        await _RunningFleet(guard, code, on_question).walk()
    finally:
        await close_toolboxes(tools)
    end = guard.ledger.ended
    if not isinstance(end, Ended):
        raise RequestWaits(guard.request, _why(guard), guard.events)
    return outcome_of(end)


def _by_name(agents: Sequence[Agent]) -> dict[str, Agent]:
    """Return agents by name. Raises TypeError for anything else, ValueError for no agent or a name twice."""
    found: dict[str, Agent] = {}
    for each in agents:
        if not isinstance(each, Agent):
            raise TypeError(f"not an agent: {each!r}; @agent() makes one of an async function")
        if found.setdefault(each.name, each) is not each:
            raise ValueError(f"two agents are called {each.name!r}")
    if not found:
        raise ValueError("there is no agent to run")
    return found


def _why(guard: InMemoryGuard) -> str:
    """Return what a request without an end waits for."""
    turn = guard.ledger.holder or next(iter(guard.ledger.open.values()), None)
    if turn is None:
        return "nobody has it"
    if turn.ask is not None:
        whom = "a person" if turn.asked == HUMAN else "the client"
        return f"{turn.agent} asks {whom}: {turn.ask.question}"
    if turn.agent == HUMAN:
        return f"a person has it now ({turn.reason or 'escalated'}): {turn.summary}"
    return f"nobody knows if an effect of {turn.agent} happened"


class _RunningFleet(InMemoryFleet):
    """A request in real time: a round that a guard would have ended is stopped."""

    def __init__(
        self, guard: InMemoryGuard, agents: Mapping[str, Agent], on_question: OnQuestion | None
    ) -> None:
        super().__init__(guard, agents)
        self._on_question = on_question

    async def work_on(self, held: TurnState) -> None:
        proposal = await self._while_current(held, self.run_round(held))
        if proposal is not None:
            self.guard.propose(proposal)

    async def reply_to(self, held: TurnState) -> bool:
        if self._on_question is None or held.ask is None:
            return False
        reply = await self._while_current(held, self._asked(held, self._on_question))
        if reply is not None:
            self.guard.reply(reply.value, "you", turn=held)
        return True

    async def _asked(self, held: TurnState, on_question: OnQuestion) -> "_Reply":
        ask, request = held.ask, self.guard.request
        assert ask is not None
        value = on_question(
            Question(
                request,
                held.id,
                held.round,
                ask.question,
                ask.schema,
                held.due_at or 0,
                held.agent,
                held.since_n,
            )
        )
        value = await value if inspect.isawaitable(value) else value
        with contextlib.suppress(SchemaUnusable):  # the mistake of the agent that asked
            await asyncio.to_thread(check_reply, ask.schema, value)
        return _Reply(value)

    async def wait_until(self, at: int) -> None:
        await asyncio.sleep(max(0.0, (at - _now()) / 1e6))
        self._catch_up()

    def _catch_up(self) -> None:
        """Set the guard's time to the present, and decide what is due."""
        self.guard.wait(max(0.0, (_now() - self.guard.now) / 1e6))

    async def _while_current(self, held: TurnState, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`; None if its turn's round ended first, which cancels it."""
        run = (held.id, held.round, held.state)
        task = asyncio.ensure_future(work)
        try:
            while True:
                due_at = self.guard.due_at
                within_s = None if due_at is None else max(0.0, (due_at - _now()) / 1e6)
                await asyncio.wait({task}, timeout=within_s)
                self._catch_up()
                turn = self.guard.ledger.open.get(held.id)
                if turn is None or (turn.id, turn.round, turn.state) != run:
                    return None
                if task.done():
                    return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class _Reply(NamedTuple):
    value: Any


def _now() -> int:
    return time.time_ns() // 1000


# --- a file of agents -----------------------------------------------------------------------------


def agents_in(reference: str) -> list[Agent]:
    """Return all agents of the file or module in `FILE:AGENT`, the named one first.

    Without `:AGENT` it is the only agent, or the one called `agent`. Raises AgentNotFound, and errors of the
    file.
    """
    place, _, name = reference.partition(":")
    module = _imported(place)
    found = {key: each for key, each in vars(module).items() if isinstance(each, Agent)}
    several = {each.name: each for each in found.values()}
    first = found.get(name or "agent") or (None if name or len(several) != 1 else next(iter(found.values())))
    if first is None:
        has = f"{place} has no agent {name!r}" if name else f"{place} has {len(several)} agents"
        names = ", ".join(f"{place}:{key}" for key in found)
        raise AgentNotFound(f"{has}; say which one: {names}" if found else f"there is no agent in {place}")
    return [first, *(each for each in several.values() if each.name != first.name)]


def _imported(place: str) -> ModuleType:
    """Return the module in a file, or the module of that name. Raises AgentNotFound."""
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise AgentNotFound(f"there is no file {place}")
    home = str((path.parent if is_file else Path()).resolve())
    if home not in sys.path:
        sys.path.insert(0, home)  # as Python does for a script
    name = path.stem if is_file else place
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        raise AgentNotFound(f"no module {name!r}") from None
    if is_file and Path(module.__file__ or "").resolve() != path.resolve():
        raise AgentNotFound(f"{place} cannot be loaded: another module is called {name!r}; rename the file")
    return module
