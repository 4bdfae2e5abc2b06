"""The moves as tools: how a model asks for a move. The request's topology decides which there are.

A move is checked twice. Here pydantic and the guard's own reader check it. If it is invalid, the model learns
why and may try again in the same round. Only the guard decides whether it may happen, and a refusal costs a
round.
"""

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel, ValidationError

from mesh.agent._reply_schema import SchemaUnusable
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.agent.tools import Tool
from mesh.agent.turn import Turn
from mesh.agent.values import NotFinite, few, mistakes_in, require_finite
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
    carrying,
    delivery_form,
    remembering,
    schema_of,
    task_form,
    transfer_form,
)
from mesh.model.edges import TRANSFER, Edge, agents_of, to
from mesh.model.port import ToolCall, ToolSpec
from mesh.model.prompt import PromptContext, context_now, one_line
from mesh.model.results import as_text
from protocol.wire import codec
from protocol.wire.commands import MoveProposed
from protocol.wire.config import AgentEntry
from protocol.wire.errors import Malformed
from protocol.wire.forms import Form, read_form
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import HUMAN, TurnId, is_label
from protocol.wire.moves import Move, Task, Transfer

HAND_BACK, COMPLETE, ASK, ESCALATE = "hand_back", "complete", "ask", "escalate"
DELEGATE, DELIVER, GIVE_UP = "delegate", "deliver", "give_up"
POST = "post_facts"
"""Not a move: the round continues."""
_RESERVED = frozenset({HAND_BACK, COMPLETE, ASK, ESCALATE, DELEGATE, DELIVER, GIVE_UP, POST})
ANSWER = "answer"
"""The fact that delivers a task's answer: a text or an object."""

Labels = Mapping[str, tuple[str, ...]]
"""Labels that a fact must have, by its key, whatever the model gives it."""

_NOT_JSON = "a number has to be finite, and a text without lone surrogates"

_HAND_BACK_WORDS = "Give the work back to {}, with what was found out."
_FITS = " All facts that go along, by key, have to fit this JSON Schema: {}"
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
    edge: Edge | None = None
    """Transfers: where the work goes."""


