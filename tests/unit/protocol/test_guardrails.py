"""Guardrails of a policy: which are read, what they refuse, where, and what a refusal does not say."""

import json
from typing import Any

import msgspec
import pytest

from mesh.fleet.file import FleetFileError, parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.replay.whatif import compare
from protocol.domain.breaker import Permit
from protocol.domain.recorded import Other
from protocol.wire.config import Policy, policy_hash
from protocol.wire.documents import DocumentInvalid, read_policy
from protocol.wire.events import (
    EscalationRaised,
    HandoffAdmitted,
    MoveRefused,
    RequestCompleted,
    RequestOpened,
    RequestRefused,
    TaskDelivered,
    TurnDelegated,
    TurnSuspended,
)
from protocol.wire.guardrails import MOST_BYTES, MOST_GUARDRAILS, MOST_PATTERN, PatternInvalid, compiled
from protocol.wire.handoff import Rule
from protocol.wire.moves import Complete, Escalate, Fail
from tests.certain import is_
from tests.unit.protocol.guarded import ask, no, play, policy, sound
from tests.unit.protocol.happened import refused
from tests.unit.protocol.swarms import Swarm
from tests.unit.protocol.swarms import refused as rule_of
from tests.unit.protocol.swarms import task as offered
from tests.unit.protocol.trees import delegate, deliver, refusal_of, say, task, tree
from tests.unit.protocol.worlds import Play, agent, agents, complete, fact, hand_back, transfer

# --- what they refuse ---------------------------------------------------------------------------------


def test_words_and_facts_are_matched_and_a_refusal_says_where() -> None:
    played = play({"looks_at": ["summary", "facts.order"], "pattern": "O-[0-9]+", "hint": "name the order"})
    found = no(played, transfer("b", fact("order", "17"), summary="refund O-17"))
    assert found.numbers == {
        "guardrail": "g0",
        "at": "facts.order",
        "mistakes": ["g0: facts.order does not match the pattern O-[0-9]+"],
    }
    assert found.hint == "name the order"
    assert no(played, transfer("b", fact("order", "O-17"), summary="refund")).numbers["at"] == "summary"
    is_(played.move(transfer("b", fact("order", "O-17"), summary="refund O-17")), HandoffAdmitted)
    sound(played)


def test_what_is_no_text_is_matched_as_json_and_keys_without_case() -> None:
    played = play({"looks_at": ["facts.amount"], "forbid_pattern": '"cents":[0-9]{4}'})
    found = no(played, transfer("b", fact("Amount", {"cents": 2500})))
    assert found.numbers["at"] == "facts.Amount"
    assert "2500" not in found.detail
    is_(played.move(transfer("b", fact("Amount", {"cents": 250}))), HandoffAdmitted)
    sound(played)


def test_all_mistakes_are_told_at_once_and_the_rest_is_counted() -> None:
    short = {"looks_at": ["facts"], "max_bytes": 2, "when": {"moves": ["transfer"]}}
    played = play(short, {"looks_at": ["summary"], "max_bytes": 100})
    facts = [fact(f"k{number}", "four") for number in range(6)]
    found = no(played, transfer("b", *facts))
    assert found.detail.startswith(
        "against the guardrails of policy 'default': g0: facts.k0 has 4 bytes of at most 2; g0: facts.k1"
    )
    assert found.detail.endswith("; and 2 more")
    assert len(found.numbers["mistakes"]) == 5


def test_size_is_counted_in_bytes() -> None:
    played = play({"looks_at": ["facts.k"], "max_bytes": 4})
    no(played, transfer("b", fact("k", "ééé")))
    is_(played.move(transfer("b", fact("k", "éé"))), HandoffAdmitted)
    sound(played)


def test_what_is_required_may_be_carried_or_hidden_and_not_blank() -> None:
    played = play(
        {"looks_at": ["summary", "facts.k", "labels.pii"], "required": True},
        facts=(fact("ssn", 1, "pii"),),
        fleet={"a": agent("a"), "b": agent("b", clearance=("pii",)), "c": agent("c")},
    )
    assert no(played, transfer("b")).hint == "bring facts.k"
    assert no(played, transfer("b", fact("k"), summary=" ")).numbers["at"] == "summary"
    is_(played.move(transfer("b", fact("k"))), HandoffAdmitted)
    is_(played.move(transfer("c")), HandoffAdmitted)
    sound(played)


