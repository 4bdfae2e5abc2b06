"""One deed for many requests: which ones it is for, and the message to each, under one batch.

`choose` and `choose_letters` look and change nothing. A person sees what they return, and
`mesh.ops.batch.Batch` sends its orders.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.errors import Impossible, UsageWrong
from mesh.ops.batch import Order, control_id, new_batch, rerun_id
from mesh.ops.decisions import require_agent, resolve_order, settle_order
from mesh.ops.index import RequestIndex
from mesh.ops.log import read_each
from mesh.ops.queue import Waiting, What, waiting_in
from mesh.ops.requests import from_index
from mesh.ops.rerun import rerun_of
from mesh.ops.roster import mesh_freeze
from mesh.ops.rows import Listed, rerun_tag
from mesh.ops.where import Filter
from mesh.service.printable import short
from protocol.wire import codec, subjects
from protocol.wire.commands import Cancel, Control, Freeze, Thaw, submit_id
from protocol.wire.events import AnyEvent, EffectDoubted
from protocol.wire.ids import Cause, TurnId, control_cause

SHOWN = 3
"""Requests that are shown before one agrees."""
_PART = 200
"""Requests whose events are read together."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch would do."""

    batch: str
    """Empty for dead letters: their messages keep the ids that they have."""
    orders: tuple[Order, ...]
    shown: tuple[str, ...]
    """The first of it, a line each."""
    requests: int
    """How many requests, or letters, it is for."""
    passed_over: Mapping[str, int]
    """By reason: how many of the filter it is not for."""
    effects: Mapping[str, int]
    """By tool: how many requests reported an effect of it, which would happen again."""


class Made(NamedTuple):
    """The messages for one request, or why there is none."""

    orders: tuple[Order, ...] = ()
    why: str = ""
    effects: frozenset[str] = frozenset()


class Deed(Protocol):
    """What is to be done to each request."""

    @property
    def statuses(self) -> tuple[str, ...]:
        """Return the statuses that it is for; of a filter that names another one it finds none."""
        ...

    def passes_over(self, row: Listed, index: RequestIndex) -> str:
        """Return why it is not for a request, as far as the index says; empty if it may be."""
        ...

    async def make(self, bus: Bus, batch: str, rows: Sequence[Listed]) -> list[Made]:
        """Return what there is to send for each of some requests. Raises BusError, UsageWrong."""
        ...


async def choose(
    bus: Bus,
    deed: Deed,
    wanted: Filter,
    *,
    batch: str | None = None,
    limit: int | None = None,
    folder: Path | None = None,
    on_work: Callable[[int], None] = lambda events: None,
) -> Chosen:
    """Return what a deed would send for the requests of a filter, those with the newest events first.

    Args:
        batch: an earlier one, to go on with it; None: a new one.
        limit: at most so many requests.
        folder: of the index of requests; None: a temporary one.
        on_work: is told how many events are still to be indexed, if they are many.

    Raises OldForm, Impossible, UsageWrong, BusError.
    """
    batch, passed_over, effects = batch or new_batch(), Counter[str](), Counter[str]()

    def look(index: RequestIndex) -> list[Listed]:
        kept, found = list[Listed](), list[Listed]()
        for status in deed.statuses:
            found += index.page(replace(wanted, tags=(*wanted.tags, f"status:{status}")), by_change=True)
        for row in sorted(found, key=lambda row: -row.last):
            if why := deed.passes_over(row, index):
                passed_over[why] += 1
            else:
                kept.append(row)
        return kept

    rows = await from_index(bus, look, folder=folder, whole=True, on_work=on_work)
    orders, chosen, at = list[Order](), list[Listed](), 0
    while at < len(rows) and len(chosen) != limit:
        part = rows[at : at + _PART]
        at += len(part)
        for row, made in zip(part, await deed.make(bus, batch, part), strict=True):
            if made.why:
                passed_over[made.why] += 1
                continue
            chosen.append(row)
            orders += made.orders
            effects.update(made.effects)
            if len(chosen) == limit:
                break
    return Chosen(
        batch=batch,
        orders=tuple(orders),
        shown=tuple(map(_in_words, chosen[:SHOWN])),
        requests=len(chosen),
        passed_over=dict(passed_over),
        effects=dict(effects),
    )


def _in_words(row: Listed) -> str:
    holder = f", with {row.holder}" if row.holder else ""
    return f"{row.request}  {row.status}{holder}: {short(row.text, 100)}"


# --- deeds that are the same message to each -------------------------------------------------------


class SameToEach(NamedTuple):
    """A control message that is about the whole request: cancel, freeze, thaw."""

    statuses: tuple[str, ...]
    control: Callable[[str], Control]
    """Returns the message with an id."""
    unless_frozen: bool = False

    def passes_over(self, row: Listed, index: RequestIndex) -> str:
        return "frozen already" if self.unless_frozen and row.frozen is not None else ""

    async def make(self, bus: Bus, batch: str, rows: Sequence[Listed]) -> list[Made]:
        control = self.control(control_id(batch))
        body = codec.encode_whole(control)
        return [Made((_order(bus, row.request, control, body),)) for row in rows]