class MoveTools:
    """The moves that one turn may ask for; reads a model's call as a move."""

    def __init__(
        self,
        turn: Turn,
        seen: PromptContext | None = None,
        labels: Labels | None = None,
        edges: Sequence[Edge] | None = None,
        output_type: Any = None,
        remembers: bool = False,
    ) -> None:
        self._turn = turn
        self._labels = labels or {}
        self.words_answer = output_type is None
        """True if a reply without a call is the answer; False if the answer has a form."""
        seen = seen or context_now(turn)
        self._forms = seen.forms
        offers = _offers(turn, seen, edges, output_type, remembers)
        self._offers = {offer.spec.name: offer for offer in offers}

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(offer.spec for offer in self._offers.values())

    def __contains__(self, name: str) -> bool:
        return name in self._offers and name != POST

    @property
    def has_board(self) -> bool:
        """True if there is `POST`, which is not a move."""
        return POST in self._offers

    def read(self, call: ToolCall) -> Move:
        """Return the move that a call asks for. Raises ToolArgumentsInvalid, whose text the model reads."""
        try:
            move = self._made(call, self._valid(call))
        except NotFinite as wrong:
            raise ToolArgumentsInvalid(call.name, (str(wrong),)) from wrong
        _require_readable(call.name, move)
        if isinstance(move, Transfer) and (form := self._forms.get(move.to_agent)) is not None:
            self._require_form(call.name, move, read_form(form))
        return move

    def _require_form(self, name: str, move: Transfer, form: Form) -> None:
        """Raise ToolArgumentsInvalid for a transfer that the guard would refuse for its form."""
        carried = {fact.key: fact.value for fact in self._turn.handoff.facts if fact.key not in move.drop}
        facts = carried | {fact.key: fact.value for fact in move.facts}
        hidden = form.required if self._turn.withheld else ()  # the guard knows which
        if mistakes := form.mistakes(facts, hidden):
            raise ToolArgumentsInvalid(name, few([f"facts.{each}" for each in mistakes]))

    def posted(self, call: ToolCall) -> tuple[Fact, ...]:
        """Return the facts that a call of `POST` adds. Raises ToolArgumentsInvalid."""
        args = self._valid(call)
        assert isinstance(args, PostArguments)
        return tuple(
            Fact(key=each.key, value=each.value, labels=self._labelled(each.key, each.labels))
            for each in args.facts
        )

    def answered(self, answer: Any) -> Move:
        """Return the move made by an answer, words or a value: the request's answer, or a task's result."""
        if not self._turn.task_name:
            return self._turn.complete(answer)
        return self._delivered(answer if isinstance(answer, str) else as_text(answer), answer)

    def _delivered(self, summary: str, answer: Any, facts: tuple[Fact, ...] = (), **more: Any) -> Move:
        """Return the delivery of a task whose result is an answer."""
        result = Fact(key=ANSWER, value=answer, labels=self._labelled(ANSWER, ()))
        facts = (*(fact for fact in facts if fact.key != ANSWER), result)
        return self._turn.deliver(one_line(summary)[:_MOST_LINE], facts=facts, **more)

    def _valid(self, call: ToolCall) -> BaseModel:
        offer = self._offers[call.name]
        try:
            if offer.edge is None or offer.edge.form is None:
                return offer.arguments.model_validate(dict(call.arguments))
            require_finite(dict(call.arguments), "arguments")
            # As JSON, so that a form can be strict and have what JSON lacks: a date, a decimal, a tuple.
            body = json.dumps(dict(call.arguments), ensure_ascii=False).encode()
            return offer.arguments.model_validate_json(body, strict=True)
        except UnicodeEncodeError as wrong:
            raise ToolArgumentsInvalid(call.name, (_NOT_JSON,)) from wrong
        except ValidationError as wrong:
            raise ToolArgumentsInvalid(call.name, mistakes_in(wrong)) from wrong

    def _made(self, call: ToolCall, args: BaseModel) -> Move:
        turn = self._turn
        match args:
            case CompleteArguments():
                left = self._labelled_facts(getattr(args, "remember", ()))
                return turn.complete(args.model_dump(mode="json", by_alias=True)["answer"], remember=left)
            case AskArguments():
                of = HUMAN if isinstance(args, AskAnybodyArguments) and args.of == HUMAN else None
                try:
                    return turn.ask(args.question, of=of, schema=args.reply_schema, expires_s=args.expires_s)
                except SchemaUnusable as wrong:
                    raise ToolArgumentsInvalid(call.name, (f"schema: {wrong}",)) from wrong
            case EscalateArguments():
                return turn.escalate(args.reason, facts=self._facts(args.facts))
            case HandBackArguments():
                return turn.hand_back(args.reason, **self._given(args))
            case GiveUpArguments():
                return turn.fail(args.reason)
            case DelegateArguments():
                tasks = (self._task(each) for each in args.tasks)
                return turn.delegate(tasks, join=args.join, within_s=args.within_s, cancel=args.cancel)
            case DeliverArguments():
                facts, artifacts = self._labelled_facts(args.facts), _artifacts(args.artifacts)
                if self.words_answer:
                    return turn.deliver(args.summary, facts=facts, artifacts=artifacts)
                answer = args.model_dump(mode="json", by_alias=True)["answer"]
                return self._delivered(args.summary, answer, facts, artifacts=artifacts)
            case TransferArguments():
                edge = self._offers[call.name].edge
                assert edge is not None
                return turn.transfer(
                    edge.agent,
                    summary=args.summary,
                    intent=args.intent,
                    constraints=_constraints(args.constraints),
                    return_to=args.return_to,
                    no_return=args.no_return,
                    **self._given(args),
                )
        raise AssertionError("every offer has one of these arguments")

    def _task(self, args: TaskArguments) -> Task:
        return self._turn.task(
            args.name,
            summary=args.summary,
            to=args.to,
            intent=args.intent,
            facts=self._facts(args.facts, carried=args.carry),
            artifacts=_artifacts(args.artifacts),
            carry=args.carry,
            uses=args.uses,
            revises=args.revises,
            fallback=args.fallback,
            constraints=_constraints(args.constraints),
        )

    def _given(self, args: Giving) -> dict[str, Any]:
        """Return what work takes along when it is given to another agent."""
        artifacts = _artifacts(args.artifacts)
        facts = _in_form(args.facts) if isinstance(args.facts, BaseModel) else args.facts
        return {"facts": self._facts(facts, args.drop), "artifacts": artifacts, "drop": args.drop}

    def _labelled_facts(self, given: Iterable[FactArgument]) -> tuple[Fact, ...]:
        """Return the facts that a model gives, with the labels that they must have.

        If a key is given twice, the last one counts.
        """
        facts = {
            each.key: Fact(key=each.key, value=each.value, labels=self._labelled(each.key, each.labels))
            for each in given
        }
        return tuple(facts.values())

    def _facts(
        self, given: Iterable[FactArgument], drop: tuple[str, ...] = (), carried: Container[str] | None = None
    ) -> tuple[Fact, ...]:
        """Return the facts that a move adds.

        A carried fact that lacks a label of its key is added again with the label: a client does not know
        this fleet's labels.

        Args:
            carried: keys of the facts that go along; None for all of them.
        """
        added = {fact.key: fact for fact in self._labelled_facts(given)}
        for fact in self._turn.handoff.facts:
            labels = self._labelled(fact.key, filter(is_label, fact.labels))
            goes_along = fact.key not in drop and (carried is None or fact.key in carried)
            if fact.key not in added and goes_along and not set(labels) <= set(fact.labels):
                added[fact.key] = Fact(key=fact.key, value=fact.value, labels=labels)
        return tuple(added.values())

    def _labelled(self, key: str, labels: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({*labels, *self._labels.get(key, ())}))