@pytest.mark.parametrize(
    ("move", "place"),
    [
        (ask("c1", "4711?"), "question"),
        (complete("it is 4711"), "answer"),
        (complete({"number": [4711]}), "answer"),
        (Escalate(summary="4711"), "summary"),
        (Fail(reason="4711"), "reason"),
        (Complete(answer="", remember=(fact("k", "4711"),)), "facts.k"),
        (Complete(answer="", remember_keys=("number",)), "facts.number"),
    ],
)
def test_each_move_says_its_words_in_a_place_of_its_own(move: Any, place: str) -> None:
    looks_at = ["question", "answer", "summary", "reason", "facts.k", "facts.number"]
    played = play({"looks_at": looks_at, "forbid_pattern": "4711"}, facts=(fact("number", 4711),))
    at = [each.partition(":")[2].split()[0] for each in no(played, move).numbers["mistakes"]]
    assert place in at
    assert rejudge(played.bodies).same


def test_a_place_of_a_label_is_that_of_the_facts_with_it() -> None:
    played = play(
        {"looks_at": ["labels.pii"], "max_bytes": 4, "required": True},
        facts=(fact("ssn", 12345, "pii"), fact("club", "golden", "vip"), fact("order", "O-4711")),
        fleet={name: agent(name, clearance=("pii", "vip")) for name in "ab"},
    )
    found = no(played, transfer("b"))
    assert found.numbers["mistakes"] == ["g0: facts.ssn has 5 bytes of at most 4"]
    assert no(played, transfer("b", drop=("ssn",))).numbers["at"] == "labels.pii"
    is_(played.move(transfer("b", fact("pin", 1234, "pii"), drop=("ssn",))), HandoffAdmitted)
    sound(played)


def test_nothing_is_required_of_an_answer_but_itself() -> None:
    played = play({"looks_at": ["answer", "facts.order"], "required": True})
    assert no(played, complete(" ")).numbers["at"] == "answer"
    is_(played.move(complete()), RequestCompleted)
    sound(played)


def test_an_answer_of_nothing_is_none_and_one_that_is_no_text_is_some() -> None:
    played = play({"looks_at": ["answer"], "required": True})
    for nothing in (None, "", "\n"):
        no(played, complete(nothing))
    is_(played.move(complete({})), RequestCompleted)
    sound(played)


def test_a_place_that_a_move_has_not_is_not_required_of_it() -> None:
    played = play({"looks_at": ["question", "facts"], "required": True})
    found = no(played, transfer("b", drop=("text",)))
    assert (found.numbers["at"], found.hint) == ("facts", "bring facts")
    is_(played.move(transfer("b", fact("k"))), HandoffAdmitted)
    is_(played.move(ask("c1", "which?")), TurnSuspended)
    sound(played)


def test_facts_can_be_required_of_a_submit_of_each_task_and_of_a_result() -> None:
    asked = {"looks_at": ["facts.k"], "required": True}
    played = Play(policy=policy({**asked, "when": {"moves": ["submit"]}}))
    event = is_(played.submit(), RequestRefused)
    assert (event.refusal.rule, event.refusal.hint) == (Rule.GUARDRAIL, "bring facts.k")
    is_(Play(policy=policy(asked)).submit(), RequestOpened)
    rules = policy({**asked, "when": {"moves": ["delegate"]}}, topology="supervised")
    planned = tree(policy=msgspec.structs.asdict(rules))
    found = refusal_of(planned, "", delegate(task("one", "b", fact("k")), task("two", "c")))
    assert found.numbers["task"] == "two"
    assert found.numbers["mistakes"] == ["g0: task 'two': facts.k is missing"]


def test_one_mistake_and_five_are_told_in_full_and_the_hint_suits_the_mistake() -> None:
    short = {"looks_at": ["facts"], "max_bytes": 7, "required": True}
    played = play(short, {"looks_at": ["summary"], "forbid_labels": ["pii"], "max_bytes": 100})
    found = no(played, transfer("b", fact("k0", "too long")))
    assert found.detail == (
        "against the guardrail of policy 'default': g0: facts.k0 has 8 bytes of at most 7"
    )
    assert found.hint == "change facts.k0"
    two = no(played, transfer("b", fact("k0", "too long"), fact("k1", "too long")))
    assert "against the guardrails of" in two.detail
    five = no(played, transfer("b", *(fact(f"k{number}", "too long") for number in range(5))))
    assert len(five.numbers["mistakes"]) == 5
    assert "more" not in five.detail


