"""A guard in memory for one request: it needs no bus, and its verdicts are those of a real one.

    guard = InMemoryGuard(fleet)
    guard.submit("Where is my parcel?")                                   # given
    verdict = guard.move(transfer)                                        # when
    assert verdict.refusal.rule == "cycle"                                # then

Time stands still until `wait`. Like a real guard it appends what falls due: retries, escalations, expiries.
`InMemoryGuard.given` continues a log where it ended.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from mesh.agent.values import Facts, facts_of
from protocol.domain import breaker, steps
from protocol.domain.admission import Late, Rejected
from protocol.domain.breaker import CLOSED, Permit
from protocol.domain.decider import RequestDecider, drive
from protocol.domain.ledger import Ledger
from protocol.domain.memory import (
    MemoryEntry,
    current_records,
    goes_to_last,
    last_speaker,
    left_by,
    recalled,
    speaker_in,
)
from protocol.domain.swarm import readers_seen
from protocol.domain.turns import TurnState
from protocol.wire import codec
from protocol.wire.commands import (
    Command,
    Control,
    Failure,
    MoveProposed,
    OfferClaimed,
    Proposal,
    ReplyToAsk,
    Report,
    ReportFailure,
    Resolve,
    Submit,
    id_of,
    submit_id,
)
from protocol.wire.config import BreakerEntry, Fleet, Policy
from protocol.wire.errors import Malformed
from protocol.wire.events import AnyEvent, FactsWithheld, RequestCompleted
from protocol.wire.freeze import Span
from protocol.wire.handoff import Fact
from protocol.wire.ids import (
    HUMAN,
    AgentName,
    Cause,
    RequestId,
    SenderRole,
    TurnId,
    control_cause,
    request_id,
)
from protocol.wire.moves import Move
from protocol.wire.records import MemorySpeaker

T = TypeVar("T")

START_US = 1_800_000_000_000_000
"""When every in-memory guard begins (UTC µs)."""
_MOST_EVENT_BYTES = (1 << 20) - 2048
"""What a server's log accepts under the default configuration, without headers."""
_MOST_AT_ONCE = 50
"""Limit of events from one command: beyond it, consequences never end."""


class NotDecided(AssertionError):
    """A message became no event: it came too late, or a guard rejects it."""


def _parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    """Return a message as read from its bytes. Raises NotDecided for one that would become a dead letter."""
    try:
        return parse(body)
    except Malformed as error:
        raise NotDecided(f"malformed: {error}") from error


