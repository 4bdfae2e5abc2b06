"""What a drill gathers, and all that its checks may look at: what was sent, what the log says, what was done.

Nothing in here is believed because a service of the fleet said so in passing: submits are what the drill
itself sent, events and steps are read from the streams at the end, deeds are written by the tools into a
file outside of the mesh, and faults are what the drill did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mesh.errors import MeshError
from protocol.wire.commands import Submit
from protocol.wire.config import Fleet
from protocol.wire.moves import Move

Kind = Literal["read", "model", "idempotent", "reconcilable", "once"]
"""What a tool did: read, asked a model (which costs), or changed the world in one of three ways."""
SERVER = "nats-server"


class DrillImpossible(MeshError, code="drill.impossible"):
    """No drill can be run without something that the fleet or the machine lacks; the text says what."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that the drill sent."""

    request: str
    at: int
    """UTC µs."""
    acknowledged: bool
    """Whether JetStream said that it is stored: from then on it may not be lost."""
    story: str = ""
    """What kind of request it is; empty where nobody knows."""
    expected: tuple[str, ...] = ()
    """Statuses in which it may rightly end (`completed`, `failed`, `expired` …); empty: any."""
    submit: Submit | None = None
    """What was sent; None where the drill no longer knows."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A move that an agent's code returned, written down by the code itself before anybody else saw it."""

    request: str
    turn: str
    round: int
    move: Move


@dataclass(frozen=True, slots=True)
class Ordered:
    """A control message that the drill's people sent."""

    request: str
    id: str
    at: int
    """UTC µs; when JetStream had stored it."""
    seq: int
    """Where, in CTL."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim of the agent that the drill plays."""

    request: str
    offer: str
    at: int
    """UTC µs; when JetStream had stored it."""


@dataclass(frozen=True, slots=True)
class Undone:
    """Something that the drill's people were asked for and could not do."""

    request: str
    why: str


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that a tool did to the world outside, written down by the tool in the middle of doing it."""

    at: int
    """UTC µs."""
    kind: Kind
    tool: str
    key: str = ""
    """The idempotency key that it was given; empty for a tool without one."""
    request: str = ""
    call: str = ""
    """What tells this call from every other one of the request, by the request's own script. A model call's
    prompt is this, or `{"request": …, "call": …}`, so that the journal's digest of it can be told."""
    pid: int = 0
    began: int = 0
    """UTC µs; when the tool was called. 0 where the tool does not say."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that the drill, or the machine, did to a process."""

    kind: str
    """`kill`, `pause`, `restart`, `held`, the failpoint in which the process was killed, or `stall`; of a
    server also `disk-damaged`, `disk-damaged-raw` and `partition`."""
    identity: str
    """Which process: `guard-1`, `worker-2`, `nats-server`, or `nats-2` of a cluster."""
    name: str
    """Whose credentials it has: `guard`, an agent's name, or `nats-server`."""
    at: int
    """UTC µs."""
    until: int
    """UTC µs; when it ran again."""
    pid: int = 0
    """Of the process that it was done to; 0 where that is not known."""
    detail: str = ""
    """What was done exactly, where there is more than one way."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one server of a cluster holds of a stream in the end."""

    server: str
    stream: str
    messages: int
    first: int
    last: int
    deleted: int
    """Holes between the first and the last."""
    digests: Sequence[str] | None = None
    """Of each message from sequence 1 on, as this server reads it; empty for one that it does not have. None
    where nobody read them."""


class StepName(NamedTuple):
    """Where a step lies."""

    agent: str
    request: str
    turn: str
    step: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the checks look at."""

    submitted: Sequence[Submitted]
    bodies: Mapping[str, Sequence[bytes]]
    """Stored events by request, in their order."""
    steps: Mapping[StepName, bytes]
    """Every stored step."""
    deeds: Sequence[Deed]
    faults: Sequence[Fault]
    """What the drill did."""
    stalls: Sequence[Fault] = ()
    """What the machine did, where processes write it down: it let them stand still."""
    dead: Sequence[bytes] = ()
    """Stored dead letters."""
    lease_s: float = 6.0
    guard_lease_s: float = 3.0
    ended_at: int = 0
    """UTC µs; when the drill stopped to wait and everything was ended."""
    with_ledger: bool = True
    """Whether the tools write down what they do; without, nothing is known of the world outside."""
    orders: Sequence[Ordered] = ()
    """Control messages that were acknowledged."""
    claims: Sequence[Claimed] = ()
    """Claims of the drill's own agent that were acknowledged."""
    unasked: Sequence[str] = ()
    """Services that ended though nobody had ended them, in a line each."""
    silent: frozenset[str] = field(default_factory=frozenset)
    """Requests on which the drill itself gave up waiting."""
    asked: Sequence[Asked] = ()
    """Moves that agents asked for; none where they write nothing down."""
    fleet: Fleet | None = None
    """Who exists, as the fleet file has it."""
    undone: Sequence[Undone] = ()
    """What the drill's people could not do."""
    unfinished: Sequence[str] = ()
    """What the drill waited for in vain besides requests, in a line each: faults, services."""
    ends: frozenset[tuple[str, str, str]] | None = None
    """Agent, request and turn of each message at `mesh.end.…`; None where nobody looked."""
    held: Sequence[Held] = ()
    """What each server holds; nothing where there is one server."""
    unreached: Sequence[str] = ()
    """Failpoints in which a process was to die, and which no request came through."""
