"""A model that replies exactly what a test wrote down, and how a test puts it behind an agent.

with driven_by(StrictModel(calls(("find", {"what": "x"})), says("found"))):
    move = await librarian(turn(agent="librarian", summary="x"))
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from mesh.model.choice import replaced_by
from mesh.model.port import Hear, Model, Prompt, Reply, ToolCall
from protocol.wire.commands import Usage

Step = Reply | Callable[[Prompt], Reply]
"""A reply, or a function that makes one from the prompt (and may assert things about it)."""


ONE_CALL = Usage(model_calls=1)


class StrictModel(Model):
    """Replies in order; a surplus call fails. As a context it also fails if a step is left over."""

    mode = "strict"

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self._wrong = ""
        """The first mistake: later rounds only make further ones."""
        self.prompts: list[Prompt] = []
        """The prompts so far, in order."""

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return the next step. Raises AssertionError if there is none, and what a step raises."""
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
        """Raise AssertionError if a step is left over, missing or wrong.

        It raises the error even if a fleet has swallowed it as one more failed turn.
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
    """Return a reply without calls: the answer. It is charged as one model call."""
    return Reply(text=text, usage=ONE_CALL)


def calls(*wanted: tuple[str, Mapping[str, Any]], text: str = "") -> Reply:
    """Return a reply that calls tools or moves: pairs of a name and arguments. It is charged as one call."""
    made = (ToolCall(f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(wanted))
    return Reply(text=text, calls=tuple(made), usage=ONE_CALL)


M = TypeVar("M", bound=Model)


@overload
def driven_by(model: Mapping[str, M]) -> AbstractContextManager[Mapping[str, M]]: ...


@overload
def driven_by(model: M) -> AbstractContextManager[M]: ...


@contextmanager  # type: ignore[misc]  # the same, whichever of the two it gets
def driven_by(model: Model | Mapping[str, Model]) -> Iterator[Model | Mapping[str, Model]]:
    """Let `model` reply to every `ClaudeAgent` that runs in this block, whatever the environment says.

    What was started outside the block, such as a runtime's tasks, is not affected. A `StrictModel` fails at
    the block's end if a step is left over.

    Args:
        model: one for all, or one for each agent by name; an agent without one fails its turn, and the
            block's end.
    """
    each = tuple(model.values()) if isinstance(model, Mapping) else (model,)
    one: Model = _ModelByAgent(model) if isinstance(model, Mapping) else model
    with ExitStack() as stack:
        for strict in each:
            if isinstance(strict, StrictModel):
                stack.enter_context(strict)
        stack.enter_context(replaced_by(lambda *_: one))
        yield model
        if isinstance(one, _ModelByAgent):
            one.done()  # before the models' own end, which may fail only because of this


class _ModelByAgent(Model):
    """Replies with the model of the agent that speaks."""

    mode = "cast"

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = models
        self._lacking = ""

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Raises AssertionError for an agent without a model."""
        if prompt.agent not in self._models:
            lacking = f"no model for {prompt.agent}; there are {', '.join(self._models)}"
            self._lacking = self._lacking or lacking
            raise AssertionError(lacking)
        return await self._models[prompt.agent].reply(prompt, hear)

    def done(self) -> None:
        """Raise AssertionError if an agent had no model, even if that error was swallowed."""
        assert not self._lacking, self._lacking
