"""The documents in CONF: the fleet, policies, and the breakers that guards keep there.

The fleet says who exists, what each may do, and whom each may hand to. The admin's `mesh.toml` becomes this
document, which guards watch. It is the authority that verdicts rest on; what a running agent says of itself
(its card) is for display only.

A policy is the rules of a request as numbers: a named, versioned, hashed document. A request is judged by
the document that its `request.opened` embeds, for as long as it lives. So a changed policy changes new
requests only, and a log can be judged from a file.

Everybody reads a document here, whole. Numbers have their ranges in the types; the readers add what no type
can say, and refuse a document with all of its mistakes.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from protocol.wire.errors import Malformed
from protocol.wire.handoff import TEXT_FACT, Budget
from protocol.wire.ids import NAME_RULE, AgentName, Cause, SenderRole, TurnId, is_label, is_name, is_token
from protocol.wire.moves import TOPOLOGIES
from protocol.wire.prices import (
    DAY_S,
    LARGEST_AMOUNT,
    READ_ERRORS,
    Bytes,
    Hops,
    Moment,
    Price,
    Seconds,
    SomeSeconds,
    Times,
)

LEASE_S = 6.0
GUARD_LEASE_S = 3.0
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 600.0
"""What a fleet file may say. Shorter, and a pause of the process would lose a lease that it is keeping."""
Lease = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_LEASE_S)]
TURN_TIMEOUT_S = 900.0
PARTITIONS, MOST_PARTITIONS = 4, 64
"""Partitions of a mesh whose fleet file names no number, and the most that it may name."""
MOST_AT_ONCE = 100_000
MOST_PER_MINUTE = 10_000_000
MOST_OPEN, MOST_MIB = 100_000_000, 1 << 30
LEAST_HANDOFF_BYTES = 1_024  # its names, ids and constraints alone come to about half of that
BreakerState = Literal["closed", "open", "half_open"]
BreakerSpan = Annotated[float, msgspec.Meta(gt=0, le=DAY_S)]


class AgentEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One agent as verdicts see it. A field that is None puts no limit; an empty one allows nothing."""

    name: AgentName
    clearance: tuple[str, ...] = ()
    """Labels that it may see. A fact or artifact with any other label is withheld from it."""
    intents: tuple[str, ...] | None = None
    """Intents that it takes. A handoff without an intent is taken by everybody."""
    actions: tuple[str, ...] | None = None
    """Tools that its turns may have called."""
    to: tuple[AgentName, ...] | None = None
    """Agents that it may give work to."""
    description: str = ""
    """One line for models and people."""

    def takes(self, intent: str | None) -> bool:
        """Return True if it takes this intent. Every agent takes work without an intent."""
        return intent is None or self.intents is None or intent in self.intents


