"""Every check is shown evidence that it must not complain of, and evidence that it must.

A checker that has never failed proves nothing: a check without a case here fails the suite.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from mesh.testing import InMemoryGuard, fleet_of
from protocol.wire import events
from protocol.wire.commands import FactsPost, Freeze, Submit
from protocol.wire.config import Fleet
from protocol.wire.ids import AgentName
from tests.drill import stalls
from tests.drill.check import BY_NAME, CHECKS, check
from tests.drill.evidence import Deed, Evidence, Fault, Held, Ordered, Submitted, Undone
from tests.drill.findings import Findings
from tests.drill.log_checks import one_decision
from tests.drill.reading import Reading
from tests.drill.tests.model_calls import (
    answered_while_it_slept,
    by_one_who_did_not_sleep,
    called_again_after_a_kill,
    killed_after_the_record,
    long_after_a_pause,
    model_call,
    woke_after_a_pause,
    woke_after_a_stall,
    woke_and_recorded,
)
from tests.drill.tests.scene import (
    REQUEST,
    SECOND,
    Scene,
    admitted_in_a_circle,
    asked_for_something_else,
    asked_in,
    changed,
    clean,
    letter,
    opened,
    sent,
    step_named,
    whole,
    with_bodies,
    with_deed,
    with_event_again,
    with_step,
    without_deeds,
    without_step,
)
from tests.drill.tests.tree_scene import TREES_WRONG, claimed, left_open, tree
from tests.unit.protocol import worlds
from tests.unit.protocol.swarms import FLEET as SWARM
from tests.unit.protocol.test_freeze import POLICIES
from tests.unit.protocol.worlds import ask, escalate, fact

Make = Callable[[], Evidence]


def test_nothing_can_be_said_against_sound_evidence() -> None:
    found = check(clean())
    assert found.breaches == ()
    assert found.passed
    assert (found.requests, found.acknowledged, found.ended) == (1, 1, {"completed": 1})
    assert (found.lost, found.duplicated, found.waiting) == (0, 0, 0)
    assert (found.doubted, found.in_doubt) == (1, 0)
    assert found.deeds == {"idempotent": 2, "model": 1, "once": 1, "reconcilable": 1}
    assert found.faults == {"effect.ran": 1, "kill": 1}


# --- what may rightly be --------------------------------------------------------------------------


def waiting_for_a_person() -> Evidence:
    scene = opened()
    scene.play.move(escalate())
    return scene.evidence()


def in_doubt() -> Evidence:
    scene = opened()
    scene.play.doubt()
    return scene.evidence()


def asking(whom: str) -> Evidence:
    scene = opened()
    scene.play.move(ask(whom))
    return scene.evidence()


def replied(*, seconds_early: float) -> Evidence:
    """A question expired, and its reply was stored so long before that."""
    scene = opened()
    asked = scene.play.move(ask(expires_s=5))
    assert isinstance(asked, events.TurnSuspended)
    scene.play.wait(6)
    scene.play.move(worlds.complete({"done": []}))
    at = asked.expires_at - round(seconds_early * SECOND)
    return changed(scene.evidence(), orders=(Ordered(REQUEST, f"reply-{asked.id}", at, 1),))


def replied_too_late() -> Evidence:
    return replied(seconds_early=-1.0)


def claimed_too_late() -> Evidence:
    return claimed(-1.0)


def frozen() -> Evidence:
    scene = opened()
    scene.play.control(Freeze)
    return scene.evidence()


def never_acknowledged() -> Evidence:
    return changed(
        clean(), submitted=(*clean().submitted, Submitted("c1_00000000000000000000000000", 1, False))
    )


def deeds_that_say_little() -> Evidence:
    """A user's tools write down neither request nor call."""
    evidence = clean()
    bare = [Deed(deed.at, deed.kind, deed.tool, deed.key) for deed in evidence.deeds]
    once = [deed for deed in bare if not deed.key]
    return changed(evidence, submitted=(Submitted(REQUEST, 1, True),), deeds=(*bare, *once))


def with_excused_letters() -> Evidence:
    return changed(clean(), dead=(letter("frozen"), letter("unknown_request", "mesh.ctl.3.c1.r")))


def ordered_after_its_end() -> Evidence:
    return changed(clean(), orders=(Ordered(REQUEST, "late", 1, 1),))


def frozen_and_told_again() -> Evidence:
    """One order is in the log, and one of nothing that the log knows was put aside."""
    scene = opened()
    scene.play.control(Freeze)
    obeyed = Ordered(REQUEST, "ctl-1", 1, 1)
    aside = Ordered("c1_aside", "ctl-9", 2, 2)
    return changed(scene.evidence(), orders=(obeyed, aside), dead=(letter("frozen", request="c1_aside"),))


def asking_a_person() -> Evidence:
    return asking("human")


