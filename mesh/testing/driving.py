"""A model of the test's own behind agents that a model drives.

with driven_by(StrictModel(calls(("find", {"what": "x"})), says("found"))):
    move = await librarian(turn(agent="librarian", summary="x"))
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar, overload

from mesh.model.agent import instead
from mesh.model.port import Hear, Model, Prompt, Reply
from mesh.testing.strict_model import StrictModel

M = TypeVar("M", bound=Model)


@overload
def driven_by(model: Mapping[str, M]) -> AbstractContextManager[Mapping[str, M]]: ...


@overload
def driven_by(model: M) -> AbstractContextManager[M]: ...


@contextmanager  # type: ignore[misc]  # the same, whichever of the two it gets
def driven_by(model: Model | Mapping[str, Model]) -> Iterator[Model | Mapping[str, Model]]:
    """Let `model` reply to every `ClaudeAgent` that runs in this block, whatever the environment says.

    What is started outside of the block, a runtime's tasks for instance, does not know of it. A
    `StrictModel` fails at the block's end if a step is left over.

    Args:
        model: one for all, or one for each agent by name; an agent without one fails its turn, and the
            block's end.
    """
    each = tuple(model.values()) if isinstance(model, Mapping) else (model,)
    one: Model = _Cast(model) if isinstance(model, Mapping) else model
    with ExitStack() as stack:
        for strict in each:
            if isinstance(strict, StrictModel):
                stack.enter_context(strict)
        stack.enter_context(instead(lambda *_: one))
        yield model
        if isinstance(one, _Cast):
            one.done()  # before the models' own end: steps left over may come of it


class _Cast:
    """Replies with the model of whoever speaks."""

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
        """Raise AssertionError if an agent had no model, whatever became of that error."""
        assert not self._lacking, self._lacking
