"""`mesh requeue`: open turns that are in no queue are delivered again.

A turn that is open in the log continues when its agent is given the event of its round. On a bus that was
copied while it ran, the consumer of the inbox may be ahead of the log: then no agent is given the event.
These turns are found, and their consumers begin again at the earliest of them. The other events that they
then deliver are of turns that ended. Those are marked first, and an agent acknowledges them without running
anything.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.copying import WholeMessage, Writer
from mesh.bus.event_log import JetStreamLog
from mesh.bus.lane import is_served
from mesh.bus.provision import stored_queues
from mesh.bus.reader import last, up_to
from mesh.bus.stores import arm_schedule, current_schedule
from mesh.bus.streams import (
    LOG,
    TIMERS,
    Consumer,
    Storage,
    consumer_table,
    inbox_consumer,
    offers_to,
    proposals_of,
    queue_consumers,
)
from mesh.errors import ApiCode, ApiError, ProtocolError, RestoreFailed, SequenceConflict, SubjectTaken
from mesh.ops.roster import fleet_of
from protocol.domain.ledger import Ledger
from protocol.domain.turns import TurnState
from protocol.wire import codec, subjects
from protocol.wire.config import Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.events import AnyEvent, Ended, TaskOffered
from protocol.wire.ids import HUMAN, TurnId
from protocol.wire.records import Ended as EndMark

STALE_S = 2.0
"""How old an event must be before it is delivered (s): agents take one of the last second for a new one."""
_REQUEUED = "requeued"
_API_S = 60.0
_POLL_S = 0.5
_LOOKS = 4
"""How often in a row a queue must look as if messages in it were lost."""


class OpenTurn(NamedTuple):
    """A round that an agent has to work on, and the event that gives it."""

    request: str
    turn: str
    round: int
    agent: str
    inbox: str
    """Name of the agent, or of an intent's inbox for an offer."""
    seq: int
    """Sequence of the event in LOG."""


class OpenRequests:
    """Folds the whole log, event by event, and knows what is open at its end."""

    def __init__(self) -> None:
        self.through = 0
        """Sequence of the newest event that was added."""
        self._ledgers: dict[str, Ledger] = {}
        self._given: dict[str, dict[tuple[str, int], tuple[str, int]]] = {}
        """By request: where each round, and each offer, was given: inbox and sequence."""
        self._rounds: dict[str, dict[str, int]] = {}
        """By request: the newest round of each journal."""
        self.ended = set[str]()
        self.unreadable: dict[str, str] = {}
        """Requests that cannot be folded, with the reason. Guards cannot continue them either."""

    def take(self, seq: int, subject: str, data: bytes) -> None:
        """Add the next event."""
        self.through = seq
        request = subject.rpartition(".")[2]
        if request in self.unreadable:
            return
        try:
            event = codec.decode_event(data)
            ledger = self._ledgers.setdefault(request, Ledger())
            ledger.apply(event, data)
        except (ProtocolError, LookupError, TypeError, AttributeError, ValueError) as broken:
            self.unreadable[request] = str(broken)
            self._forget(request)
            return
        if isinstance(event, Ended):
            self._forget(request)
            self.ended.add(request)
        elif (given := _given(event)) is not None:
            self._given.setdefault(request, {})[given.turn, given.round] = (str(event.to), seq)
            self._rounds.setdefault(request, {})[given.journal_id] = given.round

    def _forget(self, request: str) -> None:
        self._ledgers.pop(request, None)
        self._given.pop(request, None)
        self._rounds.pop(request, None)

    async def read_on(self, bus: Bus) -> None:
        """Add what the log has and this does not. Raises BusError."""
        async for stored in JetStreamLog(bus).follow(self.through + 1, tail=False):
            self.take(stored.seq, stored.subject, stored.data)

    @property
    def requests(self) -> list[str]:
        return list(self._ledgers)

    def __contains__(self, request: str) -> bool:
        """Return True if a request is open."""
        return request in self._ledgers

    def knows(self, request: str) -> bool:
        """Return True if the log has a request, open or not."""
        return request in self._ledgers or request in self.ended or request in self.unreadable

    def turns(self, agent: str) -> set[tuple[str, str]]:
        """Return request and turn of each turn that an agent had in an open request, open or not."""
        return {
            (request, turn)
            for request, given in self._given.items()
            for (turn, _), (inbox, _) in given.items()
            if inbox == agent
        }

    def newest_round(self, request: str, journal: str) -> int:
        """Return the newest round that was given for a journal; 0 if the turn is not in the log yet."""
        return self._rounds.get(request, {}).get(journal, 0)

    def is_open(self, request: str, turn: str) -> bool:
        """Return True if a turn, or an offer, has not ended."""
        ledger = self._ledgers.get(request)
        return ledger is not None and (turn in ledger.open or _is_offered(ledger, turn))

    def waiting(self) -> list[OpenTurn]:
        """Return the rounds that agents have to work on, and the offers without a claim."""
        found = []
        for request, ledger in self._ledgers.items():
            deferred = {(one.turn, one.round) for one in ledger.deferred}
            for (turn, round_), (inbox, seq) in self._given.get(request, {}).items():
                state = ledger.open.get(TurnId(turn))
                if state is not None and _is_worked_on(state, round_) and (turn, round_) not in deferred:
                    found.append(OpenTurn(request, turn, round_, str(state.agent), inbox, seq))
                elif _is_offered(ledger, turn):
                    found.append(OpenTurn(request, turn, round_, inbox, inbox, seq))
        return found


