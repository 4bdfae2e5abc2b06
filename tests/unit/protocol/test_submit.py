"""Submits: what opens a request, with which numbers, and what is refused."""

from typing import Any

import pytest

from mesh.replay.rejudge import rejudge
from protocol.domain.hash_chain import GENESIS
from protocol.views.timeline import timeline
from protocol.wire.commands import Submit, submit_id
from protocol.wire.config import AgentEntry, BreakerState, Policy, policy_hash
from protocol.wire.event_parts import Grounds
from protocol.wire.events import AnyEvent, RequestOpened, RequestRefused, type_of
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff, Refusal, Rule
from protocol.wire.ids import AgentName, event_id, request_id
from tests.certain import is_
from tests.unit.protocol.worlds import REQUEST, START, Play, agent, agents, fact, seconds


def refused(event: AnyEvent) -> Refusal:
    refusal = is_(event, RequestRefused)
    assert refusal.to == "c1"
    return refusal.refusal


def test_a_submit_becomes_the_entry_agents_first_turn() -> None:
    policy = Policy(budget=Budget(tokens=100))
    play = Play(policy=policy, longest_s=1e6)
    scan = Artifact(name="scan", uri="s3://scan")
    limits = Constraints(max_resolution_time_s=60, allowed_actions=("pay",), must_carry=("text", "order"))
    event = is_(
        play.submit(
            "  Refund me\nplease",
            facts=(fact("order", 7),),
            artifacts=(scan,),
            constraints=limits,
            conversation="x",
        ),
        RequestOpened,
    )
    id_ = event_id(submit_id(REQUEST), "request.opened", 0)
    assert [event.id, event.work.turn, event.cause] == [str(id_), str(id_), str(submit_id(REQUEST))]
    assert (event.n, event.prev, event.to, event.client) == (0, GENESIS, "a", "c1")
    assert event.work.handoff == Handoff(
        move="submit",
        from_agent=AgentName("c1"),
        to_agent=AgentName("a"),
        summary="Refund me",
        facts=(fact("order", 7), Fact(key="text", value="  Refund me\nplease")),
        artifacts=(scan,),
        constraints=Constraints(
            deadline=START + seconds(60),
            allowed_actions=("pay",),
            budget=Budget(tokens=100),
            must_carry=("order", "text"),
        ),
    )
    assert (event.work.path, event.work.depth, event.work.round) == (("a",), 0, 0)
    assert (event.deadline, event.digest, event.conversation) == (START + seconds(60), "d0", "x")
    assert (event.policy, event.policy_hash) == (policy, policy_hash(policy))
    assert event.grounds == Grounds(fleet=1, target=agent("a"), human=True, longest_s=1e6)
    assert play.holder.agent == "a"


DAYS_15 = 15 * 86_400.0


@pytest.mark.parametrize(
    ("policy_s", "longest_s", "asked", "expected_s"),
    [
        pytest.param(86_400, DAYS_15, Constraints(), 86_400, id="the-policys"),
        pytest.param(86_400, 3600, Constraints(), 3600, id="no-longer-than-the-log-allows"),
        pytest.param(60, 3600, Constraints(), 60, id="the-policys-if-shorter"),
        pytest.param(60, 3600, Constraints(max_resolution_time_s=3600), 3600, id="just-the-longest"),
        pytest.param(60, DAYS_15, Constraints(deadline=START + 7), 7e-6, id="an-absolute-one"),
        pytest.param(
            60,
            DAYS_15,
            Constraints(deadline=START + seconds(9), max_resolution_time_s=8),
            8,
            id="the-earlier",
        ),
    ],
)
def test_every_request_has_a_deadline(
    policy_s: float, longest_s: float, asked: Constraints, expected_s: float
) -> None:
    play = Play(policy=Policy(deadline_s=policy_s), longest_s=longest_s)
    event = is_(play.submit(constraints=asked), RequestOpened)
    assert event.deadline == event.work.handoff.constraints.deadline == START + seconds(expected_s)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, Budget(tokens=100, model_calls=5)),
        (Budget(tokens=100), Budget(tokens=100, model_calls=5)),
        (Budget(tokens=1, nano_dollars=9), Budget(tokens=1, nano_dollars=9, model_calls=5)),
        (Budget(tokens=0), Budget(tokens=0, model_calls=5)),
    ],
)
def test_a_submit_gets_what_it_asks_for_of_the_policys_budget(asked: Budget | None, given: Budget) -> None:
    play = Play(policy=Policy(budget=Budget(tokens=100, model_calls=5)))
    play.submit(constraints=Constraints(budget=asked))
    assert play.holder.work.handoff.constraints.budget == given