def asking_its_client() -> Evidence:
    return asking("c1")


WAITING: list[Make] = [waiting_for_a_person, in_doubt, asking_a_person, asking_its_client, frozen]
RIGHT: list[Make] = [
    *WAITING,
    tree,
    replied_too_late,
    claimed_too_late,
    never_acknowledged,
    answered_while_it_slept,
    called_again_after_a_kill,
    woke_after_a_pause,
    woke_after_a_stall,
    with_excused_letters,
    frozen_and_told_again,
    ordered_after_its_end,
]


@pytest.mark.parametrize("make", RIGHT)
def test_what_may_be_is_no_breach(make: Make) -> None:
    assert check(make()).breaches == ()


def test_a_deed_that_does_not_say_what_it_belongs_to_is_only_compared_by_its_key() -> None:
    assert {breach.promise for breach in check(deeds_that_say_little()).breaches} <= {"done_as_said"}


def test_who_waits_and_what_is_in_doubt_is_counted() -> None:
    assert [check(make()).waiting for make in WAITING] == [1] * len(WAITING)
    assert check(in_doubt()).in_doubt == 1
    assert check(waiting_for_a_person()).ended == {}


# --- what must not be -----------------------------------------------------------------------------


def left_with_an_agent() -> Evidence:
    return opened().evidence()


def only_withheld() -> Evidence:
    """A guard died between a withholding and the verdict on the submit, and no other took it up."""
    scene = Scene()
    scene.play.submit(facts=(fact("ssn", 1, "pii"),))
    assert isinstance(scene.play.events[0], events.FactsWithheld)
    return with_bodies(scene.evidence(), scene.play.bodies[:1])


def without_its_retry() -> Evidence:
    """A turn failed for good, and nobody has escalated it."""
    return whole_until(events.TurnFailed)


def whole_until(kind: type[events.AnyEvent]) -> Evidence:
    scene = whole()
    bodies = []
    for event, body in zip(scene.play.events, scene.play.bodies, strict=True):
        bodies.append(body)
        if isinstance(event, kind):
            break
    return changed(with_bodies(scene.evidence(), bodies), submitted=(Submitted(REQUEST, 1, True),))


def without_event(n: int) -> Evidence:
    bodies = list(clean().bodies[REQUEST])
    del bodies[n]
    return with_bodies(clean(), bodies)


def with_byte_changed() -> Evidence:
    bodies = list(clean().bodies[REQUEST])
    bodies[3] = bodies[3].replace(b'"at":17', b'"at":16', 1)
    return with_bodies(clean(), bodies)


def ends_twice() -> Evidence:
    return with_event_again(clean(), events.RequestCompleted)


def test_what_agents_wrote_down_is_what_was_judged() -> None:
    fleet = Fleet(name="test", entry=AgentName("a"), agents=worlds.agents(), human=True)
    said = changed(clean(), asked=asked_in(whole()), fleet=fleet, submitted=(sent(Submit(text="help me")),))
    assert check(said).breaches == ()


def verdict_that_no_rule_gives() -> Evidence:
    """A depth that nobody can have reached, in the last link of the chain but one."""
    scene = opened()
    scene.play.move(escalate())
    event = scene.play.events[-1]
    assert isinstance(event, events.EscalationRaised)
    forged = msgspec.structs.replace(event, tier=7)
    return with_bodies(scene.evidence(), [scene.play.bodies[0], msgspec.json.encode(forged)])


def last_us(evidence: Evidence) -> int:
    return max(deed.at for deed in evidence.deeds)


def new_key_each_round() -> Evidence:
    evidence = with_step(clean(), "a", "2-1", "0-1", key="k9", at=last_us(clean()))
    return with_deed(evidence, "c2", key="k9", at=last_us(clean()) + 1000)


def three(*second: str) -> tuple[Held, ...]:
    """Return what three servers hold of a log of two messages, the second of them other than the others."""
    return tuple(
        Held(name, "LOG", len(digests), 1, len(digests), 0, digests)
        for name, digests in (("nats-1", ("a", "b")), ("nats-2", second), ("nats-3", ("a", "b")))
    )


