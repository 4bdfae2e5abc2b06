"""The moves as tools: how a model says what should become of the work.

A move is checked twice. Here, by pydantic and then as the guard reads it, whether it is a move at all: if
not, the model is told and may try again in the same round. Whether it may happen is for the guard alone, and
costs a round.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model

from mesh.agent.toolbox import ToolsUnusable
from mesh.agent.tools import Tool, ToolArgumentsInvalid, mistakes_in, untitled
from mesh.agent.turn import Turn
from mesh.model.brief import one_line
from mesh.model.outlook import Outlook, outlook_now
from mesh.model.port import ToolCall, ToolSpec
from protocol import codec
from protocol.errors import Malformed
from protocol.fleet import AgentEntry
from protocol.handoff import Fact
from protocol.ids import TurnId
from protocol.messages import Move, MoveProposed

TRANSFER = "transfer_to_"
"""Followed by whom the work goes to."""
HAND_BACK, COMPLETE, ASK, ESCALATE = "hand_back", "complete", "ask", "escalate"
_KEPT = 256
"""Schemas that are kept: one for each set of intents, and one for each move."""

Labels = Mapping[str, tuple[str, ...]]
"""By fact key: labels that a fact of this key has to have, whatever the model says."""

_UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""What writing a move as JSON may raise."""
_NOT_JSON = "a number has to be finite, and a text without lone surrogates"

Text = Annotated[str, Field(pattern=r"\S")]
Line = Annotated[str, Field(pattern=r"\S", max_length=500, description="One line.")]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FactArgument(_Arguments):
    key: Annotated[str, Field(min_length=1)]
    value: JsonValue
    labels: tuple[str, ...] = Field(default=(), description="`pii` for what tells who somebody is.")


class _Bringing(_Arguments):
    facts: tuple[FactArgument, ...] = Field(default=(), description="What is new; the rest travels on.")


class TransferArguments(_Bringing):
    summary: Annotated[Line, Field(description="One line: what is wanted and why.")]
    intent: str | None = None
    drop: tuple[str, ...] = Field(default=(), description="Keys of facts not to carry on.")
    return_to: str | None = Field(default=None, description="Whom a hand-back goes to, if not to you.")
    no_return: bool = Field(default=False, description="Nobody gives it back to you.")


class HandBackArguments(_Bringing):
    reason: Line
    drop: tuple[str, ...] = Field(default=(), description="Keys of facts not to carry on.")


class EscalateArguments(_Bringing):
    reason: Line


class AskArguments(_Arguments):
    question: Annotated[str, Field(pattern=r"\S", max_length=2_000)]


class CompleteArguments(_Arguments):
    answer: Text


_HAND_BACK_WORDS = "Give the work back to where it came from, with what was found out."
_COMPLETE_WORDS = "Answer whoever sent the request. This ends it."
_ASK_WORDS = (
    "Ask whoever sent the request, and wait for the reply: only what you cannot find out or do without."
)
_ESCALATE_WORDS = "Give the work to a person: what only people decide, or nobody here can do."


class _Offer(NamedTuple):
    spec: ToolSpec
    arguments: type[BaseModel]


