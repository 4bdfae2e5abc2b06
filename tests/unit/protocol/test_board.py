"""The board of a swarm: any turn posts to it, and each that opens or resumes is shown what it may see."""

import contextlib
import re
from collections import Counter

import pytest

from mesh.testing import NotDecided
from protocol.wire import codec
from protocol.wire.commands import FactsPost, Failure, Freeze, ReportFailure, Thaw
from protocol.wire.config import Fleet
from protocol.wire.errors import Malformed
from protocol.wire.event_parts import Posted
from protocol.wire.events import FactsPosted, MoveDeferred, TaskDelivered
from protocol.wire.handoff import Fact
from protocol.wire.ids import NOBODY, AgentName, TurnId
from protocol.wire.moves import Delegate, Deliver, Escalate, UnknownMove
from tests.certain import is_
from tests.unit.protocol.swarms import FLEET, Swarm, claimed, task
from tests.unit.protocol.worlds import fact


def test_what_is_posted_is_shown_to_every_turn_that_opens_or_resumes_as_far_as_it_is_cleared() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"))
    play.claim("one", "b")
    posted = is_(play.post(play.worker("one"), fact("seen", 1), fact("who", "Ada", "vip")), FactsPosted)
    assert posted.to == NOBODY
    assert play.worker("one").state == "working"
    play.claim("two", "c")
    assert play.worker("two").work.board == (Posted(by=AgentName("b"), fact=fact("seen", 1)),)
    play.post(play.worker("one"), fact("seen", 2), n=1)
    play.post(play.worker("two"), fact("seen", 9))
    play.say(play.worker("one"), Deliver(summary="found"))
    play.say(play.worker("two"), Deliver(summary="found"))
    shown = [(each.by, each.fact.key, each.fact.value) for each in play.guard.holder.work.board]
    assert shown == [("b", "who", "Ada"), ("b", "seen", 2), ("c", "seen", 9)]
    play.same()


def test_a_retried_round_is_shown_the_board_too() -> None:
    play = claimed()
    play.post(play.worker("one"), fact("seen", 1))
    turn = play.worker("one")
    error = Failure(code="again", message="once more")
    play.guard.propose(ReportFailure(turn=turn.id, round=turn.round, error=error))
    play.guard.wait(1.0)
    assert [each.fact.value for each in play.worker("one").work.board] == [1]
    play.same()


def test_a_root_turn_that_a_person_gave_on_is_shown_in_each_round_what_it_may_see() -> None:
    play = claimed()
    play.post(play.worker("one"), fact("seen", 1), fact("who", "Ada", "vip"))
    play.say(play.worker("one"), Deliver(summary="found"))
    play.say(play.guard.holder, Escalate(summary="a person, please"))
    play.guard.resolve(again=True)
    play.say(play.guard.holder, UnknownMove(name="none"))
    assert play.guard.holder.work.past[-1].how == "refused"
    assert [each.fact.key for each in play.guard.holder.work.board] == ["seen", "who"]
    play.same()


def test_an_offer_shows_of_the_board_what_each_may_see() -> None:
    play = Swarm()
    play.delegate(task("one"), join="any")
    play.claim("one", "b")
    play.post(play.worker("one"), fact("who", "Ada", "vip"), fact("seen", 1, "pii"))
    play.say(play.worker("one"), Deliver(summary="found"))
    play.delegate(task("two", "read", fact("round", 2)))
    assert [each.fact.key for each in play.offers()["two"].offer.board] == ["seen"]
    play.same()


def test_labels_stick_to_what_is_posted_and_the_fleets_labels_are_put_on() -> None:
    agents = dict(FLEET.agents)
    fleet = Fleet(
        name="swarm", entry=AgentName("a"), agents=agents, clients=FLEET.clients, labels={"iban": ("vip",)}
    )
    play = claimed(fact("ssn", 1, "pii"), fleet=fleet)
    posted = is_(play.post(play.worker("one"), fact("ssn", 1), fact("iban", "DE1")), FactsPosted)
    assert {each.key: each.labels for each in posted.facts} == {"ssn": ("pii",), "iban": ("vip",)}
    play.same()


