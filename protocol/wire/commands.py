"""What agents, clients and operators *ask for*: submits, proposals and control messages.

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
from protocol.wire.prices import MAX_MODELS, Amount, Count, Metered, Seconds

MAX_MESSAGE_BYTES = 256 << 10
"""What a sender's queue takes of one message, its subject and headers counted."""
MAX_MODEL_CHARS = 128
MAX_PROMPT_CHARS = 64
MAX_VERSION_CHARS = 64
ModelName = Annotated[str, msgspec.Meta(max_length=MAX_MODEL_CHARS)]
FAILED = "failed"
"""The code of what was given up, where its agent names none."""
Short = Annotated[str, msgspec.Meta(max_length=128)]
"""What is kept with every request, or told to every later round."""


class _Message(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Base of every message: unknown fields are ignored, so that peers may be newer.

    The hot path tells messages and events apart by their exact type, or by a table of types. For a class that
    msgspec made, an `isinstance` that says no takes ten times as long.

    `kw_only` holds only for the class that says it, so every class here says it.
    """


class Submit(_Message, frozen=True, kw_only=True):
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
    v: Literal[1] = 1


# --- moves ----------------------------------------------------------------------------------------


class Transfer(_Message, tag_field="move", tag="transfer", frozen=True, kw_only=True):
    """Give the work to another agent. Brings only what is new; the guard carries the rest on."""

    to_agent: AgentName
    summary: str
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    drop: tuple[str, ...] = ()
    constraints: Constraints = Constraints()
    return_to: AgentName | None = None
    no_return: bool = False


class HandBack(_Message, tag_field="move", tag="hand_back", frozen=True, kw_only=True):
    """Give the work back along the path, with what was found out."""

    summary: str
    to_agent: AgentName | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    drop: tuple[str, ...] = ()


class Ask(_Message, tag_field="move", tag="ask", frozen=True, kw_only=True):
    """Put a question to the client or to `human` and suspend the turn until the reply."""

    to_agent: AgentName
    question: str
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the reply, checked by the replier's client and by the asking runtime."""
    expires_s: Seconds | None = None
    """Seconds from admission; the request's deadline if none."""
    digest: Short | None = None
    """For an approval: what the reply approves, the key of one effect (tool, arguments, ordinal)."""
    action: Short = ""
    """For an approval: the tool that waits for it. Only with it is an ask an approval."""


class Escalate(_Message, tag_field="move", tag="escalate", frozen=True, kw_only=True):
    """Give the work to a person."""

    summary: str
    facts: tuple[Fact, ...] = ()


class Complete(_Message, tag_field="move", tag="complete", frozen=True, kw_only=True):
    """Answer the request."""

    answer: Any
    """Any JSON value; mostly a string."""
    cancel_open: bool = False
    """Call off the tasks that are still open; without it, an answer waits for them."""
    remember: tuple[Fact, ...] = ()
    """Facts that the answer brings for the later requests of the same conversation."""
    remember_keys: tuple[str, ...] = ()
    """Keys of facts that the turn was handed and that are remembered, too."""


Join = Literal["all", "any"] | Annotated[int, msgspec.Meta(ge=1, le=1_000)]
"""When a lead runs again: at the first new success (`any`), at so many of them (a number), or once no task is
open (`all`). The first two also end once no task is open."""


class Task(_Message, frozen=True, kw_only=True):
    """One child piece of work, as its lead asks for it."""

    name: Short
    """Unique in the lead's turn."""
    summary: str
    to_agent: AgentName | None = None
    """None: the guard picks an agent that takes the intent; in a swarm, it is offered to all of them."""
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    carry: tuple[str, ...] | None = None
    """Keys of facts and names of artifacts that the lead carries and the task gets too; None: all of them."""
    uses: tuple[Short, ...] = ()
    """Earlier tasks of this turn whose results it is given."""
    revises: Short = ""
    """The earlier task of this turn that it does again, with feedback as a fact."""
    fallback: bool = False
    """True if the guard may give it, once, to the next capable agent when it fails."""
    constraints: Constraints = Constraints()


class Delegate(_Message, tag_field="move", tag="delegate", frozen=True, kw_only=True):
    """Open tasks and wait for their join. Without tasks: wait for those that are open."""

    tasks: tuple[Task, ...] = ()
    join: Join = "all"
    within_s: Seconds | None = None
    """Seconds from admission after which the turn runs again whatever is there."""
    cancel: tuple[Short, ...] = ()
    """Names of open tasks of this turn that are called off."""


class Deliver(_Message, tag_field="move", tag="deliver", frozen=True, kw_only=True):
    """End the task with its result."""

    summary: str
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    cancel_open: bool = False
    """Call off the tasks that this turn itself has still open."""


class Fail(_Message, tag_field="move", tag="fail", frozen=True, kw_only=True):
    """Give the request up; of a task, the task alone."""

    reason: str
    code: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_.]{0,63}$")] = FAILED
    """The agent's own, by which programs tell why."""


