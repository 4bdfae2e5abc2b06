"""Labelled values under guardrails: where they are found, where they are not, and how long that takes."""

from typing import Any

import msgspec

from mesh.replay.rejudge import rejudge
from protocol.wire.events import HandoffAdmitted, RequestCompleted
from protocol.wire.handoff import Rule
from protocol.wire.moves import Complete
from tests.certain import is_
from tests.unit.protocol.guarded import ask, no, play, policy, sound
from tests.unit.protocol.trees import delegate, deliver, refusal_of, say, task, tree
from tests.unit.protocol.worlds import Play, agent, complete, fact, transfer

SECRET = "secret-4711-iban"


def with_secret(*guardrails: dict[str, Any], value: Any = SECRET) -> Play:
    fleet = {"a": agent("a", clearance=("pii",)), "b": agent("b", clearance=("pii",)), "c": agent("c")}
    return play(*guardrails, facts=(fact("iban", value, "pii"),), fleet=fleet)


def test_a_labelled_value_may_be_forbidden_in_free_text_and_is_never_quoted() -> None:
    played = with_secret({"looks_at": ["answer", "question"], "forbid_labels": ["pii"]})
    for move in (
        complete(f"yours is {SECRET}."),
        complete({"is": [SECRET]}),
        ask("c1", f"is it {SECRET}?"),
    ):
        found = no(played, move)
        assert SECRET not in msgspec.json.encode(found).decode()
        assert found.hint.endswith("what is labelled pii")
    is_(played.move(complete("yours is ******")), RequestCompleted)
    sound(played)


def test_a_value_is_found_within_json_and_under_another_key() -> None:
    played = with_secret({"looks_at": ["facts.note"], "forbid_labels": ["pii"]}, value={"n": ['say "hi"\n']})
    no(played, transfer("b", fact("note", {"copied": 'he: say "hi"\n'})))
    no(played, transfer("b", fact("note", 'say "hi"\n')))
    is_(played.move(transfer("b", fact("note", "say hi"))), HandoffAdmitted)
    sound(played)


def test_facts_with_a_label_may_be_kept_from_a_reader_who_is_cleared() -> None:
    played = with_secret({"looks_at": ["facts"], "forbid_labels": ["pii"], "when": {"to": ["b"]}})
    found = no(played, transfer("b"))
    assert found.numbers["at"] == "facts.iban"
    assert "has the label pii" in found.detail
    is_(played.move(transfer("b", drop=("iban",))), HandoffAdmitted)
    sound(played)


def test_short_values_are_not_looked_for_and_no_agent_learns_of_what_it_may_not_see() -> None:
    played = with_secret({"looks_at": ["answer"], "forbid_labels": ["pii"]}, value=4711)
    no(played, complete("at 4711"))  # four characters are the fewest that are looked for
    played = with_secret({"looks_at": ["answer"], "forbid_labels": ["pii"]}, value=471)
    is_(played.move(complete("at 471")), RequestCompleted)
    sound(played)
    played = with_secret({"looks_at": ["answer"], "forbid_labels": ["pii"]})
    is_(played.move(transfer("c")), HandoffAdmitted)
    is_(played.move(complete(f"a guess: {SECRET}")), RequestCompleted)
    sound(played)


# --- what is no value ---------------------------------------------------------------------------------


def test_what_differs_from_a_value_by_one_character_is_not_it() -> None:
    played = with_secret({"looks_at": ["facts.note"], "forbid_labels": ["pii"]}, value='say "hi"\n')
    no(played, transfer("b", fact("note", ['say "hi"\n'])))
    is_(played.move(transfer("b", fact("note", ['way "hi"\n', 'say "hi"\t']))), HandoffAdmitted)
    sound(played)


def test_yes_no_and_nothing_are_no_values() -> None:
    played = with_secret({"looks_at": ["answer"], "forbid_labels": ["pii"]}, value=[True, False, None])
    is_(played.move(complete("true, false and null")), RequestCompleted)
    sound(played)


