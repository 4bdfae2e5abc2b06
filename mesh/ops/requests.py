"""Reading what the streams hold, as a viewer may: by direct gets, which leave nothing behind at the server.

No consumer is made or moved here, so that any number of people can look at once under one name. Sources
are a request's id or a file of exported events; either way the stored bytes are what is returned.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import every
from mesh.cli.counts import counted
from mesh.cli.options import Where
from mesh.cli.output import remark
from mesh.client.journals import Step, journaled, journals_in, told
from mesh.client.journals import read as read_steps
from mesh.errors import BusError, LogUnreadable, Malformed
from mesh.ops.errors import Impossible, NotFound, UsageWrong
from mesh.replay.load import load, steps_in
from protocol.ledger import Ledger
from protocol.views.entries import StepEntry
from protocol.views.timeline import prices_in
from protocol.wire import codec, events, subjects
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.ids import RequestId, is_request_id

READERS = ("viewer", "operator", "admin")
"""Roles that may read the log, the least mighty first."""

NOT_THERE = "there is no request {} in the log"


class Glance(msgspec.Struct, frozen=True):
    """What any event says of itself, whatever its version."""

    request: str
    n: int
    at: int
    type: str
    to: str = ""
    id: str = ""


def glance(body: bytes) -> Glance | None:
    """Return an event's envelope; None for what is no event of any version."""
    return codec.readable(body, Glance)


def is_file(source: str) -> bool:
    """Say whether a source is a file rather than an id. Raises UsageWrong when it is neither."""
    if is_request_id(source):
        return False
    if Path(source).is_file():
        return True
    raise UsageWrong(f"{source!r} is neither a request's id nor a file")


async def bodies_of(where: Where, source: str) -> dict[str, list[bytes]]:
    """Return the stored events of each request in a source. Raises NotFound, Malformed, UsageWrong."""
    if is_file(source):
        return load(Path(source))
    async with await where.connect(*READERS) as bus:
        return {source: await request_bodies(bus, source)}


async def one_of(where: Where, source: str) -> list[bytes]:
    """Return the stored events of the one request in a source, from its first on.

    Raises as `bodies_of`, and Impossible where one of them is missing.
    """
    if is_file(source):
        found = load(Path(source))
    else:
        async with await where.connect(*READERS) as bus:
            try:
                found = {source: await request_bodies(bus, source)}
            except LogUnreadable:
                left = [kept.data async for kept in every(bus, "LOG", subjects.evt_of(source))]
                check_numbers(source, left)
                raise
    if len(found) != 1:
        raise UsageWrong(f"{source} holds {counted(len(found), 'request')}; this command takes one")
    bodies = next(iter(found.values()))
    check_numbers(source, bodies)
    return bodies


def check_numbers(source: str, bodies: Iterable[bytes], first: int = 0) -> None:
    """Raise Impossible unless events are numbered from `first` on without a gap: the others tell nothing."""
    for expected, body in enumerate(bodies, first):
        event = glance(body)
        if event is None:
            return  # which whoever decodes it says better
        if event.n != expected:
            what = f"event {expected} is missing" if event.n > expected else f"event {event.n} is there twice"
            raise Impossible(
                f"{source}: {what}, so that it cannot be told; look with mesh log verify {source}"
            )


async def request_bodies(bus: Bus, request: str) -> list[bytes]:
    """Return the stored events of a request, in order. Raises NotFound, LogUnreadable."""
    checked_id(request)
    stored = await JetStreamLog(bus).read(request)
    if not stored:
        raise NotFound(f"{NOT_THERE.format(request)}{await why_not_there(bus)}")
    return [each.body for each in stored]


