"""The moves: what a turn may ask for. Each says of itself what others have to know of a move.

A move says which turns have it, what it brings, its sentence and its short form, and checks itself when it is
read. Labels, the reader, later rounds, the timeline and the rules ask it, and know no move by name.
A new move is a struct here and a member of `Move`; CONTRIBUTING.md lists what else it touches.
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
"""The code of what was given up, where its agent names none."""
MAX_TEXT_CHARS = 2_000
"""What is left of each text of a move in its short form."""
MAX_NAME_CHARS = 64
"""Of the name of a move that this build does not have."""
Short = Annotated[str, msgspec.Meta(max_length=128)]
"""What is kept with every request, or told to every later round."""


class WireMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Base of every message: unknown fields are ignored, so that peers may be newer.

    The hot path tells messages and events apart by their exact type, or by a table of types. For a class that
    msgspec made, an `isinstance` that says no takes ten times as long.

    `kw_only` holds only for the class that says it, so every class here says it.
    """


Holder = Literal["any", "root", "task"]
"""Which turns of a topology have a move: all of them, only root turns, or only the turns of tasks."""


class Load(NamedTuple):
    """What a move brings, or one task of a plan."""

    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    keys: tuple[str, ...] = ()
    """Keys of carried facts that it drops, or has remembered."""
    constraints: Constraints | None = None
    """What it asks to narrow."""
    task: str | None = None
    """The task that brings it; None for the move itself."""


class MoveForm(WireMessage, tag_field="move", frozen=True, kw_only=True):
    """What every move says of itself. A move overrides what is different of it."""

    holders: ClassVar[Mapping[str, Holder]] = {}
    """By topology: which turns have it. A topology that is not named has no such move."""
    gives_work: ClassVar[bool] = False
    """True if another agent gets the work, so that its breaker is asked before."""

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def sentence(self) -> str:
        """The one line that says what it wants."""
        return ""

    # Fields that many moves have. Of a move without one: none or empty.

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

    def loads(self) -> Iterator[Load]:
        """Yield what it brings; of a plan, what each task brings."""
        yield Load(self.facts, self.artifacts, self.drop)

    def with_facts(self, change: Callable[[tuple[Fact, ...]], tuple[Fact, ...]]) -> Self:
        """Return the move with all facts that it brings changed."""
        return self._with(facts=change(self.facts)) if self.facts else self

    def without_load(self) -> Self:
        """Return the move without what makes it large; its words stay."""
        return self._with(facts=(), artifacts=())

    def summarize(self) -> Self:
        """Return whom the move is for and the beginning of what it says, and nothing else."""
        return self.without_load()

    def check(self) -> None:
        """Raise Malformed for what its fields' types let through and no move may say."""
        for load in self.loads():
            check_facts(load.facts)
            check_artifacts(load.artifacts)
            if load.constraints is not None:
                check_budget(load.constraints.budget, "constraints")

    def _with(self, **fields: Any) -> Self:
        """Return the move with those of these fields changed that it has."""
        own = {name: value for name, value in fields.items() if name in self.__struct_fields__}
        return replace(self, **own) if own else self


def cut(text: str) -> str:
    """Return as much of a text as later rounds are told."""
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"


# --- topology `handoff` -------------------------------------------------------------------------------


class Transfer(MoveForm, tag="transfer", frozen=True, kw_only=True):
    """Give the work to another agent. Brings only what is new; the guard carries the rest on."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any"}
    gives_work: ClassVar[bool] = True

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

    def loads(self) -> Iterator[Load]:
        yield Load(self.facts, self.artifacts, self.drop, self.constraints)

    def summarize(self) -> Self:
        return type(self)(to_agent=AgentName(cut(self.to_agent)), summary=cut(self.summary))


class HandBack(MoveForm, tag="hand_back", frozen=True, kw_only=True):
    """Give the work back along the path, with what was found out."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any"}
    gives_work: ClassVar[bool] = True

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
"""When a lead runs again: at the first new success (`any`), at so many of them (a number), or once no task is
open (`all`). The first two also end once no task is open."""


class Task(WireMessage, frozen=True, kw_only=True):
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


