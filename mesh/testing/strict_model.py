"""A model that says exactly what a test wrote down, and fails on a call too many and on a step left over.

with StrictModel(calls(("find", {"what": "x"})), says("found")) as model:
    move = await drive(turn(), model, instructions="", tools=[find])
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from mesh.model.port import Hear, Prompt, Reply, ToolCall

Step = Reply | Callable[[Prompt], Reply]
"""A reply, or what makes one of the prompt (and may assert things about it)."""


class StrictModel:
    """Replies in order. As a context it fails at its end if a step is left over."""

    mode: ClassVar[str] = "strict"

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self._wrong = ""
        """The first mistake: further rounds make further ones."""
        self.prompts: list[Prompt] = []
        """What it was asked, in order."""

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return the next step. Raises AssertionError when there is none, and what a step raises."""
        self.prompts.append(prompt)
        number = len(self.prompts)
        try:
            if not self._steps:
                raise AssertionError(f"a call too many, number {number}, by {prompt.agent}")
            step = self._steps.pop(0)
            return step(prompt) if callable(step) else step
        except AssertionError as wrong:
            self._wrong = self._wrong or str(wrong) or f"an assertion of step {number}, by {prompt.agent}"
            raise

    def done(self) -> None:
        """Raise AssertionError if a step is left over, or one was lacking or wrong.

        Whatever became of that error: in a request's way it is one more turn that failed.
        """
        assert not self._wrong, self._wrong
        assert not self._steps, f"{len(self._steps)} of the model's steps left over: {self._steps}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.done()


def says(text: str) -> Reply:
    """Return a reply without calls: the answer."""
    return Reply(text=text)


def calls(*wanted: tuple[str, Mapping[str, Any]], text: str = "") -> Reply:
    """Return a reply that calls tools, or moves: pairs of a name and arguments."""
    made = (ToolCall(f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(wanted))
    return Reply(text=text, calls=tuple(made))
