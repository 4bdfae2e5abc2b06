"""What another policy or fleet would have done: the first verdict of a request that would have been another.

A request begins under the other policy, and the guards' decider decides each recorded message again, on what
it decided before. It goes on as long as the verdicts are those of the log. What agents would have done after
another verdict nobody knows, so the first divergence ends the comparison: the rest is as recorded.
"""

import contextlib
import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mesh.errors import MeshError, OldForm
from mesh.replay.reach import Concerned, may_differ
from mesh.service.printable import counted
from protocol.domain import budget
from protocol.domain.again import INCONSISTENT, Again
from protocol.domain.judgement import edge_of, ground_of, verdict_of, wanted_by
from protocol.domain.ledger import Ledger
from protocol.domain.recorded import Other
from protocol.wire import codec, events
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.shadow import Judgement

_SHOWN = 5
"""Names that a line of the summary shows."""
Wanted = Callable[[Sequence[bytes]], bool]
"""Says of a request's stored events if it is to be compared."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first event of a request that would have been another."""

    request: str
    n: int
    at: int
    """UTC µs."""
    client: str
    agent: str
    """Whose move it was, or whose turn; empty for a submit."""
    to: str
    """Whom the move would have given the work."""
    was: Judgement
    would: Judgement
    effect: str
    """`stopped` where work goes on in the log and would not have; `freed` the other way; else `changed`."""
    ended: str
    """How the request stands in the log."""
    hops: int
    """Recorded after it: admitted handoffs."""
    nano_dollars: int
    """Recorded after it: what turns reported."""
    seconds: float
    """From it to the newest event."""


class TriedRequest(NamedTuple):
    """What came of one request."""

    request: str
    events: int
    divergence: Divergence | None = None
    passed_over: bool = False
    """True if a scan showed that nothing of what is otherwise reaches it."""
    unreadable: str = ""


_STOPS = frozenset(
    (
        *("move.refused", "request.refused", "request.failed", "request.expired"),
        *("turn.failed", "task.failed", "escalation.raised"),
    )
)
"""Types of events by which work does not go on as it was wanted."""


def compare(bodies: Sequence[bytes], other: Other, *, scan: bool = True) -> TriedRequest:
    """Return where a request would have gone another way.

    Args:
        bodies: its stored events, in order from the first.
        scan: pass over a request, and over events, that nothing of what is otherwise can reach.

    Raises OldForm.
    """
    if scan and not may_differ(bodies, other):
        return TriedRequest("", len(bodies), passed_over=True)
    happened: list[AnyEvent] = []
    try:
        happened = [codec.decode_event(body) for body in bodies]
        found = _first(happened, bodies, other, scan=scan)
    except OldForm:
        raise
    except (MeshError, *INCONSISTENT) as error:
        request = happened[0].request if happened else ""
        return TriedRequest(request, len(happened), unreadable=str(error) or "its events do not follow")
    if not happened:
        return TriedRequest("", 0, unreadable="there are no events")
    divergence = None if found is None else _told(happened, *found)
    return TriedRequest(happened[0].request, len(happened), divergence)


_Found = tuple[int, AnyEvent | None]
"""Which event would have been another, and what it would have been."""


def _first(
    happened: Sequence[AnyEvent], bodies: Sequence[bytes], other: Other, *, scan: bool
) -> _Found | None:
    opened = next((each for each in happened[:2] if isinstance(each, events.RequestOpened)), None)
    concerned = Concerned(None if opened is None or not scan else opened.policy, other)
    again = Again(happened, bodies, other)
    for index, event in enumerate(happened):
        if event is not opened and not concerned.may_be_another(event):
            again.take(index)
            continue
        was = verdict_of(event)
        early = again.fell_due(index) if concerned.is_all else None
        if early is not None and verdict_of(early) != was and not _was_in_time(happened, bodies, index):
            return index, again.beyond(index, early)
        derived = again.derive(index)
        if verdict_of(derived) != was:
            return _verdict_at(again, happened, index, derived)
        again.take(index, derived)
    return None


