"""One question to a model that is answered by one call: a plan, or an answer in its form.

It has no tools besides. Every mistake goes back to the model as text, as in the loop, and the tries are
counted.
"""

from collections.abc import Callable
from typing import TypeVar

from mesh.agent.errors import Permanent, ToolArgumentsInvalid
from mesh.agent.turn import Turn
from mesh.model.loop import CUT, PAUSED, replied, said_in
from mesh.model.port import Exchange, Model, Prompt, Reply, ToolCall, ToolResult, ToolSpec
from mesh.model.pricing import Pricing

TRIES = 3

T = TypeVar("T")

_CUT_OFF = "Not taken: the reply was cut off at its greatest length. Say less."


class NoAnswer(Permanent, code="model.no_answer"):
    """A model gave no answer that can be used, in as many tries as it has. The text has its last mistake."""


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
    tries: int = TRIES,
) -> T:
    """Return what a model answers by a call of `spec`.

    Args:
        agent: as whom the model speaks.
        read: returns what the call says. Raises ToolArgumentsInvalid for the model to read.
        words: returns what a reply without a call says; None where words are no answer.

    Raises NoAnswer, and as `drive`.
    """
    pricing, transcript, last = Pricing(turn, model), list[Exchange](), ""
    for _ in range(tries):
        prompt = Prompt(agent, instructions, brief, (spec,), tuple(transcript))
        reply, _ = await replied(turn, model, pricing, prompt)
        transcript.append(said_in(reply))
        if reply.stop == PAUSED:
            continue
        try:
            if reply.stop == CUT:
                raise ToolArgumentsInvalid(spec.name, (_CUT_OFF,))
            return _answer(reply, spec.name, read, words)
        except ToolArgumentsInvalid as wrong:
            last = str(wrong)
            calls = [ToolResult(call.id, call.name, last, is_error=True) for call in reply.calls]
            transcript += calls or [ToolResult("", "", last, is_error=True)]
    raise NoAnswer(f"{agent} gave no answer in {tries} tries: {last}")


def _answer(reply: Reply, name: str, read: Callable[[ToolCall], T], words: Callable[[str], T] | None) -> T:
    """Return what a reply answers: its first call of this name counts, else its words."""
    call = next((call for call in reply.calls if call.name == name), None)
    if call is not None:
        if call.unreadable:
            raise ToolArgumentsInvalid(name, (call.unreadable,))
        return read(call)
    said = reply.text.strip()
    if words is None or not said or reply.calls:
        raise ToolArgumentsInvalid(name, (f"the only answer is one call of {name}",))
    return words(said)
