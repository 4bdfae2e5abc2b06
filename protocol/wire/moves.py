"""The moves that a turn may ask for. Each move describes itself.

A move knows which turns have it, what it adds, its one-line sentence and its short form, and it validates
itself when it is read. Labels, rules, the codec, later rounds and the timeline use that and need no move's
name. A new move is a struct here and a member of `Move`; CONTRIBUTING.md lists what else it touches.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from protocol.wire.errors import Malformed
from protocol.wire.handoff import (
    Artifact,
    Constraints,
    Fact,
    check_artifacts,
    check_budget,
    check_facts,
    check_names,
    check_nesting,
)
from protocol.wire.ids import AgentName
from protocol.wire.prices import Seconds

FAILED = "failed"
"""Code of `fail` if the agent names none."""
MAX_TEXT_CHARS = 2_000
"""Longest text in a move's short form; longer texts are cut."""
MAX_NAME_CHARS = 64
"""Longest name of a move that this build does not have."""
Short = Annotated[str, msgspec.Meta(max_length=128)]
"""Text that every request keeps, or every later round gets."""


class WireMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Base of every message. Unknown fields are ignored, so peers may be newer.

    The hot path tells messages and events apart by their exact type, or by a table of types: with msgspec
    classes, an `isinstance` that returns False takes ten times as long.

    `kw_only` is not inherited, so every class here repeats it.
    """


Holder = Literal["any", "root", "task"]
"""Which turns of a topology have a move: all turns, only root turns, or only turns of tasks."""


class Payload(NamedTuple):
    """What a move, or one task of its plan, adds and drops."""

    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    keys: tuple[str, ...] = ()
    """Keys of carried facts that it drops or asks to remember."""
    constraints: Constraints | None = None
    """Limits that it asks to narrow."""
    task: str | None = None
    """Name of the task; None for the move itself."""


class MoveForm(WireMessage, tag_field="move", frozen=True, kw_only=True):
    """What every move knows about itself. A move overrides what differs from these defaults."""

    holders: ClassVar[Mapping[str, Holder]] = {}
    """By topology: which turns have the move. Other topologies do not have it."""
    gives_work: ClassVar[bool] = False
    """True if another agent gets the work, so that its breaker is checked first."""
    says: ClassVar[str] = ""
    """The field that is written for its reader; empty if there is none."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def sentence(self) -> str:
        """One line: what the move asks for."""
        return ""

    # Fields that many moves have. A move without one returns None or an empty tuple.

    @property
    def to_agent(self) -> AgentName | None:
        return None

    @property
    def facts(self) -> tuple[Fact, ...]:
        return ()

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return ()

    @property
    def drop(self) -> tuple[str, ...]:
        return ()

    def payloads(self) -> Iterator[Payload]:
        """Yield what the move adds; a plan yields one payload per task."""
        yield Payload(self.facts, self.artifacts, self.drop)

    def with_facts(self, change: Callable[[tuple[Fact, ...]], tuple[Fact, ...]]) -> Self:
        """Return the move with `change` applied to its facts."""
        return self._with(facts=change(self.facts)) if self.facts else self

    def without_payload(self) -> Self:
        """Return the move without its large parts; its words stay."""
        return self._with(facts=(), artifacts=())

    def summarize(self) -> Self:
        """Return the short form: only the addressee and the beginning of the text."""
        return self.without_payload()

    def check(self) -> None:
        """Raise Malformed for values that the field types accept but a move must not have."""
        for payload in self.payloads():
            check_facts(payload.facts)
            check_artifacts(payload.artifacts)
            if payload.constraints is not None:
                check_budget(payload.constraints.budget, "constraints")

    def _with(self, **fields: Any) -> Self:
        """Return the move with these fields changed, ignoring fields that it does not have."""
        own = {name: value for name, value in fields.items() if name in self.__struct_fields__}
        return replace(self, **own) if own else self


def cut(text: str) -> str:
    """Return a text cut to MAX_TEXT_CHARS, as later rounds get it."""
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"


# --- topology `handoff` -------------------------------------------------------------------------------


