"""Claude behind the port, through the vendor's own SDK, which is imported for the first reply.

The SDK's own retries are off: it would sleep while a lease runs. A failure that another attempt may cure
becomes `Retry` with the server's own pause, and the guard's failure policy does the rest.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from mesh.agent.errors import Permanent, Retry
from mesh.bus.rate_limit import LONGEST_HOLD_S, HeldBack, limiter_of, sound_pause
from mesh.model.anthropic.messages import BrokenOff, Streamed, Unreadable, encodable, reply_of, request_of
from mesh.model.port import Hear, Model, Prompt, Reply, Said
from mesh.service import tracing
from mesh.service.logs import get_logger

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic, AsyncMessageStream, AsyncStream
    from anthropic.types import RawMessageStreamEvent

    _AnyStream = AsyncStream[RawMessageStreamEvent] | AsyncMessageStream[None]

_log = get_logger(__name__)

ROUTING = "claude-haiku-5-5"
"""Cheap and quick: for agents that route."""
WORK = "claude-sonnet-5-5"
HARD = "claude-opus-5-5"
MAX_TOKENS = 16_000
"""Of a reply, thinking included. The SDK refuses more than about 21,000 without a stream."""
TIMEOUT_S = 300.0
_LAST_S = 1.0
"""How long the end of a stream may take after its message has ended."""
_PASSING = frozenset({408, 409, 429})
_FINAL_TYPES = frozenset(
    {
        "authentication_error",
        "billing_error",
        "invalid_request_error",
        "not_found_error",
        "permission_error",
        "request_too_large",
    }
)
"""Errors within a stream, whose status was 200, that no pause cures. Any other may pass."""
_NO_USE_WAITING = frozenset({"enforced_spend_limit_reached", "contract_spend_limit_reached"})
"""Codes of a 429 that no pause cures."""


_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ModelRetry(Retry):
    """The model could not be asked now; later it may."""

    code: ClassVar[str] = "model.unavailable_now"


class ModelUnreadable(ModelRetry):
    """The answer is no message of the API; the next one may be."""

    code: ClassVar[str] = "model.unreadable"


class ModelRefused(Permanent):
    """The model's vendor refuses the request itself: credentials, money, or what was asked."""

    code: ClassVar[str] = "model.refused"


