"""The loop between a model and its tools: from one round of a turn to the move that ends it.

A call runs only if it was offered. A move counts only if it is well-formed. Every mistake goes back to the
model as text. The loop is bounded: if a model reaches no move, a person gets the work.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, Literal

import msgspec

from mesh.agent._rounds import answers, can_be_of
from mesh.agent.errors import Permanent, PostUnusable, ToolError
from mesh.agent.tools import Tool
from mesh.agent.turn import Turn
from mesh.agent.values import NotFinite
from mesh.model.edges import Edge, MadeText, RoundSetup, agents_of, edges_of, set_up
from mesh.model.files import files_among, media_types, with_bytes
from mesh.model.moves import POST, Labels, MoveTools, require_apart
from mesh.model.port import (
    Exchange,
    Hear,
    Model,
    Prompt,
    PromptFile,
    PromptWithFiles,
    Reply,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from mesh.model.pricing import Pricing
from mesh.model.prompt import PromptContext, context_now, one_line, outcome_line, render
from mesh.model.results import as_text
from mesh.model.transcript import TRANSCRIPT, Transcript, Utterance, client_exchange
from mesh.service.logs import get_logger
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Ask, Escalate, Move

_log = get_logger(__name__)

MAX_CALLS = 12
PAUSED = "pause_turn"
CUT = "max_tokens"
FATAL = {
    "refusal": "the model declines to answer this",
    "model_context_window_exceeded": "the conversation is longer than the model's context",
}
"""Reasons to stop that no answer of ours can correct."""

DONE = frozenset({"", "end_turn", "tool_use", "stop_sequence"})
"""Reasons to stop that mean a whole reply. A model may give none."""
_SHOWN_CHARS = 64

_CUT_OFF = "Not done: the reply was cut off at its greatest length. Say less, or do less at once."
_EMPTY = "An empty reply is no answer: call a tool, or say the answer."
_NO_FORM = "Words are no answer here: call `complete`, whose answer has a form of its own."
_SECOND_MOVE = "Not looked at: of several moves in one reply only the first counts."
_TOO_EARLY = "Not taken: an earlier call of this reply failed, and this was said without knowing."
_AFTER_A_MOVE = "Not done: it was said together with a move, without knowing what came of that."


class ModelGaveUp(Permanent, code="model.gave_up"):
    """The model stopped, and another round would only repeat it."""


async def drive(
    turn: Turn,
    model: Model,
    *,
    instructions: str | MadeText,
    tools: Iterable[Tool],
    handoffs: Iterable[str | Edge] | None = None,
    max_calls: int = MAX_CALLS,
    labels: Labels | None = None,
    live: bool = True,
    output_type: Any = None,
    remembers: bool = False,
    transcript: int = 0,
    sees: Iterable[str] = (),
) -> Move:
    """Return the move that a model makes in this round.

    A reply without a call is the answer (in a task, its result), unless the answer has a form. If a reply has
    several moves, the first counts, and only if no call before it failed. An effect is not run after a failed
    call or a move of the same reply.

    Args:
        instructions: the system text, or a function that makes it of the turn in each round.
        tools: the agent's actions; those that the turn may not call are not offered.
        handoffs: agents it may transfer to, among those the fleet allows, by name or by `mesh.model.to`; None
            for all of these.
        max_calls: calls from one move to the next, including wrong ones and empty replies.
        labels: labels that facts of a key must have, whatever the model gives them.
        live: True if the request's client may read along while the model replies.
        output_type: the type of the answer, as pydantic reads it; None for text.
        remembers: True if the answer may leave facts to the request's conversation.
        transcript: number of the conversation's exchanges to keep and show to the model; 0 for none.
        sees: media types of artifacts that the model is shown.

    Raises Retry and Permanent, the model's or a tool's, and any other error that stops a round. Any other
    error of a tool that only reads becomes the call's result for the model. Raises ToolsUnusable for a tool
    that has the name of a move.
    """
    offered, edges = tuple(tools), edges_of(handoffs)
    files = files_among(turn.handoff.artifacts, media_types(sees))
    require_apart(offered, edges)
    setup = await set_up(turn, instructions, edges)
    kept = Transcript(turn, transcript, (labels or {}).get(TRANSCRIPT, ())) if transcript else None

    def conversation(seen: PromptContext, *, is_new: bool) -> _Conversation:
        return _Conversation(
            turn=turn,
            model=model,
            setup=setup,
            brief=render(turn, seen, agents_of(setup.edges)),
            tools={tool.name: tool for tool in offered if tool.name in seen.tools},
            moves=MoveTools(turn, seen, labels, setup.edges, output_type, remembers),
            hear=turn.execution.live.hear if live else None,
            begins=seen if is_new else None,
            kept=kept,
            files=files,
            most=max_calls,
            left=max_calls,
            answered=deque(answers(turn.past[seen.past :])),
        )

    for began in await turn.execution.journal.begun():
        going_on = conversation(msgspec.convert(began, PromptContext), is_new=False)
        if turn.execution.knows(model.mode, going_on.prompt):
            turn.execution.journal.mark_reached(began)
            return await going_on.until_a_move()
    # It begins for the first time, or because prompt, model or handoff changed; the brief tells the past.
    turn.execution.ended.probe_ahead()
    context = context_now(turn, offered)
    if kept is not None:
        context = msgspec.structs.replace(context, said=await kept.lines())
    return await conversation(context, is_new=True).until_a_move()


@dataclass(kw_only=True)
class _Conversation:
    """One turn's conversation from its beginning. Recorded replies of earlier rounds cost nothing."""

    turn: Turn
    model: Model
    setup: RoundSetup
    brief: str
    tools: Mapping[str, Tool]
    moves: MoveTools
    hear: Hear | None
    begins: PromptContext | None
    """Recorded with the first reply of a new conversation."""
    files: tuple[PromptFile, ...]
    kept: Transcript | None
    """The conversation before this turn, to which this turn adds."""
    most: int
    """Calls allowed from one move to the next."""
    left: int
    """Calls left of these."""
    answered: deque[RoundOutcome]
    """Outcomes of the moves that this conversation made, in order."""
    transcript: list[Exchange] = field(default_factory=list)
    so_far: list[str] = field(default_factory=list)
    """The model's text before it paused."""
    is_recorded: bool = False
    """True if the newest reply is from an earlier round."""
    asked: list[Utterance] = field(default_factory=list)
    """What this turn asked its client, and the replies."""

    def __post_init__(self) -> None:
        self.pricing = Pricing(self.turn, self.model)

    async def until_a_move(self) -> Move:
        """Return the move. Its steps are stored by then, even if the conversation fails."""
        journal = self.turn.execution.journal
        try:
            move = await self._until_a_move()
            if self.kept is not None:
                move = await self.kept.left_by(move, self.asked)
        except Exception:  # raised again below; not so a cancellation, which may not wait for the bus
            await journal.settled()
            raise
        await journal.settled()
        return move

    async def _until_a_move(self) -> Move:
        while True:
            reply = await self._ask()
            if reply.stop == PAUSED:
                self.so_far.append(reply.text)
                if not self._take():
                    return self._given_up()
                continue  # it continues when it gets its own text back
            move = self._cut_off(reply) if reply.stop == CUT else await self._take_up(reply)
            if move is not None:
                return move
            if self.left < 0:
                return self._given_up()

    @property
    def prompt(self) -> Prompt:
        """The next prompt."""
        specs = (ToolSpec(tool.name, tool.description, tool.schema) for tool in self.tools.values())
        made = Prompt(
            agent=self.turn.agent,
            instructions=self.setup.instructions,
            brief=self.brief,
            tools=(*specs, *self.moves.specs),
            transcript=tuple(self.transcript),
        )
        own = {each.name: getattr(made, each.name) for each in fields(made)}
        return PromptWithFiles(**own, files=self.files) if self.files else made

    async def _ask(self) -> Reply:
        prompt = self.prompt
        if self.answered and not self.turn.execution.knows(self.model.mode, prompt):
            # The code no longer reaches moves that were made. The model is given their outcomes all the same.
            self.transcript += [remark(self._outcome(past)) for past in self.answered]
            self.answered.clear()
            prompt = self.prompt
        reply, is_paid_now = await replied(
            self.turn,
            self.model,
            self.pricing,
            prompt,
            hear=self.hear,
            began=self.begins,
            goes_on=lambda reply: any(call.name in self.tools for call in reply.calls),
            ahead=True,
            is_made=self.setup.is_made,
        )
        self.begins = None
        self.is_recorded = not is_paid_now
        self.transcript.append(reply.in_transcript())
        return reply

    async def _take_up(self, reply: Reply) -> Move | None:
        """Run a reply's calls in order; return the move among them, if there is one."""
        text = "".join((*self.so_far, reply.text)).strip()
        self.so_far.clear()
        if not reply.calls:
            return self._answer(text)
        failed = moved = False
        for together in self._batches(reply.calls):
            first = together[0]
            if first.name in self.moves:
                found = self._read(first) if not failed and not moved else None
                if found is not None and not isinstance(found, ToolResult):
                    if sum(call.name in self.moves for call in reply.calls) > 1:
                        await self.turn.remark(f"of several moves in one reply only {first.name} counts")
                    move = self._made(found, first)
                    if move is not None:
                        return move
                    moved = True
                    continue
                results = [found or error_result(first, _SECOND_MOVE if moved else _TOO_EARLY)]
                moved = True
            else:
                results = []
            if len(together) > self.left:
                self.left = -1
                return None
            self.left -= len(together)
            if not results and (failed or moved) and self._kind(first) == "effect":
                results = [error_result(first, _AFTER_A_MOVE if moved else _TOO_EARLY)]
            results = results or await self._run_all(together)
            self.transcript += results
            failed = failed or any(result.is_error for result in results)
        return None

    def _answer(self, text: str) -> Move | None:
        """Return the answer if a reply without a call is one; otherwise tell the model that it is not."""
        if text and self.moves.words_answer:
            return self._made(self.moves.answered(text))
        if self._take():
            self.transcript.append(remark(_NO_FORM if text else _EMPTY))
        return None

    def _batches(self, calls: Sequence[ToolCall]) -> Iterator[Sequence[ToolCall]]:
        """Yield the calls in order: reading calls together, every other call alone."""
        for kind, group in groupby(calls, key=self._kind):
            together = tuple(group)
            yield from (together,) if kind == "reads" else ((call,) for call in together)

    def _kind(self, call: ToolCall) -> Literal["reads", "effect", "other"]:
        """Return the kind of a call; a move, and a tool that is not offered, is "other"."""
        tool = self.tools.get(call.name)
        if tool is None:
            return "other"
        return "reads" if tool.effect is None else "effect"

    def _made(self, move: Move, call: ToolCall | None = None) -> Move | None:
        """Return a move, unless an earlier round made it: then give the model its outcome."""
        if not (self.is_recorded and self.answered and can_be_of(self.answered[0], move)):
            return move
        past = self.answered.popleft()
        if isinstance(move, Ask) and move.to_agent != HUMAN and past.how in ("replied", "expired"):
            expired = past.how == "expired"
            self.asked += client_exchange(move.question, self.turn.agent, past.reply, expired=expired)
        self.left = self.most
        where = ("", "") if call is None else (call.id, call.name)
        self.transcript.append(
            ToolResult(*where, self._outcome(past), is_error=past.how in ("refused", "expired"))
        )
        return None

    def _outcome(self, past: RoundOutcome) -> str:
        """Return the outcome of a move; of joined tasks, as the following round received it."""
        return outcome_line(past, self.turn.execution.tasks.news.get(past.round + 1))

    def _cut_off(self, reply: Reply) -> Move | None:
        """Tell the model that its reply was too long. None of it is run, because its end is missing."""
        self.so_far.clear()
        if self._take():
            self.transcript += [error_result(call, _CUT_OFF) for call in reply.calls] or [remark(_CUT_OFF)]
        return None

    def _take(self) -> bool:
        """Count one call. Return True if it is still allowed."""
        self.left -= 1
        return self.left >= 0

    def _read(self, call: ToolCall) -> Move | ToolResult:
        if call.unreadable:
            return error_result(call, call.unreadable)
        try:
            return self.moves.read(call)
        except ToolError as wrong:
            return error_result(call, str(wrong))

    async def _run_all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run calls concurrently; return their results in order. Raises the first failed call's error."""
        found = await asyncio.gather(*(self._run(call) for call in calls), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [each for each in found if not isinstance(each, BaseException)]

    async def _run(self, call: ToolCall) -> ToolResult:
        tool, is_post = self.tools.get(call.name), call.name == POST and self.moves.has_board
        if tool is None and not is_post:
            return error_result(call, f"There is no tool {call.name[:_SHOWN_CHARS]!r} here.")
        if call.unreadable:
            return error_result(call, call.unreadable)
        if tool is None:
            return await self._post(call)
        try:
            result = await self.turn.execution.call(tool, call.arguments, for_model=True)
        except ToolError as refused:
            return error_result(call, str(refused))
        return ToolResult(call.id, call.name, as_text(result))

    async def _post(self, call: ToolCall) -> ToolResult:
        """Put facts on the board; the model gets the mistakes in them."""
        try:
            await self.turn.post(self.moves.posted(call))
        except (ToolError, PostUnusable, NotFinite) as wrong:
            return error_result(call, str(wrong))
        return ToolResult(call.id, call.name, "posted")

    def _given_up(self) -> Move:
        reason = f"{self.turn.agent} came to no move within {self.most} calls"
        if self.turn.task_name:
            return self.turn.fail(reason)
        refused = (past.move for past in self.turn.past if past.how == "refused")
        ask_people = self.turn.has_human and not any(isinstance(move, Escalate) for move in refused)
        return self.turn.escalate(reason) if ask_people else self.turn.fail(reason)


async def replied(
    turn: Turn,
    model: Model,
    pricing: Pricing,
    prompt: Prompt,
    *,
    hear: Hear | None = None,
    began: PromptContext | None = None,
    goes_on: Callable[[Reply], bool] = lambda reply: False,
    ahead: bool = False,
    is_made: bool = False,
) -> tuple[Reply, bool]:
    """Return a model's reply, new or recorded, and True if this round pays for it.

    Args:
        goes_on: returns True for a reply after which a tool is called as soon as it is stored.
        ahead: as for `Journal.step`.
        is_made: True if the instructions were made for this round. The journal has them, so they are no fixed
            part of the agent's prompts, which are kept for good.

    Raises ModelGaveUp if it stopped for a reason that no answer of ours can correct.
    """

    async def ask() -> Reply:
        reply = await pricing.reply(await with_bytes(turn, prompt), hear)
        if goes_on(reply):
            turn.execution.ended.probe_ahead()
        return reply

    fixed = {"instructions": prompt.instructions, "tools": prompt.tools, "parameters": model.parameters}
    if is_made:
        del fixed["instructions"]
    brief: Any = [prompt.instructions, prompt.brief] if is_made else prompt.brief
    if isinstance(prompt, PromptWithFiles):
        brief = [brief, prompt.files]
    reply, is_paid_now = await turn.execution.model(
        model.mode,
        prompt,
        ask,
        Reply,
        cost=pricing.cost,
        began=began,
        ahead=ahead,
        parts=(fixed, brief, prompt.transcript),
    )
    pricing.require(reply)  # after it is journaled, so that its tokens are accounted for
    if reply.stop in FATAL:
        raise ModelGaveUp(FATAL[reply.stop])
    if reply.stop not in DONE and reply.stop not in (PAUSED, CUT):
        raise ModelGaveUp(f"the model stopped for an unknown reason: {one_line(reply.stop)[:_SHOWN_CHARS]}")
    return reply, is_paid_now


def remark(text: str) -> ToolResult:
    """Return a remark about a whole reply."""
    return ToolResult("", "", text, is_error=True)


def error_result(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(call.id, call.name, text, is_error=True)
