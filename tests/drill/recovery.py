"""How long it takes, after a fault, until everything that was open at the victim moves again.

For each fault, the work that it held up:

* at an *agent*: rounds that it interrupted: what was journaled of them before and after the fault was not
  written by the same process in the same delivery;
* at a *guard*: submits without a verdict, and rounds with their last step journaled and without a verdict;
* at the *nats-server*: both, of everybody, and all rounds that were in hand.

Work moves when the next step of its round is journaled or the next event of its request is appended. The
fault's recovery time is the longest that any of this work took to move, from the moment of the fault; a
pause's own length is part of it, and so is the restart of what was killed.

Work that another fault hit, too, before it moved tells nothing of either and is left out; a fault all of
whose work was hit again is *disturbed* and in no time, and in a dense drill many are. Faults that held up
nothing are *idle*; work that never moved again makes the fault *unrecovered*.

A tool's own time counts, and so does waiting in a queue behind other work. What takes long is more likely
to be hit again, so that a dense drill shows the quicker ones: single faults are measured by `mesh bench`. A
round of which nothing was journaled is known to be interrupted by its next delivery only.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.wire import events
from protocol.wire.events import AnyEvent, Ended
from protocol.wire.ids import HUMAN
from tests.drill.evidence import Fault, StepName
from tests.drill.findings import Recovery
from tests.drill.reading import SERVER, Reading, Story

GUARD = "guard"
AGENT = "agent"


class Moved(NamedTuple):
    """A sign of life: a step, and who wrote it in which delivery."""

    at: int
    """UTC µs."""
    by: str


@dataclass(slots=True)
class Span:
    """Work that waits at somebody: from when, and each time that it moved. Times in UTC µs."""

    agent: str
    """At whom it waits."""
    begin: int
    end: int | None = None
    """When it was over; None if it never was."""
    moved: list[Moved] = field(default_factory=list)
    again: bool = False
    """Whether it was delivered more than once."""
    proposer: str = ""
    """At a guard: whose verdict it waits for."""

    def waits(self, at: int) -> bool:
        """Say whether it waits at that time."""
        return self.begin <= at and (self.end is None or self.end > at)

    def after(self, at: int) -> int | None:
        """Return when it moved next after `at`; None if it never did."""
        following = self._following(at)
        moved = self.end if following is None else following.at
        return moved if self.end is None or moved is None else min(moved, self.end)

    def _following(self, at: int) -> Moved | None:
        index = bisect_right(self.moved, at, key=_at)
        return self.moved[index] if index < len(self.moved) else None

    def _before(self, at: int) -> Moved | None:
        index = bisect_right(self.moved, at, key=_at)
        return self.moved[index - 1] if index else None

    def in_hand(self, at: int) -> bool:
        """Say whether somebody was at it at that time, as far as the journal tells."""
        return self._before(at) is not None or self.interrupted(at)

    def interrupted(self, at: int) -> bool:
        """Say whether whoever had it before that time is not known to have gone on with it afterwards."""
        before, following = self._before(at), self._following(at)
        if before is not None and following is not None:
            return before.by != following.by
        # Nothing before: it was in hand if it was delivered again, or never came to anything.
        return self.again or (following is None and self.end is None)


def _at(moved: Moved) -> int:
    return moved.at


def recovery(reading: Reading) -> dict[str, Recovery]:
    """Return recovery times by what was hit: `agent`, `guard`, `nats-server`."""
    at_agents = [span for story in reading.stories.values() for span in _rounds(reading, story)]
    at_guards = [*_submits(reading), *_verdicts(at_agents)]
    hit: dict[str, list[int | None]] = defaultdict(list)
    idle: dict[str, int] = defaultdict(int)
    disturbed: dict[str, int] = defaultdict(int)
    for fault in reading.evidence.faults:
        name = fault.name if fault.name in (GUARD, SERVER) else AGENT
        held_up = [span for span in _held_up(fault, name, at_agents, at_guards) if span.waits(fault.at)]
        others = [other for other in reading.evidence.faults if other is not fault]
        waits = [_wait(fault, span) for span in held_up if not _is_disturbed(fault, span, others)]
        if not held_up:
            idle[name] += 1
        elif not waits:
            disturbed[name] += 1
        else:
            hit[name].append(max(waits) if None not in waits else None)  # type: ignore[type-var]
    return {
        name: _summary(hit[name], idle[name], disturbed[name]) for name in sorted({*hit, *idle, *disturbed})
    }


def _held_up(fault: Fault, name: str, at_agents: list[Span], at_guards: list[Span]) -> Iterable[Span]:
    """Yield the work at the victim."""
    if name == GUARD:
        return at_guards
    if name == SERVER:
        return (*(span for span in at_agents if span.in_hand(fault.at)), *at_guards)
    return (span for span in at_agents if span.agent == fault.name and span.interrupted(fault.at))


def _wait(fault: Fault, span: Span) -> int | None:
    """Return how long a piece of work waited, in µs; None if it never moved again."""
    moved = span.after(fault.at)
    return None if moved is None else moved - fault.at


def _is_disturbed(fault: Fault, span: Span, others: Iterable[Fault]) -> bool:
    """Say whether another fault hit the same work before it moved."""
    moved = span.after(fault.at)
    concerned = {span.agent, span.proposer, GUARD, SERVER}
    return moved is not None and any(
        other.name in concerned and fault.at < other.at < moved for other in others
    )


def _rounds(reading: Reading, story: Story) -> Iterator[Span]:
    """Yield the rounds of agents' turns: from the event that opened each to the event that ended it."""
    steps: dict[tuple[str, int], list[Moved]] = defaultdict(list)
    for placed in reading.steps_of.get(story.request, ()):
        if placed.step.kind != "fence":  # another round's doing
            moved = Moved(placed.step.at, placed.step.nonce)
            steps[placed.where.turn, placed.place.round].append(moved)
    running: dict[str, Span] = {}
    for event in story.events:
        for turn in _over(event, running):
            span = running.pop(turn)
            span.end = event.at
            yield span
        work = getattr(event, "work", None)
        if work is not None and work.handoff.to_agent != HUMAN:
            agent, journal = work.handoff.to_agent, work.continues or work.turn
            again = StepName(agent, story.request, journal, f"{work.round}-a0") in reading.evidence.steps
            found = sorted(steps.get((journal, work.round), ()))
            running[work.turn] = Span(agent, event.at, moved=found, again=again)
    yield from running.values()


