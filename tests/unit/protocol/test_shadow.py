"""A shadow judges each command once more, on what really happened."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from mesh.replay.whatif import compare
from protocol.domain.shadow import ShadowedRequest, ShadowVerdict
from protocol.wire import codec
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.documents import DocumentInvalid
from protocol.wire.errors import BrokenLog
from protocol.wire.handoff import Budget
from protocol.wire.shadow import ShadowEntry, read_shadow
from tests.unit.protocol.anything import STORIES
from tests.unit.protocol.tree_stories import Teller
from tests.unit.protocol.worlds import Play, complete, fact, hand_back, transfer
from tests.unit.replay.test_whatif import Scanned, judged_by, others, through


def compared(play: Play, shadow: Policy) -> Iterator[ShadowVerdict]:
    """Yield what the shadow would have decided, verdict by verdict, consequences included."""
    beside = ShadowedRequest(shadow)
    for body in play.bodies:
        found = beside.take(codec.decode_event(body), body)
        if found is not None:
            yield found


def disagreeing(play: Play, **numbers: Any) -> list[tuple[int, str, str, str]]:
    """Return where a shadow disagrees: event, whose move, to whom, by which rule."""
    found = compared(play, Policy(**numbers))
    return [(each.event.n, each.agent, each.to, each.would.rule) for each in found if not each.agrees]


def test_each_command_is_judged_by_itself_and_the_history_goes_on_as_it_was() -> None:
    play = through(transfer("b"), transfer("c"), hand_back(fact("x", 1)), transfer("c"), complete("done"))
    assert disagreeing(play) == []
    found = [each for each in compared(play, Policy(max_depth=1)) if not each.agrees]
    assert [(each.was.type, each.agent, each.to, each.would.rule) for each in found] == [
        ("handoff.admitted", "b", "c", "depth"),
        ("handoff.admitted", "c", "b", "depth"),
        ("move.refused", "b", "c", "depth"),  # the policy refuses it by another rule
    ]
    assert [each.numbers["depth"] for each in found] == [2, 3, 4]
    assert {each.client for each in found} == {"c1"}
    assert all("of at most 1" in each.detail for each in found)


def test_a_request_begins_with_what_the_shadow_gives_it() -> None:
    play = through(transfer("b"), transfer("c"), transfer("a", fact("x", 1)), complete("done"))
    first, *_ = disagreeing(play, budget=Budget(tokens=15))
    assert first[1:] == ("b", "c", "budget")
    assert disagreeing(play, budget=Budget(tokens=40)) == []


def test_a_request_that_the_shadow_would_not_have_opened_is_judged_further() -> None:
    play = through(transfer("b"), complete("done"))
    found = disagreeing(play, max_depth=0, budget=Budget(tokens=0))
    assert [each[1] for each in found] == ["a"]


def test_events_that_do_not_follow_are_refused() -> None:
    play = through(transfer("b"), complete("done"))
    beside, second = ShadowedRequest(Policy()), play.bodies[1]
    with pytest.raises(BrokenLog):
        beside.take(codec.decode_event(second), second)


def check(play: Play, policy: Policy, fleet: dict[str, AgentEntry], seed: int) -> None:
    """Compare a story with shadows: with itself it agrees, and a first disagreement is `whatif`'s."""
    for place, other in enumerate(others(policy, fleet, random.Random(seed))):
        if other.fleet is not None:
            continue
        shadow = replace(other.policies["*"], name=policy.name)
        found = next((each for each in compared(play, shadow) if not each.agrees), None)
        whatif = compare(play.bodies, other, scan=False).divergence
        if place == 0 or whatif is None:
            assert found is None
        elif found is not None:  # what falls due is judged by `whatif` alone, and may come before
            assert whatif.n <= found.event.n


class Shadowed(Scanned):
    """Any request, beside shadows."""

    def teardown(self) -> None:
        play = getattr(self, "play", None)
        if play is not None and play.bodies and not self.unfinished:
            check(play, judged_by(play), self.fleet, len(play.bodies))


def test_a_shadow_that_says_the_same_agrees_with_any_story() -> None:
    run_state_machine_as_test(
        Shadowed,
        settings=settings(
            max_examples=STORIES // 4,
            stateful_step_count=25,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_shadow_that_says_the_same_agrees_with_any_tree() -> None:
    for seed in range(STORIES // 12):
        teller = Teller(seed)
        for _ in range(30):
            if teller.play.ledger.is_open:
                teller.step()
                teller.learn()
        check(teller.play, teller.play.ledger.policy, dict(teller.play.fleet), seed)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"policy":{"max_depth":-1}}', b'{"policies":{}}'])
def test_a_shadow_is_read_as_strictly_as_a_policy(body: bytes) -> None:
    with pytest.raises(DocumentInvalid):
        read_shadow(body, "default")


def test_a_shadow_has_the_name_of_its_policy() -> None:
    assert read_shadow(b'{"policy":{"max_depth":1}}', "bulk").policy == Policy(name="bulk", max_depth=1)
    assert read_shadow(b"{}", "bulk") == ShadowEntry()
    with pytest.raises(DocumentInvalid, match="name"):
        read_shadow(b'{"policy":{"name":"other"}}', "bulk")
