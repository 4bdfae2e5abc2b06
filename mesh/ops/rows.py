"""A request as lists show it: a row that is a function of its events."""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from mesh.bus.reader import StoredMessage
from mesh.ops.batch import batch_of
from mesh.ops.hops import HopTracker, RequestCounts
from mesh.ops.log import header_of
from mesh.ops.queue import is_for_people
from mesh.ops.roster import Frozen
from protocol.domain import budget
from protocol.domain.ledger import Ledger
from protocol.wire import events
from protocol.wire.errors import MeshError
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.handoff import TEXT_FACT
from protocol.wire.ids import HUMAN, submitter_of
from protocol.wire.moves import Transfer

TEXT = 1_000
"""Characters of a text that the index keeps."""
_TRAIL = 12
"""Names of a trail that a list shows, from its end."""
COSTS = (0, 6, 7, 8, 9, 10, 11)
"""Powers of ten of nano-dollars that have a tag; 0 means any cost at all."""
_WORD = re.compile(r"[^\W_]+")
STATUSES = ("open", "human", "frozen", "completed", "refused", "failed", "expired", "cancelled", "unreadable")
"""The states of a request, and two kinds of open ones: `human`, on which people have to act, and `frozen`.
These can be filtered for like a status; their status is `open` everywhere."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as lists show it."""

    request: str
    status: str
    """`open`, how it ended, or `unreadable`."""
    holder: str
    """Who has to act; empty if no one has."""
    type: str
    """Type of the newest event."""
    at: int
    """Time of the newest event (UTC µs)."""
    events: int
    frozen: Frozen | None = None
    conversation: str | None = None
    text: str = ""
    """What its client wrote; of a long text only the beginning."""
    client: str
    opened: int
    """Time of its first event (UTC µs)."""
    nano_dollars: int = 0
    tokens: int = 0
    model_calls: int = 0
    refusals: int = 0
    rule: str = ""
    """The rule of the newest refusal."""
    trail: str = ""
    """All holders of the work, in order; of many, the newest."""
    hops: int = 0
    """How often work was given to someone."""
    depth: int = 0
    """The deepest that it went."""
    ping_pong: int = 0
    """Hops by which work went to and fro again: a → b, b → a, and then a → b."""
    id: int = 0
    """Place in the log of its first event."""
    last: int
    """Place in the log of its newest event."""


class IndexRow(NamedTuple):
    """A request in the index."""

    listed: Listed
    tags: frozenset[str]
    words: str
    """The words that a search finds, as returned by `words_of`."""
    counts: RequestCounts = RequestCounts()
    """What statistics count of it."""


def words_of(*texts: str) -> str:
    """Return the words of texts separated by spaces, without case and accents."""
    plain = unicodedata.normalize("NFKD", " ".join(texts).casefold())
    return " ".join(_WORD.findall("".join(char for char in plain if not unicodedata.combining(char))))


def version_tag(agent: str, version: str) -> str:
    """Return the tag of requests in which an agent ran a turn with this version; it has no space."""
    return f"version:{agent}={quote(version, safe='')}"


def fork_tag(request: str) -> str:
    """Return the tag of requests that were forked from a request."""
    return f"forked_from:{request}"


def rerun_tag(request: str) -> str:
    """Return the tag of requests that do `request` again."""
    return f"rerun:{request}"


class EdgeCount(NamedTuple):
    """How often work passed from one name to another, and how often that was refused."""

    giver: str
    taker: str
    passed: int
    refused: int


# --- from events to a row ----------------------------------------------------------------------


def holder_of(ledger: Ledger) -> str:
    """Return who has to act; empty if no one has."""
    if not ledger.is_open:
        return ""
    acting = (turn for turn in ledger.open.values() if turn.state != "delegated")  # without waiting leads
    holders = (turn.asked if turn.state == "suspended" else turn.agent for turn in acting)
    return HUMAN if is_for_people(ledger) else ", ".join(map(str, holders))


