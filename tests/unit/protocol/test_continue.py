"""Who gets the next request of a conversation: whoever spoke last, or the entry agent with the reason."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.ops.fork import fork_of
from mesh.replay.rejudge import rejudge
from mesh.replay.whatif import compare
from mesh.testing import Conversations, InMemoryGuard, NotDecided
from protocol.domain.breaker import asked
from protocol.domain.memory import last_speaker
from protocol.domain.recorded import Other
from protocol.wire import codec
from protocol.wire.commands import Cancel, Resolve
from protocol.wire.config import BreakerEntry, Fleet, Policy
from protocol.wire.events import RequestCompleted, RequestOpened, RequestRefused, TurnSuspended
from protocol.wire.handoff import Constraints, Rule
from protocol.wire.ids import AgentName
from protocol.wire.records import MemoryForgotten, MemorySpeaker
from tests.certain import is_
from tests.unit.protocol.anything import STORIES
from tests.unit.protocol.worlds import agent, ask, complete, escalate, fact, give_up, transfer

FLEET = Fleet(
    name="airline",
    entry=AgentName("desk"),
    agents={"desk": agent("desk"), "seats": agent("seats", intents=("seat",)), "bags": agent("bags")},
    clients=(AgentName("c1"), AgentName("c2")),
    operators=(AgentName("op"),),
    human=True,
)
LAST = Policy(continue_with="last")


class Chat:
    """Requests of one client's conversations, one after the other; each is judged again to the letter."""

    def __init__(self, policy: Policy = LAST, **around: Any) -> None:
        self.memory, self.policy, self.number = Conversations(), policy, 0
        self.around = around

    def says(self, client: str = "c1", fleet: Fleet = FLEET, **submit: Any) -> InMemoryGuard:
        self.number += 1
        fleet = msgspec.structs.replace(fleet, clients=(AgentName(client),))
        guard = InMemoryGuard(
            fleet, {"default": self.policy}, memory=self.memory, number=self.number, **self.around
        )
        guard.submit("hello", **{"conversation": "c", **submit})
        same(guard)
        return guard

    def answered_by(self, name: str, **submit: Any) -> InMemoryGuard:
        """Play a request to its end; if `name` is not who got it, it is handed over."""
        guard = self.says(**submit)
        if guard.holder.agent != name:
            guard.move(transfer(name, intent=None))
        guard.move(complete())
        same(guard)
        return guard


def same(guard: InMemoryGuard) -> None:
    """Assert that the log is judged again to the letter, without the memory."""
    again = rejudge(guard.bodies)
    assert again.same, again


def went(guard: InMemoryGuard) -> tuple[str, str | None, Rule | None]:
    """Return who got the request, who had spoken last, and why that one did not get it."""
    event = is_(codec.decode_event(guard.bodies[-1]), RequestOpened)
    if event.continued is None:
        return event.to, None, None
    return event.to, event.continued.last, event.continued.why


def test_the_next_message_goes_to_whoever_answered_last() -> None:
    chat = Chat()
    assert went(chat.says()) == ("desk", None, None)
    chat.answered_by("seats")
    assert went(chat.says()) == ("seats", "seats", None)
    chat.answered_by("desk")
    assert went(chat.says()) == ("desk", "desk", None)


def test_a_submit_may_say_so_where_the_policy_does_not() -> None:
    chat = Chat(Policy())
    chat.answered_by("seats", continue_with="last")
    assert went(chat.says(continue_with="last")) == ("seats", "seats", None)
    assert went(chat.says()) == ("desk", None, None)


def test_by_default_nothing_is_noted_and_the_entry_agent_gets_it() -> None:
    chat = Chat(Policy())
    guard = chat.answered_by("seats")
    assert is_(guard.events[-1], RequestCompleted).conversation is None
    assert went(chat.says(continue_with="last")) == ("desk", None, None)


