"""What another policy or fleet would have done; and that the scan passes over nothing that would differ."""

import random
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from mesh.replay.whatif import Summary, compare, compared, together
from protocol.domain.recorded import Other
from protocol.wire import codec, events
from protocol.wire.commands import Resolve
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.handoff import Budget, Rule
from protocol.wire.ids import AgentName
from protocol.wire.shadow import Judgement
from tests.certain import is_
from tests.unit.protocol.anything import GUARDRAILS, STORIES
from tests.unit.protocol.test_any_story import Story
from tests.unit.protocol.test_any_swarm import Story as SwarmStory
from tests.unit.protocol.tree_stories import Teller
from tests.unit.protocol.worlds import Play, agent, complete, escalate, fact, hand_back, transfer, usage

FLEET = {"a": agent("a", clearance=("pii",)), "b": agent("b"), "c": agent("c", clearance=("pii",))}


def begun(policy: Policy | None = None) -> Play:
    play = Play(fleet=dict(FLEET), policy=policy or Policy())
    play.submit(facts=(fact("ssn", "123", "pii"), fact("plan", "gold")))
    return play


def by(**numbers: Any) -> Other:
    return Other({"*": Policy(**numbers)})


def in_fleet(**agents: AgentEntry | None) -> Other:
    entries = {name: entry for name, entry in ({**FLEET, **agents}).items() if entry is not None}
    return Other(fleet=Fleet(name="f", entry=AgentName("a"), agents=entries, human=True))


def through(*moves: Any) -> Play:
    play = begun()
    for move in moves:
        play.wait(1)
        play.move(move, usage(10))
    return play


# --- one request ----------------------------------------------------------------------------------


def test_the_first_verdict_that_would_be_another_ends_the_comparison() -> None:
    play = through(transfer("b"), transfer("c"), hand_back(fact("x", 1)), complete("done"))
    found = compare(play.bodies, by(max_depth=1)).divergence
    assert found is not None
    assert (found.agent, found.to, found.effect, found.ended) == ("b", "c", "stopped", "completed")
    assert (found.was.type, found.would.rule, found.would.then) == ("handoff.admitted", "depth", "round")
    assert (found.hops, found.seconds) == (1, 2.0)


def test_what_a_policy_gives_by_itself_is_followed_to_where_it_is_used_up() -> None:
    play = through(transfer("b"), transfer("c"), transfer("a", fact("x", 1)), complete("done"))
    found = compare(play.bodies, by(budget=Budget(tokens=15))).divergence
    assert found is not None
    assert (found.agent, found.would.rule) == ("b", "budget")
    assert compare(play.bodies, by(budget=Budget(tokens=40))).divergence is None


def test_a_deadline_that_would_have_passed_ends_the_request() -> None:
    play = through(transfer("b"), transfer("c"), complete("done"))
    found = compare(play.bodies, by(deadline_s=1.5)).divergence
    assert found is not None
    assert (found.would.type, found.was.to, found.effect) == ("request.expired", "c", "stopped")


def test_an_escalation_is_raised_again_where_people_would_have_had_less_time() -> None:
    play = begun()
    play.move(escalate())
    play.wait(50)
    play.control(Resolve, turn=play.turn, complete=True, answer="by hand", by="Ann")
    assert compare(play.bodies, by(escalation_sla_s=60.0)).divergence is None
    found = compare(play.bodies, by(escalation_sla_s=20.0)).divergence
    assert found is not None
    assert found.would.reason == "sla"


def test_a_policy_of_another_topology_has_other_moves() -> None:
    play = through(transfer("b"), complete("done"))
    found = compare(play.bodies, by(topology="supervised")).divergence
    assert found is not None
    assert (found.to, found.would.rule) == ("b", "known_move")


def test_a_policy_may_be_for_one_name() -> None:
    play = through(transfer("b"), complete("done"))
    strict = Policy(max_depth=0)
    assert compare(play.bodies, Other({"default": strict})).divergence is not None
    assert compare(play.bodies, Other({"bulk": strict})).divergence is None