class Transfer(MoveForm, tag="transfer", frozen=True, kw_only=True):
    """Give the work to another agent. It contains only what is new; the guard carries the rest."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any"}
    gives_work: ClassVar[bool] = True
    says: ClassVar[str] = "summary"

    to_agent: AgentName
    summary: str
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    drop: tuple[str, ...] = ()
    constraints: Constraints = Constraints()
    return_to: AgentName | None = None
    no_return: bool = False

    @property
    def sentence(self) -> str:
        return self.summary

    def payloads(self) -> Iterator[Payload]:
        yield Payload(self.facts, self.artifacts, self.drop, self.constraints)

    def summarize(self) -> Self:
        return type(self)(to_agent=AgentName(cut(self.to_agent)), summary=cut(self.summary))


class HandBack(MoveForm, tag="hand_back", frozen=True, kw_only=True):
    """Give the work back along the path, with what was learned."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any"}
    gives_work: ClassVar[bool] = True
    says: ClassVar[str] = "summary"

    summary: str
    to_agent: AgentName | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return self.summary

    def summarize(self) -> Self:
        named = None if self.to_agent is None else AgentName(cut(self.to_agent))
        return type(self)(to_agent=named, summary=cut(self.summary))


# --- topologies `supervised` and `swarm` ----------------------------------------------------------------

Join = Literal["all", "any"] | Annotated[int, msgspec.Meta(ge=1, le=1_000)]
"""When a lead runs again: at the first new success (`any`), after that many successes (a number), or once no
task is open (`all`). The first two also end once no task is open."""


class Task(WireMessage, frozen=True, kw_only=True):
    """One child piece of work, as its lead asks for it."""

    name: Short
    """Unique in the lead's turn."""
    summary: str
    to_agent: AgentName | None = None
    """None: the guard picks an agent that takes the intent, or in a swarm offers the task to all of them."""
    intent: str | None = None
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    carry: tuple[str, ...] | None = None
    """Facts (by key) and artifacts (by name) that the lead carries and the task gets; None for all."""
    uses: tuple[Short, ...] = ()
    """Earlier tasks of this turn whose results it gets."""
    revises: Short = ""
    """The earlier task of this turn that it repeats, with feedback as a fact."""
    fallback: bool = False
    """True if the guard may give it once to the next capable agent when it fails."""
    constraints: Constraints = Constraints()


