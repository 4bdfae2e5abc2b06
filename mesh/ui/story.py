"""One request as its page shows it: the timeline up to an event, and the request's state then."""

import functools
import shlex
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.errors import NotFound
from mesh.ops import log
from mesh.ops.diff import entry_in_words, value_in_words
from mesh.ops.journals import journals_of
from mesh.ops.roster import with_served
from mesh.ops.words import channel, code_of, details, numbered, waits
from mesh.service.printable import as_text, given, printable, printable_json, short, when
from mesh.ui.drawing.request import course, parts, sequence, strip
from mesh.ui.drawing.scene import scene
from protocol.domain import budget, people
from protocol.domain.ledger import fold
from protocol.domain.turns import TurnState
from protocol.views.timeline import Timeline, timeline
from protocol.views.tree import flat
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Fact
from protocol.wire.ids import HUMAN, RequestId

_KEPT = 8
"""Number of requests whose events are cached: people view the same one repeatedly."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a request after an event: the fold of its log up to there."""

    n: int
    """Number of that event."""
    at: int
    """UTC µs of that event."""
    status: str
    path: tuple[str, ...]
    depth: int
    max_depth: int
    left: Budget | None
    """What its holder may still spend; None without a limit."""
    deadline: int | None
    frozen_at: int | None
    facts: tuple[Fact, ...]
    """In order of their keys. After the end, those carried last."""
    withheld: tuple[str, ...]
    """Labels of what its holder may not see."""
    must_carry: tuple[str, ...]
    deferred: int
    """Proposals that wait for a thaw."""


def standing(happened: Sequence[AnyEvent]) -> Standing:
    """Return the state of a request after these events, at least one. Raises BrokenLog."""
    ledger, last = fold(happened[:-1]), happened[-1]
    before = _facts_of(ledger.holder)
    ledger.apply(last)
    root, holder = ledger.root, ledger.holder
    segment = None if root is None else root.segment
    work = None if holder is None or holder.agent == HUMAN else holder.work
    rest = None if segment is None else budget.public(budget.left(segment.top.ceiling, ledger.spent))
    return Standing(
        n=last.n,
        at=last.at,
        status=ledger.status,
        path=() if segment is None else segment.names,
        depth=0 if segment is None else segment.depth,
        max_depth=ledger.policy.max_depth,
        left=rest,
        deadline=people.expires_at(ledger),
        frozen_at=ledger.frozen_at,
        facts=_facts_of(holder) if ledger.is_open else before,
        withheld=() if work is None or work.withheld is None else work.withheld.labels,
        must_carry=() if work is None else work.handoff.constraints.must_carry,
        deferred=len(ledger.deferred),
    )


def _facts_of(holder: TurnState | None) -> tuple[Fact, ...]:
    return () if holder is None else holder.carried().fact_tuple