def _given(event: AnyEvent) -> Assignment | None:
    return event.offer if isinstance(event, TaskOffered) else event.work


def _is_worked_on(turn: TurnState, round_: int) -> bool:
    return turn.state == "working" and turn.round == round_ and turn.agent != HUMAN


def _is_offered(ledger: Ledger, offer: str) -> bool:
    task = ledger.offers.get(TurnId(offer))
    return task is not None and task.state == "offered"


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """What `requeue` did, or would do."""

    turns: tuple[OpenTurn, ...]
    """Rounds, and offers, that were in no queue."""
    queues: tuple[str, ...] = ()
    """Queues with messages that no guard would have been given."""
    timers: int = 0
    """Requests that had no schedule, and got one."""
    open: int = 0
    """Open requests."""
    unreadable: dict[str, str] = {}
    """Requests that cannot be folded, with the reason."""


async def requeue(bus: Bus, *, dry_run: bool = False, leases: float = 2.0) -> Requeued:
    """Deliver again what is open and in no queue, and arm missing timers; return what was done.

    Services may run meanwhile, and it may be run twice. Needs the admin's credentials. Raises BusError.

    Args:
        leases: how many leases of an inbox to wait, to find out what instances have in hand. 0: report only
            what is certain.
    """
    fleet = await fleet_of(bus)
    stranded = [name for name in await stored_queues(bus) if await _is_stranded(bus, name, fleet)]
    if not dry_run:
        for consumer in consumer_table(fleet, await _storage(bus)):
            if consumer.stream in stranded:
                await bus.api(f"CONSUMER.DELETE.{consumer.stream}.{consumer.name}")
                await create_consumer(bus, consumer, None)
    open_requests = OpenRequests()
    await open_requests.read_on(bus)
    lost = await _lost(bus, fleet, open_requests.waiting(), leases * fleet.lease_s)
    timers = [request for request in open_requests.requests if await current_schedule(bus, request) is None]
    if not dry_run:
        starts = await _starts_ahead(bus, fleet) | starts_of(lost)
        await open_requests.read_on(bus)  # agents went on meanwhile
        await mark_over(bus, open_requests, starts, _events_from(bus, starts))
        await _begin_again(bus, fleet, starts)
        await arm(bus, timers, fleet.partitions)
    return Requeued(
        turns=tuple(lost),
        queues=tuple(stranded),
        timers=len(timers),
        open=len(open_requests.requests),
        unreadable=open_requests.unreadable,
    )


async def _storage(bus: Bus) -> Storage:
    config = (await bus.api(f"STREAM.INFO.{LOG}"))["config"]
    return Storage(replicas=int(config.get("num_replicas", 1)))


async def _is_stranded(bus: Bus, queue: str, fleet: Fleet) -> bool:
    """Return True if guards would not be given every message that is in a queue, or comes into it.

    An acknowledged message is removed from a queue. So its consumers know of every message in it, and none
    may be ahead of the queue's end: it would take new messages for old ones. Messages come and go while this
    looks, so it asks the consumers before it asks for the end, and believes only what it sees each time.
    """
    asked = {"subjects_filter": subjects.FIRED} if queue == TIMERS else {}
    for _ in range(_LOOKS):
        known = await _known_to_guards(bus, queue, fleet)
        state = (await bus.api(f"STREAM.INFO.{queue}", asked))["state"]
        there = sum((state.get("subjects") or {}).values()) if asked else state["messages"]
        if known is None:
            return False  # it is of a member that left the fleet
        if known.through > state["last_seq"]:
            return True
        if there <= known.messages:
            return False
        known = await _known_to_guards(bus, queue, fleet)
        if known is None or there <= known.messages:
            return False
        await asyncio.sleep(_POLL_S)
    return True


