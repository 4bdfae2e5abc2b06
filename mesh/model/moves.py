"""The moves as tools: how a model asks for a move.

A move is checked twice. Here pydantic and the guard's own reader check that it is a move: if not, the model
is told and may try again in the same round. The guard alone decides if it may happen, and that costs a round.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from mesh.agent._reply_schema import SchemaUnusable
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.agent.tools import Tool, mistakes_in, short, untitled
from mesh.agent.turn import Turn
from mesh.model.port import ToolCall, ToolSpec
from mesh.model.prompt import PromptContext, context_now, one_line
from protocol.wire import codec
from protocol.wire.commands import Move, MoveProposed
from protocol.wire.errors import Malformed
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import HUMAN, TurnId, is_label

TRANSFER = "transfer_to_"
"""Followed by the name of the agent that gets the work."""
HAND_BACK, COMPLETE, ASK, ESCALATE = "hand_back", "complete", "ask", "escalate"
_KEPT = 256
"""Schemas in the cache: one for each set of intents, and one for each move."""

Labels = Mapping[str, tuple[str, ...]]
"""By fact key: labels that a fact of this key must have, whatever the model says."""

_UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""Raised where a move cannot be written as JSON."""
_NOT_JSON = "a number has to be finite, and a text without lone surrogates"

Text = Annotated[str, Field(pattern=r"\S")]
Line = Annotated[str, Field(pattern=r"\S", max_length=500, description="One line.")]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FactArgument(_Arguments):
    key: Annotated[str, Field(min_length=1)]
    value: JsonValue
    labels: tuple[str, ...] = Field(default=(), description="`pii` for what tells who somebody is.")


class ArtifactArgument(_Arguments):
    name: Annotated[str, Field(min_length=1)]
    uri: Annotated[str, Field(min_length=1)]
    media_type: str = ""
    digest: str = ""
    size: Annotated[int, Field(ge=0, description="In bytes.")] | None = None
    labels: tuple[str, ...] = ()


class BudgetArgument(_Arguments):
    nano_dollars: Annotated[int, Field(ge=0)] | None = None
    tokens: Annotated[int, Field(ge=0)] | None = None
    model_calls: Annotated[int, Field(ge=0)] | None = None


class ConstraintsArgument(_Arguments):
    max_resolution_time_s: Annotated[float, Field(gt=0)] | None = None
    allowed_actions: tuple[str, ...] | None = Field(default=None, description="Tools; no others are called.")
    budget: BudgetArgument | None = None
    must_carry: tuple[str, ...] = Field(default=(), description="Keys of facts that nobody drops or changes.")


class _Bringing(_Arguments):
    facts: tuple[FactArgument, ...] = Field(default=(), description="What is new; the rest travels on.")


class _Giving(_Bringing):
    artifacts: tuple[ArtifactArgument, ...] = Field(
        default=(), description="References to large things that are new; the rest travel on."
    )
    drop: tuple[str, ...] = Field(default=(), description="Keys of facts not to carry on.")


class TransferArguments(_Giving):
    summary: Annotated[Line, Field(description="One line: what is wanted and why.")]
    intent: str | None = None
    constraints: ConstraintsArgument | None = Field(
        default=None, description="Only where narrower than yours."
    )
    return_to: str | None = Field(default=None, description="Whom a hand-back goes to, if not to you.")
    no_return: bool = Field(default=False, description="Nobody gives it back to you.")


class HandBackArguments(_Giving):
    reason: Line


class EscalateArguments(_Bringing):
    reason: Line