class Conversations:
    """What conversations remember, by the rules of a real guard; shared by the guards of one test.

    memory = Conversations()
    first = InMemoryGuard(fleet, memory=memory)
    second = InMemoryGuard(fleet, memory=memory, number=2)    # begins with what the first one left
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], list[MemoryEntry]] = {}
        self._spoken: dict[tuple[str, str], list[MemorySpeaker]] = {}
        self._answers = 0

    def facts(self, client: str, conversation: str) -> dict[str, Any]:
        """Return what a conversation remembers, by key, however old it is."""
        current = current_records(self._entries.get((client, conversation), ()), 0, 0.0)
        return {record.key: record.fact.value for record in current}

    def forget(self, client: str, conversation: str) -> None:
        """Forget everything in a conversation."""
        self._entries.pop((client, conversation), None)
        self._spoken.pop((client, conversation), None)

    def recall(self, client: str, conversation: str | None, now: int, max_age_s: float) -> tuple[Fact, ...]:
        """Return what a request of the conversation begins with. `now` is UTC µs."""
        if conversation is None:
            return ()
        return recalled(self._entries.get((client, conversation), ()), now, max_age_s)

    def last(self, client: str, conversation: str, now: int, max_age_s: float) -> AgentName | None:
        """Return the agent that answered or asked last in a conversation. `now` is UTC µs."""
        last = last_speaker(self._spoken.get((client, conversation), ()), (), now, max_age_s)
        return None if last is None else last.agent

    def note(self, event: AnyEvent, kept: FactsWithheld | None) -> None:
        """Record what an answer or a question leaves; `kept` was withheld from the client before it."""
        self._answers += 1
        if isinstance(event, RequestCompleted) and event.conversation is not None and kept is not None:
            known = self._entries.setdefault((event.to, event.conversation), [])
            known += left_by(event, kept, self._answers, event.at)
        speaker = speaker_in(event, self._answers, event.at)
        if speaker is not None:
            self._spoken.setdefault((event.to, speaker.conversation), []).append(speaker)


class InMemoryGuard:
    """One request, judged.

    Args:
        fleet: the members, as guards know them.
        policies: by name; the submit names the one it wants.
        prices: of models, by id: a fleet file's `prices_of(file)`, or `protocol.wire.prices.Price`s.
        number: distinguishes the requests of one test.
        request: the id of the request; by default made from `number`.
        client: the submitter; by default the fleet's first client.
        now: when it begins (UTC µs).
        breakers: by agent; later failures are counted, too. `BreakerEntry(state="open")` is one that was
            opened by hand.
        memory: what conversations remember. Guards that share it belong to one mesh.
        served: returns True if an agent is being run. It is asked before and after time passes.
        on_event: called with each event once it is stored.
    """

    def __init__(
        self,
        fleet: Fleet,
        policies: Mapping[str, Policy] | None = None,
        *,
        prices: Mapping[str, Any] | None = None,
        breakers: Mapping[str, BreakerEntry] | None = None,
        number: int = 1,
        request: RequestId | None = None,
        client: str = "",
        now: int = START_US,
        memory: Conversations | None = None,
        served: Callable[[str], bool] = lambda agent: True,
        on_event: Callable[[AnyEvent], object] = lambda event: None,
    ) -> None:
        self.fleet = fleet
        self.policies = dict(policies or {"default": Policy()})
        self.client = AgentName(client or (fleet.clients[0] if fleet.clients else "client"))
        self.request = request or request_id(self.client, START_US // 1000, number.to_bytes(10))
        self.now = now
        """UTC µs."""
        self.due_at: int | None = None
        """When something falls due (UTC µs); None if nothing will."""
        self.events: list[AnyEvent] = []
        self.bodies: list[bytes] = []
        self.breakers = dict(breakers or {})
        self.takers: set[str] = set()
        """Agents that take what is in their inboxes, for a task that fails because it was never claimed."""
        self.memory = memory or Conversations()
        self._frozen_at: int | None = None
        self._freezes: tuple[Span, ...] = ()
        self._decider = RequestDecider()
        self._prices: dict[str, Any] = msgspec.to_builtins(dict(prices or {}))
        self._served, self._on_event = served, on_event
        self._events_before = 0
        self._seen: dict[str, tuple[bool, int]] = {}
        self._controls = 0
        self._note_served()

    @classmethod
    def given(cls, bodies: Iterable[bytes], fleet: Fleet) -> "InMemoryGuard":
        """Return a guard that continues a log of one request. Raises as `codec.decode_event`."""
        guard = cls(fleet)
        for body in bodies:
            event = codec.decode_event(body)
            guard.ledger.apply(event, body)
            guard.events.append(event)
            guard.bodies.append(body)
        if guard.events:
            guard.request, guard.now = guard.events[-1].request, guard.events[-1].at
            guard._seen.clear()
            guard._note_served()
        if guard.ledger.client is not None:
            guard.client = guard.ledger.client
        return guard

    @property
    def mesh_frozen(self) -> bool:
        """While it is true, only control messages are decided, and no clock runs."""
        return self._frozen_at is not None

    @mesh_frozen.setter
    def mesh_frozen(self, frozen: bool) -> None:
        if frozen and self._frozen_at is None:
            self._frozen_at = self.now
        elif not frozen and self._frozen_at is not None:
            self._freezes = (*self._freezes, Span(since=self._frozen_at, until=self.now))
            self.ledger.mesh_thawed, self._frozen_at = self._freezes, None

    @property
    def ledger(self) -> Ledger:
        return self._decider.ledger

    @property
    def holder(self) -> TurnState:
        """The turn that has the work. Raises NotDecided if the request has no holder."""
        turn = self.ledger.holder
        if turn is None:
            raise NotDecided(f"nobody holds the request: it is {self.ledger.status}")
        return turn

    # --- messages -------------------------------------------------------------------------

    def submit(self, text: str, *, facts: Facts = None, **rest: Any) -> AnyEvent:
        """Submit as the client; `rest` are further fields of a submit. Returns the event that decided it.

        Args:
            facts: by key, or as `Fact` with labels, as in `Client.submit`.
        """
        return self.submit_whole(Submit(text=text, facts=facts_of(facts), **rest))

    def submit_whole(self, wanted: Submit) -> AnyEvent:
        """Submit a complete `Submit`; return the event that decided it."""
        body = codec.encode(wanted)
        what, digest = _parsed(codec.parse_submit, body), codec.body_digest(body)
        cause = Cause(submit_id(self.request))
        role: SenderRole = "operator" if self.client in self.fleet.operators else "client"
        return self._event(self.process(Command(self.request, self.client, what, cause, role, digest)))

    def move(self, move: Move, report: Report | None = None) -> AnyEvent:
        """Propose a move as the holder. Returns the verdict."""
        turn = self.holder
        return self.propose(
            MoveProposed(turn=turn.id, round=turn.round, move=move, report=report or Report())
        )

    def fail(self, code: str = "bug", *, permanent: bool = False) -> AnyEvent:
        """Let the holder's turn fail."""
        turn = self.holder
        error = Failure(code=code, message="it broke", permanent=permanent)
        return self.propose(ReportFailure(turn=turn.id, round=turn.round, error=error))

    def claim(self, offer: str, agent: str) -> AnyEvent:
        """Claim an offered task as an agent."""
        return self.propose(OfferClaimed(turn=TurnId(offer), round=0), agent)

    def propose(self, proposal: Proposal, by: str | None = None) -> AnyEvent:
        """Judge a proposal, read from its bytes, in the name of `by`: by default the agent of its turn."""
        sender = AgentName(by) if by is not None else self.ledger.turns[proposal.turn].agent
        body = codec.encode(proposal)
        try:
            proposal = codec.parse_proposal(body)
        except Malformed as error:
            failed = codec.failure_of(body, error)
            if failed is None:
                raise NotDecided(f"malformed: {error}") from error
            proposal = failed
        cause = Cause(id_of(self.request, proposal, sender))
        return self._event(self.process(Command(self.request, sender, proposal, cause, "agent")))

    def reply(self, value: Any, by: str = "somebody", *, turn: TurnState | None = None) -> AnyEvent:
        """Reply to the question of a turn, by default the holder's, as the client or a person."""
        turn = turn or self.holder
        asked = turn.asked or self.client
        answer = ReplyToAsk(id=self._id(), turn=turn.id, round=turn.round, value=value, by=by)
        return self.say(answer, asked if asked in self.fleet.clients else self._operator())

    def resolve(self, by: str = "somebody", **rest: Any) -> AnyEvent:
        """Decide an escalation as a person: `to=…`, `again=True`, or `complete=True, answer=…`."""
        return self.say(Resolve(id=self._id(), turn=self.holder.id, by=by, **rest), self._operator())

    def say(self, control: Control, sender: str) -> AnyEvent:
        """Obey a control message. Raises NotDecided if a guard would not."""
        control = _parsed(codec.parse_control, codec.encode(control))
        cause = control_cause(self.request, sender, control.id)
        role = self.fleet.role_of(sender)
        return self._event(self.process(Command(self.request, AgentName(sender), control, cause, role)))

    def wait(self, seconds: float) -> list[AnyEvent]:
        """Let time pass; return what fell due."""
        self._note_served()
        self.now += round(seconds * 1e6)
        self._note_served()
        before = self._events_before = len(self.events)
        woken = self._decider.wake(self.fleet, self._moment(), mesh_frozen=self.mesh_frozen)
        self.due_at = drive(woken, self._take).wake_at
        return self.events[before:]

    # --- deciding --------------------------------------------------------------------------

    def process(self, command: Command) -> steps.Outcome:
        """Decide one message; also append the consequences before and after it."""
        self._note_served()
        self._events_before = len(self.events)
        begun = self._decider.handle(command, self.fleet, self._moment(), mesh_frozen=self.mesh_frozen)
        settled = drive(begun, self._take)
        self.due_at = settled.wake_at
        assert settled.outcome is not None
        self._note_served()
        return settled.outcome

    def _moment(self) -> steps.Moment:
        return steps.Moment(self.now, salt=f"{len(self.events):016x}")

    def _take(self, step: steps.Step) -> None:
        match step:
            case steps.NeedVerdictContext():
                step.supply(self._verdict_context(step))
            case steps.NeedPermit(command, agent):
                step.supply(self._asked(agent, command.cause))
            case steps.NeedPeers(agents):
                step.supply(tuple(name for name in agents if self._breaker(name).state == "closed"))
            case steps.NeedCandidates(agents, trial):
                step.supply(
                    tuple(
                        steps.AgentReadiness(self._asked(name, trial), self._served(name)) for name in agents
                    )
                )
            case steps.NeedAttendance(turns):
                self._note_served()
                step.supply(tuple(map(self._attendance, turns)))
            case steps.NeedReaders(offers):
                self._note_served()
                step.supply(tuple(readers_seen(offer, self._readers(offer)) for offer in offers))
            case steps.NeedUndecided():
                step.supply(False)  # every message is decided at once
            case steps.Append(event):
                step.supply(self._store(event))
            case steps.Appended(counts=counts):
                for count in counts:
                    rules = self.fleet.breaker_of(count.agent)
                    changed = breaker.counted(self._breaker(count.agent), rules, count, self.now)
                    self.breakers[count.agent] = changed or self._breaker(count.agent)
            case _:
                pass  # no notice: the caller of this guard reads its events

    def _attendance(self, turn: TurnState) -> steps.Attendance:
        served, since = self._seen[turn.agent]
        begun = self.events[turn.round_n].at
        if served:
            return steps.Attendance(served, max(since, begun), unbegun=False)
        return steps.Attendance(served, since, unbegun=since <= begun)

    def _verdict_context(self, need: steps.NeedVerdictContext) -> steps.VerdictContext:
        use, what = Permit("closed"), need.command.what
        if need.target is not None:
            use = Permit(self._breaker(need.target).state)
            if need.may_try:
                use = self._asked(need.target, need.command.cause)
        if isinstance(what, Submit):
            max_age_s = self.fleet.memory_max_age_s
            memory = self.memory.recall(self.client, what.conversation, self.now, max_age_s)
            policy, last = self.policies.get(what.policy), None
            if policy is not None and what.conversation is not None and goes_to_last(what, policy):
                last = self.memory.last(self.client, what.conversation, self.now, max_age_s)
            return steps.VerdictContext(use, policy, self._prices, memory, last=last)
        return steps.VerdictContext(use)

    def _asked(self, agent: AgentName, cause: Cause) -> Permit:
        """Return which state of an agent's breaker judges the message `cause`; it may be the trial."""
        use = breaker.asked(self._breaker(agent), self.fleet.breaker_of(agent), self.now, cause)
        if use.write is not None:
            self.breakers[agent] = use.write
        return use

    def _readers(self, offer: steps.OfferedTask) -> list[steps.Reader]:
        found = []
        for entry in offer.entries:
            took = entry.name in offer.task.copies and entry.name in self.takers
            found.append(steps.Reader(*self._seen[entry.name], self._breaker(entry.name).state, took))
        return found

    def _breaker(self, agent: str) -> BreakerEntry:
        return self.breakers.get(agent, CLOSED)

    def _store(self, event: AnyEvent) -> steps.Stored | steps.NotStored:
        if len(self.events) - self._events_before >= _MOST_AT_ONCE:
            last = [type(each).__name__ for each in self.events[-5:]]
            raise NotDecided(f"what is due comes to no end: {last}")
        body = codec.encode(event)
        if len(body) > _MOST_EVENT_BYTES:
            return steps.NOT_STORED
        kept = self.ledger.kept_back(event.cause)
        self.memory.note(event, kept)
        self.events.append(event)
        self.bodies.append(body)
        self._on_event(event)
        return steps.Stored(event, body, self._moment())

    def _note_served(self) -> None:
        """Note which agents are served, and since when, as a real guard does continuously."""
        working = {turn.agent for turn in self.ledger.open.values()} - {HUMAN}
        for agent in {*self.fleet.agents, *working}:
            served = self._served(agent)
            if self._seen.get(agent, (None, 0))[0] is not served:
                self._seen[agent] = (served, self.now)

    def _id(self) -> str:
        self._controls += 1
        return f"said-{self._controls}"

    def _operator(self) -> str:
        return self.fleet.operators[0] if self.fleet.operators else "operator"

    @staticmethod
    def _event(outcome: steps.Outcome) -> AnyEvent:
        match outcome:
            case steps.Decided(event):
                return event
            case Late(ended=ended):
                raise NotDecided(f"too late: {ended}")
            case Rejected(code, detail):
                raise NotDecided(f"{code}: {detail}")
            case steps.MeshFrozen():
                raise NotDecided("the mesh is frozen: the message would come again")
