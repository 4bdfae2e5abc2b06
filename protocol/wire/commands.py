"""What agents, clients and operators *ask for*: submits, proposals and control messages.

Most proposals contain a move; `protocol.wire.moves` has those.

Everything here is a claim. The guard trusts no claim that it can check against the log or the broker: the
subject tells the sender, and the ledger tells the current turn.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeGuard

import msgspec

from protocol.wire.handoff import Artifact, Budget, Constraints, Fact
from protocol.wire.ids import (
    AgentName,
    Cause,
    ContinueWith,
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
"""Largest message that a sender's queue takes, including subject and headers."""
MAX_MODEL_CHARS = 128
MAX_PROMPT_CHARS = 64
MAX_VERSION_CHARS = 64
ModelName = Annotated[str, msgspec.Meta(max_length=MAX_MODEL_CHARS)]


MAX_FORKED_TURNS = 1_000
"""Most turns of each agent in the record with which a fork begins."""


_Turns = Annotated[tuple[TurnId, ...], msgspec.Meta(max_length=MAX_FORKED_TURNS)]


class ForkedFrom(WireMessage, frozen=True, kw_only=True):
    """The request and the event that a fork continues from, and what its agents do about effects."""

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
    """A client's request: plain JSON that any NATS client can publish."""

    text: str
    to: AgentName | None = None
    """The first agent; None for the fleet's entry agent."""
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    constraints: Constraints = Constraints()
    policy: str = "default"
    conversation: Short | None = None
    rerun_of: RequestId | None = None
    """The request that this one repeats from where it failed."""
    forked_from: ForkedFrom | None = None
    """The request that this one continues. Only operators may set it."""
    continue_with: ContinueWith | None = None
    """Without `to`: `last` for the agent that answered or asked last in the conversation, `entry` for the
    fleet's entry agent; None for what the policy says."""
    v: Literal[1] = 1


# --- proposals ------------------------------------------------------------------------------------


class Usage(WireMessage, frozen=True, kw_only=True):
    """A turn's spending, cumulative over its rounds."""

    nano_dollars: Amount = 0
    tokens: Amount = 0
    model_calls: Amount = 0
    models: Annotated[Mapping[ModelName, Metered], msgspec.Meta(max_length=MAX_MODELS)] = {}
    """The same by model, as far as known. No verdict uses it."""


class Report(WireMessage, frozen=True, kw_only=True):
    """A turn's own account of what it did. The guard adds it up; the journal lets others check it."""

    usage: Usage = Usage()
    actions: tuple[str, ...] = ()
    """Names of the called tools, without duplicates, sorted."""
    steps: Amount = 0
    digest: str = ""
    """SHA-256 over the turn's journal; empty for a turn without steps."""
    prompt: Annotated[str, msgspec.Meta(max_length=MAX_PROMPT_CHARS)] = ""
    """Version of the agent's prompt for its model; empty for an agent without a model."""
    effects: tuple[str, ...] = ()
    """Those of `actions` that have an effect."""
    version: Annotated[str, msgspec.Meta(max_length=MAX_VERSION_CHARS)] = ""
    """Version of the agent code that ran the turn's latest round."""
    build: Annotated[str, msgspec.Meta(max_length=MAX_VERSION_CHARS)] = ""
    """What that code was built from, such as a git revision."""
    worked_ms: Amount = 0
    """How long the turn's rounds were worked on, each from its delivery to its proposal. 0: not known."""


class Failure(WireMessage, frozen=True, kw_only=True):
    """Why a turn broke. `message` is a safe sentence: no prompt, no model text, no repr."""

    code: str
    message: str = ""
    permanent: bool = False
    retry_after_s: Seconds | None = None


class Doubt(WireMessage, frozen=True, kw_only=True):
    """An effect that began but has no known result: its process died, or its tool raised."""

    step: str
    action: str
    key: str = ""
    message: str = ""
    """The tool's exception as a safe sentence; empty if the process died."""


class _Proposal(WireMessage, tag_field="kind", frozen=True, kw_only=True):
    turn: TurnId
    round: Count
    report: Report = Report()
    v: Literal[1] = 1


class MoveProposed(_Proposal, tag="move", frozen=True, kw_only=True):
    """A turn asks for a move."""

    move: Move
    oversized: Count = 0
    """Size in bytes of a proposal that was too large for its queue; otherwise 0. `move` is then only a
    summary. The guard refuses it, and the agent gets a round to propose less."""


