"""What agents, clients and operators *ask for*: submits, proposals and control messages.

The moves, which most proposals hold, are in `protocol.wire.moves`.

Everything here is a claim. The guard believes no claim that the log or the broker can answer. The subject
says who the sender is, and the ledger says which turn it is.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeGuard

import msgspec

from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
from protocol.wire.ids import (
    AgentName,
    Cause,
    ProposalId,
    RequestId,
    SenderRole,
    TurnId,
    claim_id,
    post_id,
    proposal_id,
)
from protocol.wire.moves import Move, Short, UnknownMove, WireMessage
from protocol.wire.prices import MAX_MODELS, Amount, Count, Metered, Seconds

MAX_MESSAGE_BYTES = 256 << 10
"""What a sender's queue takes of one message, its subject and headers counted."""
MAX_MODEL_CHARS = 128
MAX_PROMPT_CHARS = 64
MAX_VERSION_CHARS = 64
ModelName = Annotated[str, msgspec.Meta(max_length=MAX_MODEL_CHARS)]


MAX_FORKED_TURNS = 1_000
"""Of each agent, in the record that a fork begins with."""


_Turns = Annotated[tuple[TurnId, ...], msgspec.Meta(max_length=MAX_FORKED_TURNS)]


class ForkedFrom(WireMessage, frozen=True, kw_only=True):
    """Where a fork leaves the request that it goes on from, and what its agents do about effects."""

    request: RequestId
    n: Count
    """The number of the event after which it begins."""
    digest: str
    """SHA-256 (hex) of that event's stored bytes."""
    effects: Literal["recorded", "refuse", "run"] = "recorded"
    """`recorded`: a call that an agent made before gets what came of it then, and no other effect is tried.
    `refuse`: no effect is tried. `run`: effects happen again."""
    summary: str = ""
    """What the work was handed over for; empty for the first line of the submit's text."""
    text_labels: tuple[str, ...] = ()
    """Labels that the text had come to have."""
    journals: Mapping[AgentName, _Turns] = {}
    """By agent, the turns under which its steps lie: those that go on from the event first, then those
    before. In a turn's work, that turn's agent alone."""


class Submit(WireMessage, frozen=True, kw_only=True):
    """A client's request, the plain JSON that anything that speaks NATS can publish."""

    text: str
    to: AgentName | None = None
    """The agent to begin with; the fleet's entry agent if none is named."""
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    constraints: Constraints = Constraints()
    policy: str = "default"
    conversation: Short | None = None
    rerun_of: RequestId | None = None
    """The request that this one does again, from where it failed."""
    forked_from: ForkedFrom | None = None
    """The request that this one goes on from; an operator's alone."""
    v: Literal[1] = 1


# --- proposals ------------------------------------------------------------------------------------


class Usage(WireMessage, frozen=True, kw_only=True):
    """What a turn spent, cumulative over its rounds."""

    nano_dollars: Amount = 0
    tokens: Amount = 0
    model_calls: Amount = 0
    models: Annotated[Mapping[ModelName, Metered], msgspec.Meta(max_length=MAX_MODELS)] = {}
    """The same by model, where it is known; nothing is judged by it."""


class Report(WireMessage, frozen=True, kw_only=True):
    """What a turn says it did. The guard accounts for it; the journal lets others check it."""

    usage: Usage = Usage()
    actions: tuple[str, ...] = ()
    """Names of the tools that were called, each once, sorted."""
    steps: Amount = 0
    digest: str = ""
    """SHA-256 over the turn's journal; empty for a turn without steps."""
    prompt: Annotated[str, msgspec.Meta(max_length=MAX_PROMPT_CHARS)] = ""
    """Version of the prompt that the agent gives its model; empty for an agent without one."""
    effects: tuple[str, ...] = ()
    """Those of `actions` that have an effect."""
    version: Annotated[str, msgspec.Meta(max_length=MAX_VERSION_CHARS)] = ""
    """The agent's, whose code ran the turn's latest round."""
    build: Annotated[str, msgspec.Meta(max_length=MAX_VERSION_CHARS)] = ""
    """Of what that code was built, such as a git revision."""


class Failure(WireMessage, frozen=True, kw_only=True):
    """Why a turn broke. `message` is a safe sentence: no prompt, no model text, no repr."""

    code: str
    message: str = ""
    permanent: bool = False
    retry_after_s: Seconds | None = None


class Doubt(WireMessage, frozen=True, kw_only=True):
    """An effect that began, and of which no result is known: its process died, or its tool raised."""

    step: str
    action: str
    key: str = ""
    message: str = ""
    """What its tool raised, as a safe sentence; empty where the process died."""


class _Proposal(WireMessage, tag_field="kind", frozen=True, kw_only=True):
    turn: TurnId
    round: Count
    report: Report = Report()
    v: Literal[1] = 1


class MoveProposed(_Proposal, tag="move", frozen=True, kw_only=True):
    """A turn asks for a move."""

    move: Move
    oversized: Count = 0
    """Bytes of a proposal that its queue does not take. `move` is then an outline of what was asked for: the
    guard refuses it, and the agent gets a round to ask for less."""


