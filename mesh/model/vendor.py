"""A model behind its vendor's SDK: retries, time limits and errors. A thread loads the SDK.

The SDK's own retries are off: it would sleep while a lease runs. A failure that another attempt may cure
becomes `Retry` with the server's own pause, and the guard's failure policy does the rest. When a vendor is
asked too fast, that is not a failure: the runtime waits within the round (`Throttled`). The SDKs known here
are made by the same generator: their errors and streams have the same names.
"""

import asyncio
import datetime as dt
import json
import logging
import os
import re
import threading
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, Self

from mesh.agent._rate_limit import HeldBack, Permit, RateLimiter, bounded_pause, limiter_of
from mesh.agent.errors import Permanent, Retry, Throttled
from mesh.agent.values import short
from mesh.model.parts import BrokenOff, Streamed, Unreadable, encodable
from mesh.model.port import Hear, Model, PastReply, Prompt, Reply
from mesh.service.logs import get_logger

_log = get_logger(__name__)

MAX_TOKENS = 16_000
"""Limit of a reply, thinking included."""
TIMEOUT_S = 300.0
_LONGEST_WORDS = 300
"""Characters of a vendor's message that are kept."""
_LAST_S = 1.0
"""How long the end of a stream may take after its message has ended (s)."""
_PASSING = frozenset({408, 409, 429})
_FINAL_TYPES = frozenset(
    {
        "authentication_error",
        "billing_error",
        "insufficient_quota",
        "invalid_request_error",
        "not_found_error",
        "permission_error",
        "request_too_large",
    }
)
"""Errors within a stream, with status 200, that no pause cures. Any other may pass."""
_NO_USE_WAITING = frozenset(
    {"enforced_spend_limit_reached", "contract_spend_limit_reached", "insufficient_quota"}
)
"""Codes of a 429 that no pause cures."""
_TOO_FAST_STATUS = frozenset({429, 529})
_TOO_FAST = frozenset({"rate_limit_error", "rate_limit_exceeded", "overloaded_error"})
_HELLO = Prompt(agent="", instructions="", brief="Hello.")
_REHEARSED: set[type] = set()
"""Vendors whose SDK has read a reply in this process."""
_WARMING = threading.Lock()
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ModelRetry(Retry, code="model.unavailable_now"):
    """The model could not be asked now; it may work later."""


class ModelThrottled(ModelRetry, Throttled, code="model.throttled"):
    """The model is asked too fast, by this process or by all of them together."""


class ModelUnreadable(ModelRetry, code="model.unreadable"):
    """The answer is not a message of the API; the next one may be."""


class ModelRefused(Permanent, code="model.refused"):
    """The vendor refuses the request itself: for credentials, money, or content."""


class Section(NamedTuple):
    """A part of a request, as it is printed."""

    heading: str
    """Whose text follows, such as `system` or `user`; or `settings`, `tools`."""
    parts: tuple[str | Mapping[str, Any], ...]
    """Texts, and values to be printed as JSON."""


