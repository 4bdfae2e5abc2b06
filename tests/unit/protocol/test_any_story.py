"""Whatever happens, in whatever order: what holds of every request.

A machine plays arbitrary stories and, after each step, checks what must always be true; an oracle judges
every verdict.
"""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mesh.replay.rejudge import rejudge
from protocol.domain.admission import Late
from protocol.domain.envelope import MOST_TOLD, World
from protocol.domain.hash_chain import GENESIS, breaks
from protocol.domain.ledger import fold_bodies
from protocol.domain.timers import due
from protocol.domain.waits import next_due
from protocol.views.timeline import timeline
from protocol.wire import codec
from protocol.wire.commands import (
    Assign,
    Cancel,
    Command,
    Control,
    Freeze,
    MoveProposed,
    ReplyToAsk,
    Report,
    Resolve,
    Settle,
    Submit,
    Thaw,
    id_of,
)
from protocol.wire.config import Policy
from protocol.wire.event_parts import Grounds
from protocol.wire.events import (
    AnyEvent,
    Ended,
    EscalationRaised,
    EscalationResolved,
    FactsWithheld,
    HandoffAdmitted,
    MoveRefused,
    RequestCompleted,
    RequestFailed,
    RequestRefused,
    TurnSuspended,
)
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.ids import AgentName, Cause, TurnId
from protocol.wire.moves import Escalate, HandBack, Move, Transfer
from tests.unit.protocol.anything import (
    ALIKE,
    NAMES,
    STORIES,
    agents_,
    budgets,
    facts,
    hand_ons,
    limits,
    moves,
    names,
    policies,
    reports,
)
from tests.unit.protocol.oracle import people
from tests.unit.protocol.oracle.account import amounts, spent
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.test_ledger import state
from tests.unit.protocol.worlds import REQUEST, Play, agent

CONTROLS: dict[type[Control], tuple[str, ...]] = {
    Cancel: (),
    Freeze: (),
    Thaw: (),
    Assign: ("turn", "to"),
    Resolve: ("turn",),
    ReplyToAsk: ("turn", "round"),
    Settle: ("turn", "round", "outcome"),
}
senders = st.sampled_from(["op1", "op1", "c1", "c2", "a"])
SPENDING = (HandoffAdmitted, EscalationRaised, EscalationResolved, RequestCompleted, RequestFailed)


NUMBERS = {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "integer"}}]}
FORMS: Any = {
    "a": {"b": {"properties": {"l": {"type": ["integer", "null"]}}}},
    "c": {"b": {"required": ["hidden"], "properties": {"k": NUMBERS}}},
}
"""What two edges carry."""


