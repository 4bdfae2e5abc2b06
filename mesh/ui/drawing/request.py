"""A request as pictures: its sequence, and the strip of its depth and spending.

The sequence has a lane for the client, each agent and people, and one row for each event between them. The
time is to the left of the lanes, the text to their right. A row is a link to its event in the list. The strip
shows depth and each kind of spending, event by event, with their limits.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

import msgspec

from mesh.ops.words import numbered, tone_of
from mesh.service.printable import counted, short, when
from mesh.ui.drawing import add, box, fitting, hues, name_of, number, picture, written
from mesh.ui.drawing.scene import Scene, SceneRow
from protocol.domain import budget
from protocol.domain.ledger import Ledger
from protocol.wire.commands import Usage
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget
from protocol.wire.ids import HUMAN

PART_ROWS = 80
"""Rows of one picture: as much as a screen can be scrolled through; further rows are in the next one."""
_TIME = 92.0
_LANE = 128.0
_WORDS = 470.0
_HEAD = 52.0
_ROW = 44.0
_BAR = 8.0
"""Widths and heights, px."""
_TIP_CHARS = 500


def sequence(whole: Scene, *, part: int = 0, key: str = "seq", link: str = "#e") -> str:
    """Return one part of a scene as SVG.

    Args:
        part: which one, from 0; each has `PART_ROWS` rows.
        link: the address of an event's row without its number.
    """
    shown = whole.part(part, PART_ROWS)
    width = _TIME + _LANE * len(shown.lanes) + _WORDS
    height = _HEAD + _ROW * len(shown.rows) + 16
    root = picture(
        f"Sequence of the request of {whole.client}",
        _description(shown),
        width=width,
        height=height,
        kind="sequence",
        key=key,
    )
    x = {lane: _TIME + _LANE * (place + 0.5) for place, lane in enumerate(shown.lanes)}
    colour = hues(lane for lane in shown.everyone if lane not in (shown.client, HUMAN))
    for lane in shown.lanes:
        kind = "client" if lane == whole.client else "people" if lane == HUMAN else "agent"
        _lane(root, lane, x[lane], height, kind, colour.get(lane, kind))
    _held(root, shown, x, colour)
    for place, row in enumerate(shown.rows):
        _row(root, row, shown, x, _HEAD + _ROW * place, link)
    return written(root)


def parts(whole: Scene) -> int:
    """Return how many parts a scene has."""
    return max(1, -(-len(whole.rows) // PART_ROWS))


def _description(shown: Scene) -> str:
    refused = sum(row.form == "broken" for row in shown.rows)
    names = ", ".join(map(name_of, shown.lanes))
    return f"{counted(len(shown.rows), 'row')} between {names}; {counted(refused, 'refusal')}."


def _lane(root: Element, lane: str, x: float, height: float, kind: str, colour: str) -> None:
    """Draw a lane's head and its line."""
    drawn = add(root, "g", class_=f"lane {kind} {colour}")
    add(drawn, "title", f"{kind}: {name_of(lane)}")
    add(drawn, "line", x1=x, x2=x, y1=_HEAD - 12, y2=height - 4, class_="life")
    box(drawn, "head", x - _LANE / 2 + 6, 8.0, _LANE - 12, 30.0, rx=8)
    shown = fitting("people" if lane == HUMAN else lane, _LANE - 28)
    add(drawn, "text", shown, x=x, y=27.0, class_="name", text_anchor="middle")


def _held(root: Element, shown: Scene, x: dict[str, float], colour: dict[str, str]) -> None:
    """Draw who holds work from row to row, and what they do with it."""
    rows = [*shown.rows]
    held = [dict(row.held) for row in rows]
    for lane in shown.lanes:
        end = -1
        for state, same in groupby(each.get(lane) for each in held):
            begins, end = end + 1, end + len(list(same))
            if state is None:
                continue
            top = _HEAD + _ROW * begins + _middle(rows[begins])
            kind, height = f"held {state} {colour.get(lane, 'people')}", max(4.0, height_of(rows, end) - top)
            box(root, kind, x[lane] - _BAR / 2, top, _BAR, height, rx=3)


def height_of(rows: list[SceneRow], place: int) -> float:
    """Return where the next row is, or the end of the picture."""
    following = rows[place + 1] if place + 1 < len(rows) else None
    return _HEAD + _ROW * (place + 1) + (4.0 if following is None else _middle(following))


def _middle(row: SceneRow) -> float:
    return 24.0 if row.form in ("arrow", "broken") else 20.0