def _over(event: AnyEvent, running: dict[str, Span]) -> list[str]:
    """Return the turns whose round an event ends; freezing ends none, but nobody need move in it."""
    if isinstance(event, Ended | events.RequestFrozen):
        return list(running)
    turn = getattr(event, "turn", None)
    return [turn] if turn in running else []


def _submits(reading: Reading) -> Iterator[Span]:
    """Yield what waited for the verdict on a submit."""
    for submitted in reading.evidence.submitted:
        story = reading.stories.get(submitted.request)
        first = story.events[0].at if story is not None and story.events else None
        if submitted.acknowledged:
            yield Span(GUARD, submitted.at, first)


def _verdicts(rounds: Iterable[Span]) -> Iterator[Span]:
    """Yield what waited for the verdict on a round: from its last step on, if it has any."""
    for span in rounds:
        if span.moved and span.end is not None:
            yield Span(GUARD, span.moved[-1].at, span.end, proposer=span.agent)


def _summary(times: list[int | None], idle: int, disturbed: int) -> Recovery:
    known = sorted(time for time in times if time is not None)
    return Recovery(
        faults=len(times),
        idle=idle,
        disturbed=disturbed,
        unrecovered=len(times) - len(known),
        p50_s=_percentile(known, 50),
        p99_s=_percentile(known, 99),
        max_s=_percentile(known, 100),
    )


def _percentile(ordered: list[int], percent: int) -> float | None:
    """Return the smallest value that `percent` per cent of all do not exceed, in seconds."""
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * percent // 100))
    return round(ordered[rank - 1] / 1e6, 3)