class Story(RuleBasedStateMachine):
    """One request, to which anything may happen."""

    @initialize(policy=policies, entry=agents_, human=st.integers(0, 3), asked=limits, brought=facts)
    def begin(self, policy: Policy, entry: AgentName, human: int, asked: Constraints, brought: Any) -> None:
        fleet = {
            "a": agent("a", clearance=("pii",), fallback="c"),
            "b": agent("b", intents=("bill",), fallback="d"),
            "c": agent("c", to=("a", "b"), actions=("look",), fallback="d"),
            "d": agent("d", clearance=("pii", "x")),
        }
        self.play = Play(fleet=fleet, entry=entry, human=human > 0, policy=policy, carries=FORMS)
        self.fleet = dict(fleet)
        self.auditor = Auditor()
        self.followed = 0
        self.unfinished: dict[tuple[str, int], MoveProposed] = {}
        told = tuple(item for item in brought if item.key != "text")
        carried = {"text", *(item.key for item in told)}
        must = tuple(key for key in asked.must_carry if key in carried)
        limits = msgspec.structs.replace(asked, max_resolution_time_s=None, must_carry=must)
        self.submitted = Submit(text="help me", constraints=limits, facts=told)
        self.play.send_submit(self.submitted)

    def is_open(self) -> bool:
        return self.play.ledger.is_open

    def works(self) -> bool:
        turn = self.play.ledger.holder
        return turn is not None and turn.state == "working" and turn.agent != "human"

    # --- what may happen --------------------------------------------------------------------------

    @precondition(works)
    @rule(move=hand_ons, report=reports)
    def the_holder_hands_the_work_on(self, move: Move, report: Report) -> None:
        self.the_holder_says(move, report)

    @precondition(works)
    @rule(move=hand_ons)
    def the_holder_hands_the_work_on_without_a_word(self, move: Move) -> None:
        self.the_holder_says(move, Report())

    @precondition(works)
    @rule(move=moves, report=reports)
    def the_holder_asks_for_a_move(self, move: Move, report: Report) -> None:
        self.the_holder_says(move, report)

    def the_holder_says(self, move: Move, report: Report) -> None:
        turn = self.play.holder
        self.say(MoveProposed(turn=turn.id, round=turn.round, move=move, report=report), turn.agent)

    def say(self, proposal: MoveProposed, sender: AgentName) -> None:
        """Propose; or, where a guard died over this round's proposal, let that one come again."""
        self.play.propose(self.unfinished.get((proposal.turn, proposal.round), proposal), sender)

    @precondition(works)
    @rule(move=hand_ons, report=reports)
    def a_guard_dies_after_it_withheld(self, move: Move, report: Report) -> None:
        """What the holder asked for is not decided: only the event before it was appended."""
        play, turn = self.play, self.play.holder
        if play.ledger.frozen_at is not None or (turn.id, turn.round) in self.unfinished:
            return
        proposal = MoveProposed(turn=turn.id, round=turn.round, move=move, report=report)
        command = Command(REQUEST, turn.agent, proposal, Cause(id_of(REQUEST, proposal, turn.agent)), "agent")
        event = play.first_event(command)
        if isinstance(event, FactsWithheld):
            play.append(event)
            self.unfinished[turn.id, turn.round] = proposal

    @precondition(works)
    @rule(data=st.data(), to=agents_, how=st.sampled_from([Transfer, Transfer, HandBack, Escalate]))
    def the_holder_brings_again_what_is_carried(self, data: st.DataObject, to: AgentName, how: Any) -> None:
        """Be it withheld from them or not; with the same value, or one that might be taken for it."""
        ledger = self.play.ledger
        carried = list(ledger.carried().facts.values()) or [Fact(key="text", value="dropped by now")]
        hidden = [item for item in carried if item.labels]
        known = data.draw(st.sampled_from(hidden or carried))
        alike = next((group for group in ALIKE if known.value in group), ())
        value = data.draw(st.sampled_from([known.value, *alike, "another"]))
        labels = data.draw(st.sampled_from([(), known.labels]))
        brought = (Fact(key=known.key, value=value, labels=labels),)
        if how is Transfer:
            keys = data.draw(st.sampled_from([(), (known.key,)]))
            limits = Constraints(must_carry=keys)
            move: Move = Transfer(to_agent=to, summary="again", facts=brought, constraints=limits)
        else:
            move = how(summary="again", facts=brought)
        self.the_holder_says(move, Report())

    @precondition(lambda self: self.play.ledger.is_open and self.play.holder.agent == "human")
    @rule(to=st.none() | agents_, again=st.booleans(), added=facts, budget=st.none() | budgets)
    def a_person_resolves(self, to: AgentName | None, again: bool, added: Any, budget: Any) -> None:
        message = self.play.message(
            Resolve, turn=self.play.turn, to=to, again=again, facts=added, budget=budget
        )
        self.play.send_control(message)

    @precondition(works)
    @rule(to=agents_, intent=st.sampled_from([None, "bill"]), labels=st.sampled_from([(), ("pii",)]))
    def the_holder_meets_an_open_breaker(self, to: AgentName, intent: str | None, labels: Any) -> None:
        self.play.breakers[to] = "open"
        new = Fact(key=f"new{len(self.play.events)}", value=1, labels=labels)
        self.the_holder_says(Transfer(to_agent=to, summary="go on", intent=intent, facts=(new,)), Report())
        self.play.breakers[to] = "closed"

    @precondition(works)
    @rule(permanent=st.booleans(), after=st.none() | st.sampled_from([0.0, 90.0]), report=reports)
    def the_turn_breaks(self, permanent: bool, after: float | None, report: Report) -> None:
        turn = self.play.holder
        frozen = self.play.ledger.frozen_at is not None and self.play.ledger.is_deferred(turn.id, turn.round)
        if not frozen:
            self.play.fail(permanent=permanent, retry_after_s=after, report=report)

    @precondition(works)
    @rule(report=reports)
    def an_effect_is_in_doubt(self, report: Report) -> None:
        turn = self.play.holder
        if not self.play.ledger.is_deferred(turn.id, turn.round):
            self.play.doubt(report=report)

    @rule(data=st.data(), sender=names, move=moves)
    def anybody_says_anything_of_any_turn(self, data: st.DataObject, sender: AgentName, move: Move) -> None:
        turn = data.draw(st.sampled_from([*self.play.ledger.turns, TurnId("never")]))
        proposal = MoveProposed(turn=turn, round=data.draw(st.integers(0, 2)), move=move)
        self.say(proposal, sender)

    @rule(data=st.data(), kind=st.sampled_from(list(CONTROLS)), sender=senders)
    def anybody_steps_in(self, data: st.DataObject, kind: type[Control], sender: str) -> None:
        turns = [*self.play.ledger.turns, TurnId("never")]
        turn = self.play.ledger.holder
        known: dict[str, Any] = {
            "turn": data.draw(st.sampled_from(turns if turn is None else [turn.id] * 4 + turns)),
            "round": turn.round if turn is not None else 0,
            "to": "Ada",
            "outcome": "done",
        }
        extra: dict[str, Any] = {}
        if kind is Resolve:
            extra = data.draw(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "to": names,
                        "again": st.booleans(),
                        "complete": st.booleans(),
                        "facts": facts,
                        "summary": st.just("go on"),
                        "budget": budgets,
                    },
                )
            )
        said_ = {name: known[name] for name in CONTROLS[kind]} | extra
        self.play.send_control(self.play.message(kind, **said_), sender)

    @rule(repeat=st.integers(0, 5))
    def the_same_message_comes_again(self, repeat: int) -> None:
        before = len(self.play.events)
        causes = list(self.play.heard)
        if not causes or self.play.ledger.deferred:
            return
        cause = causes[repeat % len(causes)]
        proposal = self.play.heard[cause]
        outcome = self.play.propose(proposal, self.play.ledger.turns[proposal.turn].agent)
        assert isinstance(outcome, Late)
        assert len(self.play.events) == before

    @rule(seconds=st.sampled_from([0.000001, 0.7, 6.0, 33.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.play.wait(seconds)

    @precondition(is_open)
    @rule()
    def the_timer_fires(self) -> None:
        self.play.wait_until(self.play.next_due)

    @rule(
        name=st.sampled_from(NAMES),
        served=st.booleans(),
        begun=st.booleans(),
        broken=st.booleans(),
        there=st.booleans(),
    )
    def the_world_changes(self, name: str, served: bool, begun: bool, broken: bool, there: bool) -> None:
        self.play.served, self.play.begun = served, begun
        self.play.breakers[name] = "open" if broken else "closed"
        if there:
            self.play.fleet[name] = self.fleet[name]
        else:
            self.play.fleet.pop(name, None)
        self.play.finish()

    # --- what always holds ------------------------------------------------------------------------

    @invariant()
    def the_oracle_has_no_complaint(self) -> None:
        for event in self.new():
            self.auditor.follow(event, self.play.heard.get(event.cause), self.submitted)
        assert self.auditor.found == []
        self.people_have_their_time_and_no_more()

    def people_have_their_time_and_no_more(self) -> None:
        account, ledger = self.auditor.account, self.play.ledger
        end = people.end(account)
        if ledger.is_open and end is not None and ledger.frozen_at is None:
            assert self.play.now < end
        if ledger.is_open and account.stood_since is None:
            assert ledger.deadline == account.deadline

    def new(self) -> list[AnyEvent]:
        fresh = self.play.events[self.followed :]
        self.followed = len(self.play.events)
        return fresh

    @invariant()
    def at_most_one_turn_is_open_and_only_while_the_request_is(self) -> None:
        ledger = self.play.ledger
        assert len(ledger.open) == (1 if ledger.is_open else 0)

    @invariant()
    def numbers_are_dense_ids_unique_and_times_in_order(self) -> None:
        events = self.play.events
        assert [event.n for event in events] == list(range(len(events)))
        assert len({event.id for event in events}) == len(events)
        assert [event.at for event in events] == sorted(event.at for event in events)
        if events:
            expected = GENESIS if len(events) == 1 else codec.body_digest(self.play.bodies[-2])
            assert events[-1].prev == expected

    @invariant()
    def a_turn_has_at_most_one_successor(self) -> None:
        spent = Counter(event.turn for event in self.play.events if isinstance(event, SPENDING))
        assert all(count == 1 for count in spent.values())

    @invariant()
    def a_round_is_decided_once(self) -> None:
        verdicts = Counter(
            (event.turn, event.round)
            for event in self.play.events
            if isinstance(event, HandoffAdmitted | MoveRefused | TurnSuspended)
        )
        assert all(count == 1 for count in verdicts.values())

    @invariant()
    def nothing_follows_the_end(self) -> None:
        events = self.play.events
        assert not any(isinstance(event, Ended) for event in events[:-1])
        if events and isinstance(events[-1], Ended):
            assert not self.play.ledger.is_open

    def an_end_tells_what_the_reports_come_to_and_who_held_it(self) -> None:
        events = self.play.events
        if not events or not isinstance(events[-1], Ended) or isinstance(events[-1], RequestRefused):
            return
        end, tells = events[-1], bool(self.play.ledger.policy.tell_client)
        held = [event.work.handoff.to_agent for event in events if event.opens_turn and event.work]
        assert list(end.path) == (held[-MOST_TOLD:] if tells else [])
        assert (end.usage is not None) == tells
        if end.usage is not None:
            assert amounts(Report(usage=end.usage)) == spent(self.auditor.account)

    @invariant()
    def an_inbox_event_opens_a_round_of_its_readers_turn(self) -> None:
        for event in self.play.events[-3:]:
            work = event.work
            if work is not None:
                assert event.to == work.handoff.to_agent
                assert self.play.ledger.turns[work.turn].agent == event.to
                assert len(work.past) >= work.round

    @invariant()
    def what_is_due_is_done_and_the_rest_lies_ahead(self) -> None:
        play, ledger = self.play, self.play.ledger
        assert play.finish() == []
        at = next_due(ledger, play.now)
        assert (at is None) == (not ledger.is_open)
        assert at is None or at > play.now

    @invariant()
    def due_is_total_whatever_is_known(self) -> None:
        for served in (None, True, False):
            for human in (True, False):
                for ahead in (0, 100, 10**6):
                    world = World(
                        now=self.play.now + ahead * 1_000_000,
                        salt="0" * 32,
                        grounds=Grounds(served=served, human=human),
                    )
                    follows = due(self.play.ledger, world)
                    if follows is not None and not isinstance(follows, Command):
                        assert codec.decode_event(codec.encode(follows)) == follows

    def teardown(self) -> None:
        play = getattr(self, "play", None)
        if play is None:
            return
        self.an_end_tells_what_the_reports_come_to_and_who_held_it()
        assert breaks(play.bodies) == []
        assert state(fold_bodies(play.bodies)) == state(play.ledger)
        told = timeline(play.events)
        assert told.status == play.ledger.status
        assert [move.id for move in told.moves] == [
            event.id for event in play.events if not isinstance(event, FactsWithheld)
        ]
        assert msgspec.json.encode(told)
        if not self.unfinished:  # a withholding without its verdict cannot be told from a wrong one
            again = rejudge(play.bodies)
            assert again.same, again
        assert sum(play.ledger.causes.values()) == len(play.events)


AT_ONCE = 2_000
"""Stories of one run: hypothesis remembers all that it drew, so that 20,000 would take more than 2 GB."""


@pytest.mark.parametrize("part", range(-(-STORIES // AT_ONCE)))
def test_any_story(part: int) -> None:
    last = part == STORIES // AT_ONCE
    run_state_machine_as_test(
        Story,
        settings=settings(
            max_examples=STORIES % AT_ONCE if last else AT_ONCE,
            stateful_step_count=30,
            phases=[each for each in Phase if each is not Phase.explain],  # it takes minutes
            suppress_health_check=list(HealthCheck),  # many a story ends early
        ),
    )