def _row(root: Element, row: SceneRow, shown: Scene, x: dict[str, float], top: float, link: str) -> None:
    """Draw one row as a link to its event: time, picture, words."""
    drawn = add(
        root,
        "a",
        href=f"{link}{row.seq}",
        class_=f"row {row.form} {tone_of(row.move, refused=row.form == 'broken')}",
    )
    add(drawn, "title", _in_words(row))
    width = _TIME + _LANE * len(shown.lanes)
    box(drawn, "ground", 0, top, width + _WORDS, _ROW, rx=6)
    add(drawn, "text", numbered(row.first, row.last), x=8.0, y=top + 20, class_="n")
    add(drawn, "text", _after(row.at - shown.began), x=8.0, y=top + 34, class_="time")
    match row.form:
        case "arrow" | "broken":
            _arrow(drawn, row, x, top + _middle(row), width)
        case "note":
            _note(drawn, row, x[row.lane], top + 9)
        case "band" | "fold":
            box(drawn, "across", _TIME, top + 9, width - _TIME, 24.0, rx=6)
            _centred(drawn, row.across, _TIME + (width - _TIME) / 2, top + 25, width - _TIME - 16)
    first, second = _words(row)
    y = top + (20 if second else 27)
    add(drawn, "text", fitting(first, _WORDS - 32), x=width + 16, y=y, class_="said")
    if second:
        add(drawn, "text", fitting(second, _WORDS - 32), x=width + 16, y=top + 36, class_="why")


def _arrow(drawn: Element, row: SceneRow, x: dict[str, float], y: float, width: float) -> None:
    begin = x[row.lane]
    end = x.get(row.to or "")
    outward = 1.0 if begin + _LANE / 2 < width - 20 else -1.0
    aimed = end is None or end == begin  # its target has no lane, so it leads nowhere
    if end is None or end == begin:
        end = begin + outward * _LANE * 0.62
    way = 1.0 if end > begin else -1.0
    begin += way * (_BAR / 2 + 1)
    tip = end - way * (_BAR / 2 + 2)
    if row.form == "broken":
        tip = end if aimed else begin + (tip - begin) * (0.5 if abs(tip - begin) < 200 else 0.7)
        add(drawn, "line", x1=begin, x2=tip - way * 9, y1=y, y2=y, class_="shaft")
        cross = f"M{tip - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
        add(drawn, "path", d=cross, class_="cross")
        _beside(drawn, row.rule or row.move, begin + way * 5, y - 7, way)
        if row.aim:
            _beside(drawn, f"to {row.aim}", begin + way * 5, y + 14, way)
        return
    add(drawn, "line", x1=begin, x2=tip - way * 6, y1=y, y2=y, class_="shaft")
    head = f"M{tip:.1f} {y:.1f}l{-way * 9:.1f} -4.5v9z"
    add(drawn, "path", d=head, class_="tip")
    near = begin + way * (_LANE / 2 - _BAR)
    _centred(drawn, row.move.replace("_", " "), near, y - 7, _LANE - 24)


def _note(drawn: Element, row: SceneRow, x: float, top: float) -> None:
    label = row.move.replace("_", " ")
    wide = min(_LANE - 16, len(label) * 6.6 + 22)
    box(drawn, "pill", x - wide / 2, top, wide, 22.0, rx=11)
    _centred(drawn, label, x, top + 15, wide - 8)


def _beside(drawn: Element, text: str, x: float, y: float, way: float) -> None:
    """Write a label beside the lane at `x`, in the direction of its arrow."""
    anchor = "start" if way > 0 else "end"
    add(drawn, "text", fitting(text, _LANE - 20), x=x, y=y, class_="label", text_anchor=anchor)


def _centred(drawn: Element, text: str, x: float, y: float, width: float) -> None:
    add(drawn, "text", fitting(text, width), x=x, y=y, class_="label", text_anchor="middle")


def _words(row: SceneRow) -> tuple[str, str]:
    """Return the two lines to the right of a row; the second may be empty."""
    if row.form == "fold":
        return "", ""
    by = f"{row.who}: " if row.who else ""
    second = row.detail if row.form != "broken" else f"refused by rule {row.rule}: {row.detail}"
    text = row.text or ("" if by or second else row.move.replace("_", " "))
    if not text and second:
        return f"{by}{second}", ""
    return f"{by}{text}".rstrip(": "), second


def _in_words(row: SceneRow) -> str:
    """Return a row as one sentence, for screen readers and as a tip."""
    if row.form == "fold":
        return f"Events {row.seq} to {row.last}: {row.across}"
    to = row.to or row.aim
    between = row.lane if to is None else f"{row.lane} to {to}"
    place = f"Event {row.seq}, {when(row.at)}, {between}: {row.move}"
    first, second = _words(row)
    return short(": ".join(part for part in (place, first, second) if part), _TIP_CHARS)