async def steps_of(
    where: Where, source: str, happened: Sequence[AnyEvent], until: int | None
) -> dict[str, tuple[StepEntry, ...]]:
    """Return what a request's journals hold, as a timeline tells it; say so where a step was passed over.

    Args:
        source: the request's id, or a file to which it was exported.
        happened: its events, from the first on.
        until: leave out what was journaled later (UTC µs).

    Raises BusError.
    """
    if is_file(source):
        passed_over = set[str]()
        found = read_steps(steps_in(Path(source)), passed_over)
        return _told_steps(found, passed_over, happened, until)
    async with await where.connect(*READERS) as bus:
        return await steps_on(bus, happened, until)


async def steps_on(
    bus: Bus, happened: Sequence[AnyEvent], until: int | None = None
) -> dict[str, tuple[StepEntry, ...]]:
    """Return the same from the bus, of the request whose events these are. Raises BusError."""
    passed_over = set[str]()
    agents = journals_in(happened).values()
    found = await journaled(bus, happened[0].request, agents, passed_over=passed_over)
    return _told_steps(found, passed_over, happened, until)


def _told_steps(
    found: Sequence[Step], passed_over: set[str], happened: Sequence[AnyEvent], until: int | None
) -> dict[str, tuple[StepEntry, ...]]:
    whose = journals_in(happened)
    steps = []
    for step in found:
        if step.agent != whose.get(step.journal, step.agent):  # anybody may write under any turn's id
            passed_over.add(f"{step.agent} {step.journal} {step.name}")
        elif until is None or step.record.at <= until:
            steps.append(step)
    remark_passed_over(passed_over)
    return told(steps, prices_in(happened))


def remark_passed_over(steps: Collection[str]) -> None:
    """Say how many steps of journals are not told of."""
    if steps:
        remark(
            f"mesh: {counted(len(steps), 'step')} passed over: they cannot be read, cannot be true, or are "
            "not by the agent whose turn it is"
        )


async def why_not_there(bus: Bus) -> str:
    """Return why a request need not be in the log yet: the whole mesh is frozen. Empty if it is not."""
    from mesh.ops.freezing import mesh_freeze  # which reads by this module

    try:
        stands = await mesh_freeze(bus)
    except BusError:
        return ""
    return f"; it may wait in its queue: the whole mesh is frozen {stands.in_words}" if stands.frozen else ""


async def remark_if_held_up(bus: Bus, request: str) -> bool:
    """Say so if the whole mesh is frozen and a request, in the log or not, has not ended.

    Returns whether it said that the request is not in the log. Raises BusError.
    """
    from mesh.ops.freezing import mesh_freeze
    from mesh.ops.live import remark_if_frozen

    head = await JetStreamLog(bus, leader=False).head(request)
    if head is None:
        if frozen := await why_not_there(bus):
            remark(f"mesh: {NOT_THERE.format(request)}{frozen}")
            return True
    elif not has_ended(head.body):
        remark_if_frozen(await mesh_freeze(bus))
    return False


def checked_id(request: str) -> RequestId:
    """Return a request's id. Raises UsageWrong for what is none."""
    if not is_request_id(request):
        raise UsageWrong(f"not a request's id: {request!r}; they look like `app_01JAZ…`")
    return RequestId(request)


def decoded(bodies: Iterable[bytes]) -> list[AnyEvent]:
    """Return one request's events, from the first on. Raises UnknownEvent, and Malformed.

    Malformed are also events that do not follow from each other, as no guard writes them: what is made of
    the events that this returns cannot fail.
    """
    happened = [codec.decode_event(body) for body in bodies]
    ledger = Ledger()
    for event in happened:
        try:
            ledger.apply(event)
        except (LookupError, TypeError, AttributeError, ValueError) as impossible:
            raise Malformed(
                f"{event.request}: event {event.n} ({type_of(event)}) does not follow from those before it; "
                f"look with mesh log verify {event.request}"
            ) from impossible
    return happened


ENDS = frozenset(events.type_of(kind) for kind in events.Ended.__args__)
"""Types of events after which a request has no more."""


def has_ended(body: bytes) -> bool:
    event = glance(body)
    return event is not None and event.type in ENDS