def test_who_answers_in_a_fork_of_a_message_is_the_last_one_then() -> None:
    chat = Chat(Policy())
    old = chat.answered_by("seats", client="op", continue_with="last")
    chat.answered_by("desk", client="op", continue_with="entry")
    had_it = next(event.n for event in old.events if event.to == "seats")
    fork = InMemoryGuard(FLEET, {"default": chat.policy}, memory=chat.memory, number=9, client="op")
    fork.submit_whole(fork_of(old.events, old.bodies, had_it))
    fork.move(complete())
    same(fork)
    assert went(chat.says(client="op", continue_with="last")) == ("seats", "seats", None)


def test_whoever_leaves_facts_is_known_without_more() -> None:
    chat = Chat(Policy())
    guard = chat.says()
    guard.move(transfer("seats"))
    guard.move(msgspec.structs.replace(complete(), remember=(fact("seat", "12A"),)))
    assert went(chat.says(continue_with="last")) == ("seats", "seats", None)


def test_a_named_agent_gets_it_and_is_the_last_one_then() -> None:
    chat = Chat()
    chat.answered_by("desk")
    assert len(chat.answered_by("bags", to=AgentName("bags")).ledger.turns) == 1
    assert went(chat.says()) == ("bags", "bags", None)


def test_a_message_may_begin_anew_at_the_entry_agent() -> None:
    chat = Chat()
    chat.answered_by("seats")
    assert went(chat.says(continue_with="entry")) == ("desk", None, None)
    chat.answered_by("desk", continue_with="entry")
    assert went(chat.says()) == ("desk", "desk", None)


def test_whoever_asked_last_gets_it_if_the_question_was_never_answered() -> None:
    chat = Chat()
    chat.answered_by("desk")
    guard = chat.says()
    guard.move(transfer("seats"))
    asked_ = is_(guard.move(ask("c1")), TurnSuspended)
    assert (asked_.agent, asked_.conversation) == ("seats", "c")
    guard.say(Cancel(id="x"), "c1")
    same(guard)
    assert went(chat.says()) == ("seats", "seats", None)


def test_a_question_to_people_is_not_said_to_the_client() -> None:
    chat = Chat()
    chat.answered_by("desk")
    guard = chat.says()
    guard.move(transfer("seats"))
    assert is_(guard.move(ask("human")), TurnSuspended).conversation is None
    assert went(chat.says()) == ("desk", "desk", None)


@pytest.mark.parametrize("how", ["a person answers", "it is given up", "it is cancelled"])
def test_an_end_without_an_agents_answer_leaves_the_last_one_as_it_was(how: str) -> None:
    chat = Chat()
    chat.answered_by("bags")
    guard = chat.says()
    guard.move(transfer("seats"))
    if how == "a person answers":
        guard.move(escalate())
        guard.say(Resolve(id="x", turn=guard.holder.id, complete=True, answer=1), "op")
    elif how == "it is given up":
        guard.move(give_up())
    else:
        guard.say(Cancel(id="x"), "c1")
    same(guard)
    assert went(chat.says()) == ("bags", "bags", None)


def without(name: str) -> Fleet:
    agents = {key: entry for key, entry in FLEET.agents.items() if key != name}
    return msgspec.structs.replace(FLEET, agents=agents)


def test_an_agent_that_left_the_fleet_is_passed_over_and_the_event_says_why() -> None:
    chat = Chat()
    chat.answered_by("seats")
    assert went(chat.says(fleet=without("seats"))) == ("desk", "seats", Rule.KNOWN_AGENT)
    assert went(chat.says()) == ("seats", "seats", None)  # it is back


def test_an_agent_that_does_not_take_the_intent_is_passed_over() -> None:
    chat = Chat()
    chat.answered_by("seats")
    assert went(chat.says(intent="seat")) == ("seats", "seats", None)
    guard = chat.says(intent="bag")
    assert went(guard) == ("desk", "seats", Rule.KNOWN_AGENT)
    assert [each.entry.name for each in is_(guard.events[-1], RequestOpened).grounds.candidates] == ["seats"]