@pytest.mark.parametrize(
    ("play", "submit", "rule", "numbers"),
    [
        pytest.param(Play(policy=None), {"policy": "odd"}, Rule.KNOWN_POLICY, {"policy": "odd"}, id="policy"),
        pytest.param(
            Play(), {"to": "nobody"}, Rule.KNOWN_AGENT, {"target": "nobody"}, id="agent-not-in-the-fleet"
        ),
        pytest.param(Play(), {"to": "human"}, Rule.KNOWN_AGENT, {"target": "human"}, id="human"),
        pytest.param(Play(entry="gone"), {}, Rule.KNOWN_AGENT, {"target": None}, id="no-entry-agent"),
        pytest.param(
            Play(fleet={"a": AgentEntry(name=AgentName("a"), intents=("bill",))}),
            {"intent": "sing"},
            Rule.KNOWN_AGENT,
            {"target": None},
            id="intent",
        ),
        pytest.param(Play(breakers={"a": "open"}), {}, Rule.AGENT_AVAILABLE, {"target": "a"}, id="breaker"),
        pytest.param(
            Play(),
            {"constraints": Constraints(deadline=START)},
            Rule.CONSTRAINTS,
            {"deadline": START, "now": START},
            id="deadline-is-now",
        ),
        pytest.param(
            Play(longest_s=60),
            {"constraints": Constraints(deadline=START + seconds(60) + 1)},
            Rule.CONSTRAINTS,
            {"deadline": START + seconds(60) + 1, "longest_s": 60},
            id="deadline-beyond-the-log",
        ),
        pytest.param(
            Play(policy=Policy(budget=Budget(tokens=5))),
            {"constraints": Constraints(budget=Budget(tokens=6))},
            Rule.CONSTRAINTS,
            {"tokens": {"asked": 6, "policy": 5}},
            id="budget",
        ),
        pytest.param(
            Play(),
            {"constraints": Constraints(must_carry=("text", "x"))},
            Rule.CONSTRAINTS,
            {"keys": ["x"]},
            id="must-carry-what-is-not-brought",
        ),
        pytest.param(
            Play(policy=Policy(max_handoff_bytes=10)),
            {},
            Rule.SIZE,
            {"bytes": 157, "max_handoff_bytes": 10},
            id="size",
        ),
    ],
)
def test_a_submit_that_cannot_be_taken_is_refused_with_its_numbers(
    play: Play, submit: dict[str, object], rule: Rule, numbers: dict[str, object]
) -> None:
    event = is_(play.submit(**submit), RequestRefused)  # type: ignore[arg-type]
    assert (event.refusal.rule, event.refusal.numbers) == (rule, numbers)
    assert event.refusal.hint
    assert event.submit == Submit(text="help me", **submit)  # type: ignore[arg-type]
    assert (event.to, event.client, event.digest) == ("c1", "c1", "d0")
    assert (play.ledger.status, play.ledger.holder, play.next_due) == ("refused", None, None)


def test_the_rules_for_submits_are_tried_in_their_order() -> None:
    bad: dict[str, Any] = {
        "to": "nobody",
        "constraints": Constraints(deadline=1),
        "facts": (fact("k", "x" * 999),),
    }
    small = Policy(max_handoff_bytes=500)
    rules = []

    def refuse(policy: Policy | None, breaker: BreakerState = "open") -> None:
        play = Play(policy=policy, fleet=agents("a"), breakers={"a": breaker, "nobody": breaker})
        rules.append(refused(play.submit(**bad)).rule)

    refuse(None)
    refuse(small)
    bad["to"] = "a"
    refuse(small)
    refuse(small, "closed")
    del bad["constraints"]
    refuse(small, "closed")
    assert rules == [Rule.KNOWN_POLICY, Rule.KNOWN_AGENT, Rule.AGENT_AVAILABLE, Rule.CONSTRAINTS, Rule.SIZE]


def test_a_rerun_names_the_request_that_it_does_again() -> None:
    old = request_id("c1", 1, b"0123456789")
    play = Play()
    event = is_(play.submit(rerun_of=old), RequestOpened)
    assert event.rerun_of == old
    assert timeline(play.events).rerun_of == old
    assert rejudge(play.bodies).same
    assert is_(Play().submit(), RequestOpened).rerun_of is None


def test_the_link_is_there_where_facts_are_withheld_first_and_where_nothing_was_opened() -> None:
    old = request_id("c1", 1, b"0123456789")
    withheld = Play()
    withheld.submit(facts=(fact("card", 1, "pci"),), rerun_of=old)
    assert [type_of(event) for event in withheld.events] == ["facts.withheld", "request.opened"]
    assert timeline(withheld.events).rerun_of == old
    assert rejudge(withheld.bodies).same
    refused = Play(breakers={"a": "open"})
    refused.submit(rerun_of=old)
    assert timeline(refused.events).rerun_of == old
    assert rejudge(refused.bodies).same
