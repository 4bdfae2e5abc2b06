"""The moves as tools: how a model asks for a move. Which there are depends on the request's topology.

A move is checked twice. Here pydantic and the guard's own reader check the move. If it is none, the model
learns why and may try again in the same round. The guard alone decides if it may happen, and that costs a
round.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel, ValidationError

from mesh.agent._reply_schema import SchemaUnusable
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.agent.tools import Tool
from mesh.agent.turn import Turn
from mesh.agent.values import NotFinite, mistakes_in
from mesh.model.arguments import (
    ArtifactArgument,
    AskAnybodyArguments,
    AskArguments,
    CompleteArguments,
    ConstraintsArgument,
    DelegateArguments,
    DeliverArguments,
    EscalateArguments,
    FactArgument,
    GiveUpArguments,
    Giving,
    HandBackArguments,
    PostArguments,
    TaskArguments,
    TransferArguments,
    answer_form,
    delivery_form,
    remembering,
    schema_of,
    task_form,
    transfer_form,
)
from mesh.model.port import ToolCall, ToolSpec
from mesh.model.prompt import PromptContext, context_now, one_line
from protocol.wire import codec
from protocol.wire.commands import MoveProposed
from protocol.wire.config import AgentEntry
from protocol.wire.errors import Malformed
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import HUMAN, TurnId, is_label
from protocol.wire.moves import Move, Task

TRANSFER = "transfer_to_"
"""Followed by the name of the agent that gets the work."""
HAND_BACK, COMPLETE, ASK, ESCALATE = "hand_back", "complete", "ask", "escalate"
DELEGATE, DELIVER, GIVE_UP = "delegate", "deliver", "give_up"
POST = "post_facts"
"""No move: the round goes on."""
_RESERVED = frozenset({HAND_BACK, COMPLETE, ASK, ESCALATE, DELEGATE, DELIVER, GIVE_UP, POST})
ANSWER = "answer"
"""The fact in which a task's answer is delivered: its words, or its object."""

Labels = Mapping[str, tuple[str, ...]]
"""By fact key: labels that a fact of this key must have, whatever the model says."""

_NOT_JSON = "a number has to be finite, and a text without lone surrogates"