class Pictures(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it is drawn."""

    sequence: Markup
    """One part of it."""
    part: int
    last_part: int
    strip: Markup


def pictures(view: Timeline, happened: Sequence[AnyEvent], part: int, link: str) -> Pictures:
    """Return the pictures of a request. Raises BrokenLog.

    Args:
        part: which part of the sequence, from 0; the last one if there are fewer.
        link: the address of an event without its number.
    """
    drawn = scene(view)
    last = parts(drawn) - 1
    return Pictures(
        sequence=Markup(sequence(drawn, part=min(part, last), link=link)),
        part=min(part, last),
        last_part=last,
        strip=Markup(strip(course(happened))),
    )


class Story(msgspec.Struct, frozen=True):
    """A request as it was read."""

    bodies: Sequence[bytes]
    happened: Sequence[AnyEvent]

    def until(self, n: int | None) -> Sequence[AnyEvent]:
        """Return the events up to number `n`, or all. Raises NotFound."""
        if n is None:
            return self.happened
        if not 0 <= n < len(self.happened):
            raise NotFound(f"there is no event {n}; this request has 0 to {len(self.happened) - 1}")
        return self.happened[: n + 1]


class Stories:
    """Reads requests, and caches the latest viewed ones: a stored event never changes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._kept = OrderedDict[str, Story]()

    async def read(self, request: str) -> Story:
        """Return a request. Raises NotFound, UsageWrong, Impossible, UnknownEvent, Malformed, BusError."""
        story = self._kept.get(log.checked_id(request))
        if story is None or await self._has_grown(story, request):
            bodies = await log.whole_request(self._bus, request)
            if story is None or len(bodies) != len(story.bodies):
                story = Story(bodies, log.decoded(bodies))
        self._kept[request] = story
        self._kept.move_to_end(request)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return story

    async def _has_grown(self, story: Story, request: str) -> bool:
        """Return True if there are events after those that were read. It costs one small request."""
        if log.has_ended(story.bodies[-1]):
            return False
        head = await JetStreamLog(self._bus, leader=False).head(RequestId(request))
        return head is None or head.data != story.bodies[-1]

    async def timeline(self, story: Story, n: int | None = None) -> Timeline:
        """Return the timeline up to event `n`, or all of it, with its turns' steps. Raises as `read`."""
        happened = story.until(n)
        until = None if n is None or n + 1 == len(story.happened) else story.happened[n + 1].at
        view = timeline(happened, (await journals_of(self._bus, happened, until)).steps)
        return view if until is not None else await with_served(self._bus, view)


# --- as one file --------------------------------------------------------------------------------------


def as_html(view: Timeline, happened: Sequence[AnyEvent], bodies: Sequence[bytes]) -> str:
    """Return a request as a page that opens without a server, a network or a script.

    Args:
        bodies: the events as stored; each is on the page in full.

    Raises BrokenLog.
    """
    drawn = scene(view)
    return standalone(
        "download.html",
        told=view,
        stands=standing(happened),
        began=happened[0].at,
        bodies=bodies,
        sequences=[Markup(sequence(drawn, part=part, key=f"seq{part}")) for part in range(parts(drawn))],
        strip=Markup(strip(course(happened))),
    )


def standalone(template: str, **context: Any) -> str:
    """Return a page that has its style sheet inside, and a policy that allows this alone, by digest."""
    style = files("mesh.ui").joinpath("static", "page.css").read_text()
    digest = b64encode(sha256(style.encode()).digest()).decode()
    made = environment().get_template(template)
    return made.render(context, style=Markup(style), style_digest=digest)


# --- how values are written, on the page and in a file -----------------------------------------------

MOST_SHOWN = 4_000
"""Limit of one value on a view, in characters; the event's JSON has all of it."""


@functools.cache  # a template is compiled once in a process, for a page and for each download
def environment() -> Environment:
    """Return the templates. Foreign text is escaped, and harmless to people who copy it."""
    made = Environment(
        loader=PackageLoader("mesh.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    filters = (when, short, given, code_of, money, pretty, shown, clock, day, lasting, unquoted)
    made.filters |= {each.__name__: each for each in (*filters, entry_in_words, value_in_words)}
    made.filters["quoted"] = shlex.quote
    functions = (numbered, details, firsts, closing, flat, waits, channel)
    made.globals |= {"parts": named_parts} | {each.__name__: each for each in functions}
    return made


def _harmless(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return "" if value is None else printable(str(value), lines=True)


def money(nano_dollars: int) -> str:
    """Return an amount as `$0.0123`; empty for zero."""
    return "" if not nano_dollars else f"${nano_dollars / 1e9:,.4f}"


def named_parts(shown: int, last: int) -> list[int]:
    """Return which parts of a long list are named: the first, the last, and those around the current one."""
    return sorted({0, last, *range(max(0, shown - 3), min(last, shown + 3) + 1)})


def firsts(view: Timeline) -> dict[int, int]:
    """Return each entry's first event, by its number: an event that withholds facts has no entry."""
    before = [-1, *(move.seq for move in view.moves)]
    return {move.seq: last + 1 for last, move in zip(before, view.moves, strict=False)}


def closing(view: Timeline) -> frozenset[int]:
    """Return the numbers of the entries after which no other concerns the same turn."""
    return frozenset({move.turn.id: move.seq for move in view.moves if move.turn is not None}.values())


def shown(value: Any) -> str:
    """Return a value as people read it: text as it is, anything else as JSON; of a long one the beginning."""
    text = as_text(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} … ({len(text)} characters)"


def unquoted(choice: str) -> str:
    """Return a choice, which is JSON, as people read it: a text without its quotes."""
    value = msgspec.json.decode(choice)
    return value if isinstance(value, str) else choice


def pretty(value: Any) -> str:
    """Return a value as indented JSON; bytes are JSON already."""
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return printable_json(msgspec.json.format(body, indent=2).decode())


def clock(at_us: int) -> str:
    """Return the time of day of an event (UTC µs) as `14:03:22.123`."""
    return when(at_us)[11:23] or "?"


def day(at_us: int) -> str:
    """Return the day and minute of an event (UTC µs) as `22 Nov 2026, 14:03`."""
    try:
        return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%-d %b %Y, %H:%M}"
    except (ValueError, OverflowError, OSError):
        return "?"


def lasting(us: int) -> str:
    """Return a span of time in its two largest units: `1.24 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    seconds = max(0, us) / 1e6
    if seconds < 60:
        return f"{seconds:.2f} s"
    whole = int(seconds)
    for size, large, small in ((86_400, "d", "h"), (3_600, "h", "min"), (60, "min", "s")):
        if whole >= size:
            rest = whole % size // {"h": 3_600, "min": 60, "s": 1}[small]
            return f"{whole // size} {large} {rest} {small}"
    raise AssertionError("less than a minute was handled above")