class UnknownMove(_Message, tag_field="move", tag="?", frozen=True, kw_only=True):
    """A move that this build does not have; `known_move` refuses it by its name."""

    name: str


Move = Transfer | HandBack | Ask | Escalate | Complete | Fail | Delegate | Deliver | UnknownMove
HANDOFF_MOVES = ("transfer", "hand_back", "ask", "escalate", "complete", "fail")
"""The moves of topology `handoff`. All but `ask` spend the turn."""
TREE_MOVES = ("delegate", "deliver")
"""Those of the topologies in which a lead delegates tasks."""
MOVES = HANDOFF_MOVES + TREE_MOVES
TOPOLOGIES: Mapping[str, tuple[str, ...]] = {
    "handoff": HANDOFF_MOVES,
    "supervised": ("delegate", "deliver", "ask", "escalate", "complete", "fail"),
    "swarm": ("delegate", "deliver", "ask", "escalate", "complete", "fail"),
}
"""The moves of each topology. A request runs under one of them."""


def move_name(move: Move) -> str:
    return move.name if isinstance(move, UnknownMove) else str(move.__struct_config__.tag)


def move_summary(move: Move) -> str:
    """Return the one line that says what a move wants."""
    match move:
        case Transfer() | HandBack() | Escalate() | Deliver():
            return move.summary
        case Delegate(tasks=tasks, join=join):
            return f"{', '.join(task.name for task in tasks) or 'no new task'}; join: {join}"
        case Ask():
            return move.question
        case Complete():
            return move.answer if isinstance(move.answer, str) else msgspec.json.encode(move.answer).decode()
        case Fail():
            return move.reason
        case UnknownMove():
            return ""


# --- proposals ------------------------------------------------------------------------------------


class Usage(_Message, frozen=True, kw_only=True):
    """What a turn spent, cumulative over its rounds."""

    nano_dollars: Amount = 0
    tokens: Amount = 0
    model_calls: Amount = 0
    models: Annotated[Mapping[ModelName, Metered], msgspec.Meta(max_length=MAX_MODELS)] = {}
    """The same by model, where it is known; nothing is judged by it."""


class Report(_Message, frozen=True, kw_only=True):
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


class Failure(_Message, frozen=True, kw_only=True):
    """Why a turn broke. `message` is a safe sentence: no prompt, no model text, no repr."""

    code: str
    message: str = ""
    permanent: bool = False
    retry_after_s: Seconds | None = None


class Doubt(_Message, frozen=True, kw_only=True):
    """An effect that began, and of which no result is known: its process died, or its tool raised."""

    step: str
    action: str
    key: str = ""
    message: str = ""
    """What its tool raised, as a safe sentence; empty where the process died."""


class _Proposal(_Message, tag_field="kind", frozen=True, kw_only=True):
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


class _Control(_Message, tag_field="kind", frozen=True, kw_only=True):
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
