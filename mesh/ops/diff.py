"""Two requests side by side: where their courses part, and how.

    found = compared(timeline(one), timeline(other))
    found.first and found.first.field     # "target": the first divergence is another target

Ids, times, costs and texts are not compared: no two requests share them. The client is compared as `client`,
so that a request and its rerun by an operator can be the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec

from mesh.ops.words import OF_TASKS
from mesh.service.printable import as_text, short
from protocol.views.timeline import Timeline, TimelineEntry

CLIENT = "client"
_VALUE_CHARS = 80


class CourseEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a request, without what only one request can have."""

    n: int
    """Number of its event in the request."""
    move: str
    giver: str
    target: str | None = None
    verdict: str
    rule: str | None = None
    code: str | None = None
    """Why a turn, a task or a request failed, or a person was asked; the task that it is about."""
    facts: Mapping[str, Any] = {}
    """By key: the value of each new or changed fact, with its labels if it has some."""
    dropped: tuple[str, ...] = ()
    answer: Any = None
    text: str = ""


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """One field that differs at one place of both requests. A number is None past a request's end."""

    a: int | None
    b: int | None
    field: str
    was: Any = None
    now: Any = None


class CoursePair(msgspec.Struct, frozen=True, kw_only=True):
    """The same place in both requests; None if only the other one has it."""

    a: CourseEntry | None
    b: CourseEntry | None
    differs: tuple[str, ...] = ()
    """Fields that differ; also empty where one side is None."""

    @property
    def is_same(self) -> bool:
        return self.a is not None and self.b is not None and not self.differs

    @property
    def mark(self) -> str:
        """Return the sign that `sdiff` shows between two lines."""
        if self.a is None or self.b is None:
            return "<" if self.b is None else ">"
        return "|" if self.differs else ""

    @property
    def changes(self) -> "tuple[FieldChange, ...]":
        """Return what differs if both requests have the place; of facts only those that differ."""
        if self.a is None or self.b is None:
            return ()
        return tuple(_changes(self.a, self.b, self.differs))


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two requests."""

    request: str
    through: int | None = None
    """The event up to which it is compared; None for all of it."""
    status: str
    after: int | None = None
    """The event after which it is compared; None: from the beginning."""

    @property
    def written(self) -> str:
        """Return it as `mesh diff` takes it: `ID`, `ID@7`, `ID@3..` or `ID@3..7`."""
        through = "" if self.through is None else str(self.through)
        if self.after is not None:
            return f"{self.request}@{self.after}..{through}"
        return f"{self.request}@{through}" if through else self.request


class RequestDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Where two requests part."""

    a: ComparedSide
    b: ComparedSide
    same: bool
    first: FieldChange | None
    """The first divergence; None if there is none."""
    fields: tuple[FieldChange, ...]
    """The first place where each differing field differs."""
    rows: tuple[CoursePair, ...]


_Read = Callable[[CourseEntry], Any]
_FIELDS: Final[Mapping[str, _Read]] = {
    "move": lambda each: each.move,
    "giver": lambda each: each.giver,
    "target": lambda each: each.target,
    "verdict": lambda each: each.verdict,
    "rule": lambda each: each.rule,
    "code": lambda each: each.code,
    "facts": lambda each: each.facts,
    "dropped": lambda each: each.dropped,
    "answer": lambda each: each.answer,
    "text": lambda each: each.text,
}
"""The fields that are compared, in this order."""
FIELDS: Final = tuple(_FIELDS)
_ALIGNED_BY = FIELDS[:5]
"""The fields that align the entries."""
_CODED = frozenset({*OF_TASKS, "turn_failed", "fail", "escalate"})
"""Moves whose detail is a code or a name."""


def compared(
    one: Timeline,
    other: Timeline,
    *,
    texts: bool = False,
    through: tuple[int | None, int | None] = (None, None),
    after: tuple[int | None, int | None] = (None, None),
) -> RequestDiff:
    """Return where two requests part.

    Args:
        texts: True to compare also what agents and people wrote, and not only the answer.
        through: the events up to which they were read, for the report.
        after: the events after which they are compared.
    """
    fields = FIELDS if texts else FIELDS[:-1]
    left, right = _rest(one, after[0]), _rest(other, after[1])
    rows = tuple(_aligned(left, right, fields))
    first = next(_parted(left, right, fields), None)
    by_field: dict[str, FieldChange] = {}
    for row in rows:
        for change in _changes(row.a, row.b, fields):
            by_field.setdefault(change.field, change)
    if first is not None:  # it comes first, however the rows are aligned
        by_field[first.field] = first
    ordered = sorted(by_field.values(), key=lambda each: (each is not first, _place(each)))
    return RequestDiff(
        a=ComparedSide(request=one.request, through=through[0], status=one.status, after=after[0]),
        b=ComparedSide(request=other.request, through=through[1], status=other.status, after=after[1]),
        same=first is None,
        first=first,
        fields=tuple(ordered),
        rows=rows,
    )


def after_fork(one: Timeline, other: Timeline) -> tuple[int | None, int | None]:
    """Return the events after which two requests are compared if one was forked from the other.

    The first event of a fork takes the place of its request's events up to there. None if neither was.
    """
    for fork, request, at in ((other, one, 1), (one, other, 0)):
        if fork.forked_from is not None and fork.forked_from.request == request.request:
            n = fork.forked_from.n
            return (n, 0) if at else (0, n)
    return None, None