class Delegate(MoveForm, tag="delegate", frozen=True, kw_only=True):
    """Open tasks and wait for their join. Without tasks: wait for those that are open."""

    holders: ClassVar[Mapping[str, Holder]] = {"supervised": "any", "swarm": "root"}

    tasks: tuple[Task, ...] = ()
    join: Join = "all"
    within_s: Seconds | None = None
    """Seconds from admission after which the turn runs again whatever is there."""
    cancel: tuple[Short, ...] = ()
    """Names of open tasks of this turn that are called off."""

    @property
    def sentence(self) -> str:
        return f"{', '.join(task.name for task in self.tasks) or 'no new task'}; join: {self.join}"

    def loads(self) -> Iterator[Load]:
        for task in self.tasks:
            yield Load(task.facts, task.artifacts, (), task.constraints, task.name)

    def with_facts(self, change: Callable[[tuple[Fact, ...]], tuple[Fact, ...]]) -> Self:
        tasks = (replace(task, facts=change(task.facts)) if task.facts else task for task in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def without_load(self) -> Self:
        return replace(self, tasks=tuple(replace(task, facts=(), artifacts=()) for task in self.tasks))

    def summarize(self) -> Self:
        return type(self)(join=self.join)


class Deliver(MoveForm, tag="deliver", frozen=True, kw_only=True):
    """End the task with its result."""

    holders: ClassVar[Mapping[str, Holder]] = {"supervised": "task", "swarm": "task"}

    summary: str
    facts: tuple[Fact, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    cancel_open: bool = False
    """Call off the tasks that this turn itself has still open."""

    @property
    def sentence(self) -> str:
        return self.summary

    def summarize(self) -> Self:
        return type(self)(summary=cut(self.summary))


# --- any topology ---------------------------------------------------------------------------------------


class Ask(MoveForm, tag="ask", frozen=True, kw_only=True):
    """Put a question to the client or to `human` and suspend the turn until the reply."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any", "supervised": "any", "swarm": "root"}

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

    @property
    def sentence(self) -> str:
        return self.question

    def without_load(self) -> Self:
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

    answer: Any
    """Any JSON value; mostly a string."""
    cancel_open: bool = False
    """Call off the tasks that are still open; without it, an answer waits for them."""
    remember: tuple[Fact, ...] = ()
    """Facts that the answer brings for the later requests of the same conversation."""
    remember_keys: tuple[str, ...] = ()
    """Keys of facts that the turn was handed and that are remembered, too."""

    @property
    def sentence(self) -> str:
        return self.answer if isinstance(self.answer, str) else msgspec.json.encode(self.answer).decode()

    def loads(self) -> Iterator[Load]:
        yield Load(self.remember, (), self.remember_keys)

    def with_facts(self, change: Callable[[tuple[Fact, ...]], tuple[Fact, ...]]) -> Self:
        return replace(self, remember=change(self.remember)) if self.remember else self

    def without_load(self) -> Self:
        return replace(self, answer=None, remember=(), remember_keys=())

    def summarize(self) -> Self:
        return self.without_load()

    def check(self) -> None:
        check_nesting(self.answer)
        super().check()
        check_names(self.remember_keys, "remember_keys")


class Fail(MoveForm, tag="fail", frozen=True, kw_only=True):
    """Give the request up; of a task, the task alone."""

    holders: ClassVar[Mapping[str, Holder]] = {"handoff": "any", "supervised": "any", "swarm": "any"}

    reason: str
    code: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_.]{0,63}$")] = FAILED
    """The agent's own, by which programs tell why."""

    @property
    def sentence(self) -> str:
        return self.reason

    def summarize(self) -> Self:
        return replace(self, reason=cut(self.reason))


class UnknownMove(MoveForm, tag="?", frozen=True, kw_only=True):
    """A move that this build does not have; `known_move` refuses it by its name."""

    name: str

    def check(self) -> None:
        if self.name in MOVES or not 0 < len(self.name) <= MAX_NAME_CHARS:
            raise Malformed("proposal: a move cannot be named so")


Move = Transfer | HandBack | Delegate | Deliver | Ask | Escalate | Complete | Fail | UnknownMove
"""All moves, in the order in which they are listed to agents."""

MOVES = tuple(str(kind.__struct_config__.tag) for kind in Move.__args__ if kind is not UnknownMove)
TOPOLOGIES: Mapping[str, Mapping[str, Holder]] = {
    topology: {
        str(kind.__struct_config__.tag): kind.holders[topology]
        for kind in Move.__args__
        if topology in kind.holders
    }
    for topology in ("handoff", "supervised", "swarm")
}
"""The moves of each topology, and which turns have them. A request runs under one of them."""