def test_an_agent_with_an_open_breaker_is_passed_over() -> None:
    chat = Chat()
    chat.answered_by("seats")
    chat.around = {"breakers": {"seats": BreakerEntry(state="open")}}
    guard = chat.says()
    assert went(guard) == ("desk", "seats", Rule.AGENT_AVAILABLE)
    grounds = is_(guard.events[-1], RequestOpened).grounds
    assert [(each.entry.name, each.breaker) for each in grounds.candidates] == [("seats", "open")]
    assert grounds.breaker == "closed"


def test_the_message_may_be_the_trial_of_the_last_ones_breaker_and_not_of_the_entry_agents() -> None:
    chat = Chat()
    chat.answered_by("seats")
    open_ = BreakerEntry(state="open", opened_at=1)
    chat.around = {"breakers": {"seats": open_, "desk": open_}}
    guard = chat.says()
    assert went(guard) == ("seats", "seats", None)
    assert is_(guard.events[-1], RequestOpened).grounds.breaker == "half_open"
    assert guard.breakers["seats"].trial is not None
    assert guard.breakers["desk"] == open_
    assert asked(open_, FLEET.breaker, guard.now, "x").state == "half_open"


def test_if_the_entry_agent_cannot_have_it_either_it_is_refused() -> None:
    chat = Chat()
    chat.answered_by("seats")
    closed = BreakerEntry(state="open")
    chat.around = {"breakers": {"seats": closed, "desk": closed}}
    guard = chat.says()
    assert is_(guard.events[-1], RequestRefused).refusal.rule == Rule.AGENT_AVAILABLE
    same(guard)


@pytest.mark.parametrize("there", [True, False], ids=["it goes to the last", "it goes to the entry agent"])
def test_a_refusal_for_another_reason_is_judged_again_as_well(there: bool) -> None:
    chat = Chat()
    chat.answered_by("seats")
    guard = chat.says(constraints=Constraints(must_carry=("gone",)), intent="seat" if there else "bag")
    assert is_(guard.events[-1], RequestRefused).refusal.rule == Rule.CONSTRAINTS
    assert is_(guard.events[-1], RequestRefused).submit.continue_with is None


@pytest.mark.parametrize("other", [{"client": "c2"}, {"conversation": "d"}, {"conversation": None}], ids=str)
def test_anothers_conversation_another_one_and_none_begin_at_the_entry_agent(other: dict[str, Any]) -> None:
    chat = Chat()
    chat.answered_by("seats")
    assert went(chat.says(**other)) == ("desk", None, None)


def test_what_is_forgotten_is_forgotten_with_who_spoke() -> None:
    chat = Chat()
    chat.answered_by("seats")
    chat.memory.forget("c1", "c")
    assert went(chat.says()) == ("desk", None, None)


def test_an_order_to_forget_covers_what_was_said_before_it_and_age_forgets_too() -> None:
    def spoke(name: str, seq: int) -> MemorySpeaker:
        return MemorySpeaker(conversation="c", agent=AgentName(name), seq=seq, at=seq, request="r")

    def forget(seq: int, *keys: str) -> MemoryForgotten:
        return MemoryForgotten(conversation="c", keys=keys, seq=seq, at=0, control="x")

    newest = spoke("b", 7)
    spoken = [newest, spoke("a", 5)]
    assert last_speaker(spoken, [], 0, 1.0) == newest
    assert last_speaker(spoken, [forget(6)], 0, 1.0) == newest
    assert last_speaker(spoken, [forget(7)], 0, 1.0) is None
    assert last_speaker(spoken, [forget(7, "k")], 0, 1.0) == newest
    assert last_speaker(spoken, [], 7 + 1_000_000, 1.0) == newest
    assert last_speaker(spoken, [], 8 + 1_000_000, 1.0) is None
    assert last_speaker([], [], 0, 1.0) is None


def test_a_submit_that_goes_on_with_the_last_of_no_conversation_is_malformed() -> None:
    with pytest.raises(NotDecided, match="`continue_with` is `last`, and there is no `conversation`"):
        Chat(Policy()).says(conversation=None, continue_with="last")
    with pytest.raises(NotDecided, match=r"\$.continue_with"):
        Chat().says(continue_with="first")