class MoveTools:
    """The moves that one turn may ask for, and the way from a model's call to a move."""

    def __init__(
        self,
        turn: Turn,
        seen: Outlook | None = None,
        labels: Labels | None = None,
        handoffs: Container[str] | None = None,
    ) -> None:
        self._turn = turn
        self._labels = labels or {}
        self._offers = {
            offer.spec.name: offer for offer in _offers(turn, seen or outlook_now(turn), handoffs)
        }

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(offer.spec for offer in self._offers.values())

    def __contains__(self, name: str) -> bool:
        return name in self._offers

    def read(self, call: ToolCall) -> Move:
        """Return the move that a call asks for. Raises ToolArgumentsInvalid, for the model to read."""
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
                return turn.complete(said.answer)
            case AskArguments():
                return turn.ask(said.question)
            case EscalateArguments():
                return turn.escalate(said.reason, facts=self._facts(said))
            case HandBackArguments():
                return turn.hand_back(said.reason, facts=self._facts(said, said.drop), drop=said.drop)
            case TransferArguments():
                return turn.transfer(
                    call.name.removeprefix(TRANSFER),
                    summary=said.summary,
                    intent=said.intent,
                    facts=self._facts(said, said.drop),
                    drop=said.drop,
                    return_to=said.return_to,
                    no_return=said.no_return,
                )
        raise AssertionError("every offer has one of these arguments")

    def _facts(self, said: _Bringing, drop: tuple[str, ...] = ()) -> tuple[Fact, ...]:
        """Return the facts that a move brings, labelled as they have to be.

        A carried fact that lacks a label it has to have is brought once more with it: a client does
        not know what this fleet keeps to itself. What it has besides stays with its key. Of a key that is
        said twice, the last one counts.
        """
        brought = {
            given.key: Fact(key=given.key, value=given.value, labels=self._labelled(given.key, given.labels))
            for given in said.facts
        }
        for fact in self._turn.handoff.facts:
            labels = self._labelled(fact.key, filter(codec.is_label, fact.labels))
            if fact.key not in brought and fact.key not in drop and not set(labels) <= set(fact.labels):
                brought[fact.key] = Fact(key=fact.key, value=fact.value, labels=labels)
        return tuple(brought.values())

    def _labelled(self, key: str, labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({*labels, *self._labels.get(key, ())}))


def require_apart(tools: Iterable[Tool]) -> None:
    """Raise ToolsUnusable for a tool that has the name of a move: nobody could tell which is meant."""
    for tool in tools:
        if tool.name in (HAND_BACK, COMPLETE, ASK, ESCALATE) or tool.name.startswith(TRANSFER):
            raise ToolsUnusable(f"{tool.name} is the name of a move; call the tool something else")


def _require_readable(name: str, move: Move) -> None:
    """Raise ToolArgumentsInvalid for a move that the guard could not read, or would read as another one."""
    try:
        body = codec.encode(MoveProposed(turn=TurnId("turn"), round=0, move=move))
        read = codec.parse_proposal(body)
    except Malformed as wrong:
        raise ToolArgumentsInvalid(name, (str(wrong),)) from wrong
    except _UNWRITABLE as wrong:
        raise ToolArgumentsInvalid(name, (_NOT_JSON,)) from wrong
    if not isinstance(read, MoveProposed) or read.move != move:
        raise ToolArgumentsInvalid(name, (_NOT_JSON,))


def _offers(turn: Turn, seen: Outlook, handoffs: Container[str] | None) -> Iterator[_Offer]:
    """Yield the moves that can make sense for this turn, the guard's judgement aside."""
    for peer in seen.peers:
        if handoffs is None or peer.name in handoffs:
            said = one_line(peer.description)
            words = f"Give the work to {peer.name}: {said}" if said else f"Give the work to {peer.name}."
            yield _offer(f"{TRANSFER}{peer.name}", words, _to(peer))
    if len(turn.path) > 1:
        yield _offer(HAND_BACK, _HAND_BACK_WORDS, HandBackArguments)
    yield _offer(COMPLETE, _COMPLETE_WORDS, CompleteArguments)
    yield _offer(ASK, _ASK_WORDS, AskArguments)
    if seen.human:
        yield _offer(ESCALATE, _ESCALATE_WORDS, EscalateArguments)


def _offer(name: str, description: str, arguments: type[BaseModel]) -> _Offer:
    return _Offer(ToolSpec(name, description, _schema(arguments)), arguments)


@lru_cache(_KEPT)
def _schema(arguments: type[BaseModel]) -> Mapping[str, Any]:
    """Return the schema of a move's arguments. Making one takes a millisecond; a turn needs several."""
    return untitled(arguments.model_json_schema())


def _to(peer: AgentEntry) -> type[BaseModel]:
    """Return the arguments of a transfer to `peer`: those of every transfer, with the intents it takes."""
    return _with_intents(tuple(peer.intents)) if peer.intents else TransferArguments


@lru_cache(_KEPT)
def _with_intents(intents: tuple[str, ...]) -> type[BaseModel]:
    intent: Any = Literal[intents]
    return create_model("TransferArguments", __base__=TransferArguments, intent=(intent | None, None))