def _verdict_at(again: Again, happened: Sequence[AnyEvent], index: int, derived: AnyEvent | None) -> _Found:
    """Return the verdict that would have been another, not what is withheld for it; unless that alone is."""
    event = happened[index]
    then = None if derived is None else again.beyond(index, derived)
    if isinstance(event, FactsWithheld) and index + 1 < len(happened):
        following = happened[index + 1]
        if following.cause == event.cause and verdict_of(then) != verdict_of(following):
            return index + 1, then
        return index, derived
    return index, derived if verdict_of(then) == verdict_of(event) else then


def _was_in_time(happened: Sequence[AnyEvent], bodies: Sequence[bytes], index: int) -> bool:
    """Return True if the log itself has the message decided after something was due: it came before that."""
    again = Again(happened, bodies)
    for before in range(index):
        again.take(before)
    return again.fell_due(index) is not None


def _told(happened: Sequence[AnyEvent], index: int, derived: AnyEvent | None) -> Divergence:
    event, ledger = happened[index], Ledger()
    for each in happened[:index]:
        ledger.apply(each)
    turn = ledger.turns.get(event.turn)
    if turn is None and derived is not None:
        turn = ledger.turns.get(derived.turn)
    ledger.apply(event)
    spent = _spent(ledger)
    for each in happened[index + 1 :]:
        ledger.apply(each)
    was, would = verdict_of(event), verdict_of(derived)
    return Divergence(
        request=event.request,
        n=event.n,
        at=event.at,
        client=str(ledger.client or ""),
        agent="" if turn is None else str(turn.agent),
        to=wanted_by(event),
        was=was,
        would=would,
        effect=_effect(was, would),
        ended=str(ledger.status),
        hops=sum(isinstance(each, events.HandoffAdmitted) for each in happened[index + 1 :]),
        nano_dollars=max(0, _spent(ledger) - spent),
        seconds=(happened[-1].at - event.at) / 1e6,
    )


def _effect(was: Judgement, would: Judgement) -> str:
    stopped, would_stop = was.type in _STOPS, would.type in _STOPS
    return "changed" if stopped is would_stop else "stopped" if would_stop else "freed"


def _spent(ledger: Ledger) -> int:
    spent = budget.NOTHING
    for turn in ledger.turns.values():
        spent = budget.plus(spent, turn.report.usage)
    return spent.nano_dollars


# --- many requests --------------------------------------------------------------------------------


class Summary(msgspec.Struct, kw_only=True):
    """What came of many requests."""

    requests: int = 0
    events: int = 0
    passed_over: int = 0
    """Requests that a scan showed to be out of reach."""
    differ: int = 0
    stopped: int = 0
    stopped_completed: int = 0
    """Of these: completed in the log."""
    freed: int = 0
    unreadable: dict[str, str] = {}
    """By request: why it is not compared."""
    hops: int = 0
    """What the log has after the divergence of those that were stopped; so much would have been saved, if
    nothing else had been done in its place."""
    nano_dollars: int = 0
    seconds: float = 0.0
    by_rule: dict[str, int] = {}
    by_agent: dict[str, int] = {}
    by_edge: dict[str, int] = {}
    by_client: dict[str, int] = {}

    def take(self, found: TriedRequest) -> None:
        """Count one request."""
        self.requests += 1
        self.events += found.events
        self.passed_over += found.passed_over
        if found.unreadable:
            self.unreadable[found.request or "?"] = found.unreadable
        if found.divergence is not None:
            self._count(found.divergence)

    def _count(self, each: Divergence) -> None:
        self.differ += 1
        self.freed += each.effect == "freed"
        if each.effect == "stopped":
            self.stopped += 1
            self.stopped_completed += each.ended == "completed"
            self.hops += each.hops
            self.nano_dollars += each.nano_dollars
            self.seconds += each.seconds
        rule = ground_of(each.was, each.would)
        edge = edge_of(each.agent or each.client, each.to)
        for counts, name in (
            (self.by_rule, rule),
            (self.by_agent, each.agent),
            (self.by_edge, edge),
            (self.by_client, each.client),
        ):
            if name:
                counts[name] = counts.get(name, 0) + 1

    def add(self, others: "Summary") -> None:
        """Count what another summary has."""
        for name in self.__struct_fields__:
            mine, more = getattr(self, name), getattr(others, name)
            if not isinstance(mine, dict):
                setattr(self, name, mine + more)
            elif name == "unreadable":
                mine |= more
            else:
                setattr(self, name, dict(Counter(mine) + Counter(more)))