@pytest.mark.parametrize(
    ("changed", "would", "agent_"),
    [
        ({"c": None}, Judgement(type="move.refused", to="b", rule="known_agent", then="round"), "b"),
        (
            {"b": agent("b", to=("a",))},
            Judgement(type="move.refused", to="b", rule="known_agent", then="round"),
            "b",
        ),
        ({"a": None}, Judgement(type="request.refused", to="c1", rule="known_agent"), ""),
        ({"c": agent("c")}, Judgement(type="facts.withheld", to="", withheld=1), "b"),
    ],
)
def test_another_fleet_is_tried(changed: dict[str, AgentEntry | None], would: Judgement, agent_: str) -> None:
    play = through(transfer("b"), transfer("c"), complete("done"))
    found = compare(play.bodies, in_fleet(**changed)).divergence
    assert found is not None
    assert (replace(found.would, to=would.to), found.agent) == (would, agent_)


def test_the_same_policy_and_fleet_change_nothing() -> None:
    play = through(transfer("b"), transfer("c"), hand_back(), complete("done"))
    for other in (by(), in_fleet()):
        assert compare(play.bodies, other, scan=False).divergence is None
        assert compare(play.bodies, other).passed_over


def test_a_transfer_that_was_too_deep_for_the_fallback_would_have_gone_there() -> None:
    """The refusal says that the breaker was open, not that the depth kept the fallback from it."""
    fleet = FLEET | {"b": agent("b", fallback="c"), "d": agent("d")}
    play = Play(fleet=fleet, policy=Policy(max_depth=1), breakers={"b": "open"})
    play.submit()
    play.move(transfer("d"))
    assert is_(play.move(transfer("b")), events.MoveRefused).refusal.rule == Rule.AGENT_AVAILABLE
    for scan in (False, True):
        found = compare(play.bodies, by(max_depth=3), scan=scan).divergence
        assert found is not None
        assert (found.was.rule, found.would.type, found.would.to) == (
            "agent_available",
            "handoff.admitted",
            "c",
        )


def test_what_cannot_be_read_is_counted_with_its_reason() -> None:
    play = through(transfer("b"), complete("done"))
    summary = Summary()
    for bodies in (play.bodies, play.bodies[1:], [], [b'{"type":"later","v":9}']):
        summary.take(compare(bodies, by(max_depth=0)))
    assert (summary.requests, summary.differ, len(summary.unreadable)) == (4, 1, 2)


def test_what_shares_found_comes_in_the_order_of_requests_and_from_no_memory(tmp_path: Path) -> None:
    plays = [through(transfer("b"), complete("done")) for _ in range(4)]
    placed = [(10 * place, play.bodies) for place, play in enumerate(plays)]
    others = [by(max_depth=0), by()]
    shares = [compared(placed[start::2], others, tmp_path) for start in (0, 1)]
    (deep, found), (same, none) = together(shares)
    for _ in range(2):
        assert [each.request for each in found] == [play.events[0].request for play in plays]
    assert (deep.differ, same.differ, list(none)) == (4, 0, [])
    assert not isinstance(found, Sized)


# --- the scan is sound ----------------------------------------------------------------------------

NUMBERS: dict[str, Sequence[Any]] = {
    "max_depth": (0, 1, 2, 3, 4, 6, 9),
    "max_refusals": (0, 1, 2, 5),
    "max_retries": (0, 1, 3),
    "max_asks": (0, 1, 2, 3),
    "max_escalations": (0, 1, 3, 9),
    "max_handoff_bytes": (1_024, 2_048, 65_536),
    "deadline_s": (1.0, 40.0, 2_000.0, 86_400.0, 900_000.0),
    "turn_timeout_s": (1e-6, 20.0, 900.0),
    "unattended_after_s": (None, 1e-6, 50.0),
    "escalation_sla_s": (None, 1e-6, 40.0),
    "human_deadline_s": (None, 1e-6, 40.0, 86_400.0),
    "retry_backoff_s": (0.0, 1.0, 50.0),
    "retry_backoff_max_s": (0.5, 60.0),
    "on_budget": ("escalate", "fail"),
    "budget": (None, Budget(tokens=0), Budget(tokens=50), Budget(nano_dollars=60), Budget(model_calls=1)),
    "max_levels": (1, 2, 3, 4),
    "max_open_tasks": (1, 3, 8),
    "max_tasks": (1, 9, 50),
    "max_revisions": (0, 1, 3),
    "keep_back": (0.0, 0.2, 0.9),
    "claim_within_s": (1.0, 30.0),
    "max_posts": (0, 1, 100),
    "max_posted_bytes": (10, 1 << 20),
    "guardrails": ((), GUARDRAILS[:1], GUARDRAILS[1:3]),
}