class ReportFailure(_Proposal, tag="turn_failed", frozen=True, kw_only=True):
    """A turn failed. This is not the move `fail`, which gives the request up on purpose."""

    error: Failure


class ReportInDoubt(_Proposal, tag="effect_doubted", frozen=True, kw_only=True):
    """A turn found one of its effects in doubt, and stops until a person settles it."""

    effect: Doubt


class OfferClaimed(_Proposal, tag="claim", frozen=True, kw_only=True):
    """An agent claims an offered task. `turn` is the offer's id, `round` is 0."""


class FactsPost(_Proposal, tag="post", frozen=True, kw_only=True):
    """A turn of a swarm puts facts on the board, and goes on."""

    post: Count
    """Counts the posts of this round, from 0."""
    facts: tuple[Fact, ...]


Proposal = MoveProposed | ReportFailure | ReportInDoubt | OfferClaimed | FactsPost


def id_of(request: str, proposal: Proposal, sender: str) -> ProposalId:
    """Return a proposal's id. A round has one; a claim has one per sender, and a post one per count."""
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
    """The sender's id for this message. A repeated id means a repeated message."""
    by: str = ""
    """The person's name, for the record. Credentials decide who may send it."""
    v: Literal[1] = 1

    @property
    def turn(self) -> TurnId | None:
        """The turn that it concerns, if any."""
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
    """Resume admitting moves."""

    reason: str = ""


class Assign(_Control, tag="assign", frozen=True, kw_only=True):
    """Assign an escalation to a person."""

    turn: TurnId
    to: str


class Resolve(_Control, tag="resolve", frozen=True, kw_only=True):
    """End an escalation: give the work to an agent, take the turn up again, or answer."""

    turn: TurnId
    to: AgentName | None = None
    """The agent that gets the work; by default the agent whose turn the escalation ended."""
    again: bool = False
    """Continue under the ended turn's id, so that its journal and effect keys stay valid."""
    complete: bool = False
    answer: Any = None
    """With `complete`: the answer."""
    summary: str = ""
    facts: tuple[Fact, ...] = ()
    budget: Budget | None = None
    """A new budget for the agent. A dimension that it leaves out keeps what is left of the old budget."""


class ReplyToAsk(_Control, tag="reply", frozen=True, kw_only=True):
    """Answer an ask."""

    turn: TurnId
    round: Count
    value: Any = None
    reason: str = ""
    """The person's reason. The agent gets it, for example when its effect was not approved."""


class Settle(_Control, tag="settle", frozen=True, kw_only=True):
    """Settle an effect in doubt: done or not done."""

    turn: TurnId
    round: Count
    outcome: Literal["done", "not_done"]
    result: Any = None


class Forget(_Control, tag="forget", frozen=True, kw_only=True):
    """Forget what a conversation remembers. It concerns no request, so it is sent to the whole mesh (`_`)."""

    conversation: Short
    client: AgentName | None = None
    """The client that owns the conversation; None for the sender."""
    keys: tuple[str, ...] = ()
    """Keys of the facts to forget; empty for all."""


Control = Cancel | Freeze | Thaw | Assign | Resolve | ReplyToAsk | Settle | Forget
_CONTROLS = frozenset[type](Control.__args__)


def is_control(what: Submit | Proposal | Control) -> TypeGuard[Control]:
    """Return True for a control message."""
    return type(what) in _CONTROLS


def asked_for(what: Submit | Proposal | Control) -> str:
    """Return a message's kind as a known word: `submit`, a move's name or a tag; `unknown` if it has none."""
    if type(what) is Submit:
        return "submit"
    asked = what.move if type(what) is MoveProposed else what
    return "unknown" if type(asked) is UnknownMove else str(asked.__struct_config__.tag)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One message as the guard takes it up: its sender, as the broker reports it, and its content."""

    request: str
    sender: AgentName
    what: Submit | Proposal | Control
    cause: Cause
    role: SenderRole = "nobody"
    """The sender's role in the fleet file."""
    digest: str = ""
    """SHA-256 of the bytes. It tells a repeated submit from a different one with the same id."""
    trace: str = ""
    """The message's `traceparent`; well-formed or empty."""
    stored: int = 0
    """UTC µs at which the bus stored it; 0 if unknown. Whatever fell due later comes after it."""