def _order(bus: Bus, request: str, control: Control, body: bytes) -> Order:
    return Order(
        request=request,
        sender=bus.name,
        decided_in=request,
        subject=subjects.ctl(bus.name, request),
        body=body,
        cause=control_cause(request, bus.name, control.id),
        turn=control.turn or "",
    )


def cancelling(*, by: str, reason: str = "") -> Deed:
    """Return what ends open requests."""
    return SameToEach(("open",), lambda id: Cancel(id=id, by=by, reason=reason))


def freezing(*, by: str, reason: str = "") -> Deed:
    """Return what freezes open requests that are not frozen."""
    return SameToEach(("open",), lambda id: Freeze(id=id, by=by, reason=reason), unless_frozen=True)


def thawing(*, by: str, reason: str = "") -> Deed:
    """Return what lets frozen requests go on."""
    return SameToEach(("frozen",), lambda id: Thaw(id=id, by=by, reason=reason))


# --- what waits for people ------------------------------------------------------------------------


class Deciding(NamedTuple):
    """The same decision of everything of one kind that waits in each request."""

    what: What
    order: Callable[[str, Waiting], Control]
    """Returns the message with an id about what waits."""
    to: str | None = None
    """The agent that gets the work, if one is named."""
    action: str | None = None
    """Only of doubts about effects of this tool; None: of all."""
    statuses: tuple[str, ...] = ("human",)

    def passes_over(self, row: Listed, index: RequestIndex) -> str:
        return ""

    async def make(self, bus: Bus, batch: str, rows: Sequence[Listed]) -> list[Made]:
        await require_agent(bus, self.to)
        happened = await read_each(bus, (row.request for row in rows))
        return [self._of(bus, batch, row.request, happened[row.request]) for row in rows]

    def _of(self, bus: Bus, batch: str, request: str, happened: Sequence[AnyEvent] | None) -> Made:
        if happened is None:
            return Made(why="cannot be read")
        orders = list[Order]()
        for waiting in waiting_in(happened):
            if waiting.what == self.what and self.action in (None, waiting.action):
                order = self.order(control_id(batch, waiting.n), waiting)
                orders.append(_order(bus, request, order, codec.encode_whole(order)))
        return Made(tuple(orders), "" if orders else f"waits for something else than {self._named()}")

    def _named(self) -> str:
        if self.what == "escalation":
            return "an escalation"
        return "a doubt" if self.action is None else f"a doubt about {short(self.action, 60)}"


def resolving(decision: Mapping[str, Any]) -> Deed:
    """Return what decides escalations.

    Args:
        decision: what `mesh.ops.decisions.resolve_order` takes besides the id and the turn.
    """
    to = decision.get("to")
    return Deciding(
        "escalation", lambda id, waiting: resolve_order(id, TurnId(waiting.turn), **decision), to=to
    )


def settling(*, by: str, done: bool, action: str | None = None) -> Deed:
    """Return what settles effects in doubt: they happened, or they did not.

    Args:
        action: only effects of this tool; None: of all.
    """
    return Deciding(
        "doubt",
        lambda id, waiting: settle_order(id, TurnId(waiting.turn), waiting.round, by=by, done=done),
        action=action,
    )


# --- reruns ---------------------------------------------------------------------------------------


class Rerunning(NamedTuple):
    """A new request for each that came to nothing and was not rerun before."""

    to: str | None = None
    text: str | None = None
    statuses: tuple[str, ...] = ("failed", "expired", "cancelled", "refused")

    def passes_over(self, row: Listed, index: RequestIndex) -> str:
        return "rerun before" if index.count(rerun_tag(row.request)) else ""

    async def make(self, bus: Bus, batch: str, rows: Sequence[Listed]) -> list[Made]:
        frozen = await mesh_freeze(bus)
        if frozen.frozen:
            raise Impossible(f"no request can begin: {frozen.notice}")
        await require_agent(bus, self.to)
        happened = await read_each(bus, (row.request for row in rows))
        return [self._of(bus, batch, row.request, happened[row.request]) for row in rows]

    def _of(self, bus: Bus, batch: str, request: str, happened: Sequence[AnyEvent] | None) -> Made:
        if not happened:
            return Made(why="cannot be read")
        try:
            submit = rerun_of(happened, to=self.to, text=self.text).submit
        except UsageWrong:  # its text was dropped, or may not be a submit's
            return Made(why="has no text for a submit; --text says one")
        new = rerun_id(batch, bus.name, request)
        order = Order(
            request=request,
            sender=bus.name,
            decided_in=new,
            subject=subjects.prop(bus.name, new),
            body=codec.encode_whole(submit),
            cause=Cause(submit_id(new)),
        )
        reported = {name for event in happened if event.report for name in event.report.effects}
        doubted = {event.effect.action for event in happened if isinstance(event, EffectDoubted)}
        return Made((order,), effects=frozenset(reported | doubted))
