"""A verdict of two events: what is withheld from its reader, and the verdict, with a change in between."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from mesh.replay.rejudge import rejudge
from protocol.domain.admission import Late, Rejected
from protocol.domain.decider import RequestDecider
from protocol.domain.ledger import fold
from protocol.domain.steps import Stored
from protocol.views.spending import Spending
from protocol.wire.commands import Command, Freeze, Thaw
from protocol.wire.config import Policy
from protocol.wire.events import (
    AnyEvent,
    FactsWithheld,
    HandoffAdmitted,
    RequestCompleted,
    RequestFailed,
    RequestFrozen,
    RequestOpened,
    RequestThawed,
)
from protocol.wire.handoff import Constraints
from tests.unit.protocol.worlds import Play, agent, complete, fact, transfer, usage


class Died(Exception):
    """The guard is gone, after what it stored."""


@dataclass
class Changing(Play):
    """A play whose world changes as soon as something is withheld."""

    change: Callable[["Changing"], None] | None = None
    dies: bool = False
    heard_last: Command | None = None

    def process(self, command: Command) -> AnyEvent | Late | Rejected:
        self.heard_last = command
        return super().process(command)

    def next_guard(self) -> AnyEvent | Late | Rejected:
        """Have a guard that knows the log only decide the last command."""
        assert self.heard_last is not None
        self.decider = RequestDecider(fold(self.events))
        return self.process(self.heard_last)

    def store(self, event: AnyEvent) -> Stored:
        stored = super().store(event)
        if type(event) is FactsWithheld and self.change is not None:
            change, self.change = self.change, None
            change(self)
            if self.dies:
                raise Died
        return stored


def no_policy(play: Changing) -> None:
    play.policy = None


def with_policy(play: Changing) -> None:
    play.policy = Policy()


def breaker_opens(play: Changing) -> None:
    play.breakers["b"] = "open"


def all_are_cleared(play: Changing) -> None:
    play.fleet = {name: replace(one, clearance=("pii",)) for name, one in play.fleet.items()}


def nobody_is_left(play: Changing) -> None:
    play.fleet = {"z": agent("z")}


def deadline_passes(play: Changing) -> None:
    play.now += 100_000_000


CHANGES = [no_policy, with_policy, breaker_opens, all_are_cleared, nobody_is_left]

Scene = Callable[[Changing], None]
IN_TIME = Constraints(max_resolution_time_s=60.0)


def submitted(play: Changing) -> None:
    play.submit(facts=(fact("ssn", 1, "pii"),), constraints=IN_TIME)


def refused_submit(play: Changing) -> None:
    play.policy = None
    play.submit(constraints=IN_TIME)


def handed_over(play: Changing) -> None:
    change, play.change = play.change, None
    submitted(play)
    play.change = change
    play.move(transfer("b"))


def completed(play: Changing) -> None:
    play.submit(constraints=IN_TIME)
    play.move(complete())


SCENES = [submitted, refused_submit, handed_over, completed]


def played(scene: Scene, change: Callable[[Changing], None] | None, *, dies: bool = False) -> Changing:
    play = Changing(change=change, dies=dies)
    try:
        scene(play)
    except Died:
        play.next_guard()
    assert play.change is None, "nothing was withheld, so nothing changed in between"
    return play


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("scene", SCENES)
def test_both_events_rest_on_one_world(scene: Scene, change: Callable[[Changing], None]) -> None:
    play, unchanged = played(scene, change), played(scene, None)
    assert [type(event) for event in play.events] == [type(event) for event in unchanged.events]
    assert [event.grounds for event in play.events] == [event.grounds for event in unchanged.events]
    assert rejudge(play.bodies).same


@pytest.mark.parametrize("change", [*CHANGES, deadline_passes])
@pytest.mark.parametrize("scene", SCENES)
def test_what_a_dead_guard_withheld_is_not_taken_for_another_verdict(
    scene: Scene, change: Callable[[Changing], None]
) -> None:
    play = played(scene, change, dies=True)
    assert play.ledger.knows(play.last.cause), "the next guard decided"
    assert rejudge(play.bodies).differences == ()


def test_an_admission_after_a_dead_guards_refusal_keeps_nothing_of_it() -> None:
    play = played(refused_submit, with_policy, dies=True)
    assert [type(event) for event in play.events] == [FactsWithheld, FactsWithheld, RequestOpened]
    assert play.events[0].grounds is not None
    assert play.events[1].grounds is None


def test_what_ends_a_request_after_half_a_verdict_has_a_salt_of_its_own() -> None:
    """Of two events with one salt, who reads one could guess what the other commits to."""
    play = Changing(too_large=(HandoffAdmitted,))
    submitted(play)
    play.control(Freeze)
    play.move(transfer("b"))
    play.control(Thaw)
    assert [type(event) for event in play.events[-3:]] == [FactsWithheld, FactsWithheld, RequestFailed]
    assert len({event.salt for event in play.events}) == len(play.events)
    assert rejudge(play.bodies).same


def test_the_cost_is_found_where_others_came_between_the_two_events() -> None:
    play, found = Changing(dies=True), Spending()
    play.submit()
    play.change = lambda _: None
    with pytest.raises(Died):
        play.move(complete(), usage(tokens=5))
    command = play.heard_last
    assert command is not None
    play.decider = RequestDecider(fold(play.events))
    for kind in (Freeze, Thaw):
        play.control(kind)
    play.process(command)
    kinds = [type(event) for event in play.events[1:]]
    assert kinds == [FactsWithheld, RequestFrozen, RequestThawed, RequestCompleted]
    for event in play.events:
        found.take(event)
    assert [line.usage.tokens for line in found.lines] == [5]


def test_a_dead_guards_event_is_not_said_twice() -> None:
    play = played(submitted, lambda _: None, dies=True)
    assert [type(event) for event in play.events] == [FactsWithheld, RequestOpened]