def test_only_what_an_answer_asks_to_remember_is_looked_at() -> None:
    played = play(
        {"looks_at": ["facts"], "forbid_pattern": "4711"}, facts=(fact("number", 4711), fact("other", 1))
    )
    no(played, Complete(answer="", remember_keys=("number", "other")))
    is_(played.move(Complete(answer="", remember_keys=("other",))), RequestCompleted)
    assert rejudge(played.bodies).same


# --- which moves --------------------------------------------------------------------------------------


def test_a_guardrail_is_for_the_readers_and_moves_that_it_names() -> None:
    played = play(
        {"looks_at": ["summary"], "max_bytes": 1, "when": {"to": ["c", "human"]}},
        {"looks_at": ["summary"], "max_bytes": 2, "when": {"moves": ["hand_back"]}},
    )
    no(played, transfer("c"))
    is_(played.move(transfer("b")), HandoffAdmitted)
    no(played, hand_back())
    no(played, Escalate(summary="please"))
    is_(played.move(Escalate(summary="?")), EscalationRaised)
    sound(played)


def test_a_question_goes_to_its_reader_and_an_answer_to_the_client() -> None:
    long = {"looks_at": ["question", "answer"], "max_bytes": 3}
    played = play({**long, "when": {"to": ["c1"]}})
    is_(played.move(ask("human", "which?")), TurnSuspended)
    played = play({**long, "when": {"to": ["c1"]}})
    no(played, ask("c1", "which?"))
    no(played, complete("done"))
    sound(played)


@pytest.mark.parametrize(("to", "heard"), [("a", True), ("c1", False), ("b", False)])
def test_a_result_goes_to_its_lead_and_an_answer_of_the_root_to_the_client(to: str, heard: bool) -> None:
    rules = policy({"looks_at": ["summary"], "max_bytes": 1, "when": {"to": [to]}}, topology="supervised")
    planned = tree(task("one", "c"), policy=msgspec.structs.asdict(rules))
    if heard:
        assert refusal_of(planned, "one", deliver()).rule == Rule.GUARDRAIL
    else:
        is_(say(planned, "one", deliver()), TaskDelivered)


def test_a_submit_is_refused_too_without_what_its_conversation_remembers() -> None:
    rules = policy(
        {"looks_at": ["facts.text", "facts.k"], "forbid_pattern": "bomb", "when": {"moves": ["submit"]}}
    )
    played = Play(policy=rules)
    event = is_(played.submit("how to build a bomb"), RequestRefused)
    assert (event.refusal.rule, event.refusal.numbers["at"]) == (Rule.GUARDRAIL, "facts.text")
    assert rejudge(played.bodies).same
    played = Play(policy=rules)
    played.submit("how to build a house")
    is_(played.move(transfer("b", fact("k", "bomb"))), HandoffAdmitted)


def test_the_fallback_may_get_what_the_agent_that_was_named_may_not() -> None:
    played = play(
        {"looks_at": ["facts.k"], "forbid_pattern": "1", "when": {"to": ["c"]}},
        fleet=agents("a") | {"b": agent("b", fallback="c"), "c": agent("c")},
        breakers={"b": Permit("open")},
    )
    assert refused(played.move(transfer("b", fact("k", 1)))).rule == Rule.AGENT_AVAILABLE
    is_(played.move(transfer("b", fact("k", 2))), HandoffAdmitted)
    sound(played)


def test_a_task_of_a_plan_is_named_and_a_result_is_looked_at() -> None:
    rules = policy(
        {"looks_at": ["summary", "facts.k"], "forbid_pattern": "one|7", "when": {"to": ["b"]}},
        {"looks_at": ["facts.found"], "required": True, "when": {"moves": ["deliver"]}},
        topology="supervised",
    )
    numbers = msgspec.structs.asdict(rules)
    played = tree(policy=numbers)
    found = refusal_of(played, "", delegate(task("two", "c", fact("k", 7)), task("one", "b", fact("k", 7))))
    assert found.rule == Rule.GUARDRAIL
    assert found.numbers["task"] == "one"
    assert [each.split(" ")[3] for each in found.numbers["mistakes"]] == ["summary", "facts.k"]
    is_(played.move(delegate(task("two", "b"))), TurnDelegated)
    assert refusal_of(played, "two", deliver()).hint == "bring facts.found"