_HAND_BACK_WORDS = "Give the work back to {}, with what was found out."
_NEW_FACT = " A second time only with a fact that is new to the request."
_COMPLETE_WORDS = "Answer whoever sent the request. This ends it."
_FORM_WORDS = (
    "Answer the client in this form. This ends the request; words outside of this call are no answer."
)
_ASK_WORDS = "Ask the client, and wait for the reply: only what you cannot find out or do without."
_ESCALATE_WORDS = "Give the work to a person: what only people decide, or nobody here can do."
_DELEGATE_WORDS = (
    "Give tasks to other agents, which work on them at the same time, and wait for their results."
)
_DELIVER_WORDS = "Deliver the result of your task to whoever gave it. This ends it."
_DELIVER_FORM_WORDS = (
    "Deliver the result of your task in this form. This ends it; words outside of this call are no result."
)
_GIVE_UP_WORDS = "Say that your task cannot be done, and why. This ends it."
_POST_WORDS = "Put facts on the board, where all agents that work on this request can read them. You go on."
_MOST_LINE = 500


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
        remembers: bool = False,
    ) -> None:
        self._turn = turn
        self._labels = labels or {}
        self.words_answer = output_type is None
        """True where a reply without a call is the answer; False where the answer has a form of its own."""
        offers = _offers(turn, seen or context_now(turn), handoffs, output_type, remembers)
        self._offers = {offer.spec.name: offer for offer in offers}

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(offer.spec for offer in self._offers.values())

    def __contains__(self, name: str) -> bool:
        return name in self._offers and name != POST

    @property
    def has_board(self) -> bool:
        """True if there is `POST`, which is no move."""
        return POST in self._offers

    def read(self, call: ToolCall) -> Move:
        """Return the move that a call asks for. Raises ToolArgumentsInvalid for the model to read."""
        try:
            move = self._made(call, self._valid(call))
        except NotFinite as wrong:
            raise ToolArgumentsInvalid(call.name, (str(wrong),)) from wrong
        _require_readable(call.name, move)
        return move

    def posted(self, call: ToolCall) -> tuple[Fact, ...]:
        """Return the facts that a call of `POST` brings. Raises ToolArgumentsInvalid."""
        said = self._valid(call)
        assert isinstance(said, PostArguments)
        return tuple(
            Fact(key=each.key, value=each.value, labels=self._labelled(each.key, each.labels))
            for each in said.facts
        )

    def answered(self, words: str) -> Move:
        """Return the move that a reply without a call is: the answer, or a task's result."""
        return self._delivered(words, words) if self._turn.task_name else self._turn.complete(words)

    def _delivered(self, summary: str, answer: Any, facts: tuple[Fact, ...] = (), **more: Any) -> Move:
        """Return the delivery of a task whose result is an answer."""
        brought = Fact(key=ANSWER, value=answer, labels=self._labelled(ANSWER, ()))
        facts = (*(fact for fact in facts if fact.key != ANSWER), brought)
        return self._turn.deliver(one_line(summary)[:_MOST_LINE], facts=facts, **more)

    def _valid(self, call: ToolCall) -> BaseModel:
        try:
            return self._offers[call.name].arguments.model_validate(dict(call.arguments))
        except ValidationError as wrong:
            raise ToolArgumentsInvalid(call.name, mistakes_in(wrong)) from wrong

    def _made(self, call: ToolCall, said: BaseModel) -> Move:
        turn = self._turn
        match said:
            case CompleteArguments():
                left = self._brought(getattr(said, "remember", ()))
                return turn.complete(said.model_dump(mode="json", by_alias=True)["answer"], remember=left)
            case AskArguments():
                of = HUMAN if isinstance(said, AskAnybodyArguments) and said.of == HUMAN else None
                try:
                    return turn.ask(said.question, of=of, schema=said.reply_schema, expires_s=said.expires_s)
                except SchemaUnusable as wrong:
                    raise ToolArgumentsInvalid(call.name, (f"schema: {wrong}",)) from wrong
            case EscalateArguments():
                return turn.escalate(said.reason, facts=self._facts(said.facts))
            case HandBackArguments():
                return turn.hand_back(said.reason, **self._given(said))
            case GiveUpArguments():
                return turn.fail(said.reason)
            case DelegateArguments():
                tasks = (self._task(each) for each in said.tasks)
                return turn.delegate(tasks, join=said.join, within_s=said.within_s, cancel=said.cancel)
            case DeliverArguments():
                facts, artifacts = self._brought(said.facts), _artifacts(said.artifacts)
                if self.words_answer:
                    return turn.deliver(said.summary, facts=facts, artifacts=artifacts)
                answer = said.model_dump(mode="json", by_alias=True)["answer"]
                return self._delivered(said.summary, answer, facts, artifacts=artifacts)
            case TransferArguments():
                return turn.transfer(
                    call.name.removeprefix(TRANSFER),
                    summary=said.summary,
                    intent=said.intent,
                    constraints=_constraints(said.constraints),
                    return_to=said.return_to,
                    no_return=said.no_return,
                    **self._given(said),
                )
        raise AssertionError("every offer has one of these arguments")

    def _task(self, said: TaskArguments) -> Task:
        return self._turn.task(
            said.name,
            summary=said.summary,
            to=said.to,
            intent=said.intent,
            facts=self._facts(said.facts, carried=said.carry),
            artifacts=_artifacts(said.artifacts),
            carry=said.carry,
            uses=said.uses,
            revises=said.revises,
            fallback=said.fallback,
            constraints=_constraints(said.constraints),
        )

    def _given(self, said: Giving) -> dict[str, Any]:
        """Return what work takes along when it is given to somebody."""
        artifacts = _artifacts(said.artifacts)
        return {"facts": self._facts(said.facts, said.drop), "artifacts": artifacts, "drop": said.drop}

    def _brought(self, given: Iterable[FactArgument]) -> tuple[Fact, ...]:
        """Return the facts that a model says, with the labels that they must have.

        Of a key that is said twice, the last one counts.
        """
        said = {
            each.key: Fact(key=each.key, value=each.value, labels=self._labelled(each.key, each.labels))
            for each in given
        }
        return tuple(said.values())

    def _facts(
        self, given: Iterable[FactArgument], drop: tuple[str, ...] = (), carried: Container[str] | None = None
    ) -> tuple[Fact, ...]:
        """Return the facts that a move brings.

        A carried fact that lacks a label of its key is brought once more with it: a client does not know
        this fleet's labels.

        Args:
            carried: keys of what goes along; None for all of it.
        """
        brought = {fact.key: fact for fact in self._brought(given)}
        for fact in self._turn.handoff.facts:
            labels = self._labelled(fact.key, filter(is_label, fact.labels))
            goes_along = fact.key not in drop and (carried is None or fact.key in carried)
            if fact.key not in brought and goes_along and not set(labels) <= set(fact.labels):
                brought[fact.key] = Fact(key=fact.key, value=fact.value, labels=labels)
        return tuple(brought.values())

    def _labelled(self, key: str, labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({*labels, *self._labels.get(key, ())}))


