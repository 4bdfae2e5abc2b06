"""What did not come to rest: which request, in which round of whose turn, waiting for what, since when."""

from collections.abc import Iterator
from typing import NamedTuple

from protocol.domain.ledger import Ledger
from protocol.domain.turns import TurnState
from protocol.wire.ids import HUMAN
from tests.drill.evidence import Submitted
from tests.drill.findings import Unrested
from tests.drill.reading import Reading, Story


class Wait(NamedTuple):
    """What a turn waits for, and since when (UTC µs)."""

    what: str
    since: int


def unrested(reading: Reading) -> Iterator[Unrested]:
    """Yield every request on which the drill gave up waiting, turn by turn, as far as the evidence tells."""
    ended_at = reading.evidence.ended_at
    for submitted in reading.evidence.submitted:
        if submitted.request in reading.evidence.silent:
            for found in _of_request(reading, submitted):
                yield Unrested(
                    request=submitted.request,
                    turn="" if found.turn is None else found.turn.id,
                    agent="" if found.turn is None else found.turn.agent,
                    round=None if found.turn is None else found.turn.round,
                    waits_for=found.wait.what,
                    since=found.wait.since,
                    for_s=round((ended_at - found.wait.since) / 1e6, 1),
                )


class _Found(NamedTuple):
    turn: TurnState | None
    wait: Wait


def _of_request(reading: Reading, submitted: Submitted) -> Iterator[_Found]:
    story = reading.stories.get(submitted.request)
    if story is None or not story.events:
        said = "the verdict on its submit" if submitted.acknowledged else "its submit's acknowledgement"
        yield _Found(None, Wait(said, submitted.at))
    elif story.ledger is None:
        yield _Found(None, Wait(f"nobody knows what: {story.trouble}", story.events[-1].at))
    elif not story.ledger.is_open:
        return
    elif not story.ledger.open:
        yield _Found(None, Wait("nobody: no turn of it is open", story.events[-1].at))
    else:
        for turn in story.ledger.open.values():
            yield _Found(turn, awaited(reading, story, story.ledger, turn))


def awaited(reading: Reading, story: Story, ledger: Ledger, turn: TurnState) -> Wait:
    """Return what an open turn waits for."""
    if ledger.frozen_at is not None:
        return Wait("a thaw", ledger.frozen_at)
    since = story.events[turn.since_n].at
    if turn.agent == HUMAN:
        return Wait("a person's decision", since)
    match turn.state:
        case "failed" if turn.due_at is not None:
            late_s = (reading.evidence.ended_at - turn.due_at) / 1e6
            return Wait(f"its retry, which was due {late_s:.1f} s before the end", since)
        case "failed" | "refused":
            return Wait("its escalation", since)
        case "suspended":
            return Wait(f"the reply of {turn.asked}", since)
        case "doubted":
            return Wait(f"somebody to settle the effect at {turn.doubted}", since)
    return _work(reading, story, turn, since)


def _work(reading: Reading, story: Story, turn: TurnState, since: int) -> Wait:
    """Return what a round that is at work has come to."""
    journal = turn.work.journal_id
    steps = [
        placed
        for placed in reading.steps_of.get(story.request, ())
        if placed.where.turn == journal and placed.place.round == turn.round and placed.step.kind != "fence"
    ]
    if not steps:
        return Wait(f"{turn.agent}, which has journaled nothing of this round", since)
    last = max(steps, key=lambda placed: placed.step.at)
    return Wait(f"{turn.agent}, whose last step is {last.where.step} ({last.step.kind})", last.step.at)