def test_an_offered_task_may_go_to_anyone_so_each_guardrail_is_for_it() -> None:
    rules = msgspec.structs.asdict(
        policy({"looks_at": ["facts.k"], "forbid_pattern": "7", "when": {"to": ["b"]}}, topology="swarm")
    )
    swarm = Swarm(**{name: rules[name] for name in ("guardrails",)})
    assert rule_of(swarm.delegate(offered("one", "read", fact("k", 7)))) == Rule.GUARDRAIL
    is_(swarm.delegate(offered("one", "read", fact("k", 8))), TurnDelegated)
    swarm.same()


# --- how long it takes, and what cannot be judged -----------------------------------------------------


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(\w+\s?)*!", r"(x+x+)+y", r"^(([a-z])+.)+[A-Z]([a-z])+$", r"a*a*a*a*b"]
)
def test_a_pattern_that_goes_back_for_ever_elsewhere_is_soon_done(pattern: str) -> None:
    played = play({"looks_at": ["answer"], "forbid_pattern": pattern})
    for text in ("a" * 60_000 + "!", "x" * 60_000, "a " * 30_000):
        played.move(complete(text))  # with Python's own engine, this test would not end
        played = play({"looks_at": ["answer"], "forbid_pattern": pattern})


def test_what_this_guard_cannot_judge_is_not_let_pass() -> None:
    played = play({"looks_at": ["summary"], "max_bytes": 100})
    newer = msgspec.structs.replace(played.ledger.policy.guardrails[0], looks_at=("tone",))
    played.ledger.policy = msgspec.structs.replace(played.ledger.policy, guardrails=(newer,))
    assert "tone cannot be judged by this guard" in no(played, transfer("b")).detail
    nowhere = msgspec.structs.replace(newer, looks_at=())
    played.ledger.policy = msgspec.structs.replace(played.ledger.policy, guardrails=(nowhere,))
    assert no(played, transfer("b")).numbers["at"] == ""


def test_without_guardrails_a_policy_and_its_events_are_as_they_were() -> None:
    assert policy_hash(Policy()) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    played = Play()
    played.submit()
    assert b"guardrail" not in played.bodies[0]


# --- replay -------------------------------------------------------------------------------------------


def test_another_policy_with_guardrails_is_tried_on_what_happened() -> None:
    played = Play()
    played.submit()
    played.move(transfer("b", summary="refund 4711"))
    other = Other({"*": policy({"looks_at": ["summary"], "forbid_pattern": "4711"})})
    found = compare(played.bodies, other).divergence
    assert found is not None
    assert "guardrail" in str(found)
    same = Other({"*": policy({"looks_at": ["summary"], "forbid_pattern": "4712"})})
    assert compare(played.bodies, same).divergence is None


# --- the document -------------------------------------------------------------------------------------

PLACES = "places are summary, question, answer, reason, facts, facts.<key>, labels.<label>"


