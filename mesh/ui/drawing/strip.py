"""The strip of a request: its depth and its spending, event by event, against what they may be."""

from collections.abc import Callable, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

import msgspec

from mesh.service.printable import counted
from mesh.ui.drawing.svg import add, number, picture, written
from protocol.domain import budget
from protocol.domain.ledger import Ledger
from protocol.wire.commands import Usage
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget

_LEFT = 190.0
_WIDTH = 520.0
_BAND = 38.0
_GAP = 14.0
"""Widths and heights, px."""


class Point(msgspec.Struct, frozen=True):
    """How a request stood after an event."""

    n: int
    depth: int
    spent: Usage


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What a strip shows."""

    points: tuple[Point, ...]
    max_depth: int
    ceiling: Budget
    """What the request may bring its spending up to."""


def course(happened: Sequence[AnyEvent]) -> Course:
    """Return how depth and spending went. Raises BrokenLog where events are missing."""
    ledger = Ledger()
    points = []
    ceiling = budget.UNLIMITED
    for event in happened:
        ledger.apply(event)
        depth = ledger.segment.depth if ledger.turns else 0
        points.append(Point(event.n, depth, ledger.spent))
        if ledger.turns:
            ceiling = ledger.segment.path[0].ceiling
    return Course(points=tuple(points), max_depth=ledger.policy.max_depth, ceiling=ceiling)


def strip(told: Course, *, key: str = "strip") -> str:
    """Return the strip as SVG: a band for depth, and one for each kind of spending that there is."""
    bands = [_depth(told), *_spending(told)]
    height = (_BAND + _GAP) * len(bands) + 8
    words = "; ".join(f"{what} {stands}" for what, stands, *_ in bands)
    root = picture(
        "Depth and budget", f"{words}.", width=_LEFT + _WIDTH + 8, height=height, kind="strip", key=key
    )
    for place, (what, stands, values, limit) in enumerate(bands):
        _band(root, what, stands, values, limit, 4 + (_BAND + _GAP) * place)
    return written(root)


_Band = tuple[str, str, Sequence[int], int | None]
"""Its name, how it stands in words, its value after each event, and its limit."""


def _depth(told: Course) -> _Band:
    values = [point.depth for point in told.points]
    now = values[-1] if values else 0
    stands = f"{now} of {told.max_depth}, at most {max(values, default=0)} so far"
    return "Depth", stands, values, told.max_depth


def dollars(nano_dollars: int) -> str:
    """Return an amount of money as people read it."""
    return f"${nano_dollars / 1e9:.4f}"


_KINDS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("Money", "nano_dollars", dollars),
    ("Tokens", "tokens", "{:,}".format),
    ("Model calls", "model_calls", "{:,}".format),
)


def _spending(told: Course) -> list[_Band]:
    found: list[_Band] = []
    for what, name, form in _KINDS:
        values = [getattr(point.spent, name) for point in told.points]
        limit = getattr(told.ceiling, name)
        if limit is not None or any(values):
            now = form(values[-1] if values else 0)
            found.append((what, now if limit is None else f"{now} of {form(limit)}", values, limit))
    return found


def _band(
    root: Element, what: str, stands: str, values: Sequence[int], limit: int | None, top: float
) -> None:
    """Draw one band: steps over the events, filled, and a line where the limit is."""
    most = max([*values, limit or 0, 1])
    over = limit is not None and bool(values) and max(values) > limit
    near = limit is not None and bool(values) and values[-1] >= limit
    drawn = add(root, "g", class_=f"band {'over' if over else 'near' if near else 'within'}")
    add(drawn, "title", f"{what}: {stands}, over {counted(len(values), 'event')}")
    add(drawn, "text", what, x=0.0, y=top + 16, class_="what")
    add(drawn, "text", stands, x=0.0, y=top + 32, class_="stands")
    add(drawn, "rect", x=_LEFT, y=top, width=_WIDTH, height=_BAND, rx=5, class_="room")
    bottom, step = top + _BAND, _WIDTH / max(1, len(values))
    path, at = [f"M{number(_LEFT)} {number(bottom)}"], 0
    for value, same in groupby(values):
        at += len(list(same))
        y = bottom - (_BAND - 4) * max(0, value) / most
        path.append(f"V{number(y)}H{number(_LEFT + step * at)}")
    path.append(f"V{number(bottom)}Z")
    add(drawn, "path", d="".join(path), class_="course")
    if limit is not None:
        y = bottom - (_BAND - 4) * limit / most
        add(drawn, "line", x1=_LEFT, x2=_LEFT + _WIDTH, y1=y, y2=y, class_="limit")
