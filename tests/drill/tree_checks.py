"""Checks on trees of tasks: none twice, none lost, no more spent than the root was given, and all told.

They count by themselves: plans and ends are read from the events, what was done and paid from the ledger
outside, and who was told from the stream of ends. None of them asks the code that it checks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from protocol.wire import events
from protocol.wire.event_parts import PlannedTask
from protocol.wire.ids import HUMAN, proposal_id
from tests.drill.findings import Breach
from tests.drill.log_checks import ends_turn
from tests.drill.reading import Reading, Story

ENDS = events.TaskDelivered | events.TaskFailed | events.TaskCancelled
"""What ends a task, or one agent's attempt at it."""


UNCLAIMED = "unclaimed"
"""The code of a task that nobody claimed, as the protocol page has it."""


class TaskId(NamedTuple):
    """A task, whoever has it."""

    lead: str
    name: str


class Tree(NamedTuple):
    """What a log says of tasks, in its order."""

    plans: dict[TaskId, list[PlannedTask]]
    opened: dict[TaskId, list[events.TaskOpened]]
    ends: dict[TaskId, list[ENDS]]
    told: dict[TaskId, list[str]]
    """Statuses that its lead was told of it."""

    @classmethod
    def of(cls, story: Story) -> "Tree":
        tree, places = cls({}, {}, {}, {}), dict[str, TaskId]()
        for event in story.events:
            match event:
                case events.TurnDelegated():
                    for planned in event.tasks:
                        place = places[planned.turn] = TaskId(event.turn, planned.task.name)
                        tree.plans.setdefault(place, []).append(planned)
                case events.TaskOpened():
                    place = places[event.id] = TaskId(event.lead, event.name)
                    tree.opened.setdefault(place, []).append(event)
                case events.TaskDelivered() | events.TaskFailed() | events.TaskCancelled():
                    tree.ends.setdefault(places.get(event.turn, TaskId("", event.turn)), []).append(event)
                case events.TurnResumed() if _is_join(event):
                    for result in event.work.results:
                        tree.told.setdefault(TaskId(event.turn, result.name), []).append(result.status)
                case _:
                    pass
        return tree


def _is_join(event: events.TurnResumed) -> bool:
    return bool(event.work.past) and event.work.past[-1].how == "joined"


def no_task_twice(reading: Reading) -> Iterator[Breach]:
    """A task is planned once, opened once (once more if it falls back), and comes to one result."""
    for request, story in reading.stories.items():
        tree = Tree.of(story)
        for place, opened in tree.opened.items():
            plans = tree.plans.get(place, [])
            most = 1 + any(planned.task.fallback for planned in plans)
            if len(plans) != 1 or len(opened) > most:
                yield _breach(
                    "no_task_twice", request, place, f"{len(plans)} plans, opened {len(opened)} times"
                )
        for place, ends in tree.ends.items():
            last = [event for event in ends if not isinstance(event, events.TaskFailed)]
            failed, attempts = len(ends) - len(last), max(1, len(tree.opened.get(place, ())))
            if len(last) > 1 or failed + len(last) > attempts:
                said = ", ".join(f"{events.type_of(event)} at {event.n}" for event in ends)
                yield _breach("no_task_twice", request, place, f"it ended {len(ends)} times: {said}")
        for place, told in tree.told.items():
            if len(told) > 1:
                yield _breach("no_task_twice", request, place, f"its lead was told of it {len(told)} times")


def no_task_lost(reading: Reading) -> Iterator[Breach]:
    """Each task comes to an end of its own or its request's, and its lead is told of what it came to."""
    for request, story in reading.stories.items():
        tree = Tree.of(story)
        ended = any(map(_is_end, story.events))
        over = {str(event.turn) for event in story.events if ends_turn(event) and not _is_end(event)}
        for place in tree.plans if ended else ():
            ends, told = tree.ends.get(place, []), tree.told.get(place, [])
            if place.lead in over and len(ends) < max(1, len(tree.opened.get(place, ()))):
                yield _breach("no_task_lost", request, place, "its lead is over, and it is not")
            if told and told[0] != _status(ends):
                yield _breach("no_task_lost", request, place, f"its lead was told {told[0]}")


def _is_end(event: events.AnyEvent) -> bool:
    return isinstance(event, events.Ended)


def _status(ends: list[ENDS]) -> str:
    return events.type_of(ends[-1]).partition(".")[2] if ends else "nothing"