@pytest.mark.parametrize(
    ("guardrail", "mistake"),
    [
        (
            {"looks_at": ["tone"], "max_bytes": 1},
            f"looks_at: 'tone': guards do not know how to judge by it; {PLACES}",
        ),
        ({"looks_at": ["facts."], "max_bytes": 1}, "looks_at: 'facts.': guards"),
        ({"looks_at": ["labels.a b"], "max_bytes": 1}, "looks_at: 'labels.a b': guards"),
        ({"looks_at": [], "max_bytes": 1}, "looks_at: name one place at least"),
        ({"looks_at": ["facts"]}, "pattern, forbid_pattern, max_bytes, required, forbid_labels: set one at"),
        ({"looks_at": ["facts"], "pattern": "("}, "pattern: unclosed group"),
        ({"looks_at": ["facts"], "pattern": r"(a)\1"}, "pattern: backreferences are not supported"),
        (
            {"looks_at": ["facts"], "forbid_pattern": "(?=a)"},
            "forbid_pattern: look-around, including look-ahead",
        ),
        ({"looks_at": ["facts"], "pattern": r"\w{1000}"}, "pattern: Compiled regex exceeds size limit"),
        ({"looks_at": ["facts"], "pattern": "a" * (MOST_PATTERN + 1)}, "pattern: it has 257 characters of"),
        ({"looks_at": ["facts"], "max_bytes": 0}, "guardrails[0].max_bytes: expected `int` >= 1"),
        ({"looks_at": ["facts"], "forbid_labels": ["a b"]}, "forbid_labels: 'a b' is no label"),
        ({"looks_at": ["facts"], "max_bytes": 1, "name": "a b"}, "name: 1 to 64 characters"),
        ({"looks_at": ["facts"], "max_bytes": 1, "hint": "x" * 501}, "hint: expected `str` of length <= 500"),
        ({"looks_at": ["facts"], "max_byte": 1}, "guardrails[0]: object contains unknown field"),
        (
            {"looks_at": ["facts"], "max_bytes": 1, "when": {"from": ["a"]}},
            "guardrails[0].when: object contains",
        ),
        (
            {"looks_at": ["facts"], "max_bytes": 1, "when": {"moves": ["fly"]}},
            "when.moves: 'fly': guards do not",
        ),
        (
            {"looks_at": ["facts"], "max_bytes": 1, "when": {"moves": ["deliver"]}},
            "guardrails[0].when.moves: the topology 'handoff' has no move 'deliver'",
        ),
        ({}, "guardrails[0]: object missing required field `looks_at`"),
    ],
    ids=lambda each: each[:40] if isinstance(each, str) else "",
)
def test_a_guardrail_that_cannot_be_judged_by_is_no_policy(guardrail: dict[str, Any], mistake: str) -> None:
    with pytest.raises(DocumentInvalid) as wrong:
        policy(guardrail)
    assert mistake in str(wrong.value)


def test_guardrails_are_few_and_their_names_differ() -> None:
    one = {"name": "one", "looks_at": ["facts"], "max_bytes": 1}
    with pytest.raises(DocumentInvalid, match=r"guardrails\[1\]\.name: another guardrail is called 'one'"):
        policy(one, one)
    with pytest.raises(DocumentInvalid, match=f"33 of at most {MOST_GUARDRAILS}"):
        policy(*({"looks_at": ["facts"], "max_bytes": 1} for _ in range(MOST_GUARDRAILS + 1)))
    with pytest.raises(DocumentInvalid, match=f"bytes of at most {MOST_BYTES}"):
        policy(*({"looks_at": ["facts"], "max_bytes": 1, "hint": "x" * 500} for _ in range(20)))
    with pytest.raises(DocumentInvalid, match="topology"):
        policy(one, topology=["handoff"])


def test_a_pattern_is_compiled_once() -> None:
    assert compiled("[0-9]+") is compiled("[0-9]+")
    with pytest.raises(PatternInvalid):
        compiled("[")


def test_a_policy_with_guardrails_is_read_again_as_it_was_written() -> None:
    written = policy(
        {
            "looks_at": ["facts.k", "labels.pii"],
            "forbid_labels": ["pii"],
            "when": {"to": ["b"], "moves": ["submit"]},
        }
    )
    assert read_policy(msgspec.json.encode(written), "default") == written


FLEET = """
name = "shop"
entry = "front"
[agents.front]
[agents.billing]
[clients.app]

[[policies.default.guardrails]]
name = "no-cards"
looks_at = ["answer", "facts"]
forbid_pattern = '\\b[0-9]{13,16}\\b'
"""


def test_a_fleet_file_lists_them_and_is_told_of_a_reader_that_it_has_not() -> None:
    (found,) = parse_fleet(FLEET).rules["default"].guardrails
    assert json.loads(msgspec.json.encode(found)) == {
        "name": "no-cards",
        "looks_at": ["answer", "facts"],
        "forbid_pattern": r"\b[0-9]{13,16}\b",
    }
    with pytest.raises(FleetFileError, match=r"when\.to: 'biling' is no agent, client or operator"):
        parse_fleet(FLEET + 'when = { to = ["biling", "app", "human", "front"] }\n')


def test_a_refused_move_may_be_said_otherwise() -> None:
    played = play({"looks_at": ["answer"], "forbid_pattern": "4711"})
    event = is_(played.move(complete("4711")), MoveRefused)
    assert event.work is not None
    (past,) = event.work.past
    assert past.refusal is not None
    assert past.refusal.rule == Rule.GUARDRAIL
    is_(played.move(complete("done")), RequestCompleted)
    sound(played)