def _rest(told: Timeline, after: int | None) -> list[CourseEntry]:
    return [each for each in _course(told) if after is None or each.n > after]


def _place(change: FieldChange) -> int:
    return min(each for each in (change.a, change.b) if each is not None)


def _course(told: Timeline) -> Iterator[CourseEntry]:
    def named(name: str | None) -> str | None:
        return CLIENT if name == told.client else name

    for entry in told.moves:
        is_answer = entry.move == "complete"
        yield CourseEntry(
            n=entry.seq,
            move=entry.move,
            giver=named(entry.from_) or "",
            target=named(entry.to),
            verdict=entry.verdict,
            rule=entry.rule,
            code=entry.detail if entry.move in _CODED and entry.verdict != "refused" else None,
            facts=_facts(entry),
            dropped=entry.dropped,
            answer=told.answer if is_answer else None,
            text="" if is_answer else entry.summary,
        )


def _facts(entry: TimelineEntry) -> dict[str, Any]:
    return {
        fact.key: {"value": fact.value, "labels": fact.labels} if fact.labels else fact.value
        for fact in entry.facts
    }


# --- alignment ------------------------------------------------------------------------------------


def _parted(
    a: Sequence[CourseEntry], b: Sequence[CourseEntry], fields: Sequence[str]
) -> Iterator[FieldChange]:
    """Yield the differences event by event, without searching for insertions."""
    for at in range(max(len(a), len(b))):
        yield from _changes(a[at] if at < len(a) else None, b[at] if at < len(b) else None, fields)


def _changes(a: CourseEntry | None, b: CourseEntry | None, fields: Sequence[str]) -> Iterator[FieldChange]:
    """Yield the differing fields: of `_ALIGNED_BY` alone if the moves differ, `move` if one entry is None."""
    if a is None or b is None:
        yield FieldChange(
            a=None if a is None else a.n,
            b=None if b is None else b.n,
            field="move",
            was=None if a is None else a.move,
            now=None if b is None else b.move,
        )
        return
    for name in fields if a.move == b.move else _ALIGNED_BY:
        was: Any = _FIELDS[name](a)
        now: Any = _FIELDS[name](b)
        if not _equal(was, now):
            if name == "facts":
                was, now = _others(was, now), _others(now, was)
            yield FieldChange(a=a.n, b=b.n, field=name, was=was, now=now)


def _equal(was: Any, now: Any) -> bool:
    """Return True for equal JSON: `1` is not `true`."""
    return was == now and msgspec.json.encode(was, order="sorted") == msgspec.json.encode(now, order="sorted")


def _others(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return those facts that are not the same in the others."""
    return {key: value for key, value in one.items() if key not in other or not _equal(value, other[key])}


def _aligned(
    a: Sequence[CourseEntry], b: Sequence[CourseEntry], fields: Sequence[str]
) -> Iterator[CoursePair]:
    """Yield both requests side by side: equal beginnings first, then the equal parts of the rest."""
    keys = [tuple(str(_FIELDS[name](each)) for name in _ALIGNED_BY) for each in (*a, *b)]
    left, right = keys[: len(a)], keys[len(a) :]
    begin = 0
    while begin < min(len(a), len(b)) and left[begin] == right[begin]:
        begin += 1
    for at in range(begin):
        yield _pair(a[at], b[at], fields)
    blocks = SequenceMatcher(None, left[begin:], right[begin:], autojunk=False).get_opcodes()
    for _, i, i_end, j, j_end in blocks:
        for at in range(max(i_end - i, j_end - j)):
            yield _pair(
                a[begin + i + at] if i + at < i_end else None,
                b[begin + j + at] if j + at < j_end else None,
                fields,
            )


def _pair(a: CourseEntry | None, b: CourseEntry | None, fields: Sequence[str]) -> CoursePair:
    differs = () if a is None or b is None else tuple(each.field for each in _changes(a, b, fields))
    return CoursePair(a=a, b=b, differs=differs)


# --- in words -------------------------------------------------------------------------------------


def change_in_words(change: FieldChange) -> str:
    """Return a difference in one line: which field, at which events, from what to what."""
    places = [
        f"event {n} of {name}" if n is not None else f"the end of {name}"
        for name, n in (("A", change.a), ("B", change.b))
    ]
    where = f"event {change.a}" if change.a == change.b else " and ".join(places)
    return f"{change.field} at {where}: {value_in_words(change.was)} → {value_in_words(change.now)}"


def value_in_words(value: object, most: int = _VALUE_CHARS) -> str:
    """Return the value of a field, of so many characters at most."""
    return "nothing" if value is None or value == {} else short(as_text(value), most)


def entry_in_words(each: CourseEntry) -> str:
    """Return who moved, how, and why not: `a ✗ b transfer: cycle`."""
    arrow = "✗" if each.verdict == "refused" else "→"
    between = each.giver if each.target is None else f"{each.giver} {arrow} {each.target}"
    why = each.rule or each.code
    return f"{between} {each.move}" + (f": {why}" if why else "")