class Delegate(MoveForm, tag="delegate", frozen=True, kw_only=True):
    """Open tasks and wait for their join. Without tasks, wait for those already open."""

    holders: ClassVar[Mapping[str, Holder]] = {"supervised": "any", "swarm": "root"}

    tasks: tuple[Task, ...] = ()
    join: Join = "all"
    within_s: Seconds | None = None
    """Seconds from admission after which the turn runs again, whatever has been delivered."""
    cancel: tuple[Short, ...] = ()
    """Names of open tasks of this turn to cancel."""

    @property
    def sentence(self) -> str:
        return f"{', '.join(task.name for task in self.tasks) or 'no new task'}; join: {self.join}"

    def payloads(self) -> Iterator[Payload]:
        for task in self.tasks:
            yield Payload(task.facts, task.artifacts, (), task.constraints, task.name)

    def with_facts(self, change: Callable[[tuple[Fact, ...]], tuple[Fact, ...]]) -> Self:
        tasks = (replace(task, facts=change(task.facts)) if task.facts else task for task in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def without_payload(self) -> Self:
        return replace(self, tasks=tuple(replace(task, facts=(), artifacts=()) for task in self.tasks))

    def summarize(self) -> Self:
        return type(self)(join=self.join)


class Deliver(MoveForm, tag="deliver", frozen=True, kw_only=True):
    """End the task with its result."""

    holders: ClassVar[Mapping[str, Holder]] = {"supervised": "task", "swarm": "task"}
    says: ClassVar[str] = "summary"

    summary: str
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    cancel_open: bool = False
    """Cancel the tasks that this turn itself still has open."""

    @property
    def sentence(self) -> str:
        return self.summary

    def summarize(self) -> Self:
        return type(self)(summary=cut(self.summary))


# --- any topology ---------------------------------------------------------------------------------------


class Ask(MoveForm, tag="ask", frozen=True, kw_only=True):
    """Put a question to the client or to `human` and suspend the turn until the reply."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any", "supervised": "any", "swarm": "root"}
    says: ClassVar[str] = "question"

    to_agent: AgentName
    question: str
    schema: Mapping[str, Any] | None = None
    """JSON Schema of the reply. The replier's client and the asking runtime check it."""
    expires_s: Seconds | None = None
    """Seconds from admission; None for the request's deadline."""
    digest: Short | None = None
    """Approvals: the key of the one effect (tool, arguments, ordinal) that the reply approves."""
    action: Short = ""
    """Approvals: the tool that waits. An ask is an approval only if this is set."""

    @property
    def sentence(self) -> str:
        return self.question

    def without_payload(self) -> Self:
        return replace(self, schema=None)

    def summarize(self) -> Self:
        asked = AgentName(cut(self.to_agent))
        return replace(self, to_agent=asked, question=cut(self.question), schema=None)

    def check(self) -> None:
        check_nesting(self.schema)
        if self.action and not self.digest:
            raise Malformed("ask: an approval with an `action` needs the `digest` of what is approved")


class Escalate(MoveForm, tag="escalate", frozen=True, kw_only=True):
    """Give the work to a person."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any", "supervised": "root", "swarm": "root"}
    says: ClassVar[str] = "summary"

    summary: str
    facts: tuple[Fact, ...] = ()

    @property
    def sentence(self) -> str:
        return self.summary

    def summarize(self) -> Self:
        return type(self)(summary=cut(self.summary))


class Complete(MoveForm, tag="complete", frozen=True, kw_only=True):
    """Answer the request."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any", "supervised": "root", "swarm": "root"}
    says: ClassVar[str] = "answer"

    answer: Any
    """Any JSON value; usually a string."""
    cancel_open: bool = False
    """Cancel the tasks that are still open. Otherwise open tasks block the answer."""
    remember: tuple[Fact, ...] = ()
    """New facts that the conversation remembers for its later requests."""
    remember_keys: tuple[str, ...] = ()
    """Keys of carried facts that the conversation remembers, too."""

    @property
    def sentence(self) -> str:
        return self.answer if isinstance(self.answer, str) else msgspec.json.encode(self.answer).decode()

    def payloads(self) -> Iterator[Payload]:
        yield Payload(self.remember, (), self.remember_keys)

    def with_facts(self, change: Callable[[tuple[Fact, ...]], tuple[Fact, ...]]) -> Self:
        return replace(self, remember=change(self.remember)) if self.remember else self

    def without_payload(self) -> Self:
        return replace(self, answer=None, remember=(), remember_keys=())

    def summarize(self) -> Self:
        return self.without_payload()

    def check(self) -> None:
        check_nesting(self.answer)
        super().check()
        check_names(self.remember_keys, "remember_keys")


class Fail(MoveForm, tag="fail", frozen=True, kw_only=True):
    """Give up the request; in a task, only the task."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any", "supervised": "any", "swarm": "any"}
    says: ClassVar[str] = "reason"

    reason: str
    code: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_.]{0,63}$")] = FAILED
    """The agent's own code, which tells programs the reason."""

    @property
    def sentence(self) -> str:
        return self.reason

    def summarize(self) -> Self:
        return replace(self, reason=cut(self.reason))


class UnknownMove(MoveForm, tag="?", frozen=True, kw_only=True):
    """A move that this build does not have. The rule `known_move` refuses it by name."""

    name: str

    def check(self) -> None:
        if self.name in MOVES or not 0 < len(self.name) <= MAX_NAME_CHARS:
            raise Malformed("proposal: a move cannot be named so")


Move = Transfer | HandBack | Delegate | Deliver | Ask | Escalate | Complete | Fail | UnknownMove
"""All moves, in the order in which agents see them."""

MOVES = tuple(str(kind.__struct_config__.tag) for kind in Move.__args__ if kind is not UnknownMove)
TOPOLOGIES: Mapping[str, Mapping[str, Holder]] = {
    topology: {
        str(kind.__struct_config__.tag): kind.holders[topology]
        for kind in Move.__args__
        if topology in kind.holders
    }
    for topology in ("handoff", "supervised", "swarm")
}
"""The moves of each topology, and which turns have them. A request runs under one topology."""
