"""One fact a key where tasks carry, bring and deliver facts: in trees, in swarms, and beside each other."""

import pytest

from protocol.wire.event_parts import Withheld
from protocol.wire.events import FactsPosted, TaskDelivered, TaskOpened
from protocol.wire.handoff import Artifact, Rule
from protocol.wire.moves import Task
from tests.certain import is_
from tests.unit.protocol.swarms import Swarm
from tests.unit.protocol.trees import SUPERVISED, delegate, deliver, refusal_of, results, say, task, worker
from tests.unit.protocol.worlds import Play, agent, agents, fact

SECRET = fact("k", "secret", "pii")
SCAN = Artifact(name="scan", uri="s3://1", labels=("pii",))
FLEET = agents("abd") | {name: agent(name, clearance=("pii",)) for name in "ce"}


def blind() -> Play:
    """Return a request whose lead, `a`, may not see one of its facts and one of its artifacts."""
    play = Play(fleet=dict(FLEET), policy=SUPERVISED)
    play.submit(facts=(SECRET, fact("open", 1)), artifacts=(SCAN,))
    return play


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        (task("one", "b", fact("k", 2)), {"keys": ["k"]}),
        (task("one", "c", fact("k", 2), carry=("open",)), {"keys": ["k"]}),
        (
            task("one", "c", artifacts=(Artifact(name="scan", uri="s3://2"),)),
            {"keys": [], "artifacts": ["scan"]},
        ),
    ],
    ids=["brought", "brought-beside-what-is-left-out", "an-artifact"],
)
def test_a_lead_gives_a_task_nothing_under_a_name_that_it_may_not_see(
    asked: Task, numbers: dict[str, object]
) -> None:
    play = blind()
    refusal = refusal_of(play, "", delegate(task("fine", "d"), asked))
    assert (refusal.rule, refusal.numbers) == (Rule.LABELS, {"task": "one", **numbers})
    assert refusal.detail.startswith("task 'one': ")


def test_what_a_lead_may_not_see_goes_along_with_every_task() -> None:
    play = blind()
    play.move(delegate(task("one", "b", carry=("open", "k")), task("two", "c", carry=())))
    assert worker(play, "one").work.withheld == Withheld(labels=("pii",), facts=1, artifacts=1)
    assert worker(play, "two").work.handoff.facts == (SECRET,)
    assert worker(play, "two").work.handoff.artifacts == (SCAN,)


def test_a_worker_delivers_nothing_under_a_name_that_it_may_not_see() -> None:
    play = blind()
    play.move(delegate(task("one", "b")))
    refusal = refusal_of(play, "one", deliver(fact("k", 75)))
    assert (refusal.rule, refusal.numbers, refusal.hint) == (Rule.LABELS, {"keys": ["k"]}, "use another key")
    is_(say(play, "one", deliver(fact("net", 75))), TaskDelivered)
    assert results(play)["one"].facts == (fact("net", 75),)


def test_results_under_one_key_stand_beside_each_other_with_its_labels() -> None:
    """Nobody wins: each is its task's own. Who labels the key first labels it for the request."""
    play = blind()
    play.move(delegate(task("one", "b"), task("two", "d"), task("three", "e")))
    say(play, "one", deliver(fact("found", 1)))
    say(play, "two", deliver(fact("found", 2, "pii")))
    say(play, "three", deliver(fact("found", 3)))
    told = results(play)
    assert told["one"].facts == (fact("found", 1),)
    assert (told["two"].facts, told["two"].withheld) == ((), Withheld(labels=("pii",), facts=1))
    assert (told["three"].facts, told["three"].withheld) == ((), Withheld(labels=("pii",), facts=1))
    delivered = [event.facts for event in play.events if isinstance(event, TaskDelivered)]
    assert delivered[2] == (fact("found", 3, "pii"),)


def test_a_key_of_a_result_that_its_lead_may_not_see_is_labelled_where_the_lead_brings_it() -> None:
    play = blind()
    play.move(delegate(task("one", "c")))
    say(play, "one", deliver(fact("found", 1, "pii")))
    play.move(delegate(task("two", "e", fact("found", "by hand"))))
    assert fact("found", "by hand", "pii") in worker(play, "two").work.handoff.facts


def test_a_post_takes_no_key_and_has_its_labels() -> None:
    """On a board each fact stands under its sender's name. Who is not cleared for its key is not shown it."""
    swarm = Swarm(SECRET)
    swarm.delegate(task("one", None, intent="look"))
    turn = is_(swarm.claim("one", "d"), TaskOpened).work.turn
    posted = is_(swarm.post(swarm.guard.ledger.turns[turn], fact("k", 75)), FactsPosted)
    assert posted.facts == (fact("k", 75, "pii"),)
    assert [one.fact for one in swarm.guard.ledger.board_for(("pii",))] == [fact("k", 75, "pii")]
    assert swarm.guard.ledger.board_for(()) == ()
