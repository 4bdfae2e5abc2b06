"""A model of another SDK behind our port: one call of it, for the journal, the budget and the prices."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from mesh.agent._rate_limit import HeldBack, limiter_of
from mesh.agent.errors import TurnError
from mesh.agent.values import short
from mesh.model.parts import encodable
from mesh.model.port import Hear, Model, Prompt, Reply
from mesh.model.vendor import TIMEOUT_S, ModelRefused, ModelRetry, ModelThrottled, pause_s

TOO_FAST = frozenset({429, 529})
PASSING = frozenset({408, 409})
UNANSWERED = frozenset({"APIConnectionError", "APITimeoutError", "ModelTimeoutError", "TransportError"})
"""Types of errors that say that no answer came."""

_OF_KEYS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")
"""Headers by which vendors' SDKs send a key."""
_SHORTEST_KEY = 6
"""Your own server may take a key such as `none`, which is no secret."""

Ask = Callable[[Hear | None], Awaitable[Reply]]
"""Asks the model once. It passes on text as it comes, if the SDK streams."""


class Heard:
    """Passes on what a model says, and notes that it said anything: from then on its call is paid."""

    def __init__(self, hear: Hear) -> None:
        self._hear, self.anything = hear, False

    def __call__(self, text: str | None) -> None:
        self.anything = True
        self._hear(text)


class ForeignModel(Model):
    """A model that its SDK asks.

    Args:
        mode: the model's id.
        provider, address: its vendor, and the host where it is asked; empty if unknown.
        ask: asks it once.
        failure: returns what an error of the SDK means for the turn; None for any other error.
    """

    is_billed = True

    def __init__(
        self,
        mode: str,
        ask: Ask,
        failure: Callable[[Exception], TurnError | None],
        *,
        provider: str = "",
        address: str = "",
    ) -> None:
        self.mode, self.provider, self._address = mode, provider, address
        self._ask, self._failure = ask, failure

    @property
    def address(self) -> str:
        return self._address

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Ask, within this process's limits. Raises as the port says, and errors of the SDK's own code."""
        limiter, heard = limiter_of(self.mode), False

        def on_text(text: str | None) -> None:
            nonlocal heard
            heard = heard or bool(text)
            if hear is not None:
                hear(None if text is None else encodable(text))

        try:
            async with limiter.room(TIMEOUT_S) as permit:
                try:
                    reply = await self._ask(None if hear is None else on_text)
                except Exception as error:
                    failure = self._failure(error)
                    if heard and hear is not None:
                        hear(None)  # it is no part of a reply
                    if failure is None:
                        raise
                    if isinstance(failure, ModelThrottled):
                        failure.after_s = limiter.refused(permit, failure.after_s)
                    raise failure from error
                limiter.answered(permit)
                return reply
        except HeldBack as held:
            raise ModelThrottled(str(held), after_s=held.after_s) from held


def failure_of_status(status: int, text: str, after_s: float | None = None) -> TurnError:
    """Return what a vendor's HTTP status means for the turn.

    Args:
        text: what the vendor said, without secrets.
        after_s: the pause that it asked for.
    """
    if status in TOO_FAST:
        return ModelThrottled(text, after_s=after_s)
    if status in PASSING or status >= 500:
        return ModelRetry(text, after_s=after_s)
    return ModelRefused(text)


def failure_of(error: Exception) -> TurnError | None:
    """Return what an error of a vendor's SDK means for the turn; None for an error of something else.

    The SDKs of all vendors are generated alike: an error has a `status_code`, or says by its type that no
    answer came.
    """
    if isinstance(error, TurnError):
        return error
    text, status = words_of(error), getattr(error, "status_code", None)
    if isinstance(status, int):
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return failure_of_status(status, text, pause_s(headers))
    return ModelRetry(text) if UNANSWERED & {kind.__name__ for kind in type(error).__mro__} else None


def words_of(error: Exception) -> str:
    """Return what an error says, without the key that the request had: a server may repeat it in its no."""
    words = str(error)
    for key in _keys_in(error):
        words = words.replace(key, "[key]")
    return short(words)


def _keys_in(error: BaseException) -> Iterator[str]:
    """Yield the keys of the requests that led to an error."""
    inner: BaseException | None = error
    while inner is not None:
        response = getattr(inner, "response", None)
        sent = getattr(getattr(response, "request", None) or vars(inner).get("request"), "headers", None)
        headers: Mapping[str, Any] = sent if isinstance(sent, Mapping) else {}
        for name in _OF_KEYS:
            key = str(headers.get(name, "")).rpartition(" ")[2]
            if len(key) >= _SHORTEST_KEY:
                yield key
        inner = inner.__cause__


def json_kind(value: Any) -> str:
    """Stand in for a value that has no JSON form, the same in every process."""
    return f"<{type(value).__qualname__}>"
