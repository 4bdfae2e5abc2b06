"""The decider of one request owns the order of a decision, in plain values and without any I/O.

    decision = RequestDecider(ledger).handle(command, fleet, moment)
    while not isinstance(step := decision.next(), Settled):
        ...                                  # carry out the step; supply a need with its answer

The order is: label the facts, append what is due, check admission, get the context, decide, append the
verdict and its consequences, and tell when to wake. Only stored events change the ledger. A caller that finds
another head in the log drops the decision and gives the same command to a decider with the newer events.
"""

from collections.abc import Callable, Iterator
from typing import Final, Literal

from msgspec.structs import replace

from protocol.domain.admission import Accepted, Late, Rejected, admission
from protocol.domain.breaker import counts, moved_by
from protocol.domain.control import rejection_of
from protocol.domain.envelope import World, trace_of
from protocol.domain.fallback import may_fall_back
from protocol.domain.inquiry import Inquiry
from protocol.domain.labels import labelled
from protocol.domain.ledger import Ledger
from protocol.domain.probes import AttendanceProbes
from protocol.domain.request_state import listed, questions_to
from protocol.domain.steps import (
    NOT_STORED,
    Append,
    Appended,
    Asks,
    Decided,
    MeshFrozen,
    Moment,
    NeedAttendance,
    NeedCandidates,
    NeedReaders,
    NeedUndecided,
    NotStored,
    Outcome,
    Settled,
    ShowQuestions,
    Step,
    Stored,
    TurnOver,
)
from protocol.domain.timers import EVENT_TOO_LARGE, consequence, too_large
from protocol.domain.turns import TurnState, fallback_cause
from protocol.domain.verdict import decide
from protocol.domain.waits import (
    MIN_PROBE_PERIOD_US,
    NOT_PROBED,
    Due,
    first_wait,
    next_due,
    next_wait,
    removed,
)
from protocol.wire import events
from protocol.wire.codec import is_readable
from protocol.wire.commands import Command, Proposal, is_control
from protocol.wire.config import Fleet
from protocol.wire.errors import BrokenLog
from protocol.wire.event_parts import Grounds
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.freeze import Span
from protocol.wire.ids import HUMAN, AgentName, EventId
from protocol.wire.records import OpenQuestion

TOO_LARGE: Final = Rejected(EVENT_TOO_LARGE, "the event that would record it is larger than the bus accepts")