def require_apart(tools: Iterable[Tool]) -> None:
    """Raise ToolsUnusable for a tool that has the name of a move."""
    for tool in tools:
        if tool.name in _RESERVED or tool.name.startswith(TRANSFER):
            raise ToolsUnusable(f"{tool.name} is the name of a move; call the tool something else")


def _require_readable(name: str, move: Move) -> None:
    """Raise ToolArgumentsInvalid for a move that the guard cannot read, or reads as another one."""
    try:
        body = codec.encode(MoveProposed(turn=TurnId("turn"), round=0, move=move))
        read = codec.parse_proposal(body)
    except Malformed as wrong:
        raise ToolArgumentsInvalid(name, (str(wrong),)) from wrong
    except codec.UNWRITABLE as wrong:
        raise ToolArgumentsInvalid(name, (_NOT_JSON,)) from wrong
    if not isinstance(read, MoveProposed) or read.move != move:
        raise ToolArgumentsInvalid(name, (_NOT_JSON,))


def _offers(
    turn: Turn, seen: PromptContext, handoffs: Container[str] | None, output_type: Any, remembers: bool
) -> Iterator[_Offer]:
    """Yield the moves that can make sense for this turn, the guard's judgement aside."""
    peers = [peer for peer in seen.peers if handoffs is None or peer.name in handoffs]
    if turn.topology == "handoff":
        yield from _passing_on(turn, peers, seen.back)
    else:
        yield from _of_a_tree(turn, peers, output_type)
    if turn.task_name:
        if turn.topology == "supervised":
            yield _offer(ASK, _ASK_WORDS, AskAnybodyArguments if seen.human else AskArguments)
        return
    words, form = (
        (_COMPLETE_WORDS, CompleteArguments)
        if output_type is None
        else (_FORM_WORDS, answer_form(output_type))
    )
    yield _offer(COMPLETE, words, remembering(form) if remembers else form)
    yield _offer(ASK, _ASK_WORDS, AskAnybodyArguments if seen.human else AskArguments)
    if seen.human:
        yield _offer(ESCALATE, _ESCALATE_WORDS, EscalateArguments)


def _passing_on(turn: Turn, peers: Iterable[AgentEntry], back: str | None) -> Iterator[_Offer]:
    """Yield the moves of topology `handoff` that give the work on; `back` gets it by a hand-back."""
    for peer in peers:
        if peer.name in turn.path:
            continue  # the guard refuses it, whatever it brings: work goes back by `hand_back` alone
        said = one_line(peer.description)
        words = f"Give the work to {peer.name}: {said}" if said else f"Give the work to {peer.name}."
        if turn.handoff.move == "hand_back" and peer.name == turn.handoff.from_agent:
            words += _NEW_FACT
        yield _offer(f"{TRANSFER}{peer.name}", words, transfer_form(peer.intents))
    if back is not None:
        yield _offer(HAND_BACK, _HAND_BACK_WORDS.format(back) + _NEW_FACT, HandBackArguments)


def _of_a_tree(turn: Turn, peers: Sequence[AgentEntry], output_type: Any) -> Iterator[_Offer]:
    """Yield the moves of a lead and of a worker, and the board of a swarm."""
    if peers and (turn.topology == "supervised" or not turn.task_name):
        taken = [peer.intents for peer in peers]
        intents = None if None in taken else tuple(sorted({each for some in taken for each in some or ()}))
        yield _offer(DELEGATE, _DELEGATE_WORDS, task_form(tuple(peer.name for peer in peers), intents))
    if turn.topology == "swarm":
        yield _offer(POST, _POST_WORDS, PostArguments)
    if turn.task_name and output_type is None:
        yield _offer(DELIVER, _DELIVER_WORDS, DeliverArguments)
    elif turn.task_name:
        yield _offer(DELIVER, _DELIVER_FORM_WORDS, delivery_form(output_type))
    if turn.task_name:
        yield _offer(GIVE_UP, _GIVE_UP_WORDS, GiveUpArguments)


def _offer(name: str, description: str, arguments: type[BaseModel]) -> _Offer:
    return _Offer(ToolSpec(name, description, schema_of(arguments)), arguments)


def _artifacts(given: Iterable[ArtifactArgument]) -> tuple[Artifact, ...]:
    return msgspec.convert([each.model_dump() for each in given], tuple[Artifact, ...])


def _constraints(given: ConstraintsArgument | None) -> Constraints | None:
    return None if given is None else msgspec.convert(given.model_dump(), Constraints)