class AskArguments(_Arguments):
    """Arguments of `ask` where there are no people: the client is the only one to ask."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    question: Annotated[str, Field(pattern=r"\S", max_length=2_000)]
    reply_schema: dict[str, JsonValue] | None = Field(
        default=None, alias="schema", description="JSON Schema of the reply."
    )
    expires_s: Annotated[float, Field(gt=0, description="Seconds to wait for the reply.")] | None = None


class AskAnybodyArguments(AskArguments):
    """Arguments of `ask` where the fleet has people."""

    of: Literal["client", "human"] = Field(
        default="client", description="`human` asks the fleet's own people."
    )


class CompleteArguments(_Arguments):
    answer: Text


_HAND_BACK_WORDS = "Give the work back to where it came from, with what was found out."
_COMPLETE_WORDS = "Answer whoever sent the request. This ends it."
_FORM_WORDS = (
    "Answer the client in this form. This ends the request; words outside of this call are no answer."
)
_ASK_WORDS = "Ask the client, and wait for the reply: only what you cannot find out or do without."
_ESCALATE_WORDS = "Give the work to a person: what only people decide, or nobody here can do."


class _Offer(NamedTuple):
    spec: ToolSpec
    arguments: type[BaseModel]


class MoveTools:
    """The moves that one turn may ask for; reads a model's call as a move."""

    def __init__(
        self,
        turn: Turn,
        seen: PromptContext | None = None,
        labels: Labels | None = None,
        handoffs: Container[str] | None = None,
        output_type: Any = None,
    ) -> None:
        self._turn = turn
        self._labels = labels or {}
        self.words_answer = output_type is None
        """True where a reply without a call is the answer; False where the answer has a form of its own."""
        offers = _offers(turn, seen or context_now(turn), handoffs, output_type)
        self._offers = {offer.spec.name: offer for offer in offers}

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(offer.spec for offer in self._offers.values())

    def __contains__(self, name: str) -> bool:
        return name in self._offers

    def read(self, call: ToolCall) -> Move:
        """Return the move that a call asks for. Raises ToolArgumentsInvalid for the model to read."""
        try:
            said = self._offers[call.name].arguments.model_validate(dict(call.arguments))
        except ValidationError as wrong:
            raise ToolArgumentsInvalid(call.name, mistakes_in(wrong)) from wrong
        move = self._made(call, said)
        _require_readable(call.name, move)
        return move

    def _made(self, call: ToolCall, said: BaseModel) -> Move:
        turn = self._turn
        match said:
            case CompleteArguments():
                return turn.complete(said.model_dump(mode="json", by_alias=True)["answer"])
            case AskArguments():
                of = HUMAN if isinstance(said, AskAnybodyArguments) and said.of == HUMAN else None
                try:
                    return turn.ask(said.question, of=of, schema=said.reply_schema, expires_s=said.expires_s)
                except SchemaUnusable as wrong:
                    raise ToolArgumentsInvalid(call.name, (f"schema: {wrong}",)) from wrong
            case EscalateArguments():
                return turn.escalate(said.reason, facts=self._facts(said))
            case HandBackArguments():
                return turn.hand_back(said.reason, **self._given(said))
            case TransferArguments():
                own = said.constraints
                return turn.transfer(
                    call.name.removeprefix(TRANSFER),
                    summary=said.summary,
                    intent=said.intent,
                    constraints=None if own is None else msgspec.convert(own.model_dump(), Constraints),
                    return_to=said.return_to,
                    no_return=said.no_return,
                    **self._given(said),
                )
        raise AssertionError("every offer has one of these arguments")

    def _given(self, said: _Giving) -> dict[str, Any]:
        """Return what work takes along when it is given to somebody."""
        artifacts = msgspec.convert([each.model_dump() for each in said.artifacts], tuple[Artifact, ...])
        return {"facts": self._facts(said, said.drop), "artifacts": artifacts, "drop": said.drop}

    def _facts(self, said: _Bringing, drop: tuple[str, ...] = ()) -> tuple[Fact, ...]:
        """Return the facts that a move brings, with the labels that they must have.

        A carried fact that lacks such a label is brought once more with it: a client does not know this
        fleet's labels. Of a key that is said twice, the last one counts.
        """
        brought = {
            given.key: Fact(key=given.key, value=given.value, labels=self._labelled(given.key, given.labels))
            for given in said.facts
        }
        for fact in self._turn.handoff.facts:
            labels = self._labelled(fact.key, filter(is_label, fact.labels))
            if fact.key not in brought and fact.key not in drop and not set(labels) <= set(fact.labels):
                brought[fact.key] = Fact(key=fact.key, value=fact.value, labels=labels)
        return tuple(brought.values())

    def _labelled(self, key: str, labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({*labels, *self._labels.get(key, ())}))


