"""Small worlds: a request played through the pure domain as a guard does, without a bus.

A play drives the decider: it supplies context and stores bytes. Its clock stands still unless it is moved.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from protocol.domain.admission import Late, Rejected
from protocol.domain.breaker import Permit
from protocol.domain.decider import RequestDecider, drive
from protocol.domain.ledger import Ledger
from protocol.domain.steps import (
    NOT_STORED,
    AgentReadiness,
    Append,
    Attendance,
    Decided,
    MeshFrozen,
    Moment,
    NeedAttendance,
    NeedCandidates,
    NeedPeers,
    NeedPermit,
    NeedReaders,
    NeedUndecided,
    NeedVerdictContext,
    OfferedTask,
    Reader,
    Settled,
    Step,
    Stored,
    VerdictContext,
)
from protocol.domain.swarm import readers_seen
from protocol.domain.turns import TurnState
from protocol.wire import codec
from protocol.wire.commands import (
    Command,
    Control,
    Doubt,
    Failure,
    MoveProposed,
    Proposal,
    Report,
    ReportFailure,
    ReportInDoubt,
    Submit,
    Usage,
    id_of,
    submit_id,
)
from protocol.wire.config import AgentEntry, BreakerState, Fleet, Policy
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Constraints, Fact
from protocol.wire.ids import AgentName, Cause, TurnId, control_cause, request_id
from protocol.wire.moves import Ask, Complete, Escalate, Fail, HandBack, Move, Transfer

DAY = 86_400
START = 1_700_000_000_000_000
"""UTC µs: when every play begins."""

REQUEST = request_id("c1", START // 1000, b"\x01" * 10)
CLIENT = AgentName("c1")
NO_REPORT = Report()


def agent(name: str, **entry: Any) -> AgentEntry:
    return AgentEntry(name=AgentName(name), **entry)


def agents(names: Iterable[str] = "abcde", **entry: Any) -> dict[str, AgentEntry]:
    return {name: agent(name, **entry) for name in names}


def fact(key: str = "k", value: Any = 1, *labels: str) -> Fact:
    return Fact(key=key, value=value, labels=labels)


def transfer(to: str, *facts: Fact, summary: str = "please", **rest: Any) -> Transfer:
    return Transfer(to_agent=AgentName(to), summary=summary, facts=facts, **rest)


def hand_back(*facts: Fact, to: str | None = None, **rest: Any) -> HandBack:
    named = None if to is None else AgentName(to)
    return HandBack(summary="found out", facts=facts, to_agent=named, **rest)


def ask(to: str = "c1", **rest: Any) -> Ask:
    return Ask(to_agent=AgentName(to), question="which one?", **rest)


def escalate(*facts: Fact) -> Escalate:
    return Escalate(summary="a person, please", facts=facts)


def complete(answer: Any = "done") -> Complete:
    return Complete(answer=answer)


def give_up() -> Fail:
    return Fail(reason="it cannot be done")


def usage(tokens: int = 0, nano_dollars: int = 0, model_calls: int = 0) -> Report:
    return Report(usage=Usage(tokens=tokens, nano_dollars=nano_dollars, model_calls=model_calls))


@dataclass
class Play:
    """One request, played. What it returns is the event that decided the message."""

    fleet: dict[str, AgentEntry] = field(default_factory=agents)
    carries: dict[AgentName, dict[AgentName, dict[str, Any]]] = field(default_factory=dict)
    """Forms of edges, as the fleet file lists them."""
    policy: Policy | None = field(default_factory=Policy)
    human: bool = True
    entry: str = "a"
    longest_s: float = 1_296_000.0
    prices: dict[str, Any] | None = None
    breakers: dict[str, BreakerState | Permit] = field(default_factory=dict)
    too_large: tuple[type[AnyEvent], ...] = ()
    """Events that the log takes none of."""
    served: bool = True
    """Whether whoever is waited for runs."""
    unserved: tuple[str, ...] = ()
    """Agents that nobody serves when a plan is made."""
    served_since: int = START
    """UTC µs since when that is seen to be so."""
    was_served: bool | None = None
    begun: bool = True
    """Whether the open round was taken from the inbox."""
    now: int = START
    decider: RequestDecider = field(default_factory=RequestDecider)
    next_due: int | None = None
    """When the request has to be woken, as of the last message or timer."""
    most: int = 500
    events: list[AnyEvent] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    heard: dict[str, MoveProposed] = field(default_factory=dict)
    """Every move that was judged, by the cause that its events name."""
    controls: int = 0
    traced: bool = False
    """Whether the guard traces: each event then has a span of its own, all of one trace."""

    # --- what happens ------------------------------------------------------------------------------

    def submit(self, text: str = "help me", sender: str = "c1", digest: str = "d0", **rest: Any) -> AnyEvent:
        return self.event(self.send_submit(Submit(text=text, **rest), sender, digest))

    def move(self, move: Move, report: Report = NO_REPORT, *, by: str | None = None) -> AnyEvent:
        """The holder (or `by`, in the holder's place) asks for a move."""
        turn = self.holder
        proposal = MoveProposed(turn=turn.id, round=turn.round, move=move, report=report)
        return self.event(self.propose(proposal, by or turn.agent))

    def fail(
        self,
        code: str = "boom",
        *,
        permanent: bool = False,
        retry_after_s: float | None = None,
        report: Report = NO_REPORT,
    ) -> AnyEvent:
        turn = self.holder
        error = Failure(code=code, message="it broke", permanent=permanent, retry_after_s=retry_after_s)
        return self.event(
            self.propose(
                ReportFailure(turn=turn.id, round=turn.round, error=error, report=report), turn.agent
            )
        )

    def doubt(self, action: str = "pay", report: Report = NO_REPORT) -> AnyEvent:
        turn = self.holder
        effect = Doubt(step=f"{turn.round}-3", action=action)
        return self.event(
            self.propose(
                ReportInDoubt(turn=turn.id, round=turn.round, effect=effect, report=report), turn.agent
            )
        )

    def control(self, kind: type[Control], sender: str = "op1", **said: Any) -> AnyEvent:
        """Somebody sends a control message of `kind` under a fresh id."""
        return self.event(self.send_control(self.message(kind, **said), sender))

    def wait(self, seconds: float) -> list[AnyEvent]:
        """Let time pass, as if a timer fired then; return what fell due."""
        self.look()
        self.now += round(seconds * 1e6)
        return self.finish()

    def wait_until(self, at: int | None) -> list[AnyEvent]:
        assert at is not None
        self.now = max(self.now, at)
        return self.finish()

    # --- as the guard has it ----------------------------------------------------------------------

    def send_submit(
        self, what: Submit, sender: str = "c1", digest: str = "d0", role: Any = "client"
    ) -> AnyEvent | Late | Rejected:
        return self.process(
            Command(REQUEST, AgentName(sender), what, Cause(submit_id(REQUEST)), role, digest)
        )

    def propose(self, proposal: Proposal, sender: str) -> AnyEvent | Late | Rejected:
        cause = Cause(id_of(REQUEST, proposal, sender))
        return self.process(Command(REQUEST, AgentName(sender), proposal, cause, "agent"))

    def message(self, kind: type[Control], **said: Any) -> Control:
        self.controls += 1
        return kind(id=f"ctl-{self.controls}", **said)

    def send_control(self, what: Control, sender: str = "op1") -> AnyEvent | Late | Rejected:
        role = "operator" if sender.startswith("op") else "client" if sender.startswith("c") else "agent"
        cause = control_cause(REQUEST, sender, what.id)
        return self.process(Command(REQUEST, AgentName(sender), what, cause, role))  # type: ignore[arg-type]

    def process(self, command: Command) -> AnyEvent | Late | Rejected:
        self.look()
        settled = drive(self.decider.handle(command, self.whole_fleet, self.moment()), self.take)
        self.next_due, outcome = settled.wake_at, settled.outcome
        assert outcome is not None
        assert not isinstance(outcome, MeshFrozen)
        return outcome.event if isinstance(outcome, Decided) else outcome

    def finish(self) -> list[AnyEvent]:
        """Append what is due; return it."""
        before = len(self.events)
        self.next_due = drive(self.decider.wake(self.whole_fleet, self.moment()), self.take).wake_at
        return self.events[before:]

    def take(self, step: Step) -> None:
        match step:
            case NeedVerdictContext():
                step.supply(self.verdict_context(step))
            case NeedPermit(agent=name):
                step.supply(self.breaker(name))
            case NeedPeers(agents=names):
                step.supply(tuple(name for name in names if self.breaker(name).state == "closed"))
            case NeedCandidates(agents=names):
                step.supply(
                    tuple(AgentReadiness(self.breaker(name), name not in self.unserved) for name in names)
                )
            case NeedAttendance(turns=turns):
                self.look()
                step.supply(tuple(self.attendance(turn) for turn in turns))
            case NeedReaders(offers=offers):
                self.look()
                step.supply(tuple(readers_seen(offer, self.readers(offer)) for offer in offers))
            case NeedUndecided():
                step.supply(False)
            case Append(event, command):
                if command is not None and isinstance(command.what, MoveProposed):
                    self.heard[command.cause] = command.what
                step.supply(NOT_STORED if type(event) in self.too_large else self.store(event))
            case _:
                pass

    def first_event(self, command: Command) -> AnyEvent:
        """Return the first event that a command would bring about, which is not appended."""
        decision = self.decider.handle(command, self.whole_fleet, self.moment())
        while not isinstance(step := decision.next(), Append):
            assert not isinstance(step, Settled)
            self.take(step)
        return step.event

    def moment(self) -> Moment:
        return Moment(self.now, self.salt)

    def verdict_context(self, need: NeedVerdictContext) -> VerdictContext:
        submit = isinstance(need.command.what, Submit)
        policy, prices = (self.policy, self.prices) if submit else (None, None)
        return VerdictContext(self.breaker(need.target or ""), policy, prices)

    def attendance(self, turn: TurnState) -> Attendance:
        return Attendance(self.served, self.served_since, not self.begun)

    def readers(self, offer: OfferedTask) -> list[Reader]:
        return [
            Reader(self.served, self.served_since, self.breaker(entry.name).state) for entry in offer.entries
        ]

    def breaker(self, agent: str) -> Permit:
        found = self.breakers.get(agent, "closed")
        return found if isinstance(found, Permit) else Permit(found)

    def store(self, event: AnyEvent) -> Stored:
        if self.traced:
            event = replace(event, trace=self.trace)
        assert len(self.events) < self.most, "what is due does not come to an end"
        body = codec.encode(event)
        assert codec.decode_event(body) == event
        self.events.append(event)
        self.bodies.append(body)
        return Stored(event, body, self.moment())

    def append(self, event: AnyEvent) -> None:
        """Append an event behind the decider's back."""
        stored = self.store(event)
        self.ledger.apply(stored.event, stored.body)

    @property
    def ledger(self) -> Ledger:
        return self.decider.ledger

    @property
    def whole_fleet(self) -> Fleet:
        return Fleet(
            name="worlds",
            entry=AgentName(self.entry),
            agents=self.fleet,
            human=self.human,
            log_max_age_s=2 * self.longest_s,
            revision=1,
            carries=self.carries,
        )

    def look(self) -> None:
        """See whether the agent is served, as a guard does every few seconds."""
        if self.was_served is not self.served:
            self.served_since = START if self.was_served is None else self.now
            self.was_served = self.served

    # --- reading ----------------------------------------------------------------------------------

    @property
    def salt(self) -> str:
        return f"{len(self.events):016x}"

    @property
    def trace(self) -> str:
        return f"00-{7:032x}-{len(self.events) + 1:016x}-01" if self.traced else ""

    @property
    def holder(self) -> TurnState:
        turn = self.ledger.holder
        assert turn is not None, f"nobody holds the request: {self.ledger.status}"
        return turn

    @property
    def turn(self) -> TurnId:
        return self.holder.id

    @property
    def last(self) -> AnyEvent:
        return self.events[-1]

    @property
    def shown(self) -> dict[str, Any]:
        """What the holder is shown: values by key."""
        return {item.key: item.value for item in self.holder.work.handoff.facts}

    @staticmethod
    def event(outcome: AnyEvent | Late | Rejected) -> AnyEvent:
        assert not isinstance(outcome, Late | Rejected), outcome
        return outcome


def opened(**play: Any) -> Play:
    """Return a play whose request is open and held by `a`."""
    made = Play(**play)
    made.submit()
    return made


def told(*facts: Any, policy: Policy | None = None, **constraints: Any) -> Play:
    """Return a play whose client brought these facts, under these constraints."""
    play = Play(policy=policy or Policy())
    play.submit(facts=facts, constraints=Constraints(**constraints))
    return play


def played(*moves: Move, **play: Any) -> Play:
    """Return a play whose request is open, after these moves, each by the holder of then."""
    made = opened(**play)
    for move in moves:
        made.move(move)
    return made


def seconds(value: float) -> int:
    """Return µs."""
    return round(value * 1e6)


def asked(**rest: Any) -> Constraints:
    return Constraints(**rest)
