"""Claude behind the port, through the vendor's own SDK, which is imported when the first reply is asked for.

The SDK's own retries are off: it would sleep for whatever a server says while a lease runs. What another
attempt may cure becomes `Retry` with the server's own pause, and the guard's failure policy does the rest.
"""

import asyncio
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from mesh.agent.failures import Permanent, Retry
from mesh.model.claude_wire import reply_of, request_of
from mesh.model.port import Hear, Prompt, Reply
from mesh.pace import HeldBack, pace_of
from mesh.telemetry import tracing

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic

ROUTING = "claude-haiku-5-5"
"""Cheap and quick: for agents that find out whom work is for."""
WORK = "claude-sonnet-5-5"
HARD = "claude-opus-5-5"
MAX_TOKENS = 16_000
"""Of a reply, thinking included. The SDK refuses more than about 21,000 without a stream."""
TIMEOUT_S = 300.0
_PASSING = frozenset({408, 409, 429})
_PASSING_TYPES = frozenset({"api_error", "overloaded_error", "rate_limit_error", "timeout_error"})
"""What an error is called that comes in the middle of a stream, whose status was 200."""
_NO_USE_WAITING = frozenset({"enforced_spend_limit_reached", "contract_spend_limit_reached"})
"""Codes of a 429 that no pause cures."""


class ModelRetry(Retry):
    """The model could not be asked now; later it may."""

    code: ClassVar[str] = "model.unavailable_now"


class ModelRefused(Permanent):
    """The model's vendor refuses the request itself: credentials, money, or what was asked."""

    code: ClassVar[str] = "model.refused"


class ClaudeModel:
    """A `Model` behind which one of the vendor's models stands, pinned by its id.

    Args:
        model: the id, as in the vendor's list of models.
        max_tokens: of a reply, thinking included.
        fallback: a model that is asked instead when this one is overloaded or failing; once a reply.
        timeout_s: of one attempt.
        more: further arguments of `messages.create`, as the API has them: `thinking`, `output_config`.
        base_url, api_key: for a proxy or a stand-in; by default what the SDK finds in the environment.
    """

    makes_spans = True
    """The SDK makes a span for each call, without content, where the process has a tracer."""

    def __init__(
        self,
        model: str = WORK,
        *,
        max_tokens: int = MAX_TOKENS,
        fallback: str | None = None,
        timeout_s: float = TIMEOUT_S,
        more: Mapping[str, Any] | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._fallback = fallback
        self._timeout_s = timeout_s
        self._more = dict(more or {})
        self._base_url = base_url
        self._api_key = api_key

    @property
    def mode(self) -> str:
        return self._model

    @cached_property
    def _client(self) -> "AsyncAnthropic":
        """One for the process: it keeps its connections."""
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(
            api_key=self._api_key or os.environ.get("ANTHROPIC_API_KEY"),
            base_url=self._base_url,
            timeout=self._timeout_s,
            max_retries=0,
        )

    def _on_record(self) -> "AsyncAnthropic":
        """Return the client; where its spans are kept, one that names the request in them."""
        request = tracing.conversation.get()
        if not request or not tracing.traced():
            return self._client
        known = self._client.open_telemetry
        return self._client.with_options(open_telemetry={**known, "conversation_id": request})

    async def close(self) -> None:
        """Let go of the connections. Idempotent; the process's end does it too."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            await client.close()

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return one reply. Raises ModelRetry when another attempt may help, ModelRefused when none can.

        Args:
            hear: told each piece of text as it comes; None when the fallback begins anew.
        """
        try:
            return await self._ask(self._model, prompt, hear)
        except ModelRetry:
            if self._fallback is None:
                raise
        if hear is not None:
            hear(None)  # what the first one said before it broke off is not part of the reply
        return await self._ask(self._fallback, prompt, hear)

    def asked_of(self, replied: str) -> str:
        """Return which of this model and its fallback was asked, from the id that a reply came with."""
        fallback = self._fallback
        other = fallback is not None and replied.startswith(fallback) and not replied.startswith(self._model)
        return fallback if fallback is not None and other else self._model

    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly what is sent for `prompt`."""
        return request_of(prompt, model=model or self._model, max_tokens=self._max_tokens, more=self._more)

    async def _ask(self, model: str, prompt: Prompt, hear: Hear | None) -> Reply:
        from anthropic import APIConnectionError, APIError, APIStatusError, APITimeoutError
        from httpx2 import TransportError

        pace = pace_of(model)
        try:
            async with (
                pace.room(self._timeout_s),
                asyncio.timeout(self._timeout_s),
                self._on_record().messages.stream(**self.request(prompt, model)) as stream,
            ):
                async for text in stream.text_stream:
                    if hear is not None:
                        hear(text)
                message = await stream.get_final_message()
        except HeldBack as held:
            raise ModelRetry(str(held), after_s=held.after_s) from held
        except APIStatusError as error:
            failure = _failure(error)
            if isinstance(failure, ModelRetry) and _is_too_fast(error):
                pace.hold(failure.after_s)
            raise failure from error
        except (APITimeoutError, TimeoutError) as error:
            raise ModelRetry(f"{model} did not answer within {self._timeout_s:g} s") from error
        except APIConnectionError as error:
            raise ModelRetry(f"{model} cannot be reached: {type(error).__name__}") from error
        except (APIError, TransportError) as error:  # a stream that breaks comes through the SDK as it is
            raise ModelRetry(f"{model} broke off: {type(error).__name__}") from error
        pace.answered()
        return reply_of(message.to_dict())


def _failure(error: "APIStatusError") -> ModelRetry | ModelRefused:
    """Return what a status means for the turn, in a sentence without anything that was sent."""
    said = f"status {error.status_code}"
    if error.type is not None:
        said += f" {error.type}"
    if error.error_code is not None:
        said += f" ({error.error_code})"
    said += f", request {error.request_id}" if error.request_id else ""
    begun = error.status_code < 400
    passing = error.type in _PASSING_TYPES if begun else _may_pass(error.status_code)
    if passing and error.error_code not in _NO_USE_WAITING:
        return ModelRetry(said, after_s=_pause_s(error.response.headers))
    return ModelRefused(said)


def _is_too_fast(error: "APIStatusError") -> bool:
    """Say whether a request came to nothing because there were too many."""
    return error.status_code == 429 or error.type == "rate_limit_error"


def _may_pass(status: int) -> bool:
    return status in _PASSING or status >= 500


def _pause_s(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds a server asks us to wait; None where it says nothing that can be read."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue  # a date is not worth reading: the guard has a pause of its own
    return None