def require_apart(tools: Iterable[Tool]) -> None:
    """Raise ToolsUnusable for a tool that has the name of a move."""
    for tool in tools:
        if tool.name in (HAND_BACK, COMPLETE, ASK, ESCALATE) or tool.name.startswith(TRANSFER):
            raise ToolsUnusable(f"{tool.name} is the name of a move; call the tool something else")


def _require_readable(name: str, move: Move) -> None:
    """Raise ToolArgumentsInvalid for a move that the guard cannot read, or reads as another one."""
    try:
        body = codec.encode(MoveProposed(turn=TurnId("turn"), round=0, move=move))
        read = codec.parse_proposal(body)
    except Malformed as wrong:
        raise ToolArgumentsInvalid(name, (str(wrong),)) from wrong
    except _UNWRITABLE as wrong:
        raise ToolArgumentsInvalid(name, (_NOT_JSON,)) from wrong
    if not isinstance(read, MoveProposed) or read.move != move:
        raise ToolArgumentsInvalid(name, (_NOT_JSON,))


def _offers(
    turn: Turn, seen: PromptContext, handoffs: Container[str] | None, output_type: Any
) -> Iterator[_Offer]:
    """Yield the moves that can make sense for this turn, the guard's judgement aside."""
    for peer in seen.peers:
        if handoffs is None or peer.name in handoffs:
            said = one_line(peer.description)
            words = f"Give the work to {peer.name}: {said}" if said else f"Give the work to {peer.name}."
            yield _offer(f"{TRANSFER}{peer.name}", words, _transfer_form(peer.intents))
    if len(turn.path) > 1:
        yield _offer(HAND_BACK, _HAND_BACK_WORDS, HandBackArguments)
    words, form = (
        (_COMPLETE_WORDS, CompleteArguments)
        if output_type is None
        else (_FORM_WORDS, answer_form(output_type))
    )
    yield _offer(COMPLETE, words, form)
    yield _offer(ASK, _ASK_WORDS, AskAnybodyArguments if seen.human else AskArguments)
    if seen.human:
        yield _offer(ESCALATE, _ESCALATE_WORDS, EscalateArguments)


def _offer(name: str, description: str, arguments: type[BaseModel]) -> _Offer:
    return _Offer(ToolSpec(name, description, _schema(arguments)), arguments)


@lru_cache(_KEPT)
def answer_form(output_type: Any) -> type[BaseModel]:
    """Return the arguments of a `complete` whose answer is of this type.

    Raises ToolsUnusable for a type that has no JSON schema.
    """
    try:
        form = create_model("CompleteArguments", __base__=CompleteArguments, answer=(output_type, ...))
        form.model_json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError) as wrong:
        why = short(str(wrong).partition("\n")[0])
        raise ToolsUnusable(f"the answer's type has no JSON schema ({why})") from wrong
    return form


@lru_cache(_KEPT)
def _schema(arguments: type[BaseModel]) -> Mapping[str, Any]:
    """Return the schema of a move's arguments. Making one takes a millisecond; a turn needs several."""
    return untitled(arguments.model_json_schema())


@lru_cache(_KEPT)
def _transfer_form(intents: tuple[str, ...] | None) -> type[BaseModel]:
    """Return the arguments of a transfer to an agent that takes these intents, or any."""
    if not intents:
        return TransferArguments
    intent: Any = Literal[intents]
    return create_model("TransferArguments", __base__=TransferArguments, intent=(intent | None, None))