WRONG: dict[str, dict[str, Make]] = {
    "nothing_lost": {
        "no event": lambda: changed(clean(), bodies={}),
        "left with an agent": left_with_an_agent,
        "only a withholding": only_withheld,
        "begins in the middle": lambda: without_event(0),
        "asks a client that the drill gave up on": lambda: changed(asking("c1"), silent=frozenset({REQUEST})),
        "put to people who never came": lambda: changed(waiting_for_a_person(), silent=frozenset({REQUEST})),
        "failed and forgotten": without_its_retry,
    },
    "one_end": {
        "ends twice": ends_twice,
        "goes on": lambda: with_bodies(clean(), [*clean().bodies[REQUEST], clean().bodies[REQUEST][1]]),
    },
    "only_what_was_sent": {
        "made up": lambda: changed(clean(), submitted=()),
    },
    "orders_obeyed": {
        "a reply without a round": lambda: changed(asking("c1"), orders=(Ordered(REQUEST, "r1", 1, 7),)),
    },
    "in_time_counts": {
        "a reply before it expired": lambda: replied(seconds_early=1.0),
    },
    "people_can_act": {
        "a doubt about nobody knows what": lambda: changed(
            clean(), undone=(Undone(REQUEST, "0-1 is unclear"),)
        ),
    },
    "replicas_agree": {
        "a hole": lambda: changed(clean(), held=three("a", "")),
        "another event": lambda: changed(clean(), held=three("a", "x")),
        "a shorter log": lambda: changed(clean(), held=three("a")),
    },
    "comes_to_rest": {
        "a service": lambda: changed(clean(), unfinished=("guard-1 does not take work",)),
    },
    "ends_as_told": {
        "otherwise": lambda: changed(clean(), submitted=(Submitted(REQUEST, 1, True, "x", ("failed",)),)),
    },
    "services_stand": {
        "by itself": lambda: changed(clean(), unasked=("guard-1 (process 7) ended with 1",)),
    },
    "sound_chain": {
        "an event is gone": lambda: without_event(4),
        "a byte is changed": with_byte_changed,
        "two of a number": lambda: with_event_again(clean(), events.MoveRefused),
    },
    "one_successor": {
        "two handoffs": lambda: with_event_again(clean(), events.HandoffAdmitted, id="other", cause="other"),
        "two answers": ends_twice,
    },
    "one_decision": {
        "refused twice": lambda: with_event_again(clean(), events.MoveRefused, id="other", cause="other"),
        "failed twice": lambda: with_event_again(clean(), events.TurnFailed, id="other", cause="other"),
    },
    "one_event_a_cause": {
        "one cause": lambda: with_event_again(clean(), events.TurnSuspended, id="other"),
        "one id": lambda: with_event_again(clean(), events.TurnSuspended, cause="other"),
    },
    "verdicts_right": {
        "no rule gives it": admitted_in_a_circle,
        "nobody asked for it": lambda: changed(clean(), asked=asked_in(whole())[1:]),
        "something else was asked for": asked_for_something_else,
        "another fleet": lambda: changed(clean(), fleet=fleet_of("a")),
        "another submit": lambda: changed(clean(), submitted=(sent(Submit(text="another")),)),
    },
    "exact_replay": {
        "no rule gives it": verdict_that_no_rule_gives,
        "no event at all": lambda: with_bodies(clean(), [*clean().bodies[REQUEST], b"{}"]),
        "of no version": lambda: with_bodies(
            clean(), [body.replace(b'"v":2', b'"v":9', 1) for body in clean().bodies[REQUEST]]
        ),
    },
    "consequences_follow": {
        "no retry": without_its_retry,
        "an offer is left open": left_open,
        "no timeout": lambda: changed(
            with_step(left_with_work(), "a", "0-1", "0-0"), ended_at=left_with_work().ended_at + 3600 * SECOND
        ),
        "no expiry": lambda: changed(asking("c1"), ended_at=clean().ended_at + 25 * 3600 * SECOND),
    },
    "no_dead_letters": {
        "the guard failed": lambda: changed(clean(), dead=(letter("guard_failed"),)),
        "malformed": lambda: changed(clean(), dead=(letter("protocol.malformed"),)),
        "a proposal for no request": lambda: changed(clean(), dead=(letter("unknown_request"),)),
        "unreadable": lambda: changed(clean(), dead=(b"{",)),
    },
    "no_effect_twice": {
        "reconcilable": lambda: with_deed(clean(), "c4", at=last_us(clean()) + 1),
        "once": lambda: with_deed(clean(), "c3", at=last_us(clean()) + 1),
        "once, under another call": lambda: with_deed(clean(), "c3", call="c9", at=last_us(clean()) + 1),
    },
    "one_key_a_call": {
        "another in a later round": new_key_each_round,
        "one that no intent has": lambda: with_deed(clean(), "c2", key="k9"),
        "shared by two calls": lambda: with_deed(clean(), "c2", call="c9"),
    },
    "intent_first": {
        "none": lambda: without_step(clean(), "a", "0-1"),
        "none, without a key": lambda: without_step(without_step(clean(), "a", "1-1"), "a", "2-0"),
        "afterwards": lambda: with_step(clean(), "a", "0-1", "0-1", at=last_us(clean())),
    },
    "remarked_first": {
        "not": lambda: without_step(clean(), "a", "1-0"),
        "afterwards": lambda: with_step(clean(), "a", "1-0", "1-0", at=last_us(clean())),
    },
    "done_as_said": {
        "keyed": lambda: without_deeds(with_deed(clean(), "c4", call="c9", key="k9"), "c4"),
        "once": lambda: without_deeds(with_deed(clean(), "c3", call="c9", request="other"), "c3"),
        "in the answer": lambda: without_deeds(clean(), "c1"),
    },
    "journaled_before_used": {
        "a reply": lambda: without_step(clean(), "a", "0-0"),
        "an effect": lambda: without_step(clean(), "a", "0-1d"),
        "an effect without a key": lambda: without_step(clean(), "a", "2-0d"),
    },
    "no_model_call_paid_twice": {
        "after the record": lambda: model_call(lambda at: at + 5000),
        "after the record, killed": killed_after_the_record,
        "before it, without a fault": lambda: changed(model_call(lambda at: at - 100), faults=()),
        "recorded twice": lambda: with_step(clean(), "a", "2-1", "0-0"),
        "long after a pause": long_after_a_pause,
        "by one who did not sleep": by_one_who_did_not_sleep,
        "begun long after the record": lambda: woke_and_recorded("pause", began_ms=600),
        "begun long after the record, with a stall": lambda: woke_and_recorded(stalls.KIND, began_ms=600),
    },
    "fenced": {
        "no fence": lambda: without_step(without_step(clean(), "a", "0-2"), "a", "0-3"),
        "behind it": lambda: with_step(clean(), "a", "0-4d", "0-1d"),
    },
    "readable_journals": {
        "no record": lambda: changed(
            clean(), steps={**clean().steps, step_named(clean(), "a", "0-0"): b"\xff"}
        ),
    },
}