def _after(us: int) -> str:
    """Return how long after the beginning something happened, in short form."""
    seconds = us / 1e6
    if seconds < 0:
        return "before"
    if seconds < 100:
        return f"+{seconds:.2f} s"
    for size, most, unit in ((60, 100, "min"), (3_600, 72, "h")):
        if seconds / size < most:
            return f"+{seconds / size:.0f} {unit}"
    return f"+{seconds / 86_400:.0f} d"


# --- depth and budget ---------------------------------------------------------------------------------

_NAMES = 190.0
_COURSE = 520.0
_BAND = 38.0
_GAP = 14.0
"""Widths and heights, px."""


class Point(msgspec.Struct, frozen=True):
    """The state of a request after an event."""

    n: int
    depth: int
    spent: Usage


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a strip."""

    points: tuple[Point, ...]
    max_depth: int
    ceiling: Budget
    """The limit of the request's total spending."""


def course(happened: Sequence[AnyEvent]) -> Course:
    """Return how depth and spending developed. Raises BrokenLog if events are missing."""
    ledger = Ledger()
    points = []
    ceiling = budget.UNLIMITED
    for event in happened:
        ledger.apply(event)
        root = ledger.root
        points.append(Point(event.n, 0 if root is None else root.segment.depth, ledger.spent))
        if root is not None:
            ceiling = root.segment.path[0].ceiling
    return Course(points=tuple(points), max_depth=ledger.policy.max_depth, ceiling=ceiling)


def strip(whole: Course, *, key: str = "strip") -> str:
    """Return the strip as SVG: a band for depth, and one for each kind of spending that occurs."""
    bands = [_depth(whole), *_spending(whole)]
    height = (_BAND + _GAP) * len(bands) + 8
    words = "; ".join(f"{what} {state}" for what, state, *_ in bands)
    root = picture(
        "Depth and budget", f"{words}.", width=_NAMES + _COURSE + 8, height=height, kind="strip", key=key
    )
    for place, (what, state, values, limit) in enumerate(bands):
        _band(root, what, state, values, limit, 4 + (_BAND + _GAP) * place)
    return written(root)


_Band = tuple[str, str, Sequence[int], int | None]
"""Its name, its current state in words, its value after each event, and its limit."""


def _depth(whole: Course) -> _Band:
    values = [point.depth for point in whole.points]
    now = values[-1] if values else 0
    state = f"{now} of {whole.max_depth}, at most {max(values, default=0)} so far"
    return "Depth", state, values, whole.max_depth


def dollars(nano_dollars: int) -> str:
    """Return an amount of money as people read it."""
    return f"${nano_dollars / 1e9:.4f}"


_KINDS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("Money", "nano_dollars", dollars),
    ("Tokens", "tokens", "{:,}".format),
    ("Model calls", "model_calls", "{:,}".format),
)


def _spending(whole: Course) -> list[_Band]:
    found: list[_Band] = []
    for what, name, form in _KINDS:
        values = [getattr(point.spent, name) for point in whole.points]
        limit = getattr(whole.ceiling, name)
        if limit is not None or any(values):
            now = form(values[-1] if values else 0)
            found.append((what, now if limit is None else f"{now} of {form(limit)}", values, limit))
    return found


def _band(root: Element, what: str, state: str, values: Sequence[int], limit: int | None, top: float) -> None:
    """Draw one band: filled steps over the events, and a line at the limit."""
    most = max([*values, limit or 0, 1])
    over = limit is not None and bool(values) and max(values) > limit
    near = limit is not None and bool(values) and values[-1] >= limit
    drawn = add(root, "g", class_=f"band {'over' if over else 'near' if near else 'within'}")
    add(drawn, "title", f"{what}: {state}, over {counted(len(values), 'event')}")
    add(drawn, "text", what, x=0.0, y=top + 16, class_="what")
    add(drawn, "text", state, x=0.0, y=top + 32, class_="stands")
    box(drawn, "room", _NAMES, top, _COURSE, _BAND, rx=5)
    bottom, step = top + _BAND, _COURSE / max(1, len(values))
    path, at = [f"M{number(_NAMES)} {number(bottom)}"], 0
    for value, same in groupby(values):
        at += len(list(same))
        y = bottom - (_BAND - 4) * max(0, value) / most
        path.append(f"V{number(y)}H{number(_NAMES + step * at)}")
    path.append(f"V{number(bottom)}Z")
    add(drawn, "path", d="".join(path), class_="course")
    if limit is not None:
        y = bottom - (_BAND - 4) * limit / most
        add(drawn, "line", x1=_NAMES, x2=_NAMES + _COURSE, y1=y, y2=y, class_="limit")