class BreakerRules(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """When a breaker opens and closes. All times in seconds."""

    failures: Times = 5
    """Different turns that have to fail within `window_s`; 0 switches the breaker off."""
    window_s: BreakerSpan = 60.0
    open_s: BreakerSpan = 30.0
    """How long nothing is admitted before one handoff is tried."""
    trial_s: BreakerSpan = 60.0
    """How long the others wait for what a trial comes to."""


class ModelLimits(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How fast each process may ask a model. Agents keep to it by themselves; nothing is judged by it."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=MOST_AT_ONCE)] | None = None
    """Requests under way at once, of each process."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=MOST_PER_MINUTE)] | None = None
    """Requests that begin within a minute, of each process."""


class Quota(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a client, or an operator that submits, may have of the log. Each guard counts by itself."""

    open_requests: Annotated[int, msgspec.Meta(ge=1, le=MOST_OPEN)] = 10_000
    """Requests that are not over."""
    mib_per_hour: Annotated[float, msgspec.Meta(gt=0, le=MOST_MIB)] = 1024.0
    """What the log takes of events of its requests. A client that was quiet may use up an hour's at once."""


class Fleet(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Everybody with credentials, by role. `revision` is the stream sequence it was read at."""

    name: str
    entry: AgentName
    """The agent that a submit goes to when it names none."""
    agents: Mapping[str, AgentEntry] = {}
    clients: tuple[AgentName, ...] = ()
    operators: tuple[AgentName, ...] = ()
    viewers: tuple[AgentName, ...] = ()
    human: bool = False
    """True if people read the `human` queue. Without one, nothing can be escalated."""
    tiers: tuple[str, ...] = ()
    """The people who get an escalation: the first tier at first, the next each time it is raised again."""
    log_max_age_s: SomeSeconds = 30 * 86_400.0
    """How long the log keeps events. A request's deadline is at most half of it. A request id older than a
    quarter is refused, since the log may have lost its first run."""
    lease_s: Lease = LEASE_S
    """How long an agent's turn stays its own after its last sign of life; then another instance gets it."""
    guard_lease_s: Lease = GUARD_LEASE_S
    """The same for what a guard has in hand."""
    breaker: BreakerRules = BreakerRules()
    """When an agent that keeps failing is given no more work."""
    breakers: Mapping[AgentName, BreakerRules] = {}
    """The same for agents that have rules of their own."""
    models: Mapping[str, ModelLimits] = {}
    """How fast models may be asked, by id."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """By fact key, in any case: labels of every fact of this key, besides those that its bringer says."""
    revision: int = 0
    artifacts: str = ""
    """The store of artifacts, a URL or a folder's path; empty for a folder of the process's own machine."""
    memory_max_age_s: SomeSeconds = 30 * 86_400.0
    """How long a fact that a conversation remembers is handed to its later requests."""
    quota: Quota = Quota()
    """What each client may have of the log."""
    quotas: Mapping[AgentName, Quota] = {}
    """The same for clients that have a quota of their own."""
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTITIONS)] = PARTITIONS
    """How many ways messages for guards are shared among them, by request. Fixed for a mesh's life: another
    number would move requests between partitions while they are decided."""
    lane: bool = True
    """True if guards take questions on the lane (`mesh.lane.…`); else every message is stored first."""
    swarms: bool = False
    """True if a policy is a swarm's: then each intent that an agent lists has an inbox of offers."""

    def role_of(self, name: str) -> SenderRole:
        if name in self.agents:
            return "agent"
        if name in self.clients:
            return "client"
        if name in self.operators:
            return "operator"
        return "viewer" if name in self.viewers else "nobody"

    def tier_for(self, raised: int) -> str:
        """Return the tier that has what was raised so often; empty where the fleet names no tiers.

        What is raised more often than there are tiers stays with the last. Questions and doubts are never
        raised (0): the first tier has them.
        """
        return self.tiers[min(max(raised, 1), len(self.tiers)) - 1] if self.tiers else ""

    def quota_of(self, client: str) -> Quota:
        return self.quotas.get(AgentName(client), self.quota)

    def breaker_of(self, agent: AgentName) -> BreakerRules:
        return self.breakers.get(agent, self.breaker)

    @property
    def heartbeat_s(self) -> float:
        """How often an agent says that it is still at its turn: a lost heartbeat costs nothing."""
        return self.lease_s / 3

    @property
    def pull_s(self) -> float:
        """How long an agent's pull lasts: it ends before a lease does, or a frozen agent would keep
        getting back what it lost."""
        return self.lease_s * 2 / 3

    @property
    def guard_pull_s(self) -> float:
        """How long a guard's pull lasts; it is shorter than its lease for the same reason."""
        return self.guard_lease_s * 2 / 3


class Policy(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """All times in seconds. Counts are inclusive: `max_depth` hops are allowed, one more is not."""

    name: str = "default"
    version: int = 1
    topology: str = "handoff"
    max_depth: Hops = 5
    """Agent-to-agent hops of a segment, hand-backs included. 3 to 5 is what the field uses."""
    max_refusals: Times = 2
    """Rounds that a turn gets after a refusal; the next refusal escalates."""
    max_retries: Times = 2
    """Rounds that a turn gets after a failure; the next failure escalates."""
    retry_backoff_s: Seconds = 1.0
    """Wait before the first retry; it doubles with each, up to `retry_backoff_max_s`."""
    retry_backoff_max_s: Seconds = 60.0
    max_asks: Times = 3
    max_escalations: Times = 3
    max_handoff_bytes: Bytes = 65_536
    deadline_s: SomeSeconds = 86_400.0
    """How long a request may take if its submit does not say."""
    turn_timeout_s: SomeSeconds = TURN_TIMEOUT_S
    """How long one round may take, counted while its agent is served and has it, or while the queue before it
    stands still."""
    unattended_after_s: SomeSeconds | None = 3_600.0
    """How long a round waits for an agent that nobody serves, without a break, before it fails; None: as long
    as the request's deadline lets it."""
    escalation_sla_s: SomeSeconds | None = None
    """How long people have before an escalation is raised again, one tier up; None: no limit."""
    on_budget: Literal["escalate", "fail"] = "escalate"
    """What happens when a turn has used up its budget, or asks for more until it has no round left. Either a
    person gets the request, or it ends `failed` with `budget_exhausted`."""
    budget: Budget | None = None
    """What a request may spend if its submit does not say."""
    max_levels: Hops = 3
    """Turns from the root to the deepest task, both counted."""
    max_open_tasks: Hops = 8
    """Tasks that one turn may have open at once."""
    max_tasks: Hops = 50
    """Tasks that a request may open in all."""
    max_revisions: Times = 3
    """How often one task may be done again after feedback."""
    keep_back: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2
    """Part of what a lead has left that tasks without a budget of their own do not share."""
    claim_within_s: SomeSeconds = 30.0
    """How long an offered task waits for a claim, counted while anybody who may claim it is served."""
    max_posts: Times = 100
    """Posts that one turn may put on the board of a swarm."""
    max_posted_bytes: Bytes = 1 << 20
    """What all posts of a request may come to, as JSON, those included that newer ones replaced."""


def policy_hash(policy: Policy) -> str:
    """Return SHA-256 (hex) over the policy's canonical JSON: sorted keys, defaults left out."""
    return hashlib.sha256(msgspec.json.encode(policy, order="deterministic")).hexdigest()


class FailedTurn(msgspec.Struct, frozen=True, gc=False):
    """A turn that failed, and when it last did (UTC µs)."""

    turn: TurnId
    at: Moment


class Trial(msgspec.Struct, frozen=True, gc=False):
    """The message whose handoff is let through, and since when (UTC µs)."""

    cause: Cause
    since: Moment


class BreakerEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What `mesh.conf.breaker.<agent>` holds; no entry is a closed breaker without failures."""

    state: BreakerState = "closed"
    failures: tuple[FailedTurn, ...] = ()
    """While closed: those of the window, at most as many as open it."""
    opened_at: Moment | None = None
    """UTC µs. An open one without it was opened by hand, and stays open until it is closed by hand."""
    trial: Trial | None = None


T = TypeVar("T")
_PLACED = re.compile(r"(?P<what>.*) - at `(?:key in )?\$(?P<path>.*)`", re.DOTALL)
_QUOTED = re.compile(r"'.*'", re.DOTALL)


class DocumentInvalid(Malformed):
    """A document with mistakes; each names its place."""

    code = "protocol.document_invalid"

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


# --- a policy -------------------------------------------------------------------------------------


def policy_of(said: object, name: str) -> Policy:
    """Return the policy `name` that a document says. Raises DocumentInvalid with every mistake.

    Args:
        said: the document as TOML or JSON has it; it may leave out its name.
    """
    if not isinstance(said, Mapping):
        raise DocumentInvalid("a policy is a table of rules and their numbers")
    mistakes = list(_policy_mistakes(said, name))
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return msgspec.convert({**said, "name": name}, Policy)


def read_policy(body: bytes, name: str) -> Policy:
    """Return the policy `name` in `body`. Raises DocumentInvalid with every mistake."""
    return policy_of(read(body, Any), name)


def _policy_mistakes(said: Mapping[str, Any], name: str) -> Iterator[str]:
    if not isinstance(name, str) or not is_token(name):
        yield "a policy's name is 1 to 64 characters of A-Z a-z 0-9 _ -"
    if said.get("name", name) != name:
        yield f"name: it is another one than {name!r}, under which it stands"
    for field, value in said.items():
        try:
            policy = msgspec.convert({field: value}, Policy)
        except READ_ERRORS as wrong:
            yield _in_words(wrong)
            continue
        if policy.topology not in TOPOLOGIES:
            yield f"topology: known is {', '.join(TOPOLOGIES)}"
        if field == "max_handoff_bytes" and policy.max_handoff_bytes < LEAST_HANDOFF_BYTES:
            yield f"max_handoff_bytes: expected at least {LEAST_HANDOFF_BYTES}: nothing fits into less"
        if field == "budget" and isinstance(value, Mapping):
            yield from _budget_mistakes(value)


def _budget_mistakes(said: Mapping[str, Any]) -> Iterator[str]:
    """Check a ceiling. (Its type is also that of a rest, which may be negative.)"""
    for field, amount in said.items():
        if field not in Budget.__struct_fields__:
            yield f"budget: unknown field `{field}`"
        elif amount is not None and not 0 <= amount <= LARGEST_AMOUNT:
            yield f"budget.{field}: expected 0 to 2^62"


# --- the fleet ------------------------------------------------------------------------------------


def read_fleet(body: bytes) -> Fleet:
    """Return the fleet in `body`. Raises DocumentInvalid with every mistake that the types let pass."""
    fleet = read(body, Fleet)
    mistakes = fleet_mistakes(fleet)
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return fleet


def fleet_mistakes(fleet: Fleet) -> list[str]:
    """Return what is wrong with a fleet whose numbers are in range."""
    roles = {
        "agents": fleet.agents,
        "clients": fleet.clients,
        "operators": fleet.operators,
        "viewers": fleet.viewers,
    }
    uses = Counter(name for names in roles.values() for name in names)
    wrong = []
    for role, names in roles.items():
        for name in names:
            if not is_name(name):
                wrong.append(f"{role}: {name!r} is no name: {NAME_RULE}")
            elif uses[name] > 1:
                wrong.append(f"{role}.{name}: two members of the fleet have this name")
    if fleet.entry not in fleet.agents:
        wrong.append(f"entry: {fleet.entry!r} is no agent of this fleet")
    for name, agent in fleet.agents.items():
        if agent.name != name:
            wrong.append(f"agents.{name}.name: it is another one")
        unknown = (to for to in agent.to or () if to not in fleet.agents)
        wrong += [f"agents.{name}.to: {to!r} is no agent of this fleet" for to in unknown]
    unknown = (name for name in fleet.breakers if name not in fleet.agents)
    wrong += [f"breakers.{name}: {name!r} is no agent of this fleet" for name in unknown]
    submitters = {*fleet.clients, *fleet.operators}
    wrong += [
        f"quotas.{name}: {name!r} is no client or operator of this fleet"
        for name in fleet.quotas
        if name not in submitters
    ]
    return wrong + list(_label_mistakes(fleet))


def _label_mistakes(fleet: Fleet) -> Iterator[str]:
    said = [(f"agents.{name}.clearance", agent.clearance) for name, agent in fleet.agents.items()]
    said += [(f"labels.{key}", labels) for key, labels in fleet.labels.items()]
    for where, labels in said:
        for label in labels:
            if not is_label(label):
                yield f"{where}: {label!r} is no label: 1 to 64 characters of A-Z a-z 0-9 _ . : / -"
    for key in (key for key in fleet.labels if key.casefold() == TEXT_FACT):
        yield f"labels.{key}: a submit's own words are free text: the entry agent labels or drops it"
    if "" in fleet.labels:
        yield 'labels."": no fact has an empty key'


# --- prices ---------------------------------------------------------------------------------------


def read_prices(body: bytes) -> dict[str, Any]:
    """Return what models cost by id, as it stands. Raises DocumentInvalid with every mistake."""
    said = read(body, dict[str, Any])
    mistakes = []
    for model, price in said.items():
        try:
            msgspec.convert(price, Price)
        except READ_ERRORS as wrong:
            mistakes.append(f"{model}: {_in_words(wrong)}")
    if mistakes:
        raise DocumentInvalid(*mistakes)
    return said


# --- reading --------------------------------------------------------------------------------------


def read(body: bytes, type_: type[T]) -> T:
    """Return a document that its type defines wholly. Raises DocumentInvalid."""
    try:
        return msgspec.json.decode(body, type=type_)
    except READ_ERRORS as wrong:
        raise DocumentInvalid(_in_words(wrong)) from wrong


def _in_words(wrong: Exception) -> str:
    """Return msgspec's words, its path in front and what stood there left out."""
    if not isinstance(wrong, msgspec.MsgspecError):
        return "it cannot be read as JSON"
    text = _QUOTED.sub("'…'", str(wrong))
    placed = _PLACED.fullmatch(text)
    if placed is None:
        return text
    what, path = placed["what"], placed["path"].removeprefix(".")
    return f"{path}: {what[:1].lower()}{what[1:]}" if path else what


read_breaker = partial(read, type_=BreakerEntry)
