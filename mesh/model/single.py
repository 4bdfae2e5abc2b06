"""One question to a model and its answer, without tools and moves."""

from collections.abc import Callable
from typing import TypeVar

from mesh.agent.errors import Permanent, ToolArgumentsInvalid
from mesh.agent.turn import Turn
from mesh.model.loop import CUT, PAUSED, error_result, remark, replied
from mesh.model.port import Exchange, Model, Prompt, Reply, ToolCall, ToolSpec
from mesh.model.pricing import Pricing

T = TypeVar("T")

_ANSWER_CUT = "Not taken: the reply was cut off at its greatest length. Say less."


class NoAnswer(Permanent, code="model.no_answer"):
    """A model gave no usable answer within its number of tries. The text has its last mistake."""


async def ask(
    turn: Turn,
    model: Model,
    *,
    agent: str,
    instructions: str,
    brief: str,
    spec: ToolSpec,
    read: Callable[[ToolCall], T],
    words: Callable[[str], T] | None = None,
    tries: int,
) -> T:
    """Return a model's answer, given by a call of `spec`, its only tool: a plan, or an answer in its form.

    Every mistake goes back to the model as text, as in the loop.

    Args:
        agent: as whom the model speaks.
        read: returns the value of the call. Raises ToolArgumentsInvalid, whose text the model reads.
        words: returns the value of a reply without a call; None if that is not an answer.

    Raises NoAnswer, and the errors of `drive`.
    """
    pricing, transcript, last = Pricing(turn, model), list[Exchange](), ""
    for _ in range(tries):
        prompt = Prompt(agent, instructions, brief, (spec,), tuple(transcript))
        reply, _ = await replied(turn, model, pricing, prompt)
        transcript.append(reply.in_transcript())
        if reply.stop == PAUSED:
            continue
        try:
            if reply.stop == CUT:
                raise ToolArgumentsInvalid(spec.name, (_ANSWER_CUT,))
            return _answer(reply, spec.name, read, words)
        except ToolArgumentsInvalid as wrong:
            last = str(wrong)
            transcript += [error_result(call, last) for call in reply.calls] or [remark(last)]
    raise NoAnswer(f"{agent} gave no answer in {tries} tries: {last}")


def _answer(reply: Reply, name: str, read: Callable[[ToolCall], T], words: Callable[[str], T] | None) -> T:
    """Return a reply's answer: the first call of this name, or else its text."""
    call = next((call for call in reply.calls if call.name == name), None)
    if call is not None:
        if call.unreadable:
            raise ToolArgumentsInvalid(name, (call.unreadable,))
        return read(call)
    text = reply.text.strip()
    if words is None or not text or reply.calls:
        raise ToolArgumentsInvalid(name, (f"the only answer is one call of {name}",))
    return words(text)
