"""What a replay found, as one page that opens without a server, a network or a script.

The first difference of each request stands side by side: prompt, arguments, move, or the whole event. Nothing
is replayed here; the command hands over what it found.
"""

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mesh.replay.whatif import Divergence, Summary, judgement_in_words, summary_in_words
from mesh.ui.story import standalone

if TYPE_CHECKING:
    from mesh.replay.code import Replayed
    from mesh.replay.differences import CodeDifference
    from mesh.replay.processes import RoundTally
    from mesh.replay.rejudge import Rejudged

MOST_REQUESTS = 500
"""Requests that a page shows; the command's JSON has all."""
MOST_LATER = 20
"""Further differences of a request that it names."""
MOST_LINES = 300
"""Lines of one value that are compared."""


class SideLine(NamedTuple):
    """A line as it was recorded, and as it is now; None where one side has none."""

    was: str | None
    now: str | None

    @property
    def is_same(self) -> bool:
        return self.was == self.now


class Sides(NamedTuple):
    """Two texts side by side."""

    lines: tuple[SideLine, ...]
    more: int = 0
    """Lines that are left out."""


class FoundRequest(NamedTuple):
    """A request whose code came to something else."""

    first: "Replayed"
    sides: Sides
    """Of the first difference."""
    later: "Sequence[Replayed]"
    more: int
    """Later differences that are left out."""


# --- each kind of replay --------------------------------------------------------------------------


def code_as_html(tally: "RoundTally") -> str:
    """Return what agents' code came to in the rounds of a log."""
    by_request = tally.by_request
    return standalone(
        "replay_code.html",
        counts=tally.table(),
        judged=tally.judged,
        found=[_found(*each) for each in by_request[:MOST_REQUESTS]],
        more=max(0, len(by_request) - MOST_REQUESTS),
        reasons=sorted(tally.reasons.items()),
    )


def _found(first: "Replayed", *later: "Replayed") -> FoundRequest:
    assert first.difference is not None
    return FoundRequest(
        first, sides_of(first.difference), later[:MOST_LATER], max(0, len(later) - MOST_LATER)
    )


def tried_as_html(came: Iterable[tuple[str, Summary, Iterable[Divergence]]]) -> str:
    """Return which requests would have gone another way, for each policy or fleet that was tried."""
    tried = [
        (name, summary, list(itertools.islice(found, MOST_REQUESTS)), max(0, summary.differ - MOST_REQUESTS))
        for name, summary, found in came
    ]
    words = {"summary_in_words": summary_in_words, "judgement_in_words": judgement_in_words}
    return standalone("replay_tried.html", tried=tried, **words)


def rejudged_as_html(results: Sequence["Rejudged"]) -> str:
    """Return which events do not come out as recorded."""
    different = [each for each in results if not each.same]
    return standalone(
        "replay_rejudged.html",
        requests=len(results),
        events=sum(each.events for each in results),
        differing=len(different),
        found=[(each, _first_of(each)) for each in different[:MOST_REQUESTS]],
        most=MOST_LATER,
    )


def _first_of(each: "Rejudged") -> Sides:
    if not each.differences:
        return Sides(())
    first = each.differences[0]
    return side_by_side(first.recorded, first.rederived)


# --- side by side ---------------------------------------------------------------------------------


def sides_of(difference: "CodeDifference") -> Sides:
    """Return both sides of a difference: of a prompt the changed lines, else the whole values."""
    if difference.diff:
        return Sides(tuple(_of_unified(difference.diff.splitlines()[2:])))
    return side_by_side(_by_key(difference.was), _by_key(difference.now))


def _by_key(move: Any) -> Any:
    """Return a move with its facts in order of their keys: their order says nothing."""
    if not isinstance(move, Mapping):
        return move
    return {name: _facts_by_key(value) for name, value in move.items()}


def _facts_by_key(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(each, Mapping) and "key" in each for each in value):
        return sorted(value, key=lambda fact: str(fact["key"]))
    return value


def side_by_side(was: Any, now: Any) -> Sides:
    """Return two values line by line, equal lines beside each other. None has no lines."""
    left, right = _lines(was), _lines(now)
    more = max(len(left), len(right)) - MOST_LINES
    left, right = left[:MOST_LINES], right[:MOST_LINES]
    lines = list[SideLine]()
    for _, i, i_end, j, j_end in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        lines += _beside(left[i:i_end], right[j:j_end])
    return Sides(tuple(lines), max(0, more))


def _lines(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return value.splitlines()
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode().splitlines()


def _of_unified(lines: Iterable[str]) -> Iterable[SideLine]:
    """Yield the lines of a unified diff without its two first lines."""
    was, now = list[str](), list[str]()
    for line in lines:
        sign, text = line[:1], line[1:]
        if sign == "-":
            was.append(text)
        elif sign == "+":
            now.append(text)
        else:
            yield from _beside(was, now)
            was, now = [], []
            text = "…" if sign == "@" else text if sign == " " else line
            yield SideLine(text, text)
    yield from _beside(was, now)


def _beside(was: Sequence[str], now: Sequence[str]) -> list[SideLine]:
    return [
        SideLine(was[at] if at < len(was) else None, now[at] if at < len(now) else None)
        for at in range(max(len(was), len(now)))
    ]