def test_another_fleet_is_tried_on_it_without_the_memory() -> None:
    chat = Chat()
    chat.answered_by("seats")
    guard = chat.answered_by("seats")
    assert compare(guard.bodies, Other(fleet=FLEET)).divergence is None
    found = compare(guard.bodies, Other(fleet=without("seats"))).divergence
    assert found is not None
    assert (found.was.to, found.would.to) == ("seats", "desk")


def test_another_policy_is_tried_on_it_and_with_a_fleet_it_goes_to_the_entry_agent() -> None:
    """The event does not record which agent was the entry agent: a fleet says so."""
    chat = Chat()
    chat.answered_by("seats")
    guard = chat.answered_by("seats")
    assert compare(guard.bodies, Other({"*": Policy()})).divergence is None
    found = compare(guard.bodies, Other({"*": Policy()}, FLEET)).divergence
    assert found is not None
    assert (found.was.to, found.would.to) == ("seats", "desk")
    assert compare(guard.bodies, Other({"*": Policy(continue_with="last", max_asks=1)})).divergence is None


# --- any conversation --------------------------------------------------------------------------------

NAMES = ("desk", "seats", "bags")


@dataclass
class Model:
    """Who spoke last, by conversation, as the rules say it in words."""

    policy: Policy
    spoke: dict[str, str] = field(default_factory=dict)

    def expects(self, talk: str, says: dict[str, Any], there: Fleet, closed: set[str]) -> tuple[Any, ...]:
        """Return who gets a message: the agent, who spoke last, and why that one does not get it."""
        wanted = says.get("continue_with") or self.policy.continue_with
        if "to" in says:
            return says["to"], None, None
        last = self.spoke.get(talk) if wanted == "last" else None
        if last is None or last == "desk":
            return "desk", last, None
        entry = there.agents.get(last)
        if entry is None or (says.get("intent") and not entry.takes(says["intent"])):
            return "desk", last, Rule.KNOWN_AGENT
        return ("desk", last, Rule.AGENT_AVAILABLE) if last in closed else (last, last, None)

    def hears(self, talk: str, says: dict[str, Any], name: str) -> None:
        """Note that an agent spoke, if anyone notes it."""
        if says.get("continue_with") or self.policy.continue_with == "last":
            self.spoke[talk] = name


@settings(max_examples=STORIES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), policy=st.sampled_from([Policy(), LAST]))
def test_any_conversation_goes_on_as_the_rules_say(data: st.DataObject, policy: Policy) -> None:
    chat, model = Chat(policy), Model(policy)
    for _ in range(data.draw(st.integers(1, 6))):
        gone = data.draw(st.sampled_from([None, None, "seats", "bags"]))
        closed = data.draw(st.sets(st.sampled_from(["seats", "bags"])))
        says: dict[str, Any] = data.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "continue_with": st.sampled_from(["last", "last", "entry"]),
                    "to": st.sampled_from([AgentName("desk")]),
                    "intent": st.sampled_from(["seat", "bag"]),
                },
            )
        )
        talk, there = data.draw(st.sampled_from(["c", "d"])), FLEET if gone is None else without(gone)
        chat.around = {"breakers": {name: BreakerEntry(state="open") for name in closed}}
        guard = chat.says(fleet=there, conversation=talk, **says)
        got = went(guard)
        assert got == model.expects(talk, says, there, closed)
        to = data.draw(st.sampled_from([name for name in NAMES if name in there.agents]))
        if to != guard.holder.agent and to not in closed:
            guard.move(transfer(to))
        speaker = guard.holder.agent
        how = data.draw(st.sampled_from(["answers", "answers", "asks and is cancelled", "gives up"]))
        if how == "answers":
            guard.move(complete())
        elif how == "gives up":
            guard.move(give_up())
        else:
            guard.move(ask("c1"))
            guard.say(Cancel(id="x"), "c1")
        if how != "gives up":
            model.hears(talk, says, speaker)
        same(guard)