class ReportFailure(_Proposal, tag="turn_failed", frozen=True, kw_only=True):
    """A turn broke. Not the move `fail`, which gives the request up on purpose."""

    error: Failure


class ReportInDoubt(_Proposal, tag="effect_doubted", frozen=True, kw_only=True):
    """A turn found an effect of its own in doubt, and stops until somebody settles it."""

    effect: Doubt


class OfferClaimed(_Proposal, tag="claim", frozen=True, kw_only=True):
    """An agent wants an offered task. `turn` is the offer, `round` 0."""


class FactsPost(_Proposal, tag="post", frozen=True, kw_only=True):
    """A turn of a swarm puts facts on the board, and goes on."""

    post: Count
    """Counts the posts of this round, from 0."""
    facts: tuple[Fact, ...]


Proposal = MoveProposed | ReportFailure | ReportInDoubt | OfferClaimed | FactsPost


def id_of(request: str, proposal: Proposal, sender: str) -> ProposalId:
    """Return a proposal's id. A round has one; a claim is its sender's own, and a post one of several."""
    if type(proposal) is OfferClaimed:
        return claim_id(request, proposal.turn, sender)
    if type(proposal) is FactsPost:
        return post_id(request, proposal.turn, proposal.round, proposal.post)
    return proposal_id(request, proposal.turn, proposal.round)


def submit_id(request: str) -> ProposalId:
    return proposal_id(request, "", 0)


# --- control --------------------------------------------------------------------------------------


class _Control(WireMessage, tag_field="kind", frozen=True, kw_only=True):
    id: str
    """The sender's own id of this message: the same id again is the same message."""
    by: str = ""
    """The person's name, recorded; who may send it is a matter of credentials."""
    v: Literal[1] = 1

    @property
    def turn(self) -> TurnId | None:
        """Return the turn that it is about, if any."""
        return None

    @property
    def round(self) -> int:
        return 0


class Cancel(_Control, tag="cancel", frozen=True, kw_only=True):
    """End the request."""

    reason: str = ""


class Freeze(_Control, tag="freeze", frozen=True, kw_only=True):
    """Stop admitting moves until a thaw."""

    reason: str = ""


class Thaw(_Control, tag="thaw", frozen=True, kw_only=True):
    """Go on admitting moves."""

    reason: str = ""


class Assign(_Control, tag="assign", frozen=True, kw_only=True):
    """Say which person looks at an escalation."""

    turn: TurnId
    to: str


class Resolve(_Control, tag="resolve", frozen=True, kw_only=True):
    """End an escalation: give the work to an agent, take the turn up again, or answer."""

    turn: TurnId
    to: AgentName | None = None
    """Whom the work goes to; by default, the agent whose turn the escalation ended."""
    again: bool = False
    """Go on under the ended turn's id, so that its journal and effect keys hold."""
    complete: bool = False
    answer: Any = None
    """With `complete`: the answer."""
    summary: str = ""
    facts: tuple[Fact, ...] = ()
    budget: Budget | None = None
    """The agent's new grant. A dimension that it leaves out keeps the rest of the old one."""


class ReplyToAsk(_Control, tag="reply", frozen=True, kw_only=True):
    """Answer an ask."""

    turn: TurnId
    round: Count
    value: Any = None
    reason: str = ""
    """Why, in the person's words: the agent whose effect was not approved is told."""


class Settle(_Control, tag="settle", frozen=True, kw_only=True):
    """Say what became of an effect in doubt."""

    turn: TurnId
    round: Count
    outcome: Literal["done", "not_done"]
    result: Any = None


class Forget(_Control, tag="forget", frozen=True, kw_only=True):
    """Forget what a conversation remembers. It is about no request: it is sent to the whole mesh (`_`)."""

    conversation: Short
    client: AgentName | None = None
    """Whose conversation it is; the sender's own if it names nobody."""
    keys: tuple[str, ...] = ()
    """Keys of the facts to forget; all of them if empty."""


Control = Cancel | Freeze | Thaw | Assign | Resolve | ReplyToAsk | Settle | Forget
_CONTROLS = frozenset[type](Control.__args__)


def is_control(what: Submit | Proposal | Control) -> TypeGuard[Control]:
    """Return True for a control message."""
    return type(what) in _CONTROLS


def asked_for(what: Submit | Proposal | Control) -> str:
    """Return what a message asks for, in a word of ours: `submit`, a move, or a kind; else `unknown`."""
    if type(what) is Submit:
        return "submit"
    asked = what.move if type(what) is MoveProposed else what
    return "unknown" if type(asked) is UnknownMove else str(asked.__struct_config__.tag)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One message as the guard takes it up: who sent it (by the broker's word) and what it asks."""

    request: str
    sender: AgentName
    what: Submit | Proposal | Control
    cause: Cause
    role: SenderRole = "nobody"
    """What the fleet file says the sender is."""
    digest: str = ""
    """SHA-256 of the bytes; tells a submit that is repeated from another one under its id."""
    trace: str = ""
    """The `traceparent` that the message brought; well-formed or empty."""
    stored: int = 0
    """When the bus stored it (UTC µs): what fell due later has not come before it. 0: not known."""
