"""Journals of turns for viewers and operators: what was done, step by step.

Each agent's journals are a stream of their own. A request's events tell which agents had a turn in it.

Names of steps are those of `mesh.agent._journal`: `<round>-<n>`, and `<round>-<n>d` for an effect's result.
What lies there under another name (an attempt's mark) is no step. An agent writes its own journal and may
write anything. A step that cannot be read, or cannot be true, is skipped, and the caller learns which.
"""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage, every
from mesh.bus.streams import steps_of
from protocol.views.spending import cost_of
from protocol.views.timeline import StepEntry
from protocol.wire import codec, subjects
from protocol.wire.events import AnyEvent
from protocol.wire.ids import HUMAN
from protocol.wire.prices import Price
from protocol.wire.records import DONE, FENCE, Record, place_of

_SUBJECT = re.compile(r"mesh\.step\.(?P<agent>[^.]+)\.[^.]+\.(?P<turn>[^.]+)\.(?P<name>[^.]+)")
_NAME = re.compile(r"(?P<round>\d{1,9})-\d{1,9}d?")
_LATEST = 253_402_300_799_999_000
"""The end of the year 9999, UTC µs: the last millisecond that can be written as a date."""


class Step(NamedTuple):
    """One step, as it is stored."""

    agent: str
    journal: str
    """The turn under whose id it is; a continued turn's steps are under the first one's."""
    round: int
    name: str
    record: Record
    body: bytes


def journals_in(happened: Iterable[AnyEvent]) -> dict[str, str]:
    """Return the agent of each journal that these events open, by the journal's id."""
    return {
        work.journal_id: work.handoff.to_agent
        for event in happened
        if (work := event.work) is not None and work.handoff.to_agent != HUMAN
    }


def agents_in(body: bytes) -> set[str]:
    """Return the agent to which a stored event of any version gives a turn; else nobody."""
    opening = codec.readable(body, dict[str, Any]) or {}
    try:
        return {str(opening["work"]["handoff"]["to_agent"])} - {HUMAN}
    except (KeyError, TypeError):
        return set()


async def stored_steps(
    bus: Bus, request: str | None, agents: Iterable[str], journal: str | None = None
) -> AsyncIterator[StoredMessage]:
    """Yield what these agents stored as steps of a request (None: of all), in one journal if asked.

    Raises BusError.
    """
    for agent in sorted(set(agents)):
        async for stored in every(bus, steps_of(agent), subjects.journals(request, agent, journal)):
            yield stored


async def journaled(
    bus: Bus,
    request: str,
    agents: Iterable[str],
    journal: str | None = None,
    *,
    passed_over: set[str] | None = None,
) -> list[Step]:
    """Return the steps of these agents in a request, in one journal if asked, as they were made in time.

    Args:
        passed_over: gets the subjects of steps that cannot be read, or cannot be true.

    Raises BusError.
    """
    stored = stored_steps(bus, request, agents, journal)
    return read([(each.subject, each.data) async for each in stored], passed_over)


def read(stored: Iterable[tuple[str, bytes]], passed_over: set[str] | None = None) -> list[Step]:
    """Return stored steps, each given with its subject, as they were made in time.

    Args:
        passed_over: gets the subjects of steps that cannot be read, or cannot be true.
    """
    found: list[Step] = []
    for subject, data in stored:
        address = _SUBJECT.fullmatch(subject)
        fits = None if address is None else _NAME.fullmatch(address["name"])
        if address is None or fits is None:
            continue
        record = codec.readable(data, Record)
        if record is not None and 0 <= record.at <= _LATEST:
            step = Step(address["agent"], address["turn"], int(fits["round"]), address["name"], record, data)
            found.append(step)
        elif passed_over is not None:
            passed_over.add(subject)
    return sorted(found, key=lambda step: (step.record.at, place_of(step.name)))


def told(steps: list[Step], prices: Mapping[str, Price] | None = None) -> dict[str, tuple[StepEntry, ...]]:
    """Return steps as a timeline shows them, by journal: an effect once, as an intent while it has no result.

    Args:
        prices: the request's.
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
            )
        )
    return {journal: tuple(each) for journal, each in found.items()}
