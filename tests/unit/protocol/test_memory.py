"""Conversations: what one request ends with, later ones begin with; judged again from events alone."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from mesh.local.in_memory_guard import START_US
from mesh.replay.rejudge import rejudge
from mesh.replay.whatif import compare
from mesh.testing import Conversations, InMemoryGuard, NotDecided
from protocol.domain.memory import MemoryEntry, current_records, supersedes
from protocol.domain.recorded import Other
from protocol.wire import codec
from protocol.wire.commands import Forget, MoveProposed
from protocol.wire.config import Fleet, Policy
from protocol.wire.errors import Malformed
from protocol.wire.events import (
    AnyEvent,
    FactsWithheld,
    MoveRefused,
    RequestCompleted,
    RequestOpened,
    RequestRefused,
)
from protocol.wire.handoff import Fact, Rule
from protocol.wire.ids import AgentName, TurnId
from protocol.wire.moves import Complete, Transfer
from protocol.wire.records import MOST_KEYS, MemoryForgotten, MemoryRecord
from tests.certain import is_, known
from tests.unit.protocol.happened import refused
from tests.unit.protocol.trees import SUPERVISED, delegate, deliver, say, task
from tests.unit.protocol.worlds import Play, agent, fact

FLEET = Fleet(
    name="desk",
    entry=AgentName("a"),
    agents={"a": agent("a", clearance=("pii",)), "b": agent("b")},
    clients=(AgentName("c1"), AgentName("c2")),
    operators=(AgentName("op"),),
    human=True,
    labels={"iban": ("pii",)},
)


class Talk:
    """Requests of one mesh, one after the other."""

    def __init__(self, **around: Any) -> None:
        self.memory, self._around, self.number = Conversations(), around, 0

    def guard(self, client: str = "c1", **around: Any) -> InMemoryGuard:
        self.number += 1
        fleet = msgspec.structs.replace(FLEET, clients=(AgentName(client),))
        return InMemoryGuard(fleet, memory=self.memory, number=self.number, **(self._around | around))

    def ended(
        self, *remember: Fact, keys: tuple[str, ...] = (), client: str = "c1", **submit: Any
    ) -> AnyEvent:
        """Play a request that its entry agent answers at once."""
        guard = self.guard(client)
        guard.submit("hello", **{"conversation": "c", **submit})
        verdict = guard.move(Complete(answer="done", remember=remember, remember_keys=keys))
        same(guard)
        return verdict

    def begun(self, client: str = "c1", **submit: Any) -> InMemoryGuard:
        guard = self.guard(client)
        guard.submit("hello again", **{"conversation": "c", **submit})
        same(guard)
        return guard


def same(guard: InMemoryGuard) -> None:
    """Assert that the log is judged again to the letter, without the memory."""
    again = rejudge(guard.bodies)
    assert again.same, again


def handed(guard: InMemoryGuard) -> dict[str, Any]:
    """Return what the holder was handed, but for the text."""
    return {each.key: each.value for each in guard.holder.work.handoff.facts if each.key != "text"}


def opened(guard: InMemoryGuard) -> RequestOpened:
    event = is_(guard.events[-1], RequestOpened)
    return event


def test_a_request_begins_with_what_an_earlier_one_ended_with() -> None:
    talk = Talk()
    talk.ended(fact("order", 7))
    second = talk.begun()
    assert handed(second) == {"order": 7}
    assert opened(second).remembered == ("order",)
    assert talk.memory.facts("c1", "c") == {"order": 7}


def test_a_turn_has_facts_that_it_was_handed_remembered_by_their_keys() -> None:
    talk = Talk()
    talk.ended(keys=("order",), facts={"order": 7, "other": 8})
    assert handed(talk.begun()) == {"order": 7}


def test_the_newest_value_of_a_key_is_remembered_and_the_others_stay() -> None:
    talk = Talk()
    talk.ended(fact("order", 7), fact("name", "Ada"))
    talk.ended(fact("order", 8))
    assert handed(talk.begun()) == {"order": 8, "name": "Ada"}


@pytest.mark.parametrize(
    "submit", [{"conversation": None}, {"conversation": "another"}, {"client": "c2"}], ids=str
)
def test_a_request_of_none_of_another_or_of_anothers_conversation_begins_with_nothing(
    submit: dict[str, Any],
) -> None:
    talk = Talk()
    talk.ended(fact("order", 7))
    guard = talk.begun(**submit)
    assert handed(guard) == {}
    assert opened(guard).remembered == ()


def test_a_request_without_a_conversation_leaves_nothing() -> None:
    talk = Talk()
    is_(talk.ended(fact("order", 7), conversation=None), RequestCompleted)
    assert handed(talk.begun()) == {}


def test_what_is_remembered_is_not_told_to_the_client() -> None:
    talk = Talk()
    guard = talk.guard()
    guard.submit("hello", conversation="c")
    guard.move(Complete(answer="done", remember=(fact("note", "a difficult customer"),)))
    withheld, end = guard.events[-2:]
    assert isinstance(withheld, FactsWithheld)
    assert [each.key for each in withheld.facts] == ["note"]
    assert b"difficult" not in codec.encode(end)


# --- labels ---------------------------------------------------------------------------------------


def test_a_labelled_fact_is_withheld_from_an_entry_agent_that_may_not_see_it_and_travels_on() -> None:
    talk = Talk()
    talk.ended(fact("iban", "DE1"), fact("order", 7))
    guard = talk.begun(to="b")
    assert handed(guard) == {"order": 7}
    event = opened(guard)
    assert b"DE1" not in guard.bodies[-1]
    assert event.remembered == ("iban", "order")
    assert known(event.work.withheld).labels == ("pii",)
    guard.move(Transfer(to_agent=AgentName("a"), summary="go on"))
    assert handed(guard) == {"order": 7, "iban": "DE1"}
    same(guard)


def test_labels_of_a_remembered_fact_stick() -> None:
    talk = Talk()
    talk.ended(keys=("ssn",), facts=[fact("ssn", 1, "pii")])
    talk.ended(fact("ssn", 2))  # a is cleared for it, and brings it again without its label
    guard = talk.begun()
    assert next(each for each in guard.holder.work.handoff.facts if each.key == "ssn").labels == ("pii",)


def test_what_is_remembered_by_its_key_has_no_label_that_the_key_got_elsewhere() -> None:
    """Nor has it one when the log is judged again, from which it cannot be told how it was named."""
    play = Play(policy=SUPERVISED)
    play.submit(facts=(fact("k", "old"),), conversation="talk")
    play.move(delegate(task("one", "b", fact("k", "new", "pii"))))
    say(play, "one", deliver())
    done = is_(say(play, "", Complete(answer="done", remember_keys=("k",))), RequestCompleted)
    assert done.conversation == "talk"
    assert is_(play.events[-2], FactsWithheld).facts == (fact("k", "old"),)
    assert rejudge(play.bodies).same


def test_a_fact_that_the_submit_brings_wins_and_gets_the_remembered_labels_too() -> None:
    talk = Talk()
    talk.ended(fact("ssn", 1, "pii"), fact("order", 7))
    guard = talk.begun(facts=[fact("ssn", 2, "vip")], to="b")
    assert handed(guard) == {"order": 7}
    event = opened(guard)
    assert event.remembered == ("order",)
    kept = is_(guard.events[-2], FactsWithheld)
    assert [(each.key, each.value, each.labels) for each in kept.facts] == [("ssn", 2, ("pii", "vip"))]


@pytest.mark.parametrize(
    "move",
    [Complete(answer="done", remember=(fact("ssn", 3),)), Complete(answer="done", remember_keys=("ssn",))],
    ids=["brought", "named"],
)
def test_an_agent_that_is_not_cleared_has_nothing_remembered_under_a_key_that_it_may_not_see(
    move: Complete,
) -> None:
    talk = Talk()
    talk.ended(fact("ssn", 1, "pii"))
    guard = talk.begun(to="b")
    refusal = refused(guard.move(move))
    assert (refusal.rule, refusal.numbers) == (Rule.LABELS, {"keys": ["ssn"]})
    guard.move(Complete(answer="done", remember=(fact("ssn-2", 3),)))
    same(guard)
    assert talk.memory.facts("c1", "c") == {"ssn": 1, "ssn-2": 3}


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "numbers"),
    [
        (Complete(answer="", remember_keys=("nothing",)), {"keys": ["nothing"]}),
        (Complete(answer="", remember_keys=("text",)), {"keys": ["text"]}),
        (Complete(answer="", remember=(fact("text", "x"),)), {"keys": ["text"]}),
        (
            Complete(answer="", remember=tuple(fact(f"k{at}") for at in range(MOST_KEYS + 1))),
            {"keys": MOST_KEYS + 1, "max_keys": MOST_KEYS},
        ),
        (Complete(answer="", remember=(fact("big", "x" * 40_000),)), {"max_bytes": 32_768}),
    ],
    ids=["not-handed", "text", "text-brought", "too-many", "too-large"],
)
def test_what_may_not_be_remembered_is_refused_with_its_numbers(
    move: Complete, numbers: dict[str, Any]
) -> None:
    guard = Talk().begun()
    verdict = is_(guard.move(move), MoveRefused)
    assert verdict.refusal.rule == Rule.MEMORY
    assert numbers.items() <= dict(verdict.refusal.numbers).items()
    assert verdict.refusal.hint
    same(guard)


def test_what_the_request_began_with_counts() -> None:
    talk = Talk()
    talk.ended(*(fact(f"k{at}") for at in range(MOST_KEYS)))
    guard = talk.begun()
    assert guard.move(Complete(answer="", remember=(fact("k0", 2),), remember_keys=("k1",))).refusal is None
    verdict = talk.begun().move(Complete(answer="", remember=(fact("more"),)))
    assert known(verdict.refusal).numbers["keys"] == MOST_KEYS + 1


def test_what_an_agent_may_not_see_does_not_count_for_it() -> None:
    """Else its refusals would tell how much is remembered that it may not know of."""
    talk = Talk()
    talk.ended(fact("ssn", 1, "pii"), fact("plain", 1))
    too_many = Complete(answer="", remember=tuple(fact(f"k{at}") for at in range(MOST_KEYS)))
    for to, count in (("a", MOST_KEYS + 2), ("b", MOST_KEYS + 1)):
        verdict = is_(talk.begun(to=to).move(too_many), MoveRefused)
        assert (verdict.refusal.rule, verdict.refusal.numbers["keys"]) == (Rule.MEMORY, count)


@pytest.mark.parametrize("large", [False, True])
def test_a_conversation_that_remembers_too_much_refuses_the_submit_and_says_what_to_do(large: bool) -> None:
    talk = Talk()
    for part in range(4):  # at once: none of them knows of the others
        guard = talk.guard()
        guard.memory = Conversations()
        guard.submit("hello", conversation="c")
        facts = (
            [fact(f"f{part}", "x" * 20_000)] if large else [fact(f"{part}-{at}") for at in range(MOST_KEYS)]
        )
        guard.memory = talk.memory
        guard.move(Complete(answer="done", remember=tuple(facts)))
    guard = talk.begun()
    refused = is_(guard.events[-1], RequestRefused)
    assert refused.refusal.rule == Rule.MEMORY
    assert "mesh memory forget" in refused.refusal.hint
    talk.memory.forget("c1", "c")
    assert handed(talk.begun()) == {}


@pytest.mark.parametrize(
    "move",
    [
        Complete(answer="", remember=(fact("k"), fact("k"))),
        Complete(answer="", remember=(fact("k", 1, "no label"),)),
        Complete(answer="", remember_keys=("k", "k")),
        Complete(answer="", remember_keys=("",)),
    ],
)
def test_what_cannot_be_read_is_malformed(move: Complete) -> None:
    with pytest.raises(Malformed):
        codec.parse_proposal(codec.encode(MoveProposed(turn=TurnId("t"), round=0, move=move)))


@pytest.mark.parametrize("said", [{"conversation": ""}, {"conversation": "c", "keys": ("k", "k")}])
def test_an_order_to_forget_that_cannot_be_read_is_malformed(said: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        codec.parse_control(codec.encode(Forget(id="f", **said)))


def test_to_forget_is_about_no_request() -> None:
    guard = Talk().begun()
    with pytest.raises(NotDecided, match="not_allowed"):
        guard.say(Forget(id="f", conversation="c"), "op")


# --- age and order ----------------------------------------------------------------------------------


def test_what_is_older_than_the_fleet_says_is_forgotten() -> None:
    talk = Talk()
    talk.ended(fact("order", 7))
    last = START_US + int(FLEET.memory_max_age_s * 1e6)
    assert talk.memory.recall("c1", "c", last, FLEET.memory_max_age_s) == (fact("order", 7),)
    assert talk.memory.recall("c1", "c", last + 1, FLEET.memory_max_age_s) == ()


def record(seq: int, value: int, key: str = "k", at: int = 0) -> MemoryRecord:
    return MemoryRecord(conversation="c", key=key, fact=fact(key, value), seq=seq, at=at, request="r")


def forgotten(seq: int, *keys: str) -> MemoryForgotten:
    return MemoryForgotten(conversation="c", keys=keys, seq=seq, at=0, control="f")


def test_a_record_supersedes_one_of_an_earlier_answer_and_no_other_whatever_the_clocks_said() -> None:
    assert supersedes(record(1, 1), None)
    assert supersedes(record(2, 2, at=10), record(1, 1, at=99))
    assert not supersedes(record(1, 1), record(1, 1))
    assert not supersedes(record(1, 1, at=99), record(2, 2, at=10))


@pytest.mark.parametrize(
    "entries", list(permutations([record(3, 3), record(4, 4), forgotten(3, "k"), record(2, 2)]))
)
def test_the_last_answer_counts_and_a_forget_covers_all_up_to_its_place_in_any_order(
    entries: tuple[MemoryEntry, ...],
) -> None:
    assert [each.fact.value for each in current_records(entries, 0, 1.0)] == [4]
    assert current_records([*entries, forgotten(4)], 0, 1.0) == []
    assert current_records([*entries, forgotten(4, "other")], 0, 1.0) != []


def test_an_answer_names_its_conversation_only_if_it_leaves_something() -> None:
    talk = Talk()
    assert is_(talk.ended(fact("order", 7)), RequestCompleted).conversation == "c"
    assert is_(talk.ended(), RequestCompleted).conversation is None
    assert is_(talk.ended(fact("order", 7), conversation=None), RequestCompleted).conversation is None


def test_a_changed_policy_judges_by_the_memory_that_the_request_began_with() -> None:
    talk = Talk()
    talk.ended(fact("order", "x" * 2_000))
    guard = talk.begun()
    guard.move(Complete(answer="done"))
    found = compare(guard.bodies, Other({"*": Policy(max_handoff_bytes=1_000)})).divergence
    assert found is not None
    assert (found.would.type, found.would.rule) == ("request.refused", "memory")