def require_apart(tools: Iterable[Tool], edges: Iterable[Edge] | None = None) -> None:
    """Raise ToolsUnusable for a tool that has the name of a move, and for an edge that has another's."""
    named = {edge.tool for edge in edges or ()}
    if taken := sorted(named & _RESERVED):
        raise ToolsUnusable(f"{taken[0]} is the name of another move; give the handoff another `name`")
    for tool in tools:
        if tool.name in _RESERVED or tool.name in named or tool.name.startswith(TRANSFER):
            raise ToolsUnusable(f"{tool.name} is the name of a move; call the tool something else")


def _require_readable(name: str, move: Move) -> None:
    """Raise ToolArgumentsInvalid for a move that the guard cannot read, or reads differently."""
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
    turn: Turn, seen: PromptContext, edges: Sequence[Edge] | None, output_type: Any, remembers: bool
) -> Iterator[_Offer]:
    """Yield the moves that can make sense in this turn, before the guard judges them."""
    if turn.topology == "handoff":
        yield from _passing_on(turn, seen, edges)
    else:
        handoffs = agents_of(edges)
        peers = [peer for peer in seen.peers if handoffs is None or peer.name in handoffs]
        yield from _for_tasks(turn, peers, output_type)
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


def _passing_on(turn: Turn, seen: PromptContext, edges: Sequence[Edge] | None) -> Iterator[_Offer]:
    """Yield the moves of topology `handoff` that give the work on."""
    for peer in seen.peers:
        if peer.name in turn.path:
            continue  # the guard refuses it in any case: only `hand_back` gives work back
        again = turn.handoff.move == "hand_back" and peer.name == turn.handoff.from_agent
        for edge in (to(peer.name),) if edges is None else edges:
            if edge.agent == peer.name:
                form = None if edge.form is not None else seen.forms.get(peer.name)
                fits = "" if form is None else _FITS.format(json.dumps(form, ensure_ascii=False))
                yield _transfer(edge, peer, fits + (_NEW_FACT if again else ""))
    if seen.back is not None:
        yield _offer(HAND_BACK, _HAND_BACK_WORDS.format(seen.back) + _NEW_FACT, HandBackArguments)


def _transfer(edge: Edge, peer: AgentEntry, more: str) -> _Offer:
    """Return the transfer by an edge; `more` is added to its description."""
    description = one_line(peer.description)
    words = (
        f"Give the work to {peer.name}: {description}" if description else f"Give the work to {peer.name}."
    )
    form = transfer_form(peer.intents)
    form = form if edge.form is None else carrying(form, edge.form)
    return _Offer(ToolSpec(edge.tool, (edge.description or words) + more, schema_of(form)), form, edge)


def _for_tasks(turn: Turn, peers: Sequence[AgentEntry], output_type: Any) -> Iterator[_Offer]:
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


def _in_form(given: BaseModel) -> tuple[FactArgument, ...]:
    """Return the fields of a form that a model gave, a fact each."""
    fields = given.model_dump(mode="json", by_alias=True, include=given.model_fields_set)
    return tuple(FactArgument(key=key, value=value) for key, value in fields.items())


def _artifacts(given: Iterable[ArtifactArgument]) -> tuple[Artifact, ...]:
    return msgspec.convert([each.model_dump() for each in given], tuple[Artifact, ...])


def _constraints(given: ConstraintsArgument | None) -> Constraints | None:
    return None if given is None else msgspec.convert(given.model_dump(), Constraints)
