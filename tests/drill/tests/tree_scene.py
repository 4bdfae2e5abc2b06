"""A drill's evidence of a tree of tasks, made by hand: sound, and spoilt in one place each."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from mesh.testing import InMemoryGuard, fleet_of
from protocol.wire import codec, events
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Constraints
from protocol.wire.moves import Complete, Deliver
from tests.contract.script import Script
from tests.contract.tree_scenarios import DELIVERED, plan, task
from tests.drill.evidence import Claimed, Deed, Evidence, Submitted
from tests.unit.protocol.swarms import FLEET, Swarm

CALLS = 30


def tree() -> Evidence:
    """Return a tree of three levels: `left` delivers while its own task `deep` is open."""
    guard = InMemoryGuard(fleet_of("a", "b", "c", "d"), {"default": Policy(topology="supervised")})
    script = Script(guard)
    script.submit(sender=guard.client, constraints=Constraints(budget=Budget(model_calls=CALLS)))
    script.of("", plan(task("left", "b"), task("right", "c")))
    script.of("left", plan(task("quick", "c"), task("deep", "d"), join="any"))
    script.of("quick", DELIVERED)
    deep = script.working("deep")
    script.of("left", Deliver(summary="here", cancel_open=True))
    script.of("right", DELIVERED)
    script.of("", Complete(answer={"done": []}))
    request = str(guard.request)
    calls = [Deed(guard.now, "model", "m", "", request, f"c{number}", 1) for number in range(CALLS)]
    return Evidence(
        submitted=(Submitted(request, guard.now, True),),
        bodies={request: tuple(guard.bodies)},
        steps={},
        deeds=calls,
        faults=(),
        ends=frozenset({("d", request, str(deep.id))}),
        ended_at=guard.now + 1,
    )


def spoilt(spoil: Callable[[list[AnyEvent]], None]) -> Evidence:
    """Return the evidence with its log changed."""
    evidence = tree()
    ((request, bodies),) = evidence.bodies.items()
    happened = [codec.decode_event(body) for body in bodies]
    spoil(happened)
    return replace(evidence, bodies={request: tuple(map(codec.encode, happened))})


def first(happened: list[AnyEvent], kind: type[AnyEvent]) -> int:
    return next(n for n, event in enumerate(happened) if isinstance(event, kind))


def again(kind: type[AnyEvent], **fields: object) -> Callable[[list[AnyEvent]], None]:
    """Put the first event of a kind in once more, with other fields."""

    def spoil(happened: list[AnyEvent]) -> None:
        at = first(happened, kind)
        happened.insert(at + 1, msgspec.structs.replace(happened[at], **fields))

    return spoil


def without(kind: type[AnyEvent]) -> Callable[[list[AnyEvent]], None]:
    def spoil(happened: list[AnyEvent]) -> None:
        del happened[first(happened, kind)]

    return spoil


def told_otherwise(happened: list[AnyEvent]) -> None:
    at = first(happened, events.TurnResumed)
    event = happened[at]
    assert isinstance(event, events.TurnResumed)
    results = tuple(msgspec.structs.replace(each, status="failed") for each in event.work.results)
    happened[at] = msgspec.structs.replace(event, work=msgspec.structs.replace(event.work, results=results))


def overspent() -> Evidence:
    evidence = tree()
    return replace(evidence, deeds=(*evidence.deeds, replace(evidence.deeds[0], call="one more")))


def swarm() -> tuple[Evidence, InMemoryGuard]:
    """Return a swarm with two reads: `b` has claimed and done `one`, and nobody has claimed `two`."""
    play = Swarm()
    play.delegate(task("one", intent="read"), task("two", intent="read"))
    play.claim("one", "b")
    play.say(play.worker("one"), DELIVERED)
    guard = play.guard
    for _ in ("offered again", "unclaimed"):
        guard.wait(31)
    play.say(guard.holder, Complete(answer={"done": []}))
    return _of(guard), guard


def _of(guard: InMemoryGuard) -> Evidence:
    return Evidence(
        submitted=(Submitted(str(guard.request), guard.now, True),),
        bodies={str(guard.request): tuple(guard.bodies)},
        steps={},
        deeds=(),
        faults=(),
        ended_at=guard.now + 1,
        fleet=FLEET,
    )


def left_open() -> Evidence:
    """Return a swarm whose offers nobody claims, long after the time to claim them."""
    play = Swarm()
    play.delegate(task("one", intent="read"), task("two", intent="read"))
    return replace(_of(play.guard), ended_at=play.guard.now + 600 * 1_000_000)


def claimed(seconds_early: float) -> Evidence:
    """Return a swarm in which a claim of `two` was stored so long before its time was over, and not heard."""
    evidence, guard = swarm()
    offers = (each for each in reversed(guard.events) if isinstance(each, events.TaskOffered))
    newest = next(each for each in offers if each.name == "two")
    at = newest.claim_by - round(seconds_early * 1e6)
    return replace(evidence, claims=(Claimed(newest.request, newest.offer.turn, at),))


def gone_again_early() -> Evidence:
    """Return a swarm in which the offer of `two` went again a second before its time was over."""
    evidence, guard = swarm()
    happened = [
        msgspec.structs.replace(each, claim_by=each.claim_by + 2_000_000)
        if isinstance(each, events.TaskOffered) and not each.again
        else each
        for each in guard.events
    ]
    return replace(evidence, bodies={str(guard.request): tuple(map(codec.encode, happened))})


def given_to(*, again: str) -> Evidence:
    """Return a swarm in which the task `again` was given to `b` right after `one` was."""
    evidence, guard = swarm()
    at = first(guard.events, events.TaskOpened)
    more = msgspec.structs.replace(guard.events[at], name=again, id="other")
    happened = [*guard.events[: at + 1], more, *guard.events[at + 1 :]]
    return replace(evidence, bodies={str(guard.request): tuple(map(codec.encode, happened))})


TREES_WRONG: Mapping[str, dict[str, Callable[[], Evidence]]] = {
    "no_task_twice": {
        "opened": lambda: spoilt(again(events.TaskOpened, id="other")),
        "ended": lambda: spoilt(again(events.TaskDelivered, id="other")),
        "told": lambda: spoilt(again(events.TurnResumed, id="other")),
    },
    "no_task_lost": {
        "its lead is over": lambda: spoilt(without(events.TaskCancelled)),
        "told otherwise": lambda: spoilt(told_otherwise),
    },
    "no_tree_overspends": {"a call more": overspent},
    "one_task_at_a_time": {
        "a taken offer": lambda: given_to(again="one"),
        "a second task": lambda: given_to(again="two"),
    },
    "claims_count": {
        "claimed a second before": lambda: claimed(1.0),
        "went again a second before": gone_again_early,
    },
    "every_end_told": {"nobody was": lambda: replace(tree(), ends=frozenset())},
}
"""By promise: trees that break it."""
