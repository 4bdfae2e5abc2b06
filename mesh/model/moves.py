"""The moves as tools: how a model says what should become of the work.

A move is checked twice. Here, by pydantic, whether it is a move at all: if not, the model is told and
may try again in the same round. Whether it may happen is for the guard alone, and costs a round.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model

from mesh.agent.tools import ToolArgumentsInvalid, mistakes_in, untitled
from mesh.agent.turn import Turn
from mesh.model.brief import one_line
from mesh.model.outlook import Outlook, outlook_now
from mesh.model.port import ToolCall, ToolSpec
from protocol.fleet import AgentEntry
from protocol.handoff import Fact
from protocol.messages import Move

TRANSFER = "transfer_to_"
_KEPT = 256
"""Schemas that are kept: one for each set of intents, and one for each move."""

Labels = Mapping[str, tuple[str, ...]]
"""By fact key: labels that a fact of this key has to have, whatever the model says."""

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


_HAND_BACK = "Give the work back to where it came from, with what was found out."
_COMPLETE = "Answer the customer. This ends the request."
_ASK = "Ask the customer and wait for the reply: only what you cannot find out, and cannot go on without."
_ESCALATE = "Give the work to a person: what only people decide, or nobody here can do."


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
        not know what this fleet keeps to itself. Of a key that is said twice, the last one counts.
        """
        brought = {
            given.key: Fact(key=given.key, value=given.value, labels=self._labelled(given.key, given.labels))
            for given in said.facts
        }
        for fact in self._turn.handoff.facts:
            labels = self._labelled(fact.key, fact.labels)
            if fact.key not in brought and fact.key not in drop and set(labels) != set(fact.labels):
                brought[fact.key] = Fact(key=fact.key, value=fact.value, labels=labels)
        return tuple(brought.values())

    def _labelled(self, key: str, labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({*labels, *self._labels.get(key, ())}))


def _offers(turn: Turn, seen: Outlook, handoffs: Container[str] | None) -> Iterator[_Offer]:
    """Yield the moves that can make sense for this turn, the guard's judgement aside."""
    for peer in seen.peers:
        if handoffs is None or peer.name in handoffs:
            words = f"Give the work to {peer.name}: {one_line(peer.description)}"
            yield _offer(f"{TRANSFER}{peer.name}", words, _to(peer))
    if len(turn.path) > 1:
        yield _offer("hand_back", _HAND_BACK, HandBackArguments)
    yield _offer("complete", _COMPLETE, CompleteArguments)
    yield _offer("ask", _ASK, AskArguments)
    if seen.human:
        yield _offer("escalate", _ESCALATE, EscalateArguments)


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