def one_task_at_a_time(reading: Reading) -> Iterator[Breach]:
    """An offer goes to one agent, and an agent that claims has one open task of a lead at a time."""
    for request, story in reading.stories.items():
        offered: set[TaskId] = set()
        in_hand: dict[str, tuple[str, TaskId]] = {}
        """By turn: which agent claimed which task."""
        for event in story.events:
            match event:
                case events.TaskOffered():
                    offered.add(TaskId(event.lead, event.name))
                case events.TaskOpened() if event.grounds is not None:
                    place = TaskId(event.lead, event.name)
                    if place not in offered:
                        detail = f"{event.to} was given it at {event.n}, and it was not on offer"
                        yield _breach("one_task_at_a_time", request, place, detail)
                    offered.discard(place)
                    for agent, other in in_hand.values():
                        if (agent, other.lead) == (event.to, event.lead):
                            detail = f"{agent} was given it at {event.n}, and has {other.name} in hand"
                            yield _breach("one_task_at_a_time", request, place, detail)
                    in_hand[event.work.turn] = (event.to, place)
                case events.TaskDelivered() | events.TaskFailed() | events.TaskCancelled():
                    in_hand.pop(event.turn, None)
                case _:
                    pass


def claims_count(reading: Reading) -> Iterator[Breach]:
    """A claim that was stored before its offer's time was over is not passed over; nor is the time cut short.

    The time stands while the request is frozen. A claim counts by when the bus had stored it, whether or not
    a guard ran then. An offer goes again only when its time is over.
    """
    for claim in reading.evidence.claims:
        story = reading.stories.get(claim.request)
        limit = None if story is None else _claim_by(story.events, claim.offer, claim.at)
        if story is None or limit is None or claim.at > limit:
            continue
        for event in story.events:
            if isinstance(event, events.TaskFailed) and (event.turn, event.error.code) == (
                claim.offer,
                UNCLAIMED,
            ):
                early_s = (limit - claim.at) / 1e6
                detail = (
                    f"offer {claim.offer} was claimed {early_s:.1f} s before its time was over, and it failed"
                )
                yield Breach(promise="claims_count", request=claim.request, detail=detail)
    for request, story in reading.stories.items():
        for place, event in enumerate(story.events):
            if isinstance(event, events.TaskOffered) and event.again and event.grounds is not None:
                limit = _claim_by(story.events[:place], event.offer.turn, event.at)
                if limit is not None and event.at < limit:
                    early_s = (limit - event.at) / 1e6
                    detail = f"offer {event.offer.turn} went again {early_s:.1f} s before its time was over"
                    yield Breach(promise="claims_count", request=request, detail=detail)


def _claim_by(happened: Iterable[events.AnyEvent], offer: str, at: int) -> int | None:
    """Return until when (UTC µs) an offer could be claimed, by what the log says before `at`.

    None for an unknown offer.
    """
    limit, frozen_at, offered_at = None, 0, 0
    for event in happened:
        if event.at > at:
            break
        match event:
            case events.TaskOffered() if event.offer.turn == offer:
                limit, offered_at = event.claim_by, event.at
            case events.RequestFrozen():
                frozen_at = event.since or event.at
            case events.RequestThawed() if limit is not None:
                limit += event.at - max(frozen_at, offered_at)
                frozen_at = 0
            case _:
                pass
    return at if limit is not None and 0 < frozen_at <= limit else limit


def no_tree_overspends(reading: Reading) -> Iterator[Breach]:
    """The whole tree makes no more model calls than the root was given, by the ledger outside.

    A call that a crash made twice counts once: nobody could know of the first.
    """
    for request, story in reading.stories.items():
        opened = next((each for each in story.events if isinstance(each, events.RequestOpened)), None)
        granted = any(
            isinstance(each, events.EscalationResolved) and each.budget is not None for each in story.events
        )
        if opened is None or granted or not Tree.of(story).plans:
            continue
        budget = opened.work.handoff.constraints.budget
        most = None if budget is None else budget.model_calls
        paid = {
            each.call for each in reading.evidence.deeds if (each.kind, each.request) == ("model", request)
        }
        if most is not None and len(paid) > most:
            detail = f"{len(paid)} model calls of {most} that the root was given"
            yield Breach(promise="no_tree_overspends", request=request, detail=detail)


def every_end_told(reading: Reading) -> Iterator[Breach]:
    """Each agent whose turn ended by anything but its own move is told so, where it looks."""
    told = reading.evidence.ends
    for request, story in reading.stories.items() if told is not None else ():
        ended = any(map(_is_end, story.events))
        turns = {str(event.id): event.to for event in story.events if event.opens_turn and event.to != HUMAN}
        moved = Counter(str(event.turn) for event in story.events if ends_turn(event) and _is_own(event))
        over = {str(event.turn) for event in story.events if ends_turn(event)}
        for turn, agent in turns.items():
            is_over = ended or turn in over
            if is_over and not moved[turn] and (agent, request, turn) not in (told or ()):
                detail = f"turn {turn} of {agent} was ended, and nobody told it"
                yield Breach(promise="every_end_told", request=request, detail=detail)


def _is_own(event: events.AnyEvent) -> bool:
    return str(event.cause) == proposal_id(event.request, event.turn, event.round)


def _breach(promise: str, request: str, place: TaskId, what: str) -> Breach:
    return Breach(promise=promise, request=request, detail=f"task {place.name} of turn {place.lead}: {what}")