def test_a_value_is_forbidden_where_its_own_label_is_and_a_fact_without_one_nowhere() -> None:
    played = play(
        {"looks_at": ["answer"], "forbid_labels": ["vip"]},
        facts=(fact("iban", SECRET, "pii"), fact("order", "O-17-4711")),
        fleet={"a": agent("a", clearance=("pii", "vip"))},
    )
    is_(played.move(complete(f"{SECRET} for O-17-4711")), RequestCompleted)
    sound(played)


# --- labels that a key has kept -----------------------------------------------------------------------


def test_what_is_remembered_or_delivered_has_the_labels_that_its_key_ever_had() -> None:
    forbidden = {"looks_at": ["facts"], "forbid_labels": ["pii"]}
    played = with_secret(forbidden)
    found = no(played, Complete(answer="", remember=(fact("iban", "another"),)))
    assert "has the label pii" in found.detail
    assert rejudge(played.bodies).same
    rules = policy({**forbidden, "when": {"moves": ["deliver"]}}, topology="supervised")
    fleet = {name: agent(name, clearance=("pii",)) for name in "ab"}
    planned = tree(policy=msgspec.structs.asdict(rules), fleet=fleet)
    say(planned, "", delegate(task("one", "b", fact("iban", SECRET, "pii"))))
    assert "has the label pii" in refusal_of(planned, "one", deliver(fact("iban", "another"))).detail


# --- what a lead was shown ----------------------------------------------------------------------------


def lead_with_a_result(*, clearance: tuple[str, ...] = ("pii",)) -> Play:
    """Return a play whose lead was delivered the secret, and then the result of another task."""
    rules = policy(
        {"looks_at": ["answer"], "forbid_labels": ["pii"]}, topology="supervised", name="supervised"
    )
    fleet = {
        "a": agent("a", clearance=clearance),
        "b": agent("b", clearance=("pii",)),
        "c": agent("c"),
    }
    played = tree(task("one", "b"), policy=msgspec.structs.asdict(rules), fleet=fleet)
    say(played, "one", deliver(fact("iban", SECRET, "pii")))
    say(played, "", delegate(task("two", "c")))
    say(played, "two", deliver())
    return played


def test_a_lead_knows_what_earlier_tasks_delivered() -> None:
    played = lead_with_a_result()
    assert refusal_of(played, "", complete(f"it is {SECRET}")).rule == Rule.GUARDRAIL
    is_(played.move(complete("it is known")), RequestCompleted)
    assert rejudge(played.bodies).same


def test_a_lead_that_may_not_see_what_a_task_delivered_can_guess_at_it_in_vain() -> None:
    played = lead_with_a_result(clearance=())
    is_(played.move(complete(f"a guess: {SECRET}")), RequestCompleted)
    assert rejudge(played.bodies).same


def test_a_lead_that_was_removed_from_the_fleet_knows_no_labelled_value_of_old() -> None:
    played = lead_with_a_result()
    del played.fleet["a"]
    is_(played.move(complete(f"it is {SECRET}")), RequestCompleted)
    assert rejudge(played.bodies).same


# --- how much is searched for -------------------------------------------------------------------------


def test_so_much_is_searched_for_in_one_verdict_and_no_more() -> None:
    values, guardrails, length = 512, 4, 1 << 16
    assert values * guardrails * length == 1 << 27
    several = [{"looks_at": ["answer"], "forbid_labels": ["pii", f"l{n}"]} for n in range(guardrails)]
    unlabelled = {"looks_at": ["answer"], "forbid_labels": ["vip"]}
    facts = tuple(fact(f"k{number}", f"value-{number}", "pii") for number in range(values))

    def held() -> Play:
        rules = policy(*several, unlabelled, max_handoff_bytes=1 << 17)
        made = Play(policy=rules, fleet={"a": agent("a", clearance=("pii",))})
        made.submit(facts=facts)
        return made

    is_(held().move(complete("a" * length)), RequestCompleted)
    found = no(held(), complete("a" * (length + 1)))
    assert found.numbers["mistakes"] == [
        f"g{guardrails - 1}: answer is too long to be searched for {values} labelled values"
    ]