def others(policy: Policy, fleet: dict[str, AgentEntry], draw: random.Random) -> Iterator[Other]:
    """Yield what could be otherwise, beginning with nothing."""
    yield Other({"*": policy})
    for field, numbers in NUMBERS.items():
        yield Other({"*": replace(policy, **{field: draw.choice(numbers)})})
    for _ in range(5):
        fields = {field: draw.choice(NUMBERS[field]) for field in draw.sample(sorted(NUMBERS), 3)}
        yield Other({"*": replace(policy, **fields)})
    for _ in range(4):
        agents = dict(fleet)
        name = draw.choice(sorted(agents))
        entry = draw.choice(
            (
                None,
                replace(agents[name], clearance=draw.choice(((), ("pii",)))),
                replace(agents[name], to=draw.choice((None, (), ("a", "b")))),
                replace(agents[name], intents=draw.choice((None, (), ("bill",)))),
                replace(agents[name], actions=draw.choice((None, (), ("look",)))),
            )
        )
        del agents[name]
        agents |= {} if entry is None else {name: entry}
        human = draw.random() < 0.8
        yield Other(fleet=Fleet(name="f", entry=AgentName("a"), agents=agents, human=human))


def missed(bodies: Sequence[bytes], policy: Policy, fleet: dict[str, AgentEntry], seed: int) -> list[str]:
    """Return what comes out otherwise without the scan; and what differs though nothing is otherwise."""
    wrong = []
    for place, other in enumerate(others(policy, fleet, random.Random(seed))):
        whole, scanned = (compare(bodies, other, scan=scan).divergence for scan in (False, True))
        if scanned != whole or (place == 0 and whole is not None):
            changed = {name: getattr(other.policy_for(policy), name) for name in NUMBERS}
            numbers = {name: number for name, number in changed.items() if number != getattr(policy, name)}
            wrong.append(f"{numbers or other.fleet}: {whole} {scanned}")
    return wrong


def judged_by(play: Play) -> Policy:
    """Return the policy of a request, also of one that was refused before it was opened."""
    said = (codec.decode_event(body) for body in play.bodies[:2])
    named = (each.policy for each in said if isinstance(each, events.RequestOpened | events.RequestRefused))
    return next(filter(None, named), play.ledger.policy)


class Scanned(Story):
    """Any request, compared instead of checked."""

    def nothing(self) -> None:
        """Leave the checks to the other test of the same stories."""

    the_oracle_has_no_complaint = nothing
    at_most_one_turn_is_open_and_only_while_the_request_is = nothing
    numbers_are_dense_ids_unique_and_times_in_order = nothing
    a_turn_has_at_most_one_successor = nothing
    a_round_is_decided_once = nothing
    nothing_follows_the_end = nothing
    an_inbox_event_opens_a_round_of_its_readers_turn = nothing
    due_is_total_whatever_is_known = nothing

    def teardown(self) -> None:
        play = getattr(self, "play", None)
        if play is not None and play.bodies and not self.unfinished:
            assert missed(play.bodies, judged_by(play), self.fleet, len(play.bodies)) == []


def test_the_scan_passes_over_no_story_that_would_differ() -> None:
    run_state_machine_as_test(
        Scanned,
        settings=settings(
            max_examples=STORIES // 2,
            stateful_step_count=25,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_scan_passes_over_no_tree_that_would_differ() -> None:
    for seed in range(STORIES // 6):
        teller = Teller(seed)
        for _ in range(30):
            if teller.play.ledger.is_open:
                teller.step()
                teller.learn()
        play = teller.play
        assert missed(play.bodies, play.ledger.policy, dict(play.fleet), seed) == []


def test_the_scan_passes_over_no_swarm_that_would_differ() -> None:
    for seed in range(STORIES // 6):
        story = SwarmStory(seed)
        for _ in range(25):
            if story.guard.ledger.is_open:
                story.step()
        guard = story.guard
        assert missed(guard.bodies, guard.ledger.policy, dict(guard.fleet.agents), seed) == []