class RequestDecider:
    """Decides the commands of one request, one at a time.

    Args:
        ledger: the request's events up to its head; a new request by default.
    """

    __slots__ = ("_first_wait", "_reported", "_shown", "ledger")

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or Ledger()
        self._first_wait: tuple[tuple[int, tuple[Span, ...]], int | None] = ((-1, ()), None)
        """The cached result of `quiet_until`, and the head and mesh freezes that it is valid for."""
        self._shown: dict[AgentName, tuple[OpenQuestion, ...]] = {}
        """What each client is known to have been shown."""
        self._reported: EventId | None = None
        """The event up to which agents are known to have been notified of ended turns."""

    def quiet_until(self) -> int | None:
        """Return when (UTC µs) something falls due; None if nothing ever will. Computed once per head."""
        known = self.ledger.n, self.ledger.mesh_thawed
        if self._first_wait[0] != known:
            self._first_wait = (known, first_wait(self.ledger))
        return self._first_wait[1]

    def handle(
        self, command: Command, fleet: Fleet, moment: Moment, *, mesh_frozen: bool = False
    ) -> "OpenDecision":
        """Begin to decide a command.

        While the whole mesh is frozen, a control message appends only its own event. Due consequences are
        left to the timers, which wait for the thaw.

        Args:
            moment: time and salt of the next event.
        """
        return OpenDecision(self, command, fleet, moment, mesh_frozen=mesh_frozen)

    def wake(
        self,
        fleet: Fleet,
        moment: Moment,
        *,
        mesh_frozen: bool = False,
        deciding: tuple[str, int] | None = None,
    ) -> "OpenDecision":
        """Begin to append everything that is due.

        Args:
            moment: time and salt of the next event.
            deciding: the (turn, round) whose proposal a guard is known to be deciding.
        """
        return OpenDecision(self, None, fleet, moment, mesh_frozen=mesh_frozen, deciding=deciding)

    # --- what follows from an event ---------------------------------------------------------------

    def take(self, event: AnyEvent, body: bytes, command: Command | None) -> Iterator[Step]:
        """Apply an event that is now in the log to the ledger, and yield what to do about it."""
        open_before = list(self.ledger.open.values())
        self.ledger.apply(event, body)
        moved = moved_by(event)
        over = [turn for turn in reversed(open_before) if turn.state == "ended" and turn.id != moved]
        yield from self._report(event, over)
        yield Appended(event, tuple(counts(self.ledger, event, moved, over)), command)

    def follow(self, event: AnyEvent, body: bytes) -> None:
        """Apply an event that needs no notices: another guard sent them, or they are no longer wanted."""
        self.ledger.apply(event, body)
        self._reported = event.id

    def unreported(self) -> Iterator[Step]:
        """Yield the notices for turns that the head ended, unless they are known to be sent.

        The guard that appended the head may have died before it sent them. Every guard does this first, so
        only the newest event can have unsent notices.
        """
        head = self.ledger.head
        if head is not None and head.id != self._reported:
            moved, turns = moved_by(head), reversed(self.ledger.turns.values())
            ended = (turn for turn in turns if turn.end is not None and turn.end.n == head.n)
            yield from self._report(head, [turn for turn in ended if turn.id != moved])

    def _report(self, event: AnyEvent, over: list[TurnState]) -> Iterator[Step]:
        """Yield notices for turns that an event ended from outside, the deepest first, and for questions."""
        for turn in sorted(over, key=lambda turn: -len(turn.path)):
            if turn.agent != HUMAN:
                yield TurnOver(event, turn)
        for reader in self.ledger.readers:
            waits = questions_to(self.ledger, reader)
            if waits != self._shown.get(reader):
                yield ShowQuestions(event.request, reader, listed(waits, event.n))
                self._shown[reader] = waits
        self._reported = event.id


_Stage = Literal["begin", "before", "verdict", "after", "over"]


