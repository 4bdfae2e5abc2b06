"""The steps of a decision: what a decider asks for, what it counts, and whom it tells that a turn is over."""

from dataclasses import dataclass, field

from protocol.domain.admission import Late
from protocol.domain.breaker import Signal
from protocol.domain.decider import RequestDecider
from protocol.domain.ledger import Ledger
from protocol.domain.steps import (
    Append,
    Appended,
    NeedAttendance,
    NeedPeers,
    NeedReaders,
    NeedVerdictContext,
    Settled,
    Step,
    TurnOver,
)
from protocol.wire.commands import Cancel, Command, Freeze, MoveProposed, Resolve, Thaw, id_of
from protocol.wire.config import Policy
from protocol.wire.events import RequestCancelled, RequestCompleted, TaskFailed
from protocol.wire.ids import AgentName, Cause, TurnId
from tests.certain import is_
from tests.unit.protocol.happened import refused
from tests.unit.protocol.trees import delegate, task
from tests.unit.protocol.worlds import (
    REQUEST,
    Play,
    agent,
    agents,
    complete,
    escalate,
    fact,
    hand_back,
    opened,
    transfer,
)


@dataclass
class Watched(Play):
    """A play that notes every step."""

    steps: list[Step] = field(default_factory=list)

    def take(self, step: Step) -> None:
        self.steps.append(step)
        super().take(step)

    def take_up(self) -> None:
        """Let another guard go on: it knows the log and nothing else."""
        ledger = Ledger()
        for event, body in zip(self.events, self.bodies, strict=True):
            ledger.apply(event, body)
        self.decider = RequestDecider(ledger)

    def counted(self) -> list[Signal]:
        """Return what was counted since the last time."""
        counts = [count for step in self.steps if isinstance(step, Appended) for count in step.counts]
        self.steps.clear()
        return counts

    def told(self) -> list[TurnId]:
        """Return whose turns were said to be over since the last time."""
        over = [step.turn.id for step in self.steps if isinstance(step, TurnOver)]
        self.steps.clear()
        return over


def begun(**play: object) -> Watched:
    watched = Watched(**play)  # type: ignore[arg-type]
    watched.submit()
    watched.steps.clear()
    return watched


def test_who_else_could_take_it_is_asked_in_order_of_names_and_leaves_out_giver_and_target() -> None:
    fleet = {name: agent(name) for name in "dcba"} | {"e": agent("e", intents=("other",))}
    play = begun(fleet=fleet, breakers={"b": "open"})
    refused(play.move(transfer("b", intent="refund")))
    assert [step.agents for step in play.steps if isinstance(step, NeedPeers)] == [("c", "d")]


def test_only_those_whom_the_giver_may_hand_to_are_asked_for() -> None:
    fleet = agents("bcd") | {"a": agent("a", to=("b", "d"))}
    play = begun(fleet=fleet, breakers={"b": "open"})
    refused(play.move(transfer("b")))
    assert [step.agents for step in play.steps if isinstance(step, NeedPeers)] == [("d",)]


def test_a_turn_that_came_to_a_move_counts_as_worked_and_as_nothing_else() -> None:
    play = begun()
    turn = play.turn
    play.move(transfer("b"))
    assert play.counted() == [Signal(AgentName("a"), "worked", turn)]
    turn = play.turn
    play.move(complete())
    assert play.counted() == [Signal(AgentName("b"), "worked", turn)]


def test_a_turn_that_somebody_else_ended_is_given_back() -> None:
    play = begun()
    turn = play.turn
    play.control(Cancel)
    assert play.counted() == [Signal(AgentName("a"), "given_back", turn)]


def test_a_persons_turn_counts_for_nobody() -> None:
    play = begun()
    play.move(escalate())
    play.steps.clear()
    is_(play.control(Resolve, turn=play.turn, complete=True, answer="no"), RequestCompleted)
    assert play.counted() == []


def test_whoever_takes_a_request_up_tells_of_the_turns_that_its_head_ended() -> None:
    """The guard that ended them may have died before it could say so."""
    play = begun()
    play.move(transfer("b"))
    held, cancel = play.turn, play.message(Cancel)
    play.send_control(cancel)
    assert play.told() == [held]
    assert isinstance(play.send_control(cancel), Late)
    play.finish()
    assert play.told() == []  # it has told, or nothing would have been acknowledged
    play.take_up()
    assert isinstance(play.send_control(cancel), Late)
    assert play.told() == [held]
    play.take_up()
    play.finish()
    assert play.told() == [held]


def test_nobody_is_told_of_a_turn_that_ended_by_its_own_move_or_was_a_persons() -> None:
    play = begun()
    play.move(escalate())
    play.steps.clear()
    cancel = play.message(Cancel)
    play.send_control(cancel)
    play.send_control(cancel)
    play.finish()
    assert is_(play.last, RequestCancelled)
    assert play.told() == []


