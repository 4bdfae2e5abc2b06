"""A turn's prompt: built again from the journal by the agent's own code, and compared with the journal.

The code runs over the recorded steps, and stops where they end: no tool is called, no model is asked, nothing
is written. If a prompt comes out with the recorded digest, it is exactly the one that was sent. At the first
different prompt the journal stops the code: later prompts are not known.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from mesh.agent._execution import Execution
from mesh.agent._journal import Journal, Produce
from mesh.agent._steps import Call, RoundKey, digest_of, key_of
from mesh.agent.definition import Agent
from mesh.agent.errors import TurnError
from mesh.agent.turn import Turn
from mesh.bus.connection import Bus
from mesh.bus.stores import journaled
from mesh.errors import NotFound, UsageWrong
from mesh.model.choice import made, replaced_by
from mesh.model.port import Model, Prompt
from mesh.model.vendor import MAX_TOKENS, Section, VendorModel
from mesh.ops.log import decoded, request_bodies
from mesh.ops.queue import people_of
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.records import Record, decode_record

T = TypeVar("T")


class JournalEnds(TurnError, code="journal.ends"):
    """The code wants a step that was never recorded."""


class SentPrompt(NamedTuple):
    """One prompt of the round."""

    prompt: Any
    name: str
    """The model's name, as recorded."""
    digest: str
    """Digest of the prompt as it came out here."""
    record: Record | None
    """The recorded reply to this very prompt; None if there is none."""

    @property
    def exact(self) -> bool:
        """True if this is what was sent."""
        return self.record is not None


class Rebuilt(NamedTuple):
    """The prompts of a round's code, over its journal."""

    sent: tuple[SentPrompt, ...]
    """Its prompts in order, including those of earlier rounds' conversation; the last may not be exact."""
    version: str
    """Version of the agent that began the round; empty if it recorded nothing."""
    ended: str
    """Why the code stopped; empty if it ran to its end."""


async def rebuild(
    agent: Agent, request: str, work: Assignment, fleet: Fleet, steps: Mapping[str, bytes]
) -> Rebuilt:
    """Return the prompts of one round, by running the agent's code over its journal.

    Args:
        work: the round.
        fleet: the agents that this one may hand to, if its journal does not record them.
        steps: the turn's journal: stored steps by name, `<round>-<n>`.
    """
    key = key_of(work.handoff.to_agent, request, work)
    journal = _Recorded(_Store(steps), key, nonce="", version=agent.version, past=work.past)
    replies = [record for body in steps.values() if (record := decode_record(body)).kind == "model"]
    execution = _Execution(key, work, fleet, journal, replies)
    ended = ""
    try:
        await agent(Turn(execution))
    except Exception as error:
        broken = journal.broken or error
        ended = str(broken) if isinstance(broken, TurnError) else f"the code broke: {type(broken).__name__}"
    return Rebuilt(tuple(execution.sent), journal.version or "", ended)


class _Store:
    """Stored steps, without any others."""

    def __init__(self, steps: Mapping[str, bytes]) -> None:
        self._steps = steps

    async def get(self, request: str, turn: str, name: str) -> bytes | None:
        return self._steps.get(name)

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        raise JournalEnds(f"step {name} was never recorded")


class _Recorded(Journal):
    """A journal that has no effects."""

    async def produced(self, call: Call, produce: Produce, *rest: Any, **named: Any) -> Record:
        what = f"{call[0]} {call[1]}".strip()
        raise self.stop(JournalEnds(f"the journal ends here: {what} was never recorded"))


class _Execution(Execution):
    """A round that keeps the prompts that its code would send.

    Args:
        replies: recorded replies in all rounds of the turn.
    """

    is_watched = False

    def __init__(
        self, key: RoundKey, work: Assignment, fleet: Fleet, journal: Journal, replies: list[Record]
    ) -> None:
        super().__init__(key, work, fleet, journal)
        self.sent: list[SentPrompt] = []
        self._replies = replies

    def knows(self, name: str, prompt: Any) -> bool:
        digest = digest_of(prompt)
        return any(record.digest == digest for record in self._replies)

    async def model(
        self, name: str, prompt: Any, produce: Produce, kind: type[T], **named: Any
    ) -> tuple[T, bool]:
        digest = digest_of(prompt)
        reply = next((record for record in self._replies if record.digest == digest), None)
        known = reply or next(iter(self._replies), None)
        name = known.name if known is not None else name  # the agent may have another model here
        self.sent.append(SentPrompt(prompt, name, digest, reply))
        return await super().model(name, prompt, produce, kind, **named)


# --- what was sent ---------------------------------------------------------------------------------


class ShownPrompt(NamedTuple):
    """One prompt, and everything known about it."""

    work: Assignment
    agent: Agent
    rebuilt: Rebuilt
    call: int
    """Which of the round's model calls it is, from 1."""
    sent: SentPrompt
    request: Mapping[str, Any]
    """As the vendor gets it."""
    sections: tuple[Section, ...]
    """The same for people; empty if no vendor was asked."""
    prompt_version: str
    """As the round reported it; empty if it reported none."""
    differs: tuple[str, ...]
    """Why this may not be exactly what was sent; empty if it is."""

    @property
    def exact(self) -> bool:
        return not self.differs


