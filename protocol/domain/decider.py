"""The decider of one request: the whole order of a decision, without any I/O.

    steps = RequestDecider(ledger).handle(command, fleet)
    outcome = drive(steps, answer)

The order is: label the facts, append what is due, check admission, take the context, decide. Then append the
verdict and its consequences, and say when to wake. Each step asks its caller for context or for bytes to be
stored. The caller sends the answer, and the ledger changes only by what is stored. A caller that meets
another head drops the steps and hands the same command to a decider of the newer events.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from protocol.domain.admission import Accepted, Late, Rejected, admission
from protocol.domain.breaker_counts import counts, moved_by
from protocol.domain.control import rejection_of, resolves_to
from protocol.domain.envelope import World, trace_of
from protocol.domain.labels import labelled
from protocol.domain.ledger import Ledger
from protocol.domain.moves import decide, target_of
from protocol.domain.plans import candidates_of, fallbacks
from protocol.domain.questions import listed, questions_to
from protocol.domain.steps import (
    NEED_MOMENT,
    AgentStanding,
    Append,
    Appended,
    Attendance,
    Decided,
    MeshFrozen,
    Moment,
    NeedAttendance,
    NeedCandidates,
    NeedPeers,
    NeedReaders,
    NeedUnheard,
    NeedVerdictContext,
    Outcome,
    Reader,
    ShowQuestions,
    Step,
    Steps,
    Stored,
    TurnOver,
    VerdictContext,
    WakeAt,
)
from protocol.domain.swarm import could_claim, to_ask
from protocol.domain.tasks import TaskState, opening_cause
from protocol.domain.timers import EVENT_TOO_LARGE, consequence, too_large
from protocol.domain.turns import TurnState
from protocol.domain.waits import (
    LEAST_PERIOD_US,
    NOT_LOOKED,
    by_the_clock,
    first_wait,
    next_due,
    next_wait,
    offers_by_the_clock,
    removed,
)
from protocol.wire import commands, events
from protocol.wire.codec import is_readable
from protocol.wire.commands import Command, Move, MoveProposed, Proposal, Submit, is_control
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.errors import BrokenLog
from protocol.wire.event_parts import Candidate, Grounds
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.freeze import Span
from protocol.wire.ids import HUMAN, AgentName, EventId, TurnId
from protocol.wire.records import OpenQuestion

T = TypeVar("T")
_GIVES_WORK = frozenset({Submit, commands.Transfer, commands.HandBack, commands.OfferClaimed})
_ASKS_WHO_COULD = frozenset({commands.Delegate, commands.Fail})


def drive(steps: Steps[T], answer: Callable[[Step], Any]) -> T:
    """Take all steps, each answered by `answer`; return what came of them."""
    said: Any = None
    while True:
        try:
            step = steps.send(said)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        said = answer(step)


class RequestDecider:
    """Decides the commands of one request, one after the other.

    Args:
        ledger: the request's events up to its head; a new request by default.
    """

    __slots__ = ("_first_wait", "_shown", "_told", "_unused", "admitting", "ledger")

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self.admitting = False
        """True while it is not yet known that the command in hand may be decided: anyone may send one."""
        self._first_wait: tuple[tuple[int, tuple[Span, ...]], int | None] = ((-1, ()), None)
        """For which head and freezes of the mesh `quiet_until` was worked out, and what it is."""
        self._unused: Moment | None = None
        """The moment that was taken for this command and is no event's yet."""
        self._shown: dict[AgentName, tuple[OpenQuestion, ...]] = {}
        """What each client is known to have been shown."""
        self._told: EventId | None = None
        """The event up to which it is known that all agents were told of ends."""

    def quiet_until(self) -> int | None:
        """Return when (UTC µs) something falls due; None if nothing ever will. Worked out once a head."""
        known = self.ledger.n, self.ledger.mesh_thawed
        if self._first_wait[0] != known:
            self._first_wait = (known, first_wait(self.ledger))
        return self._first_wait[1]

    def handle(self, command: Command, fleet: Fleet, *, mesh_frozen: bool = False) -> Steps[Outcome]:
        """Yield the steps of one command and return what came of it.

        While the whole mesh is frozen, a control message appends only its own event. What is due is left to
        the timers, which wait until the thaw.

        Raises BrokenLog for a log that no guard could have written.
        """
        self.admitting = True
        command, self._unused = labelled(command, fleet.labels), None
        self.admitting = False
        what = command.what
        outcome: Outcome
        if mesh_frozen and not is_control(what):
            return MeshFrozen()
        yield from self._turns_over()
        if mesh_frozen:
            self.admitting = True
            outcome = yield from self._verdict(command, fleet)
            wake = yield from self._next_look()
        else:
            deciding = (what.turn, what.round) if isinstance(what, Proposal) else None
            wake = yield from self._consequences(fleet, deciding, until=command.stored or None)
            self.admitting = True
            outcome = yield from self._verdict(command, fleet)
            if isinstance(outcome, Decided):
                wake = yield from self._consequences(fleet, None, outcome.event.at)
        if wake is not None:
            yield WakeAt(wake)
        return outcome

    def wake(self, fleet: Fleet, *, mesh_frozen: bool = False) -> Steps[MeshFrozen | None]:
        """Yield the steps of everything that is due. Raises as `handle`."""
        if mesh_frozen:
            return MeshFrozen()
        self._unused, self.admitting = None, False
        yield from self._turns_over()
        wake = yield from self._consequences(fleet, None)
        if wake is not None:
            yield WakeAt(wake)
        return None

    # --- one command ------------------------------------------------------------------------------

    def _verdict(self, command: Command, fleet: Fleet) -> Steps[Decided | Late | Rejected]:
        """Decide one command; what is withheld from its reader is an event before the verdict."""
        ledger = self.ledger
        found = admission(ledger, command)
        self.admitting = False
        if not isinstance(found, Accepted):
            return found
        world = yield from self._world(command, fleet)
        rejection = rejection_of(ledger, command, world)
        if rejection is not None:
            return rejection
        while True:
            stored = yield from self._append(decide(ledger, command, world), command)
            if stored is None:
                return Rejected(EVENT_TOO_LARGE, "what would be recorded of it is more than the bus takes")
            if type(stored) is not FactsWithheld:
                return Decided(stored)
            # Both events are of one verdict: only their moments differ, whatever has changed in between.
            moment = yield from self._moment()
            trace = trace_of(stored.trace, command.trace)
            world = replace(world, now=moment.now, salt=moment.salt, trace=trace)

    def _world(self, command: Command, fleet: Fleet) -> Steps[World]:
        what, ledger = command.what, self.ledger
        submit = type(what) is Submit
        entry = fleet.agents.get(self._target(command, fleet) or "")
        target = None if entry is None else entry.name
        move = what.move if type(what) is MoveProposed else None
        gives_work = type(move or what) in _GIVES_WORK
        context: VerdictContext = yield NeedVerdictContext(
            command, target, gives_work and ledger.frozen_at is None
        )
        use, sender = context.breaker, fleet.agents.get(command.sender)
        peers: tuple[AgentName, ...] = ()
        if use.state == "open" and sender is not None and isinstance(move, commands.Transfer):
            allowed = fleet.agents if sender.to is None else sender.to
            peers = yield NeedPeers(
                tuple(
                    peer.name
                    for name, peer in sorted(fleet.agents.items())
                    if name in allowed and name not in (target, sender.name) and peer.takes(move.intent)
                )
            )
        candidates: tuple[Candidate, ...] = ()
        if type(what) is MoveProposed and type(move) in _ASKS_WHO_COULD:
            candidates = yield from self._candidates(what.turn, fleet, what.move, sender)
        moment = yield from self._moment()
        grounds = Grounds(
            fleet=fleet.revision,
            sender=sender,
            target=entry,
            human=fleet.human,
            breaker=use.state,
            breaker_since=use.since,
            breaker_until=use.until,
            peers=peers,
            longest_s=fleet.log_max_age_s / 2 if submit else None,
            candidates=candidates,
        )
        return World(
            now=moment.now,
            salt=moment.salt,
            grounds=grounds,
            policy=context.policy,
            prices=context.prices,
            memory=context.memory,
            use=context.use,
            trace=trace_of(ledger.trace, command.trace),
        )

    def _candidates(
        self,
        turn: TurnId,
        fleet: Fleet,
        move: Move | None = None,
        sender: AgentEntry | None = None,
    ) -> Steps[tuple[Candidate, ...]]:
        """Return who could have a plan's tasks, or the task of `turn` if it fails and falls back."""
        ledger, lead = self.ledger, turn
        if isinstance(move, commands.Delegate):
            names = candidates_of(move, fleet, sender, ledger.policy.topology)
        else:
            task = ledger.task_of(turn)
            if task is None:
                return ()
            lead, names = task.lead, fallbacks(task, ledger.turns[task.lead], fleet)
        if not names:
            return ()
        trial = opening_cause(str(ledger.request), lead, ledger.n)
        found: tuple[AgentStanding, ...] = yield NeedCandidates(names, trial)
        return tuple(
            Candidate(
                entry=fleet.agents[name],
                breaker=one.breaker.state,
                since=one.breaker.since,
                until=one.breaker.until,
                served=one.served,
            )
            for name, one in zip(names, found, strict=True)
        )

    def _target(self, command: Command, fleet: Fleet) -> AgentName | None:
        what = command.what
        if type(what) is Submit:
            return what.to or fleet.entry
        if type(what) is commands.Resolve:
            return resolves_to(self.ledger, what)
        return target_of(self.ledger, command)

    # --- what comes by itself ---------------------------------------------------------------------

    def _consequences(
        self,
        fleet: Fleet,
        deciding: tuple[str, int] | None,
        now: int | None = None,
        until: int | None = None,
    ) -> Steps[int | None]:
        """Append everything that is due, one event at a time; return when (UTC µs) to look again, or None.

        Args:
            deciding: as for `due`.
            now: UTC µs, where an event was written just now: the clock is not asked again for the first look.
            until: UTC µs: what fell due later comes after the command that is in hand.
        """
        ledger = self.ledger
        while (at := self.quiet_until()) is not None:
            if gone := removed(ledger, fleet, deciding):
                at = 0
            if now is not None and at > now:
                return at
            now, salt = yield from self._moment()
            by = now if until is None else min(now, until)
            if at > by:
                return at
            grounds, looks = Grounds(fleet=fleet.revision, human=fleet.human), dict[TurnId, Grounds]()
            for turn in by_the_clock(ledger, by, deciding, gone):
                seen: Attendance = yield NeedAttendance(turn)
                looks[turn.id] = seen.within(grounds, removed=turn.id in gone)
            for task in offers_by_the_clock(ledger, by):
                looks[task.turn] = yield from self._readers(task, fleet, grounds)
            world = World(now=now, salt=salt, grounds=grounds, trace=ledger.trace)
            found = next_wait(ledger, world, deciding, looks, by)
            if found is None:
                return next_due(ledger, now, looks)
            if found.wait.calls_over and (yield self._unheard(found.at or now)):
                return now + LEAST_PERIOD_US
            if found.wait.what == "join" and found.wait.turn is not None:
                target = fleet.agents.get(found.wait.turn.agent)
                found = found._replace(
                    world=replace(found.world, grounds=replace(found.world.grounds, target=target))
                )
            follows = consequence(ledger, found)
            if isinstance(follows, events.TaskFailed):
                candidates = yield from self._candidates(follows.turn, fleet)
                if candidates:
                    world = replace(found.world, grounds=replace(found.world.grounds, candidates=candidates))
                    follows = consequence(ledger, found._replace(world=world))
            if not (yield from self._follow(follows, fleet)):
                while True:  # half of a verdict may stand there, with the moment of this look
                    moment = yield from self._moment()
                    world = replace(world, now=moment.now, salt=moment.salt)
                    end = yield from self._append(too_large(ledger, world, follows), None)
                    if not isinstance(end, FactsWithheld):
                        break
                if end is None:
                    raise BrokenLog(f"not even the end of {ledger.request} can be stored")
            now = None
        return None

    def _readers(self, task: TaskState, fleet: Fleet, grounds: Grounds) -> Steps[Grounds]:
        """Return the grounds: how those are served who may claim an offered task, and whom to ask again."""
        names = could_claim(self.ledger, task, fleet)
        if not names:  # an older fleet than one that the request was judged by may not know a new agent
            return replace(grounds, removed=fleet.revision >= self.ledger.fleet)
        seen: tuple[Reader, ...] = yield NeedReaders(names, task.copies)
        readers = [
            Candidate(entry=fleet.agents[name], breaker=one.breaker, served=one.served, took=one.took)
            for name, one in zip(names, seen, strict=True)
        ]
        found = replace(grounds, candidates=to_ask(task, readers))
        return Attendance.of_any(seen).within(found, removed=False)

    def _follow(self, follows: AnyEvent | Command, fleet: Fleet) -> Steps[bool]:
        """Append one consequence; return False if it is too large to store."""
        if not isinstance(follows, Command):
            return (yield from self._append(follows, None)) is not None
        outcome = yield from self._verdict(follows, fleet)
        if isinstance(outcome, Rejected) and outcome.code == EVENT_TOO_LARGE:
            return False
        if not isinstance(outcome, Decided):
            raise BrokenLog(f"a deferred proposal of {self.ledger.request} cannot be decided")
        return True

    def _unheard(self, before: int) -> NeedUnheard:
        ledger = self.ledger
        return NeedUnheard(
            before, ledger.speakers(), frozenset((AgentName(str(ledger.client)), *ledger.readers))
        )

    def _next_look(self) -> Steps[int | None]:
        at = self.quiet_until()
        if at is None:
            return None
        now, _ = yield from self._moment()
        return at if at > now else next_due(self.ledger, now, NOT_LOOKED)

    def _moment(self) -> Steps[Moment]:
        """Return when the next event is written; until then, the same. A request's time does not run back."""
        moment = self._unused
        if moment is None:
            moment = self._unused = yield NEED_MOMENT
            assert moment is not None
        head = self.ledger.head
        return moment if head is None or moment.now >= head.at else moment._replace(now=head.at)

    # --- events -----------------------------------------------------------------------------------

    def _append(self, event: AnyEvent, command: Command | None) -> Steps[AnyEvent | None]:
        """Have one event stored and take it into the ledger.

        Return it, or None if it is too large: for the bus, or with sums that nobody could read back.
        """
        stored: Stored | None = None
        if is_readable(event):
            stored = yield Append(event, command)
        if stored is None:
            return None
        event, self._unused = stored.event, None
        open_before = list(self.ledger.open.values())
        self.ledger.apply(event, stored.body)
        moved = moved_by(event)
        over = [turn for turn in reversed(open_before) if turn.state == "ended" and turn.id != moved]
        yield from self._tell(event, over)
        yield Appended(event, tuple(counts(self.ledger, event, moved, over)), command)
        return event

    def _turns_over(self) -> Steps[None]:
        """Tell of the turns that the head ended, unless it is known that this was done.

        The guard that appended it may have died before it could. Everybody does so before anything else, so
        that of no event but the head can anybody be untold.
        """
        head = self.ledger.head
        if head is not None and head.id != self._told:
            moved, turns = moved_by(head), reversed(self.ledger.turns.values())
            ended = (turn for turn in turns if turn.end is not None and turn.end.n == head.n)
            yield from self._tell(head, [turn for turn in ended if turn.id != moved])

    def _tell(self, event: AnyEvent, over: list[TurnState]) -> Steps[None]:
        """Tell of the turns that an event ended from outside, the deepest first."""
        for turn in sorted(over, key=lambda one: -len(one.path)):
            if turn.agent != HUMAN:
                yield TurnOver(event, turn)
        for reader in self.ledger.readers:
            waits = questions_to(self.ledger, reader)
            if waits != self._shown.get(reader):
                yield ShowQuestions(event.request, reader, listed(waits, event.n))
                self._shown[reader] = waits
        self._told = event.id