class OpenDecision:
    """A command that is being decided, or due consequences that are being appended.

    Call `next` until it returns `Settled`. The decision may be dropped at any step.
    """

    __slots__ = (
        "_append", "_command", "_decider", "_deciding", "_due", "_fleet", "_half", "_inquiry", "_ledger",
        "_mesh_frozen", "_moment", "_outcome", "_oversized", "_plain", "_probes", "_ready", "_stage",
        "_undecided", "_wake_at", "admitting",
    )  # fmt: skip

    def __init__(
        self,
        decider: RequestDecider,
        command: Command | None,
        fleet: Fleet,
        moment: Moment,
        *,
        mesh_frozen: bool,
        deciding: tuple[str, int] | None = None,
    ) -> None:
        self.admitting = command is not None
        """True until it is known that the command may be decided. Anyone may send a command."""
        self._decider, self._ledger, self._fleet = decider, decider.ledger, fleet
        self._command, self._mesh_frozen = command, mesh_frozen
        self._deciding = deciding
        self._moment = moment
        """Time and salt of the next event."""
        self._stage: _Stage = "begin"
        self._outcome: Outcome | None = None
        self._wake_at: int | None = None
        self._ready: list[Step] = []
        """Steps to hand out now that need no answer."""
        self._append: Append | None = None
        """The event to store now."""
        self._inquiry = Inquiry(self._ledger, fleet)
        self._probes: AttendanceProbes | None = None
        self._due: Due | None = None
        self._undecided: NeedUndecided | None = None
        self._half: tuple[Command, World] | None = None
        """The verdict that is being stored. If something is withheld from its reader, it has two events."""
        self._oversized: Command | AnyEvent | None = None
        """The deferred command or due event that is too large to store."""
        self._plain: World | None = None
        """The world of a consequence for which nothing was asked."""

    def next(self) -> Step:
        """Return the next step; the same need again until it has its answer.

        Raises BrokenLog if no guard could have written the log.
        """
        while True:
            if self._ready:
                return self._ready.pop(0)
            append = self._append
            if append is None:
                step = self._go_on()
                if step is not None:
                    return step
            elif append.answer is None:
                return append
            else:
                self._append = None
                self._take(append, append.answer)

    def _go_on(self) -> Step | None:
        """Return the next step; None if the stage changed or there is an event to store."""
        stage = self._stage
        if stage == "before" or stage == "after":
            return self._next_due()
        if stage == "verdict":
            return self._judge()
        if stage == "begin":
            self._begin()
            return None
        return Settled(self._outcome, self._wake_at)

    def _begin(self) -> None:
        command = self._command
        if command is not None:
            self._command = command = labelled(command, self._fleet.labels)
            self.admitting = False
        if self._mesh_frozen and (command is None or not is_control(command.what)):
            self._outcome, self._stage = MeshFrozen(), "over"
            return
        self._ready += self._decider.unreported()
        if command is None:
            self._stage = "after"
        elif self._mesh_frozen:
            self._stage = "verdict"
        else:
            what, self._stage = command.what, "before"
            self._deciding = (what.turn, what.round) if isinstance(what, Proposal) else None

    # --- one command ------------------------------------------------------------------------------

    def _judge(self) -> Step | None:
        """Decide the command."""
        assert self._command is not None
        found = self._verdict(self._command)
        if not isinstance(found, Late | Rejected):
            return found
        self._conclude(found)
        return None

    def _verdict(self, command: Command) -> Asks | Late | Rejected | None:
        """Store the event that decides a command; or return the need to supply, or why there is none."""
        ledger = self._ledger
        if self._half is not None:
            # Both events belong to one verdict. Only their moments differ, whatever has changed in between.
            moment, (_, world) = self._now(), self._half
            trace = trace_of(ledger.trace, command.trace)
            world = replace(world, now=moment.now, salt=moment.salt, trace=trace)
        else:
            if not self._inquiry.begun:
                self.admitting = command is self._command
                found = admission(ledger, command)
                self.admitting = False
                if not isinstance(found, Accepted):
                    return found
            asked = self._inquiry.world(command, self._now())
            if not isinstance(asked, World):
                return asked
            rejection = rejection_of(ledger, command, asked)
            if rejection is not None:
                return rejection
            world = asked
        self._half = command, world
        self._store(decide(ledger, command, world), command)
        return None

    def _conclude(self, outcome: Decided | Late | Rejected) -> None:
        """End the verdict on the command."""
        self._outcome, self._stage = outcome, "over"
        if self._mesh_frozen:
            at, now = self._decider.quiet_until(), self._now().now
            self._wake_at = at if at is None or at > now else next_due(self._ledger, now, NOT_PROBED)
        elif isinstance(outcome, Decided):
            self._deciding, self._stage = None, "after"

    # --- consequences -----------------------------------------------------------------------------

    def _next_due(self) -> Step | None:
        """Store the next due consequence, or return the need to supply first."""
        ledger = self._ledger
        if self._oversized is not None:
            moment = self._now()  # half of a verdict may be in the log, with the earlier moment
            assert self._plain is not None
            world = replace(self._plain, now=moment.now, salt=moment.salt)
            self._store(too_large(ledger, world, self._oversized), None)
            return None
        if self._half is not None:
            return self._follow(self._half[0])
        found = self._due or self._find()
        if not isinstance(found, Due):
            return found
        self._due = found
        if found.wait.outdates_messages:
            undecided = self._undecided = self._undecided or self._ask_undecided(found)
            if undecided.answer is None:
                return undecided
            if undecided.answer:
                self._rest(self._now().now + MIN_PROBE_PERIOD_US)
                return None
        grounds = found.world.grounds
        if found.wait.what == "join" and found.wait.turn is not None:
            grounds = replace(grounds, target=self._fleet.agents.get(found.wait.turn.agent))
            found = _with_grounds(found, grounds)
        turn = found.wait.turn
        if found.wait.what == "escalate" and turn is not None and may_fall_back(ledger, turn):
            second = self._inquiry.fallback(turn.agent, fallback_cause(str(ledger.request), turn))
            if isinstance(second, NeedCandidates):
                return second
            if second:
                grounds = replace(grounds, sender=self._fleet.agents[turn.agent], candidates=second)
                found = _with_grounds(found, grounds)
                self._plain = found.world
        follows = consequence(ledger, found)
        if isinstance(follows, Command):
            return self._follow(follows)
        if isinstance(follows, events.TaskFailed):
            candidates = self._inquiry.candidates(follows.turn)
            if isinstance(candidates, NeedCandidates):
                return candidates
            if candidates:
                found = _with_grounds(found, replace(grounds, candidates=candidates))
                self._plain, follows = found.world, consequence(ledger, found)
                assert not isinstance(follows, Command)
        self._store(follows, None)
        return None

    def _find(self) -> Due | NeedAttendance | NeedReaders | None:
        """Return what fell due first, or the need to supply first; None if nothing is due."""
        ledger, fleet, deciding = self._ledger, self._fleet, self._deciding
        at = self._decider.quiet_until()
        if at is None:
            self._rest(None)
            return None
        gone = removed(ledger, fleet, deciding)
        if gone:
            at = 0
        now, salt = self._now()
        until = None if self._stage == "after" or self._command is None else self._command.stored or None
        by = now if until is None else min(now, until)  # what fell due later comes after the command
        if at > by:
            self._rest(at)
            return None
        grounds = Grounds(fleet=fleet.revision, human=fleet.human)
        probes = self._probes = self._probes or AttendanceProbes()
        probed = probes.seen(ledger, fleet, grounds, now, by, deciding, gone)
        if isinstance(probed, NeedAttendance | NeedReaders):
            return probed
        self._plain = World(now=now, salt=salt, grounds=grounds, trace=ledger.trace)
        found = next_wait(ledger, self._plain, deciding, probed, by)
        if found is None:
            self._rest(next_due(ledger, now, probed))
        return found

    def _rest(self, wake_at: int | None) -> None:
        """Go on to the next stage: nothing more is due before `wake_at` (UTC µs)."""
        self._wake_at, self._stage = wake_at, "verdict" if self._stage == "before" else "over"

    def _ask_undecided(self, found: Due) -> NeedUndecided:
        ledger = self._ledger
        clients = frozenset((AgentName(str(ledger.client)), *ledger.readers))
        return NeedUndecided(found.at or self._now().now, ledger.possible_senders(), clients)

    def _follow(self, deferred: Command) -> Asks | None:
        """Store the verdict on a deferred proposal."""
        found = self._verdict(deferred)
        if isinstance(found, Late | Rejected):
            raise BrokenLog(f"a deferred proposal of {self._ledger.request} cannot be decided")
        return found

    # --- events -----------------------------------------------------------------------------------

    def _now(self) -> Moment:
        """Return time and salt of the next event. Time never runs backwards within a request."""
        moment, head = self._moment, self._ledger.head
        return moment if head is None or moment.now >= head.at else moment._replace(now=head.at)

    def _store(self, event: AnyEvent, command: Command | None) -> None:
        """Ask to store an event, unless its sums could not be read back."""
        append = self._append = Append(event, command)
        if not is_readable(event):
            append.supply(NOT_STORED)

    def _take(self, append: Append, answer: Stored | NotStored) -> None:
        """Go on after an attempt to store an event."""
        command = append.command
        is_own = command is not None and command is self._command
        if isinstance(answer, NotStored):
            self._half = None
            if self._oversized is not None:
                raise BrokenLog(f"not even the end of {self._ledger.request} can be stored")
            if is_own:
                self._conclude(TOO_LARGE)
            else:
                self._oversized = command or append.event
            return
        event, body, self._moment = answer
        self._due = self._undecided = None
        self._ready += self._decider.take(event, body, command)
        if type(event) is FactsWithheld and command is not None:
            return
        self._inquiry = Inquiry(self._ledger, self._fleet)
        if type(event) is FactsWithheld:
            return
        self._half = self._oversized = None
        if is_own:
            self._conclude(Decided(event))


def _with_grounds(found: Due, grounds: Grounds) -> Due:
    return found._replace(world=replace(found.world, grounds=grounds))


def drive(decision: OpenDecision, take: Callable[[Step], None]) -> Settled:
    """Run a decision to its end. `take` carries out each step, and supplies the answer of a need."""
    while not isinstance(step := decision.next(), Settled):
        take(step)
    return step