async def sent_to_model(
    bus: Bus,
    name: str,
    code: Callable[[], Agent],
    request: str,
    *,
    n: int | None = None,
    call: int | None = None,
) -> ShownPrompt:
    """Return what an agent's model was sent, by running the agent's own code over the turn's journal.

    Args:
        code: returns the agent's code, once it is known that the agent had work.
        n: number of an event with which the round ended; else the agent's newest round is shown.
        call: which of the round's model calls, from 1; else the last.

    Raises NotFound, UsageWrong, BusError.
    """
    happened = decoded(await request_bodies(bus, request))
    work = _round(happened, name, n)
    agent, known = code(), await people_of(bus)
    steps = {step.name: step.body for step in await journaled(bus, request, (name,), work.journal_id)}
    models: list[Model] = []

    def make(model: str | Model, fallback: str | None, max_tokens: int) -> Model:
        """Return the agent's pinned model, which shows how it would ask, and is never asked."""
        models.append(model if isinstance(model, Model) else made(model, fallback, max_tokens))
        return models[-1]

    with replaced_by(make):
        rebuilt = await rebuild(agent, request, work, known, steps)
    if not rebuilt.sent:
        why = f": {rebuilt.ended}" if rebuilt.ended else ""
        raise NotFound(f"round {work.round} of {name} in {request} asked no model{why}")
    at = len(rebuilt.sent) if call is None else call
    if not 0 < at <= len(rebuilt.sent):
        raise UsageWrong(f"--call {at}: the round has calls 1 to {len(rebuilt.sent)}")
    sent, reported = rebuilt.sent[at - 1], _reported(happened, work)
    body: Mapping[str, Any] = {}
    sections: tuple[Section, ...] = ()
    if isinstance(sent.prompt, Prompt):
        model = models[0] if models else made(sent.name, None, MAX_TOKENS)
        asked = model.asked_of(_model_name(sent, "asked") or _model_name(sent, "model"))
        if isinstance(model, VendorModel):
            body = model.request(sent.prompt, asked)
            sections = tuple(model.printed(body))
        else:
            body = msgspec.to_builtins(sent.prompt)
    differs = _differences(sent, rebuilt, agent, reported, models[0].mode if models else sent.name)
    return ShownPrompt(work, agent, rebuilt, at, sent, body, sections, reported, tuple(differs))


def _round(happened: Sequence[AnyEvent], name: str, n: int | None) -> Assignment:
    """Return the round that ended with an event, or the agent's newest. Raises NotFound, UsageWrong."""
    works = [work for event in happened if (work := _work_of(event, name)) is not None]
    if not works:
        raise NotFound(f"{name} was given nothing in {happened[0].request}")
    if n is None:
        return works[-1]
    by = {(work.turn, work.round): work for work in works}
    ends = {event.n: by[place] for event in happened if (place := _place(event)) in by}
    if n not in ends:
        raise UsageWrong(f"event {n} is nothing that {name} came to; those are {', '.join(map(str, ends))}")
    return ends[n]


def _work_of(event: AnyEvent, name: str) -> Assignment | None:
    work = event.work
    return work if work is not None and event.to == name == work.handoff.to_agent else None


def _place(event: AnyEvent) -> tuple[str, int]:
    return event.turn, event.round


def _reported(happened: Sequence[AnyEvent], work: Assignment) -> str:
    """Return the version of the prompt that a round reported; empty if it reported none.

    A client's event has no report: it is in the `facts.withheld` with the same cause.
    """
    kept = {event.cause: event.report for event in happened if isinstance(event, FactsWithheld)}
    reports = (
        event.report or kept.get(event.cause)
        for event in happened
        if _place(event) == (work.turn, work.round)
    )
    return next((report.prompt for report in reports if report is not None and report.prompt), "")


def _model_name(sent: SentPrompt, what: str) -> str:
    """Return which model was `asked`, or which `model` replied; empty if the record has no such name."""
    value = None if sent.record is None else sent.record.value
    return str(value.get(what, "")) if isinstance(value, dict) else ""


def _differences(
    sent: SentPrompt, rebuilt: Rebuilt, agent: Agent, reported: str, pinned: str
) -> Iterator[str]:
    """Yield why a prompt may not be exactly what was sent, to the model that got it.

    Args:
        reported: the version of its prompt, as the round reported it.
        pinned: the model that the agent here would ask; rules ask none.
    """
    repinned = sent.name not in ("scripted", pinned)
    if sent.exact and not repinned:
        return
    if not sent.exact:
        yield "the journal has no reply to this very prompt"
    if repinned:
        yield f"{sent.name} was asked, and the agent is pinned to {pinned} now"
    if rebuilt.version not in ("", agent.version):
        yield f"version {rebuilt.version} of the agent began the round, this is {agent.version}"
    if reported not in ("", agent.prompt_version):
        yield f"version {reported} of its prompt was used, this is {agent.prompt_version}"
    if rebuilt.ended:
        yield rebuilt.ended


def as_program_reads(found: ShownPrompt, request: str) -> dict[str, Any]:
    """Return everything about one prompt."""
    sent = found.sent
    return {
        "request": request,
        "agent": found.agent.name,
        "turn": found.work.turn,
        "round": found.work.round,
        "call": found.call,
        "calls": len(found.rebuilt.sent),
        "model": sent.name,
        "replied": _model_name(sent, "model"),
        "agent_version": {"then": found.rebuilt.version, "here": found.agent.version},
        "prompt_version": {"then": found.prompt_version, "here": found.agent.prompt_version},
        "exact": found.exact,
        "differs": list(found.differs),
        "digest": sent.digest,
        "sent": found.request,
        "prompt": sent.prompt,
    }