class _Known(NamedTuple):
    """What the consumers of a queue know of it."""

    messages: int
    """How many they still have to deliver, or to see acknowledged."""
    through: int
    """The furthest sequence that any has delivered."""


async def _known_to_guards(bus: Bus, queue: str, fleet: Fleet) -> _Known | None:
    messages = through = 0
    for consumer in queue_consumers(fleet.partitions):
        try:
            info = await bus.api(f"CONSUMER.INFO.{queue}.{consumer}")
        except ApiError as error:
            if error.err_code != ApiCode.CONSUMER_NOT_FOUND:
                raise
            return None
        messages += info["num_pending"] + info["num_ack_pending"]
        through = max(through, info["delivered"]["stream_seq"])
    return _Known(messages, through)


async def _lost(bus: Bus, fleet: Fleet, waiting: Iterable[OpenTurn], within_s: float) -> list[OpenTurn]:
    """Return which of these will not be delivered."""
    by_inbox: dict[str, list[OpenTurn]] = {}
    for each in waiting:
        by_inbox.setdefault(each.inbox, []).append(each)
    found = await asyncio.gather(*(_acknowledged(bus, fleet, *each, within_s) for each in by_inbox.items()))
    return [each for turns in found for each in await _not_done(bus, fleet, turns)]


async def _acknowledged(
    bus: Bus, fleet: Fleet, inbox: str, turns: list[OpenTurn], within_s: float
) -> list[OpenTurn]:
    """Return the turns whose events the consumer of their inbox will not deliver, or that are done meanwhile.

    It does not show which events between the first outstanding and the last delivered one are acknowledged,
    only how many are not. Those in no instance's hands come again within a lease, and those of ended turns
    are acknowledged then. If no instance runs, none has any: it may be delivered once more. A running one
    asks for no work while it has as much in hand as it takes.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            info = await bus.api(f"CONSUMER.INFO.{LOG}.{inbox_consumer(inbox)}")
        except ApiError as error:
            if error.err_code != ApiCode.CONSUMER_NOT_FOUND:
                raise
            return []  # the agent left the fleet: guards end its rounds
        floor, delivered = info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]
        given = [turn for turn in turns if turn.seq <= delivered]
        if len(given) > info["num_ack_pending"]:
            given = await _not_done(bus, fleet, given)  # otherwise what is done hides what is in hand
        lost = [turn for turn in given if turn.seq <= floor]
        in_doubt = [turn for turn in given if turn.seq > floor]
        if not in_doubt or len(in_doubt) > info["num_ack_pending"]:
            return lost + in_doubt
        if within_s and not info["num_waiting"] and not await _is_served(bus, fleet, inbox):
            return lost + in_doubt
        if time.monotonic() > until_s:
            return lost
        await asyncio.sleep(_POLL_S)
        turns = await _not_done(bus, fleet, turns)


async def _not_done(bus: Bus, fleet: Fleet, turns: Iterable[OpenTurn]) -> list[OpenTurn]:
    """Return the turns of which no verdict and no proposal is there.

    The order of the checks matters: an agent acknowledges its event once its proposal is stored, and a guard
    removes that from its queue once the verdict is in the log.
    """
    log = JetStreamLog(bus)
    return [
        each
        for each in turns
        if not await _is_proposed(bus, each, fleet.partitions) and await _still_waits(log, each)
    ]


async def _is_served(bus: Bus, fleet: Fleet, inbox: str) -> bool:
    """Return True if an instance runs that takes work from an inbox, an agent's or an intent's."""
    offered = [name for name in fleet.agents if inbox in map(subjects.intent_inbox, offers_to(fleet, name))]
    return any(await asyncio.gather(*(is_served(bus, name) for name in offered or [inbox])))


async def _is_proposed(bus: Bus, turn: OpenTurn, partitions: int) -> bool:
    """Return True if a proposal for the turn's request waits in its agent's queue."""
    if turn.inbox != turn.agent:
        return False
    queued = subjects.queued("prop", turn.agent, turn.request, partitions)
    try:
        return await last(bus, proposals_of(turn.agent), queued, leader=True) is not None
    except ApiError as error:
        if error.err_code != ApiCode.STREAM_NOT_FOUND:
            raise
        return False


async def _still_waits(log: JetStreamLog, turn: OpenTurn) -> bool:
    now = OpenRequests()
    for stored in await log.read(turn.request):
        now.take(stored.seq, stored.subject, stored.data)
    return turn in now.waiting()


def starts_of(turns: Iterable[OpenTurn]) -> dict[str, int]:
    """Return the earliest event of each inbox."""
    starts: dict[str, int] = {}
    for each in turns:
        starts[each.inbox] = min(each.seq, starts.get(each.inbox, each.seq))
    return starts


async def _starts_ahead(bus: Bus, fleet: Fleet) -> dict[str, int]:
    """Return the log's end for each inbox whose consumer is beyond it and would skip the next events."""
    through = {}
    for consumer in consumer_table(fleet):
        if consumer.stream == LOG:
            info = await bus.api(f"CONSUMER.INFO.{LOG}.{consumer.name}")
            through[consumer.name.removeprefix(inbox_consumer(""))] = info["delivered"]["stream_seq"]
    end = int((await bus.api(f"STREAM.INFO.{LOG}"))["state"]["last_seq"])  # asked last, since the log grows
    return {inbox: end + 1 for inbox, delivered in through.items() if delivered > end}