def test_a_post_is_decided_once_and_only_of_a_round_that_was_opened() -> None:
    play = claimed()
    turn = play.worker("one")
    play.post(turn, fact("seen", 1))
    with pytest.raises(NotDecided, match="too late: decided"):
        play.post(turn, fact("seen", 2))
    with pytest.raises(NotDecided, match="unknown_round"):
        play.guard.propose(FactsPost(turn=turn.id, round=1, post=0, facts=(fact(),)))
    with pytest.raises(NotDecided, match="not_the_holder"):
        play.guard.propose(FactsPost(turn=turn.id, round=0, post=5, facts=(fact(),)), "c")


def test_a_post_is_decided_once_however_a_freeze_comes_between_and_what_waits_is_told_apart() -> None:
    play = claimed()
    turn = play.worker("one")
    assert isinstance(play.post(turn, fact("before", 1)), FactsPosted)
    play.guard.say(Freeze(id="f"), "op")
    with pytest.raises(NotDecided, match="too late: decided"):
        play.post(turn, fact("before", 1))
    assert isinstance(play.post(turn, fact("during", 2), n=1), MoveDeferred)
    with pytest.raises(NotDecided, match=r"too late: move\.deferred"):
        play.post(turn, fact("during", 2), n=1)
    play.guard.say(Thaw(id="t"), "op")
    with pytest.raises(NotDecided, match="too late: decided"):
        play.post(turn, fact("during", 2), n=1)
    assert [key for _, key in play.guard.ledger.board] == ["before", "during"]
    play.same()


def test_a_post_that_its_turns_own_move_overtook_is_heard_and_none_after_an_end_from_outside() -> None:
    play = Swarm()
    play.delegate(task("one"), task("two"), join="any")
    play.claim("one", "b")
    play.claim("two", "c")
    lead = play.guard.holder
    assert lead.state == "delegated"
    assert isinstance(play.post(lead, fact("asked", 1)), FactsPosted)
    one, two = play.worker("one"), play.worker("two")
    play.say(one, Deliver(summary="found"))
    assert isinstance(play.post(one, fact("seen", 1)), FactsPosted)
    play.say(play.guard.holder, Delegate(cancel=("two",)))
    with pytest.raises(NotDecided, match="too late: ended"):
        play.post(two, fact("seen", 2))


def test_a_post_that_is_too_large_is_rejected_by_name_and_the_round_goes_on() -> None:
    play = claimed()
    turn = play.worker("one")
    with pytest.raises(NotDecided, match="size: 65537 bytes of at most 65536"):
        play.post(turn, fact("big", "x" * (1 + fits(play, 65_536))))
    play.post(turn, fact("big", "x" * fits(play, 65_536)))
    assert play.worker("one").state == "working"
    assert isinstance(play.say(turn, Deliver(summary="found")), TaskDelivered)
    play.same()


def test_the_board_comes_to_131072_bytes_at_most() -> None:
    play = claimed()
    turn = play.worker("one")
    for n in range(2):
        play.post(turn, fact(f"k{n}", "x" * 50_000), n=n)
    most = fits(play, 131_072, n=2)
    with pytest.raises(NotDecided, match=r"size: .* 131073 bytes of at most 131072"):
        play.post(turn, fact("big", "x" * (most + 1)), n=2)
    play.post(turn, fact("big", "x" * most), n=2)
    with pytest.raises(NotDecided, match="size: "):
        play.post(turn, fact("one more", 1), n=3)
    assert isinstance(play.post(turn, fact("k0", 1), n=3), FactsPosted), (
        "it takes the place of the longer one"
    )
    play.same()


def fits(play: Swarm, most: int, *, n: int = 0) -> int:
    """Return of how many letters a post of the fact `big` may be, where `most` bytes are admitted."""
    with pytest.raises(NotDecided) as refused:
        play.post(play.worker("one"), fact("big", "x" * 60_000 if n else "x" * 200_000), n=n)
    told = re.search(rf"(\d+) bytes of at most {most}", str(refused.value))
    assert told is not None, refused.value
    return (60_000 if n else 200_000) - int(told[1]) + most