class FoldedRequest:
    """One request up to an event."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.names = dict[str, None]()
        self.rules = list[str]()
        self.trail = list[str]()
        self.text = ""
        self.opened = 0
        self.frozen: Frozen | None = None
        self._hops = HopTracker()
        self.rerun_of: str | None = None
        self.batches = set[str]()

    def take(self, event: AnyEvent) -> EdgeCount | None:
        """Add the next event; return between whom work passed, or would have passed. Raises BrokenLog."""
        self.ledger.apply(event)
        self._hops.take(event, self.ledger)
        if event.n == 0:
            self.opened = event.at
        if isinstance(event, events.RequestRefused):
            self.text, self.rerun_of = event.submit.text, event.submit.rerun_of
        elif isinstance(event, events.RequestOpened):
            self.rerun_of = event.rerun_of
            fact = self.ledger.carried().facts.get(TEXT_FACT)
            self.text = "" if fact is None else str(fact.value)
        elif isinstance(event, events.RequestFrozen):
            self.frozen = Frozen(by=event.by, sender=event.sender, since=event.at, reason=event.reason)
        elif isinstance(event, events.RequestThawed):
            self.frozen = None
        if batch := batch_of(event):
            self.batches.add(batch)
        if event.refusal is not None:
            self.rules.append(str(event.refusal.rule))
        if event.opens_turn and event.work is not None:
            name = str(event.work.handoff.to_agent)
            self.names[name] = None
            self.trail = [*self.trail[-_TRAIL:], name]
        return self._edge(event)

    def _edge(self, event: AnyEvent) -> EdgeCount | None:
        match event:
            case events.RequestOpened() | events.EscalationResolved():
                return None
            case events.EscalationRaised(turn=turn) if self.ledger.turns[turn].agent == HUMAN:
                return None  # it goes to other people
            case events.MoveRefused(turn=turn, move=Transfer(to_agent=taker)):
                return EdgeCount(self.ledger.turns[turn].agent, taker, 0, 1)
        if event.opens_turn and event.work is not None:
            return EdgeCount(event.work.handoff.from_agent, event.work.handoff.to_agent, 1, 0)
        return None

    def row(self, last: int) -> IndexRow:
        """Return its row in the index; `last` is the place of its newest event."""
        ledger, newest = self.ledger, self.ledger.head
        assert newest is not None
        spent = budget.NOTHING
        for turn in ledger.turns.values():
            spent = budget.plus(spent, turn.report.usage)
        status = str(ledger.status)
        conversation = ledger.conversation
        if isinstance(newest, events.RequestRefused):
            conversation = newest.submit.conversation
        is_frozen = ledger.is_open and self.frozen is not None
        tags = {f"status:{status}", f"client:{ledger.client}"}
        tags |= {"status:human"} if is_for_people(ledger) else set()
        tags |= {"status:frozen"} if is_frozen else set()
        tags |= {f"agent:{name}" for name in self.names} | {f"rule:{rule}" for rule in self.rules}
        ran = ((turn.agent, turn.report.version) for turn in ledger.turns.values())
        tags |= {version_tag(agent, version) for agent, version in ran if version}
        tags |= set() if ledger.forked_from is None else {fork_tag(ledger.forked_from.request)}
        tags |= {f"batch:{batch}" for batch in self.batches}
        tags |= set() if self.rerun_of is None else {rerun_tag(self.rerun_of)}
        tags |= {f"cost:{power}" for power in COSTS if spent.nano_dollars >= 10**power}
        counts = self._hops.counts(ledger)
        cut = "… → " if len(self.trail) > _TRAIL else ""
        listed = Listed(
            request=str(ledger.request),
            last=last,
            status=status,
            holder=holder_of(ledger),
            client=str(ledger.client or ""),
            frozen=self.frozen if is_frozen else None,
            conversation=(conversation or "")[:TEXT],
            opened=self.opened,
            at=newest.at,
            events=newest.n + 1,
            type=type_of(newest),
            nano_dollars=min(spent.nano_dollars, 2**62),  # SQLite's numbers have 63 bits
            tokens=min(spent.tokens, 2**62),
            model_calls=min(spent.model_calls, 2**62),
            refusals=len(self.rules),
            rule=self.rules[-1] if self.rules else "",
            trail=cut + " → ".join(self.trail[-_TRAIL:]),
            hops=sum(hop.passed for hop in counts.hops),
            depth=counts.depth,
            ping_pong=counts.ping_pong,
            text=self.text[:TEXT],
        )
        return IndexRow(listed, frozenset(tags), words_of(listed.text, listed.conversation or ""), counts)


def folded_from(happened: Sequence[AnyEvent] | None) -> FoldedRequest | None:
    """Return a folded request; None if it cannot be folded."""
    folded = FoldedRequest()
    try:
        for event in happened or ():
            folded.take(event)
    except MeshError:
        return None
    return folded if happened else None


def unreadable(stored: StoredMessage, before: IndexRow | None = None) -> IndexRow:
    """Return the row of a request that cannot be folded, from its newest event.

    Args:
        before: its row so far. It keeps the text that finds it.
    """
    seen = header_of(stored.data)
    assert seen is not None
    client = submitter_of(seen.request)
    listed = Listed(
        request=seen.request,
        last=stored.seq,
        status="unreadable",
        holder="",
        client=client,
        opened=seen.at,
        at=seen.at,
        events=seen.n + 1,
        type=seen.type,
        text="" if before is None else before.listed.text,
    )
    tags = frozenset({f"client:{client}", "status:unreadable"})
    return IndexRow(listed, tags, "" if before is None else before.words)