async def _events_from(bus: Bus, starts: Mapping[str, int]) -> AsyncIterator[tuple[int, str, bytes]]:
    for inbox, seq in starts.items():
        while part := await up_to(bus, LOG, subjects.inbox(inbox), seq):
            for each in part:
                yield each.seq, each.subject, each.data
            seq = part[-1].seq + 1


async def mark_over(
    bus: Bus,
    open_requests: OpenRequests,
    starts: Mapping[str, int],
    stored: AsyncIterator[tuple[int, str, bytes]],
) -> None:
    """Mark the turns that have ended among those that the inboxes deliver from `starts` on.

    Events that `open_requests` does not know are passed over: their turns may have just begun. An agent that
    finds a mark acknowledges the event. Without a mark it would run the turn from its journal, and the
    journal of an ended request may have been removed.
    """
    writer = Writer(bus, "ENDS", exact=False)
    done = set[str]()
    try:
        async for seq, subject, data in stored:
            place = subjects.parse_evt(subject)
            if not starts.get(place.to, seq + 1) <= seq <= open_requests.through:
                continue
            try:
                event = codec.decode_event(data)
            except ProtocolError:
                continue  # the agent finds that, too
            work = event.work
            if work is None or open_requests.is_open(place.request, work.turn):
                continue
            mark = subjects.end(place.to, place.request, work.turn)
            if mark in done or await last(bus, "ENDS", mark, leader=True) is not None:
                continue
            done.add(mark)
            body = msgspec.json.encode(EndMark(why=_REQUEUED, turn=work.turn, round=work.round))
            await writer.store([WholeMessage(0, mark, {}, body)])
        await writer.finish()
    except SubjectTaken:
        raise RestoreFailed("a guard has ended a turn meanwhile: run it again") from None
    finally:
        await writer.close()


async def _begin_again(bus: Bus, fleet: Fleet, starts: Mapping[str, int]) -> None:
    """Recreate the consumers of inboxes, so that they deliver from `starts` on, a moment later.

    What an instance of such an inbox has in hand is delivered to another one, too. The journal fences the
    first.
    """
    wanted = {each.name: each for each in consumer_table(fleet) if each.stream == LOG}
    for inbox, seq in starts.items():
        consumer = wanted.get(inbox_consumer(inbox))
        if consumer is None:
            continue
        info = await bus.api(f"CONSUMER.INFO.{LOG}.{consumer.name}")
        stale = datetime.fromisoformat(f"{info['ts'][:19]}+00:00") + timedelta(seconds=STALE_S)
        await bus.api(f"CONSUMER.DELETE.{LOG}.{consumer.name}")
        await create_consumer(bus, consumer, seq, paused_until=stale)


async def create_consumer(
    bus: Bus, consumer: Consumer, start: int | None, *, paused_until: datetime | None = None
) -> None:
    config = dict(consumer.config)
    if start is not None:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}
    if paused_until is not None:
        config["pause_until"] = paused_until.isoformat().replace("+00:00", "Z")
    body = {"stream_name": consumer.stream, "config": config, "action": "create"}
    await bus.api(f"CONSUMER.CREATE.{consumer.stream}.{consumer.name}", body, timeout_s=_API_S)


async def arm(bus: Bus, requests: Iterable[str], partitions: int) -> None:
    """Let a guard check each request now: it appends what is due, and arms the next schedule."""
    for request in requests:
        try:
            await arm_schedule(bus, request, time.time_ns() // 1000, partitions, after=0)
        except SequenceConflict:
            continue  # a guard was faster
