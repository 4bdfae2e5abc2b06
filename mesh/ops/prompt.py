"""What a turn's model was sent, built again from the journal by the agent's own code, and held against it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from mesh.agent._rebuilt import Rebuilt, Sent, rebuild
from mesh.agent.definition import Agent
from mesh.bus.connection import Bus
from mesh.bus.reader import get
from mesh.client.journals import journaled
from mesh.errors import NotFound, UsageWrong
from mesh.model.agent import instead
from mesh.model.anthropic.model import MAX_TOKENS, ClaudeModel
from mesh.model.port import Model, Prompt
from mesh.ops.log import decoded, request_bodies
from protocol.wire.config import Fleet, read_fleet
from protocol.wire.events import AnyEvent, Assignment, FactsWithheld
from protocol.wire.ids import AgentName
from protocol.wire.subjects import FLEET


class Shown(NamedTuple):
    """One prompt, with what is known of it."""

    work: Assignment
    agent: Agent
    rebuilt: Rebuilt
    call: int
    """Which of the round's model calls, from 1."""
    sent: Sent
    request: Mapping[str, Any]
    """As the vendor gets it."""
    prompt_version: str
    """As the round reported it; empty where it reported none."""
    pinned: str
    """The model that the agent is pinned to here."""

    @property
    def exact(self) -> bool:
        """Whether this is what was sent: the prompt, and to the model that got it."""
        return self.sent.exact and not self.repinned

    @property
    def repinned(self) -> bool:
        """Whether another model was asked than the agent here would ask; rules ask none."""
        return self.sent.name not in ("scripted", self.pinned)


async def sent_to_model(
    bus: Bus,
    name: str,
    code: Callable[[], Agent],
    request: str,
    *,
    n: int | None = None,
    call: int | None = None,
) -> Shown:
    """Return what an agent's model was sent: the agent's own code, run over what the turn journaled.

    Args:
        code: returns the agent's code, once it is known that the agent had work.
        n: an event that the round came to; else the agent's newest round.
        call: which of the round's model calls, from 1; else the last.

    Raises NotFound, UsageWrong, BusError.
    """
    happened = decoded(await request_bodies(bus, request))
    work = _round(happened, name, n)
    agent = code()
    kept = await get(bus, "CONF", FLEET)
    known = Fleet(name="", entry=AgentName(agent.name)) if kept is None else read_fleet(kept.data)
    found = await journaled(bus, request, (name,), work.journal_id)
    steps = {step.name: step.body for step in found}
    models: list[ClaudeModel] = []
    with _as_sent(models):
        rebuilt = await rebuild(agent, request, work, known, steps)
    if not rebuilt.sent:
        why = f": {rebuilt.ended}" if rebuilt.ended else ""
        raise NotFound(f"round {work.round} of {name} in {request} asked no model{why}")
    at = len(rebuilt.sent) if call is None else call
    if not 0 < at <= len(rebuilt.sent):
        raise UsageWrong(f"--call {at}: the round has calls 1 to {len(rebuilt.sent)}")
    sent = rebuilt.sent[at - 1]
    return Shown(
        work,
        agent,
        rebuilt,
        at,
        sent,
        _as_the_vendor_gets_it(sent, models),
        _reported(happened, work),
        models[0].mode if models else sent.name,
    )


def _round(happened: Sequence[AnyEvent], name: str, n: int | None) -> Assignment:
    """Return the round that came to an event, or the agent's newest. Raises NotFound, UsageWrong."""
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

    A client's event has no report: that stands in the `facts.withheld` of the same cause.
    """
    kept = {event.cause: event.report for event in happened if isinstance(event, FactsWithheld)}
    reports = (
        event.report or kept.get(event.cause)
        for event in happened
        if _place(event) == (work.turn, work.round)
    )
    return next((report.prompt for report in reports if report is not None and report.prompt), "")


@contextmanager
def _as_sent(made: list[ClaudeModel]) -> Any:
    """Let the agent's code have its pinned model, which says how it would ask, and is never asked."""

    def make(model: str, fallback: str | None, max_tokens: int) -> Model:
        made.append(ClaudeModel(model, fallback=fallback, max_tokens=max_tokens))
        return made[-1]

    with instead(make):
        yield


def _as_the_vendor_gets_it(sent: Sent, models: Sequence[ClaudeModel]) -> Mapping[str, Any]:
    if not isinstance(sent.prompt, Prompt):
        return {}
    model = models[0] if models else ClaudeModel(sent.name, max_tokens=MAX_TOKENS)
    return model.request(sent.prompt, model.asked_of(_said(sent, "asked") or _said(sent, "model")))


def _said(sent: Sent, what: str) -> str:
    """Return which model was `asked`, or which `model` replied; empty where the record does not tell."""
    value = None if sent.record is None else sent.record.value
    return str(value.get(what, "")) if isinstance(value, dict) else ""


def differences(found: Shown) -> list[str]:
    """Return why a prompt is not known to be what was sent; nothing if it is, to the letter."""
    if found.exact:
        return []
    lines = [] if found.sent.exact else ["the journal has no reply to this very prompt"]
    if found.repinned:
        lines.append(f"{found.sent.name} was asked, and the agent is pinned to {found.pinned} now")
    if found.rebuilt.version not in ("", found.agent.version):
        lines.append(
            f"version {found.rebuilt.version} of the agent began the round, this is {found.agent.version}"
        )
    if found.prompt_version not in ("", found.agent.prompt_version):
        lines.append(
            f"version {found.prompt_version} of its prompt was used, this is {found.agent.prompt_version}"
        )
    if found.rebuilt.ended:
        lines.append(found.rebuilt.ended)
    return lines


def as_program_reads(found: Shown, request: str) -> dict[str, Any]:
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
        "replied": _said(sent, "model"),
        "agent_version": {"then": found.rebuilt.version, "here": found.agent.version},
        "prompt_version": {"then": found.prompt_version, "here": found.agent.prompt_version},
        "exact": found.exact,
        "differs": differences(found),
        "digest": sent.digest,
        "sent": found.request,
        "prompt": sent.prompt,
    }