class ClaudeModel(Model):
    """One of the vendor's models, pinned by its id.

    Args:
        model: the id, as in the vendor's list of models.
        max_tokens: of a reply, thinking included.
        fallback: a model that is asked instead, once a reply, when this one is overloaded or failing.
        timeout_s: of one attempt.
        more: further arguments of `messages.create`, as the API has them: `thinking`, `output_config`.
        base_url, api_key: for a proxy or a double; by default the SDK reads the environment.
    """

    is_billed = True
    makes_spans = True

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
        self.mode = model
        self.fallback = fallback
        self._pinned = (model,) if fallback is None else (model, fallback)
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._more = dict(more or {})
        self._base_url = base_url
        self._api_key = api_key

    def warm(self) -> None:
        """Import the SDK and make the client, which takes over a second; threads may call it."""
        _ = self._client

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
        """Close the connections. Idempotent; the end of the process does it too."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            await client.close()

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return one reply; `hear` gets None when the fallback begins anew.

        Raises ModelRetry when another attempt may help, ModelRefused when none can.
        """
        if self.fallback is None:
            return await self._ask(self.mode, prompt, hear)
        try:
            return await self._ask(self.mode, prompt, hear, longest_hold_s=0.0)
        except ModelRetry as first:
            if hear is not None:
                hear(None)  # the text before the failure is not part of the reply
            try:
                return await self._ask(self.fallback, prompt, hear)
            except (ModelRetry, ModelRefused) as second:
                raise _both(first, second) from second

    def alone(self) -> "ClaudeModel":
        """Return this model on the same connections. It does not ask its fallback, but knows its replies."""
        _ = self._client
        alone = copy(self)
        alone.fallback = None
        return alone

    def asked_of(self, replied: str) -> str:
        asked = (model for model in self._pinned if replied.startswith(model))
        return max(asked, key=len, default=self.mode)  # an id may begin with the other's

    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly the request for `prompt`."""
        asked = model or self.mode
        return request_of(
            prompt,
            model=asked,
            max_tokens=self._max_tokens,
            more=self._more,
            own=lambda said: self.asked_of(said.model) == asked,
        )

    async def _ask(
        self, model: str, prompt: Prompt, hear: Hear | None, *, longest_hold_s: float = LONGEST_HOLD_S
    ) -> Reply:
        from anthropic import APIConnectionError, APIError, APIStatusError, APITimeoutError
        from httpx2 import HTTPError

        limiter = limiter_of(model)
        streamed, request_id = Streamed(), ""
        try:
            async with (
                limiter.room(self._timeout_s, longest_hold_s),
                asyncio.timeout(self._timeout_s),
                _stream(self._on_record(), self.request(prompt, model)) as stream,
            ):
                request_id = _request(stream.response.headers.get("request-id"))
                while not streamed.ended and (event := await _next(stream)) is not None:
                    text = streamed.take(event)
                    if text and hear is not None:
                        hear(encodable(text))
                await _drained(stream)
            reply = reply_of(streamed.message(), asked=model, taken=_ids(prompt))
        except HeldBack as held:
            raise ModelRetry(str(held), after_s=held.after_s) from held
        except APIStatusError as error:
            failure = _failure(error)
            is_too_fast = error.status_code == 429 or error.type == "rate_limit_error"
            if isinstance(failure, ModelRetry) and is_too_fast:
                limiter.hold(failure.after_s)
            raise failure from error
        except (APITimeoutError, TimeoutError) as error:
            raise ModelRetry(f"{model} did not answer within {self._timeout_s:g} s") from error
        except APIConnectionError as error:
            raise ModelRetry(f"{model} cannot be reached: {type(error).__name__}") from error
        except (APIError, HTTPError) as error:  # a stream that breaks comes through the SDK as it is
            raise ModelRetry(f"{model} broke off: {type(error).__name__}{request_id}") from error
        except BrokenOff as error:
            raise ModelRetry(f"{model} broke off: {error}{request_id}") from error
        except Unreadable as error:
            _log.warning("reply_unreadable", model=model, why=str(error))
            raise ModelUnreadable(f"{model} answered what cannot be read: {error}{request_id}") from error
        limiter.answered()
        return reply if self.asked_of(reply.model) == model else replace(reply, asked=model)


@asynccontextmanager
async def _stream(client: "AsyncAnthropic", request: Mapping[str, Any]) -> "AsyncIterator[_AnyStream]":
    """Ask for a stream, and yield it.

    The SDK's own helper breaks on a call whose arguments are no JSON. But it alone gives a span the content.
    So it is used only where spans have content, which is for looking closely.
    """
    if client.open_telemetry.get("traces", {}).get("content_mode") == "content":
        async with client.messages.stream(**request) as helped:
            yield helped
    else:
        async with await client.messages.create(**request, stream=True) as plain:
            yield plain


async def _next(stream: "_AnyStream") -> Mapping[str, Any] | None:
    """Return a stream's next event as JSON has it; None at its end. Raises Unreadable.

    The SDK breaks in many ways on unreadable bytes. Nothing of our own runs within this `try`.
    """
    from anthropic import APIError
    from httpx2 import TransportError

    try:
        return (await anext(stream)).to_dict(warnings=False)
    except StopAsyncIteration:
        return None
    except (APIError, TransportError):
        raise
    except Exception as error:
        raise Unreadable(f"the SDK cannot read it: {type(error).__name__}") from error


async def _drained(stream: "_AnyStream") -> None:
    """Read a stream to its end after its message, so that the connection can be used again.

    The reply is there: a failure here costs the connection and no more.
    """
    try:
        async with asyncio.timeout(_LAST_S):
            while await _next(stream) is not None:
                pass
    except Exception as error:
        _log.debug("connection_lost_behind_a_reply", error=type(error).__name__)


def _ids(prompt: Prompt) -> frozenset[str]:
    """Return the ids of all calls so far."""
    return frozenset(call.id for each in prompt.transcript if isinstance(each, Said) for call in each.calls)


def _both(first: ModelRetry, second: ModelRetry | ModelRefused) -> ModelRetry:
    """Return the error of a model whose fallback failed, too: the first one, with the shorter pause."""
    pauses = [first.after_s, second.after_s if isinstance(second, ModelRetry) else None]
    after_s = min((pause for pause in pauses if pause is not None), default=None)
    return type(first)(f"{first}; its fallback: {second}", after_s=after_s)


def _failure(error: "APIStatusError") -> ModelRetry | ModelRefused:
    """Return what a status means for the turn, in words that repeat nothing of the request."""
    kind, code = _word(error.type), _word(error.error_code)
    status = error.status_code
    said = f"status {status}{kind and f' {kind}'}{code and f' ({code})'}{_request(error.request_id)}"
    may_pass = kind not in _FINAL_TYPES if status == 200 else status in _PASSING or status >= 500
    if may_pass and code not in _NO_USE_WAITING:
        return ModelRetry(said, after_s=_pause_s(error.response.headers))
    return ModelRefused(said)


def _request(found: object) -> str:
    """Return the end of a message that names the vendor's id of a request, if there is one."""
    word = _word(found)
    return f", request {word}" if word else ""


def _word(found: object) -> str:
    """Return a name that the vendor gave; empty if it is not fit to print."""
    return found if isinstance(found, str) and _WORD.fullmatch(found) else ""


def _pause_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks us to wait; None without a readable number."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            asked_s = sound_pause(float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue  # a date is not worth reading: the guard has a pause of its own
        if asked_s is not None:
            return asked_s
    return None
