"""Journals of turns for viewers and operators: what was done, step by step.

A request's events tell which agents had a turn in it, and so which journals hold its steps. Steps that cannot
be read, cannot be true, or are not by the agent of the turn, are skipped and reported to the caller.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.reader import get
from mesh.bus.stores import JournaledStep, journaled, read_steps, revisions, stored_steps
from mesh.bus.streams import steps_of
from mesh.errors import BusError
from mesh.ops.roster import fleet_of
from mesh.replay.export import StoredStep, step_line, steps_in
from protocol.views.spending import cost_of
from protocol.views.timeline import StepEntry, prices_in
from protocol.wire import codec, subjects
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN, is_token
from protocol.wire.prices import Price
from protocol.wire.records import DONE, FENCE, Record, place_of


def owners_of(happened: Iterable[AnyEvent]) -> dict[str, str]:
    """Return the agent of each journal that these events open, by id of the journal."""
    return {
        work.journal_id: work.handoff.to_agent
        for event in happened
        if (work := event.work) is not None and work.handoff.to_agent != HUMAN
    }


async def step_at(bus: Bus, agent: str, request: str, journal: str, name: str) -> Record | None:
    """Return one step; None if it cannot be read. Its name comes from an agent, and may be anything."""
    if not all(map(is_token, (agent, journal, name))):
        return None
    stored = None
    with contextlib.suppress(BusError):
        stored = await get(bus, steps_of(agent), subjects.step(agent, request, journal, name))
    return None if stored is None else codec.readable(stored.data, Record)


def agents_in(body: bytes) -> set[str]:
    """Return the agent that a stored event of any version gives a turn; empty if there is none."""
    opening = codec.readable(body, dict[str, Any]) or {}
    try:
        return {str(opening["work"]["handoff"]["to_agent"])} - {HUMAN}
    except (KeyError, TypeError):
        return set()


def step_entries(
    steps: list[JournaledStep], prices: Mapping[str, Price] | None = None
) -> dict[str, tuple[StepEntry, ...]]:
    """Return steps as a timeline shows them, by journal: each effect once, as an intent until it has a
    result.

    Args:
        prices: prices of the request.
    """
    done = {(step.journal, step.name) for step in steps if step.name.endswith(DONE)}
    found: dict[str, list[StepEntry]] = {}
    for step in steps:
        record = step.record
        if record.kind == FENCE or (step.journal, f"{step.name}{DONE}") in done:
            continue
        usage = record.usage
        found.setdefault(step.journal, []).append(
            StepEntry(
                round=step.round,
                n=place_of(step.name),
                kind=record.kind,
                name=record.name,
                at=record.at,
                version=record.version,
                error=None if record.error is None else record.error.code,
                usage=None if usage is None else cost_of(usage, prices or {}),
                arguments=record.arguments,
                secret=record.secret,
                cut=record.cut,
            )
        )
    return {journal: tuple(each) for journal, each in found.items()}


class Journals(NamedTuple):
    """What a request's journals hold, as a timeline shows it."""

    steps: dict[str, tuple[StepEntry, ...]]
    """By journal."""
    passed_over: set[str]
    """Steps that cannot be read, cannot be true, or are not by the agent of the turn."""


async def journals_of(bus: Bus, happened: Sequence[AnyEvent], until: int | None = None) -> Journals:
    """Return the journals of a request, given its events from the first on. Raises BusError.

    Args:
        until: leave out what was journaled later (UTC µs).
    """
    passed_over = set[str]()
    agents = owners_of(happened).values()
    found = await journaled(bus, happened[0].request, agents, passed_over=passed_over)
    return _attributed(found, passed_over, happened, until)


def journals_in_file(path: Path, happened: Sequence[AnyEvent], until: int | None = None) -> Journals:
    """Return the same for a request that was exported to a file."""
    passed_over = set[str]()
    return _attributed(
        read_steps(((each.subject, each.data) for each in steps_in(path)), passed_over),
        passed_over,
        happened,
        until,
    )


def _attributed(
    found: Sequence[JournaledStep], passed_over: set[str], happened: Sequence[AnyEvent], until: int | None
) -> Journals:
    owners = owners_of(happened)
    steps = []
    for step in found:
        if step.agent != owners.get(step.journal, step.agent):  # an agent can write under any turn's id
            passed_over.add(f"{step.agent} {step.journal} {step.name}")
        elif until is None or step.record.at <= until:
            steps.append(step)
    return Journals(step_entries(steps, prices_in(happened)), passed_over)


async def step_lines(
    bus: Bus, requests: Sequence[str], agents: set[str], prompts: set[tuple[str, str]]
) -> AsyncIterator[bytes]:
    """Yield the steps that agents journaled for requests, as lines of an export; for all if none is named.

    Args:
        prompts: collects agent and digest of each fixed part of a prompt that the steps name.
    """
    if not requests:  # a journal may outlast the event that opened it
        agents = agents | set((await fleet_of(bus)).agents)
    for request in requests or (None,):
        async for stored in stored_steps(bus, request, agents):
            record, agent = codec.readable(stored.data, Record), stored.subject.split(".")[2]
            if record is not None and record.prompt is not None and is_token(record.prompt.fixed):
                prompts.add((agent, record.prompt.fixed))
            yield step_line(StoredStep(stored.subject, stored.data))


async def named_lines(bus: Bus, prompts: Iterable[tuple[str, str]]) -> AsyncIterator[bytes]:
    """Yield what steps and verdicts name, as lines of an export: prompts, and all revisions of documents."""
    for agent, digest in sorted(prompts):
        stored = await get(bus, "PROMPTS", subjects.prompt(agent, digest))
        if stored is not None:
            yield step_line(StoredStep(stored.subject, stored.data))
    for kept in await revisions(bus, subjects.CONF):
        yield step_line(StoredStep(kept.subject, kept.data, kept.seq, kept.by))