def test_a_deferred_move_is_decided_as_its_agents_own() -> None:
    play = begun()
    play.control(Freeze)
    play.move(transfer("b"))
    play.steps.clear()
    play.control(Thaw)
    spoke = [step.command for step in play.steps if isinstance(step, Append)]
    assert [each and (each.sender, each.role) for each in spoke] == [("op1", "operator"), ("a", "agent")]


def test_a_turn_that_is_over_is_told_before_anything_is_appended_behind_its_end() -> None:
    play = begun()
    turn = play.turn
    play.fail(permanent=True)
    assert play.told() == [turn]
    play.take_up()
    play.control(Cancel)
    kinds = [type(step) for step in play.steps if isinstance(step, TurnOver | Append)]
    assert (kinds, play.told()) == ([TurnOver, Append], [turn])


def test_a_proposal_that_is_no_move_yet_counts_for_nobody() -> None:
    play = begun()
    play.doubt()
    assert play.counted() == []
    play = begun()
    play.control(Freeze)
    play.move(transfer("b"))
    assert play.counted() == []


def test_a_need_without_an_answer_is_asked_again_and_changes_nothing() -> None:
    play = begun()
    proposal = MoveProposed(turn=play.turn, round=0, move=transfer("b"))
    cause = Cause(id_of(REQUEST, proposal, "a"))
    command = Command(REQUEST, AgentName("a"), proposal, cause, "agent")
    decision = play.decider.handle(command, play.whole_fleet, play.moment())
    asked = is_(decision.next(), NeedVerdictContext)
    assert decision.next() is asked
    play.take(asked)
    append = is_(decision.next(), Append)
    assert decision.next() is append
    assert play.ledger.n == len(play.events) == 1


def test_each_event_has_a_salt_of_its_own() -> None:
    """Also the two of one command: what is withheld from the reader, and the verdict."""
    play = begun(fleet=agents("b") | {"a": agent("a", clearance=("pii",))})
    play.move(transfer("b", fact("ssn", 1, "pii")))
    play.move(hand_back())
    salts = [event.salt for event in play.events]
    assert len(set(salts)) == len(salts) > 3


def test_an_event_is_never_before_its_head_though_a_clock_runs_back() -> None:
    play = opened()
    opened_at = play.last.at
    play.now -= 5_000_000
    assert play.move(transfer("b")).at == opened_at
    assert play.move(complete()).at == opened_at


# --- what falls due together ------------------------------------------------------------------------


def test_rounds_that_fall_due_together_are_asked_about_once_each() -> None:
    """Not once for each event: 500 tasks would ask 125,000 times."""
    many = [task(f"t{n}", "bcd"[n % 3]) for n in range(50)]
    policy = Policy(name="supervised", topology="supervised", max_open_tasks=50, max_retries=0)
    play = Watched(policy=policy, fleet=agents("abcd"))
    play.submit()
    play.move(delegate(*many))
    play.steps.clear()
    play.wait(policy.turn_timeout_s)
    assert sum(isinstance(event, TaskFailed) for event in play.events) == 50
    asked = [turn.id for step in play.steps if isinstance(step, NeedAttendance) for turn in step.turns]
    assert len(asked) == len(set(asked)) == 50


def test_offers_that_fall_due_together_are_asked_about_once_each() -> None:
    policy = Policy(name="swarm", topology="swarm", max_open_tasks=50)
    play = Watched(policy=policy, fleet={"a": agent("a"), "b": agent("b", intents=("read",))}, served=False)
    play.submit()
    play.move(delegate(*(task(f"t{n}", None, intent="read") for n in range(50))))
    play.steps.clear()
    play.wait(policy.unattended_after_s or 0)
    assert sum(isinstance(event, TaskFailed) for event in play.events) == 50
    asked = [offer.task.turn for step in play.steps if isinstance(step, NeedReaders) for offer in step.offers]
    assert len(asked) == len(set(asked)) == 50


def test_what_was_seen_more_than_a_second_ago_is_asked_about_again() -> None:
    """One decision may take long: an agent may come or go meanwhile."""
    policy = Policy(name="supervised", topology="supervised", max_retries=0)
    play = Watched(policy=policy, fleet=agents("abc"))
    play.submit()
    play.move(delegate(*(task(name, name) for name in "bc")))
    play.now += round(policy.turn_timeout_s * 1e6)
    decision = play.decider.wake(play.whole_fleet, play.moment())
    while not isinstance(step := decision.next(), Settled):
        play.now += 600_000 * isinstance(step, Append)
        play.take(step)
    asked = [turn.agent for step in play.steps if isinstance(step, NeedAttendance) for turn in step.turns]
    assert asked == ["b", "c", "c"]