class VendorModel(Model):
    """A vendor's model, pinned by its id.

    Args:
        model: the id, as in the vendor's list of models.
        max_tokens: limit of a reply, thinking included.
        fallback: a model that is asked instead, once per reply, when this one is overloaded or failing.
        timeout_s: limit of one attempt.
        more: further arguments of a request, as the API has them.
        base_url, api_key: for a proxy, another server or a test double; by default from the environment.
    """

    is_billed = True
    vendor: ClassVar[str]
    """The vendor's name, as in `--model`."""
    sdk: ClassVar[str]
    """Module of its SDK."""
    extra: ClassVar[str]
    """The extra of this package that installs its SDK."""
    keys: ClassVar[tuple[str, ...]]
    """Variables that hold its keys."""
    opened_by: ClassVar[tuple[str, ...]]
    """Any of these variables lets its models be asked: a key, or the address of a server without one."""
    price_list: ClassVar[str]
    """Its name in `genai-prices`."""
    error_code: ClassVar[str]
    """Attribute of the SDK's errors with the vendor's own code."""
    request_header: ClassVar[str]
    """Header in which the vendor names a request."""

    def __init__(
        self,
        model: str,
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

    @property
    def parameters(self) -> Mapping[str, Any]:
        known = {"model": self.mode, "fallback": self.fallback, "max_tokens": self._max_tokens}
        more = {name: value for name, value in self._more.items() if not name.startswith("extra_")}
        return {**more, **known}  # the others go into headers and addresses, which may hold a key

    @property
    def address(self) -> str:
        client = self.__dict__.get("_client")
        return "" if client is None else str(getattr(client.base_url, "host", ""))

    @classmethod
    def is_installed(cls) -> bool:
        """Return True if its SDK is installed. Imports nothing."""
        return find_spec(cls.sdk) is not None

    @classmethod
    def is_open(cls) -> bool:
        """Return True if the environment lets its models be asked."""
        return any(map(os.environ.get, cls.opened_by))

    @property
    def pin(self) -> str:
        """The id that pins it: the vendor's name and its own."""
        return f"{self.vendor}:{self.mode}"

    # --- what each vendor does in its own way -----------------------------------------------------

    @abstractmethod
    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly the request for `prompt`."""

    @abstractmethod
    def printed(self, request: Mapping[str, Any]) -> Iterator[Section]:
        """Yield a request for people, in the order in which the vendor reads it."""

    @abstractmethod
    def _connected(self, **more: Any) -> Any:
        """Return a new client of the SDK that does not retry."""

    @abstractmethod
    def _stream(self, request: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Ask for a stream."""

    @abstractmethod
    def _streamed(self) -> Streamed:
        """Return what collects the events of one reply."""

    @abstractmethod
    def _rehearsal(self, transport: Any) -> tuple[Any, Iterable[Mapping[str, Any]]]:
        """Return a client on a transport, without spans, and a reply's events of every kind."""

    # --- what all do alike ------------------------------------------------------------------------

    def _sdk(self) -> Any:
        return import_module(self.sdk)

    @property
    def is_warm(self) -> bool:
        return "_client" in self.__dict__

    def warm(self) -> None:
        """Import the SDK, make the client and rehearse a reply: seconds, for a thread. Idempotent."""
        with _WARMING:
            _ = self._client
            if type(self) not in _REHEARSED:
                _REHEARSED.add(type(self))
                asyncio.run(self._rehearse())

    async def _rehearse(self) -> None:
        """Read a made-up reply without a network: only this makes the SDK build its parsers."""
        import anyio
        from httpx2 import AsyncClient, MockTransport, Response

        def reply(_: object) -> Response:
            lines = (f"event: {each.get('type')}\ndata: {json.dumps(each)}\n\n" for each in events)
            return Response(200, headers={"content-type": "text/event-stream"}, text="".join(lines))

        def is_unrelated(record: logging.LogRecord) -> bool:
            return record.thread != threading.get_ident()

        anyio.Event()  # loads what the first connection needs
        requests = logging.getLogger("httpx2")
        requests.addFilter(is_unrelated)  # no request was made, so none is logged
        try:
            rehearsing = copy(self)
            async with AsyncClient(transport=MockTransport(reply)) as nowhere:
                rehearsing.__dict__["_client"], events = self._rehearsal(nowhere)
                async with rehearsing._stream(self.request(_HELLO)) as stream:
                    while await self._next(stream) is not None:
                        pass
        except Exception as error:  # any error: the first reply meets it again, and reports it
            _log.debug("model_not_rehearsed", model=self.mode, error=type(error).__name__)
        finally:
            requests.removeFilter(is_unrelated)

    @cached_property
    def _client(self) -> Any:
        """One per process, which keeps its connections."""
        return self._connected()

    async def close(self) -> None:
        """Close the connections. Idempotent; the end of the process does it too."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            await client.close()

    async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
        """Return one reply; `hear` gets None when the fallback starts over.

        Raises ModelRetry if another attempt may help, ModelRefused if none can.
        """
        if not self.is_warm:  # in the loop it would delay the heartbeats of all turns
            await asyncio.to_thread(self.warm)
        if self.fallback is None:
            return await self._ask(self.mode, prompt, hear)
        try:
            return await self._ask(self.mode, prompt, hear)
        except ModelRetry as first:
            if hear is not None:
                hear(None)  # the text before the failure is not part of the reply
            try:
                return await self._ask(self.fallback, prompt, hear)
            except (ModelRetry, ModelRefused) as second:
                raise _both(first, second) from second

    def alone(self) -> Self:
        """Return this model on the same connections. It asks no fallback, but knows its replies."""
        _ = self._client
        alone = copy(self)
        alone.fallback = None
        return alone

    def asked_of(self, replied: str) -> str:
        asked = (model for model in self._pinned if replied.startswith(model))
        return max(asked, key=len, default=self.mode)  # an id may begin with the other id

    async def _ask(self, model: str, prompt: Prompt, hear: Hear | None) -> Reply:
        limiter = limiter_of(model)
        try:
            async with limiter.room(self._timeout_s) as permit:
                reply = await self._asked(model, prompt, hear, limiter, permit)
                limiter.answered(permit)
                return reply
        except HeldBack as held:
            raise ModelThrottled(str(held), after_s=held.after_s) from held

    async def _asked(
        self, model: str, prompt: Prompt, hear: Hear | None, limiter: RateLimiter, permit: Permit
    ) -> Reply:
        """Ask once, and report a refusal to the limiter."""
        from httpx2 import HTTPError

        sdk = self._sdk()
        streamed, request_id, has_streamed = self._streamed(), "", False
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._stream(self.request(prompt, model)) as stream,
            ):
                request_id = _request(stream.response.headers.get(self.request_header))
                async for text in self._pieces(stream, streamed):
                    if text and hear is not None:
                        has_streamed = True
                        hear(encodable(text))
            reply = streamed.reply(asked=model, taken=_ids(prompt))
        except (sdk.APITimeoutError, TimeoutError) as error:
            raise ModelRetry(f"{model} did not answer within {self._timeout_s:g} s") from error
        except sdk.APIConnectionError as error:
            raise ModelRetry(f"{model} cannot be reached: {type(error).__name__}") from error
        except sdk.APIError as error:  # within a stream, too
            failure = self._failure(model, error, request_id)
            if isinstance(failure, ModelRetry) and self._is_too_fast(error):
                if hear is not None and has_streamed:
                    hear(None)  # text before the refusal is not part of the reply
                pause_s = limiter.refused(permit, failure.after_s)
                failure = ModelThrottled(str(failure), after_s=pause_s)
            raise failure from error
        except HTTPError as error:  # the SDK does not wrap the error of a broken stream
            raise ModelRetry(f"{model} broke off: {type(error).__name__}{request_id}") from error
        except BrokenOff as error:
            raise ModelRetry(f"{model} broke off: {error}{request_id}") from error
        except Unreadable as error:
            _log.warning("reply_unreadable", model=model, why=str(error))
            raise ModelUnreadable(f"{model} answered what cannot be read: {error}{request_id}") from error
        return reply if self.asked_of(reply.model) == model else replace(reply, asked=model)

    async def _pieces(self, stream: Any, streamed: Streamed) -> AsyncIterator[str]:
        """Yield a reply's pieces of text. A buffering proxy may send all of it as JSON."""
        if stream.response.headers.get("content-type", "").startswith("application/json"):
            yield streamed.whole(await stream.response.aread())
            return
        while not streamed.ended and (event := await self._next(stream)) is not None:
            yield streamed.take(event)
        await self._drained(stream)

    async def _next(self, stream: Any) -> Mapping[str, Any] | None:
        """Return a stream's next event as JSON; None at its end. Raises Unreadable.

        The SDK breaks in many ways on unreadable bytes. None of our own code runs within this `try`.
        """
        from httpx2 import TransportError

        try:
            event: Mapping[str, Any] = (await anext(stream)).to_dict(warnings=False)
        except StopAsyncIteration:
            return None
        except (self._sdk().APIError, TransportError):
            raise
        except Exception as error:
            raise Unreadable(f"the SDK cannot read it: {type(error).__name__}") from error
        return event

    async def _drained(self, stream: Any) -> None:
        """Read a stream to its end after its message, so that the connection can be reused.

        The reply is complete: a failure here costs only the connection.
        """
        try:
            async with asyncio.timeout(_LAST_S):
                while await self._next(stream) is not None:
                    pass
        except Exception as error:
            _log.debug("connection_lost_behind_a_reply", error=type(error).__name__)

    # --- what a failure means ---------------------------------------------------------------------

    def _is_too_fast(self, error: Any) -> bool:
        words = {_word(getattr(error, "type", None)), _word(getattr(error, self.error_code, None))}
        return getattr(error, "status_code", 200) in _TOO_FAST_STATUS or not _TOO_FAST.isdisjoint(words)

    def _failure(self, model: str, error: Any, request_id: str) -> "ModelRetry | ModelRefused":
        """Return what an API error means for the turn, with the vendor's own message."""
        kind, code = _word(getattr(error, "type", None)), _word(getattr(error, self.error_code, None))
        response = getattr(error, "response", None)
        status = 200 if response is None else error.status_code
        named = request_id if response is None else _request(error.request_id)
        why = self._words(error)
        text = f"status {status}{kind and f' {kind}'}{code and f' ({code})'}{why and f': {why}'}{named}"
        if response is None and not kind and not code and not why:
            text = f"{model} broke off: {type(error).__name__}{named}"
        may_pass = kind not in _FINAL_TYPES if status == 200 else status in _PASSING or status >= 500
        if may_pass and code not in _NO_USE_WAITING:
            return ModelRetry(text, after_s=None if response is None else pause_s(response.headers))
        return ModelRefused(text)

    def _words(self, error: Any) -> str:
        """Return the vendor's message of an error, without our keys; empty if it has none."""
        body = getattr(error, "body", None)
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        words = inner.get("message") if isinstance(inner, Mapping) else inner
        if not isinstance(words, str):
            return ""
        for key in filter(None, (self._api_key, *map(os.environ.get, self.keys))):
            words = words.replace(key, "[key]")
        return short(encodable(words), _LONGEST_WORDS)


def _ids(prompt: Prompt) -> frozenset[str]:
    """Return the ids of all calls so far."""
    return frozenset(
        call.id for each in prompt.transcript if isinstance(each, PastReply) for call in each.calls
    )


def _both(first: ModelRetry, second: ModelRetry | ModelRefused) -> ModelRetry:
    """Return the error of a model whose fallback also failed: the first error, with the shorter pause.

    If one of the models is only asked too fast, the other's failure does not matter.
    """
    found = [each for each in (first, second) if isinstance(each, ModelRetry)]
    throttled = [each for each in found if isinstance(each, ModelThrottled)]
    pauses = (each.after_s for each in throttled or found)
    after_s = min((pause for pause in pauses if pause is not None), default=None)
    kind = ModelThrottled if throttled else type(first)
    return kind(f"{first}; its fallback: {second}", after_s=after_s)


def _request(found: object) -> str:
    """Return the end of a message that names the vendor's id of a request, if there is one."""
    word = _word(found)
    return f", request {word}" if word else ""


def _word(found: object) -> str:
    """Return a name that the vendor gave; empty if it is not fit to print."""
    return found if isinstance(found, str) and _WORD.fullmatch(found) else ""


def pause_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks us to wait; None without a readable number."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            asked_s = bounded_pause(float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
        if asked_s is not None:
            return asked_s
    until = _moment(headers.get("retry-after"))
    return None if until is None else bounded_pause(until - (_moment(headers.get("date")) or time.time()))


def _moment(header: str | None) -> float | None:
    """Return an HTTP date as UTC seconds; None if it is not a date."""
    try:
        return None if header is None else parsedate_to_datetime(header).replace(tzinfo=dt.UTC).timestamp()
    except (ValueError, OverflowError):
        return None