class TriedShare(NamedTuple):
    """What came of the requests that one process has."""

    summary: Summary
    found: Path
    """Its divergences, a line each, with the places of their requests: so many would not fit into memory."""


class Divergences:
    """The divergences of all shares, in the order of requests; read anew from their files each time."""

    def __init__(self, shares: Sequence[Path]) -> None:
        self._shares = shares

    def __iter__(self) -> Iterator[Divergence]:
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self._shares]
            placed = heapq.merge(*(map(_PLACED.decode, file) for file in files), key=lambda each: each[0])
            for _, divergence in placed:
                yield divergence


_PLACED = msgspec.json.Decoder(tuple[int, Divergence])


def compared(
    requests: Iterable[tuple[int, list[bytes]]],
    others: Sequence[Other],
    folder: Path,
    wanted: Wanted | None = None,
) -> list[TriedShare]:
    """Return where requests would have gone another way, for each of several things to try.

    Args:
        requests: each with its place among all, in order.
        folder: where divergences are kept; all processes may have the same.
        wanted: leave out the others.

    Raises OldForm, OSError.
    """
    with contextlib.ExitStack() as stack:
        tried = []
        for other in others:
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, delete=False))
            tried.append((other, Summary(), file))
        for place, bodies in requests:
            if wanted is not None and not wanted(bodies):
                continue
            for other, summary, file in tried:
                came = compare(bodies, other)
                summary.take(came)
                if came.divergence is not None:
                    file.write(msgspec.json.encode((place, came.divergence)) + b"\n")
        return [TriedShare(summary, Path(file.name)) for _, summary, file in tried]


def together(shares: Sequence[list[TriedShare]]) -> list[tuple[Summary, Divergences]]:
    """Return what came of all shares, for each thing that was tried."""
    result = []
    for tried in zip(*shares, strict=True):
        summary = Summary()
        for share in tried:
            summary.add(share.summary)
        result.append((summary, Divergences([share.found for share in tried])))
    return result


# --- in words -------------------------------------------------------------------------------------


def summary_in_words(summary: Summary) -> list[str]:
    """Return what came of many requests, as lines."""
    whole = f"{counted(summary.requests, 'request')}, {counted(summary.events, 'event')}"
    differ = f"{summary.differ} {'differs' if summary.differ == 1 else 'differ'}"
    lines = [f"{whole} compared; {differ}, {summary.passed_over} out of reach of what changed"]
    if summary.stopped:
        spent = f"{counted(summary.hops, 'hop')}, {summary.nano_dollars / 1e9:.6f} dollars"
        completed = f"of which {summary.stopped_completed} completed in the log"
        lines.append(f"stopped earlier: {summary.stopped}, {completed}")
        lines.append(f"saved at most: {spent}, {summary.seconds:.0f} s")
    if summary.freed:
        lines.append(f"not stopped there: {summary.freed}")
    for kind, counts in (
        ("rule", summary.by_rule),
        ("agent", summary.by_agent),
        ("edge", summary.by_edge),
        ("client", summary.by_client),
    ):
        if counts:
            lines.append(f"by {kind}: {most(counts)}")
    return lines


def most(counts: Mapping[str, int]) -> str:
    """Return the largest counts by name, as text."""
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    more = len(ordered) - _SHOWN
    shown = ", ".join(f"{name} {count}" for name, count in ordered[:_SHOWN])
    return f"{shown}, and {more} more" if more > 0 else shown


def judgement_in_words(verdict: Judgement) -> str:
    """Return a verdict as text."""
    extra = [f"rule {verdict.rule}"] if verdict.rule else []
    extra += [verdict.reason] if verdict.reason else []
    extra += [f"next {verdict.then}"] if verdict.then else []
    if verdict.type == "facts.withheld":
        extra.append(f"{verdict.withheld} kept from its reader")
    return f"{verdict.type} ({', '.join(extra)})" if extra else verdict.type