def test_a_turn_may_post_so_often_and_a_post_beyond_that_is_rejected_by_name() -> None:
    play = claimed(max_posts=3)
    turn = play.worker("one")
    for n in range(3):
        play.post(turn, fact("seen", n), n=n)
    with pytest.raises(NotDecided, match=r"posts: this would be post 4 of at most 3 .*path: a → b;"):
        play.post(turn, fact("seen", 3), n=3)
    assert play.worker("one").state == "working"
    assert isinstance(play.say(turn, Deliver(summary="found")), TaskDelivered)
    assert isinstance(play.post(play.guard.holder, fact("seen", 9)), FactsPosted), "each turn has its own"
    play.same()


def test_all_posts_of_a_request_have_a_size_however_often_they_replace_each_other() -> None:
    play = claimed(max_posted_bytes=100_000)
    turn = play.worker("one")
    play.post(turn, fact("big", "x" * 50_000))
    most = fits(play, 100_000, n=1)
    with pytest.raises(NotDecided, match=r"posts: .* 100001 bytes of at most 100000 in all .*path: a → b;"):
        play.post(turn, fact("big", "y" * (most + 1)), n=1)
    play.post(turn, fact("big", "y" * most), n=1)
    with pytest.raises(NotDecided, match="posts: "):
        play.post(turn, fact("small", 1), n=2)
    play.same()


def test_posts_that_wait_for_a_thaw_count_for_their_own_turn() -> None:
    play = claimed(max_posts=2)
    one, lead = play.worker("one"), play.guard.holder
    play.guard.say(Freeze(id="f"), "op")
    for n in range(2):
        assert isinstance(play.post(lead, fact("asked", n), n=n), MoveDeferred)
        assert isinstance(play.post(one, fact("seen", n), n=n), MoveDeferred)
    with pytest.raises(NotDecided, match="posts: this would be post 3 of at most 2 "):
        play.post(one, fact("seen", 2), n=2)
    play.guard.say(Thaw(id="t"), "op")
    assert len(play.guard.ledger.board) == 2
    play.same()


def test_posts_that_wait_for_a_thaw_count_with_their_bytes_and_the_moves_beside_them_do_not() -> None:
    play = claimed(max_posted_bytes=100_000)
    one = play.worker("one")
    play.guard.say(Freeze(id="f"), "op")
    assert isinstance(play.post(one, fact("big", "x" * 50_000)), MoveDeferred)
    assert isinstance(play.say(one, Deliver(summary="found")), MoveDeferred)
    most = fits(play, 100_000, n=1)
    with pytest.raises(NotDecided, match=r"posts: .* 100001 bytes of at most 100000 in all"):
        play.post(one, fact("big", "y" * (most + 1)), n=1)
    assert isinstance(play.post(one, fact("big", "y" * most), n=1), MoveDeferred)
    play.guard.say(Thaw(id="t"), "op")
    assert play.results() == {"one": "delivered"}
    play.same()


@pytest.mark.parametrize("max_posts", [1, 2, 5])
def test_the_log_never_has_more_posts_of_a_turn_than_its_policy_lets_it_have(max_posts: int) -> None:
    """The log alone is counted, by what the page of the protocol says."""
    play = claimed(max_posts=max_posts)
    for n in range(8):
        with contextlib.suppress(NotDecided):
            play.post(play.worker("one"), fact(f"k{n % 3}", n), n=n)
    posted = Counter(event.turn for event in play.guard.events if isinstance(event, FactsPosted))
    assert list(posted.values()) == [max_posts]
    play.same()


@pytest.mark.parametrize("facts", [(), (fact(), fact())], ids=["none", "a-key-twice"])
def test_a_post_that_cannot_be_read_ends_no_round(facts: tuple[Fact, ...]) -> None:
    body = codec.encode(FactsPost(turn=TurnId("t"), round=0, post=0, facts=facts))
    with pytest.raises(Malformed) as wrong:
        codec.parse_proposal(body)
    assert codec.failure_of(body, wrong.value) is None
