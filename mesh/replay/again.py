"""One round, run again: the agent's code over what its journal holds. Nothing is called, asked or written.

A call is answered by the recorded step of its kind, name and arguments; of equal ones the first unused one.
What a live round checks before a call (budget, approvals, allowed actions) is checked here, too. Then a call
without a record stops the code: `NoRecord`.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from mesh.agent._execution import Execution
from mesh.agent._executor import encode_or_fail
from mesh.agent._journal import Produce
from mesh.agent._steps import Given, RoundKey, digest_of, given, key_of, prompt_of, to_json
from mesh.agent.definition import Agent
from mesh.agent.errors import Fenced, Superseded, TurnError
from mesh.agent.tools import Tool
from mesh.agent.turn import Turn
from mesh.artifacts import ArtifactStore
from mesh.model.choice import Make, made, replaced_by, shared
from mesh.model.port import Hear, Model, Prompt, Reply
from mesh.replay.journal import NoRecord, OwnStep, RecordedJournal, Unusable, Wanted
from mesh.replay.outside import Outside, ReadsOutside
from protocol.domain.budget import NOTHING, plus
from protocol.wire import codec
from protocol.wire.commands import Failure, Proposal, Usage
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.records import Record

T = TypeVar("T")

_SETTLING = 20
"""Turns of the event loop that concurrent calls get to reach their steps, after one of them raised."""


@dataclass
class Ran:
    """The outcome of a round that was run again."""

    proposal: Proposal | None = None
    """None: the code reached no end here."""
    error: BaseException | None = None
    """The error that ended it; None if a move did."""
    left: list[OwnStep] = field(default_factory=list)
    """Steps that the code did not reach again, in order."""
    out_of_order: tuple[OwnStep, OwnStep] | None = None
    """A step, and a later one that the code reached before it."""
    wanted: Wanted | None = None
    """The call that stopped it."""
    outside: ReadsOutside | None = None
    changed_prompt: "ChangedPrompt | None" = None
    """A model call with the recorded prompt but another model or other parameters."""
    steps: int = 0
    """Number of steps that the code reached, of this round or reused."""
    context: Any = None
    """With what a conversation began, where the code began one without a record."""
    asked: Usage | None = None
    """What models cost that were asked anew; None if none was asked."""


class ChangedPrompt(NamedTuple):
    """A model is asked with the recorded prompt, but not in the recorded way."""

    step: OwnStep | None
    was: str
    now: str
    what: str
    """`model` or `parameters`."""


class RecordedExecution(Execution):
    """A round whose calls are answered by its journal.

    Args:
        store: of artifacts; None where there is none here.
        live: models are asked what the record does not answer.
    """

    journal: RecordedJournal
    is_watched = False

    def __init__(
        self,
        key: RoundKey,
        work: Assignment,
        fleet: Fleet,
        journal: RecordedJournal,
        agent: Agent,
        *,
        store: ArtifactStore | None,
        live: bool,
    ) -> None:
        super().__init__(
            key, work, fleet, journal, version=agent.version, prompt_version=agent.prompt_version
        )
        self._artifacts, self._live = store, live
        self.changed_prompt: ChangedPrompt | None = None
        self.context: Any = None

    def run_of(self, tool: Tool) -> Callable[..., Awaitable[Any]]:
        async def run(arguments: Mapping[str, Any], **rest: Any) -> Any:
            kind = "call" if tool.effect is None else "effect"
            shown = given(arguments, tool.secret)
            raise self.journal.stop(NoRecord(Wanted(kind, tool.name, digest_of(arguments), shown)))

        return run

    def another_try(self, tool: Tool, key: str, run: Produce) -> Produce | None:
        return None if tool.effect == "once" else run

    async def model(
        self, name: str, prompt: Any, produce: Produce, kind: type[T], **rest: Any
    ) -> tuple[T, bool]:
        digest, parts = digest_of(prompt), rest.get("parts")
        known = self.journal.reply_to(digest)
        if self._live:
            if known is not None:
                self._compare(name, known, parts, None)
                anew, self.changed_prompt = self.changed_prompt is not None, None
                self.journal.asks_anew = ("model", name, digest) if anew else None
                name = name if anew else known.name
            return await super().model(name, prompt, produce, kind, **rest)
        if known is not None:
            self._compare(name, known, parts, self.journal.step_of(("model", known.name, digest)))
            name = known.name
        elif rest.get("began") is not None:
            self.context = rest["began"]

        async def no_record() -> Any:
            shown, fixed = (None, b"") if parts is None else prompt_of(*parts)
            wanted = Wanted("model", name, digest, Given(prompt=shown), fixed)
            raise self.journal.stop(NoRecord(wanted))

        return await super().model(name, prompt, no_record, kind, **rest)

    async def set_up(self, made: Mapping[str, Any]) -> Any:
        await super().set_up(made)
        return to_json(made)

    def _compare(self, name: str, known: Record, parts: Any, step: OwnStep | None) -> None:
        """Note if another model is asked, or with other parameters. A file of rules replied for any model."""
        if self.changed_prompt is not None:
            return
        if parts is None:
            if name != known.name:
                self.changed_prompt = ChangedPrompt(step, known.name, name, "model")
        elif _is_by_vendor(known):
            if name != known.name:
                self.changed_prompt = ChangedPrompt(step, known.name, name, "model")
            elif known.prompt is not None and (fixed := prompt_of(*parts)[0].fixed) != known.prompt.fixed:
                self.changed_prompt = ChangedPrompt(step, known.prompt.fixed, fixed, "parameters")

    async def _keep_prompt(self, digest: str, fixed: bytes) -> None:
        """Keep nothing: a replay writes nothing."""

    def knows(self, name: str, prompt: Any) -> bool:
        return self.journal.reply_to(digest_of(prompt)) is not None

    @property
    def store(self) -> ArtifactStore:
        if self._artifacts is None:
            raise self.journal.stop(Unusable("it loads an artifact, and no store of artifacts is named"))
        return self._artifacts


def _is_by_vendor(known: Record) -> bool:
    """Return True for a reply that names the model of a vendor that made it."""
    return isinstance(known.value, dict) and bool(known.value.get("model") or known.value.get("asked"))


class _StandIn(Model):
    """A model with the name under which a step was recorded. It is not asked."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        raise AssertionError("a replay asks no model")