def left_with_work() -> Evidence:
    scene = opened()
    scene.step("0-0", "remark")
    return scene.evidence()


CASES = [
    pytest.param(promise, make, id=f"{promise}-{name}".replace(" ", "-"))
    for wrong in (WRONG, TREES_WRONG)
    for promise, cases in wrong.items()
    for name, make in cases.items()
]


def test_posts_that_are_put_off_are_neither_each_other_nor_the_move_of_their_round() -> None:
    guard = InMemoryGuard(SWARM, POLICIES)
    guard.submit("hello", policy="swarm")
    guard.say(Freeze(id="f"), guard._operator())
    for number in range(2):
        facts = (fact(f"k{number}", number),)
        guard.propose(FactsPost(turn=guard.holder.id, round=0, post=number, facts=facts))
    guard.move(ask("c1"))
    evidence = with_bodies(clean(), guard.bodies)
    assert list(one_decision(Reading(evidence))) == []
    assert list(one_decision(Reading(with_event_again(evidence, events.MoveDeferred, id="other")))) != []


def test_there_is_a_case_for_every_check() -> None:
    assert {*WRONG, *TREES_WRONG} == {each.name for each in CHECKS}


@pytest.mark.parametrize(("promise", "make"), CASES)
def test_a_broken_promise_is_found(promise: str, make: Make) -> None:
    found = check(make())
    assert promise in {breach.promise for breach in found.breaches}, found.breaches
    assert not found.passed
    assert all(breach.promise in BY_NAME and breach.detail for breach in found.breaches)


def test_what_is_lost_and_what_is_double_is_counted() -> None:
    lost: Findings = check(left_with_an_agent())
    assert (lost.lost, lost.duplicated) == (1, 0)
    twice = check(with_deed(clean(), "c4", at=last_us(clean()) + 1))
    assert (twice.lost, twice.duplicated) == (0, 1)


def test_nothing_is_called_forgotten_while_the_fleet_may_still_be_down() -> None:
    evidence = without_its_retry()
    fault = Fault("kill", "guard-1", "guard", evidence.ended_at - SECOND, evidence.ended_at)
    found = check(changed(evidence, faults=(fault,)))
    assert "consequences_follow" not in {breach.promise for breach in found.breaches}


def test_findings_are_json() -> None:
    encoded = msgspec.json.encode(check(left_with_an_agent()))
    assert msgspec.json.decode(encoded, type=Findings) == check(left_with_an_agent())


def test_what_was_done_to_the_server_is_counted_by_itself() -> None:
    faults = (Fault("kill", "a-1", "a", 1, 1), Fault("kill", "nats-server", "nats-server", 2, 2))
    assert check(replace(whole().evidence(), faults=faults)).faults == {"kill": 1, "server-kill": 1}


def test_a_dead_letter_is_told_with_how_often_it_was_delivered() -> None:
    thrice = msgspec.json.encode(msgspec.json.decode(letter("guard_failed")) | {"delivered": 3})
    evidence = changed(clean(), dead=(letter("guard_failed"), thrice))
    told = [breach.detail for breach in check(evidence).breaches]
    assert told == ["guard_failed, by guard after 1 delivery", "guard_failed, by guard after 3 deliveries"]
