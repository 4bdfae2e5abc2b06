"""What a turn's model was sent, built again from the journal by the agent's own code, and held against it."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mesh.agent.definition import Agent, load
from mesh.agent.rebuilt import Rebuilt, Sent, rebuild
from mesh.bus.connection import Bus
from mesh.bus.reader import get
from mesh.cli.checkout import find_fleet
from mesh.client.journals import journaled
from mesh.fleet.file import FILE_NAME
from mesh.model.agent import instead
from mesh.model.anthropic.model import MAX_TOKENS, ClaudeModel
from mesh.model.port import Model, Prompt
from mesh.ops.errors import NotFound, UsageWrong
from mesh.ops.requests import decoded, request_bodies
from protocol.wire.config import Fleet
from protocol.wire.documents import read_fleet
from protocol.wire.events import AnyEvent, Work
from protocol.wire.ids import AgentName
from protocol.wire.subjects import FLEET


class Shown(NamedTuple):
    """One prompt, with what is known of it."""

    work: Work
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


async def shown(
    bus: Bus,
    name: str,
    request: str,
    *,
    module: str | None,
    fleet: str | None,
    n: int | None,
    call: int | None,
) -> Shown:
    """Return what an agent's model was sent.

    Args:
        module: `MODULE:NAME` of the agent's code; else as the fleet file says.
        fleet: a fleet file, or a reference fleet's name; else ./mesh.toml.
        n: an event that the round came to; else the agent's newest round.
        call: which of the round's model calls, from 1; else the last.

    Raises NotFound, UsageWrong, AgentNotFound, BusError.
    """
    happened = decoded(await request_bodies(bus, request))
    work = _round(happened, name, n)
    agent = _agent(name, module, fleet)
    kept = await get(bus, "CONF", FLEET)
    known = Fleet(name="", entry=AgentName(agent.name)) if kept is None else read_fleet(kept.data)
    found = await journaled(bus, request, (name,), work.continues or work.turn)
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


def _round(happened: Sequence[AnyEvent], name: str, n: int | None) -> Work:
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


def _work_of(event: AnyEvent, name: str) -> Work | None:
    work = getattr(event, "work", None)
    return work if isinstance(work, Work) and event.to == name == work.handoff.to_agent else None


def _place(event: AnyEvent) -> tuple[str, int]:
    return getattr(event, "turn", ""), getattr(event, "round", -1)


def _reported(happened: Sequence[AnyEvent], work: Work) -> str:
    reports = [
        getattr(event, "report", None) for event in happened if _place(event) == (work.turn, work.round)
    ]
    return next((report.prompt for report in reports if report is not None and report.prompt), "")


def _agent(name: str, module: str | None, fleet: str | None) -> Agent:
    """Return the agent's code. Raises UsageWrong, AgentNotFound, FleetFileError."""
    if module is None:
        if fleet is None and not Path(FILE_NAME).is_file():
            raise UsageWrong(f"where is {name}'s code? There is no {FILE_NAME} here; say --module or --fleet")
        file, search = find_fleet([] if fleet is None else [fleet])
        sys.path[:0] = [str(path) for path in search if str(path) not in sys.path]
        section = file.agents.get(name)
        module = None if section is None else section.module
        if module is None:
            raise UsageWrong(f"the fleet file names no module of {name!r}; say --module")
    agent = load(module)
    if agent.name != name:
        raise UsageWrong(f"{module} is the agent {agent.name!r}, not {name!r}")
    return agent


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


# --- telling it -------------------------------------------------------------------------------------


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


def as_json(found: Shown, request: str) -> dict[str, Any]:
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


def as_text(found: Shown, request: str) -> list[str]:
    """Return the same for people, line by line: the head, then what the vendor gets, in its order."""
    sent = found.sent
    work = found.work
    versions = f"prompt version {found.prompt_version or found.agent.prompt_version or '?'}"
    head = [
        f"{request}: {found.agent.name}, turn {work.turn}, round {work.round}, "
        f"model call {found.call} of {len(found.rebuilt.sent)}",
        f"model {sent.name}, {versions}, agent version {found.rebuilt.version or found.agent.version}",
    ]
    head += (
        [f"exact: this is what was sent, to the letter (SHA-256 {sent.digest}); limits are today's"]
        if found.exact
        else [f"NOT KNOWN TO BE WHAT WAS SENT: {line}" for line in differences(found)]
    )
    if not found.request:
        return [*head, "", msgspec.json.format(msgspec.json.encode(sent.prompt), indent=2).decode()]
    if sent.name == "scripted":
        head.append("rules stood in for the model; this is how the vendor would have got it")
    body = dict(found.request)
    system, tools, messages = body.pop("system", []), body.pop("tools", []), body.pop("messages")
    lines = [*head, "", f"=== {_line(body)}"]
    for block in system:
        lines += ["", "=== system" + _mark(block), block["text"]]
    if tools:
        lines += ["", "=== tools"]
        lines += [_line(tool) for tool in tools]
    for message in messages:
        for block in message["content"]:
            lines += ["", f"=== {message['role']}{_mark(block)}"]
            lines.append(block["text"] if block["type"] == "text" else _line(block))
    return lines


def _mark(block: Mapping[str, Any]) -> str:
    return " (cached up to here)" if "cache_control" in block else ""


def _line(value: Any) -> str:
    return msgspec.json.encode(value).decode()