def _models(steps: Iterable[Record], *, live: bool) -> Make:
    """Return what makes an agent's models: its own where a vendor's replied, else one that stands in."""
    replies = [record for record in steps if record.kind == "model"]
    if live:
        return _asked
    if not replies or any(map(_is_by_vendor, replies)):
        return _pinned
    stand_in = _StandIn(replies[0].name)
    return lambda model, fallback, max_tokens: stand_in


def _asked(model: str | Model, fallback: str | None, max_tokens: int) -> Model:
    """Return an agent's own model, to be asked."""
    return model if isinstance(model, Model) else shared(model, fallback, max_tokens)


def _pinned(model: str | Model, fallback: str | None, max_tokens: int) -> Model:
    """Return an agent's own model, which shows how it would ask, and is not asked."""
    return model if isinstance(model, Model) else made(model, fallback, max_tokens)


def _as_read(proposal: Proposal) -> Proposal:
    """Return a proposal as a guard reads it, or the failure that names why no guard could."""
    return codec.parse_proposal(encode_or_fail(proposal)[1])


def spent_by(records: Iterable[Record]) -> Usage:
    """Return what models cost, by their records."""
    return functools.reduce(plus, (record.usage or NOTHING for record in records), NOTHING)


async def run_again(
    agent: Agent,
    request: str,
    work: Assignment,
    fleet: Fleet,
    steps: Mapping[str, Record],
    *,
    outside: Outside,
    resumed: bool = False,
    store: ArtifactStore | None = None,
    live: bool = False,
) -> Ran:
    """Run an agent's code once over a round's record.

    Args:
        fleet: as it was then.
        steps: the turn's journal, by step; other rounds as far as they are known.
        outside: watches what the code reads outside its record.
        resumed: as for `RecordedJournal`.
        store: of artifacts.
        live: models are asked what the record does not answer.
    """
    key = key_of(work.handoff.to_agent, request, work)
    journal = RecordedJournal(steps, key, work, agent.version, resumed=resumed)
    execution = RecordedExecution(key, work, fleet, journal, agent, store=store, live=live)
    ran = Ran()
    error: BaseException | None = None
    proposal: Proposal | None = None
    with replaced_by(_models(steps.values(), live=live)):
        try:
            with outside.watched(journal.stop):
                move = await agent(Turn(execution))
            await journal.finish()
            proposal = execution.moved(move, agent.handler)
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = journal.broken or cancelled
            if journal.broken is None:
                proposal = execution.failed(Failure(code="bug", message="the handler cancelled itself"))
        except BaseException as raised:
            error = journal.broken or raised
            with contextlib.suppress(TurnError):
                await journal.finish()
            error = journal.broken or error
    execution.close()
    if error is not None and any(not step.reached for step in journal.own):
        for _ in range(_SETTLING):
            await asyncio.sleep(0)
    if isinstance(error, NoRecord):
        ran.wanted = error.wanted
    elif isinstance(error, ReadsOutside):
        ran.outside = error
    elif (
        proposal is None
        and isinstance(error, Exception)
        and not isinstance(error, Unusable | Fenced | Superseded)
    ):
        proposal = execution.stopped(error)
    ran.proposal, ran.error = None if proposal is None else _as_read(proposal), error
    ran.left = [step for step in journal.own if not step.reached]
    ran.out_of_order, ran.changed_prompt = journal.out_of_order, execution.changed_prompt
    if journal.asked:
        ran.asked = spent_by(journal.asked)
    ran.steps, ran.context = journal.tally.steps, execution.context
    return ran
