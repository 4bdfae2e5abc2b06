"""What the stand-ins of all vendors share: a server on loopback, for a vendor's own SDK without a key.

    async with StubClaude([says("Hello"), fails(529)]) as claude:
        client = AsyncAnthropic(base_url=claude.url, api_key="stub")

It speaks HTTP: JSON replies and server-sent events, tool calls, thinking, errors with their headers, slow
answers, streams that break off, and bodies that are no answer at all. What it replies is a script, used up
one reply a request, or a function of the request. A request beyond the script's end is answered with status
500 and kept in `unexpected`. What the vendor would refuse is refused, with status 400 and the reason, which
is kept in `refused`. A vendor's own file says how it words all that.
"""

import asyncio
import contextlib
import inspect
import itertools
import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from mesh.local.server import Lifecycle

Block = Mapping[str, Any]
"""A content block as the API has it: `text`, `tool_use`, `thinking`."""

_PIECE, _PIECES = 12, 500
"""Fewest characters of text or JSON in one event of a stream, and the most events of one block."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the stub answers to one request."""

    content: tuple[Block, ...] = ()
    stop_reason: str | None = "end_turn"
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Over the default counts."""
    model: str | None = None
    """Whom the reply claims to be from; by default, whom the request asked."""
    status: int = 200
    error_code: str | None = None
    """Of an error: `error.details.error_code`, as in `enforced_spend_limit_reached`."""
    error_message: str = ""
    """Of an error: its words; by default, that the stub was told to answer so."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Before anything is answered."""
    whole: bool = False
    """True for a message as JSON where a stream was asked for, as a proxy that buffers answers."""
    pause_s: float = 0.0
    """Between two events of a stream."""
    cut_after: int | None = None
    """How many events of a stream are sent before the connection breaks; 0 breaks it without an answer."""
    broken_by: int | None = None
    """With `cut_after`: the stream does not break, it ends with the error of this status."""
    cut_cleanly: bool = False
    """With `cut_after`: the stream does not break, it ends as if that had been all of it."""
    body: bytes | None = None
    """What is answered instead of a message, as it is: to a stream as events, else as JSON."""
    content_type: str | None = None
    """What the answer says it is; by default, what it would be."""
    stop_details: Mapping[str, Any] | None = None


def says(text: str, **more: Any) -> Answer:
    """Return a reply that is text."""
    return Answer(content=({"type": "text", "text": text},), **more)


_ids = itertools.count(1)


def calls(*wanted: tuple[str, Mapping[str, Any]], text: str = "", **more: Any) -> Answer:
    """Return a reply that calls tools: pairs of a name and arguments."""
    spoken: tuple[Block, ...] = ({"type": "text", "text": text},) if text else ()
    asked = tuple(
        {"type": "tool_use", "id": f"toolu_{next(_ids)}", "name": name, "input": dict(arguments)}
        for name, arguments in wanted
    )
    return Answer(content=(*spoken, *asked), stop_reason="tool_use", **more)


def writes(name: str, written: str, **more: Any) -> Answer:
    """Return a reply that calls a tool with arguments `written` so, which may be no JSON."""
    block = {"type": "tool_use", "id": f"toolu_{next(_ids)}", "name": name, "input": written}
    return Answer(content=(block,), stop_reason="tool_use", **more)


def thinks(thought: str, then: Answer) -> Answer:
    """Return `then` with a thinking block before it; the stub signs it."""
    return replace(then, content=({"type": "thinking", "thinking": thought, "signature": "x"}, *then.content))


def fails(
    status: int, message: str = "", *, retry_after_s: float | None = None, error_code: str | None = None
) -> Answer:
    """Return an error; 429, 529 and the 5xx are those that another attempt may cure."""
    headers = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    return Answer(status=status, headers=headers, error_code=error_code, error_message=message)


Script = Iterable[Answer] | Callable[[Mapping[str, Any]], "Answer | Awaitable[Answer]"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came in."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class VendorStub(Lifecycle):
    """A server on 127.0.0.1, on a port that the system chooses.

    Args:
        script: answers in order, or a function from the request's body to the answer.
        strict: True if it refuses what the vendor would refuse.
    """

    def __init__(self, script: Script = (), *, port: int = 0, strict: bool = True) -> None:
        self._script: Iterator[Answer] | None = None if callable(script) else iter(script)
        self._answer = script if callable(script) else None
        self._port = port
        self._strict = strict
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[Any]] = set()
        self.asked: list[Asked] = []
        """Every request to the API, in order."""
        self.unexpected = 0
        """Requests after the script had ended."""
        self.refused: list[str] = []
        """What was wrong with requests that the vendor would have refused, too."""

    path: ClassVar[str]
    """Where the API is, as a URL's path ends."""
    request_header: ClassVar[str]

    @abstractmethod
    def violations(self, wanted: Mapping[str, Any]) -> list[str]:
        """Return what the vendor would refuse of a request."""

    @abstractmethod
    def error(self, status: int, code: str | None, request_id: str = "req_stub", why: str = "") -> bytes:
        """Return an error as the vendor words it."""

    @abstractmethod
    def message(self, answer: Answer, wanted: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return a whole reply, for a request without a stream."""

    @abstractmethod
    def events(self, message: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a reply as the events of a stream."""

    @abstractmethod
    def stream_error(self, status: int) -> bytes:
        """Return the error that ends a stream."""

    @property
    def url(self) -> str:
        """What the variable with the API's base URL would be. Raises RuntimeError before it is started."""
        if self._server is None:
            raise RuntimeError("the stub is not started")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.close()
            serving = tuple(self._serving)
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

    # --- HTTP, as much of it as a client's library speaks -----------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass  # the client went away, or is none
        except asyncio.CancelledError:
            if self._server is not None:
                raise  # it was not `stop` that ended this
        finally:
            self._serving.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return True if the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length") or 0))
        if method != "POST" or not path.partition("?")[0].endswith(self.path):
            await _send(writer, 404, {}, self.error(404, None))
            return True
        try:
            wanted = json.loads(body)
        except ValueError:
            await _send(writer, 400, {}, self.error(400, None))
            return True
        self.asked.append(Asked(path, headers, wanted))
        return await self._reply(writer, wanted, f"req_stub_{len(self.asked)}")

    async def _reply(self, writer: asyncio.StreamWriter, wanted: Mapping[str, Any], request_id: str) -> bool:
        wrong = self.violations(wanted) if self._strict else []
        if wrong:
            self.refused += wrong
            refusal = self.error(400, None, request_id, wrong[0])
            await _send(writer, 400, {self.request_header: request_id}, refusal)
            return True
        answer = await self._next(wanted)
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        headers = {self.request_header: request_id, **answer.headers}
        if answer.status != 200:
            refusal = self.error(answer.status, answer.error_code, request_id, answer.error_message)
            await _send(writer, answer.status, headers, refusal)
            return True
        if answer.cut_after == 0 and not answer.cut_cleanly:
            return False
        if answer.content_type is not None:
            headers["content-type"] = answer.content_type
        message = self.message(answer, wanted, len(self.asked))
        if answer.whole or not wanted.get("stream"):
            await _send(
                writer, 200, headers, json.dumps(message).encode() if answer.body is None else answer.body
            )
            return True
        events = list(self.events(message)) if answer.body is None else [answer.body]
        await _begin_stream(writer, headers)
        for event in filter(None, events[: answer.cut_after]):  # an empty chunk would end the body
            await _chunk(writer, event)
            if answer.pause_s:
                await asyncio.sleep(answer.pause_s)
        if answer.broken_by is not None:
            await _chunk(writer, self.stream_error(answer.broken_by))
        elif answer.cut_after is not None and answer.cut_after < len(events) and not answer.cut_cleanly:
            return False
        await _chunk(writer, b"")
        return True

    async def _next(self, wanted: Mapping[str, Any]) -> Answer:
        if self._answer is not None:
            found = self._answer(wanted)
            return await found if inspect.isawaitable(found) else found
        assert self._script is not None
        for answer in self._script:
            return answer
        self.unexpected += 1
        return Answer(status=500, headers={"x-should-retry": "false"})


async def _send(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: bytes) -> None:
    own = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    writer.write(_head(status, own) + body)
    await writer.drain()


async def _begin_stream(writer: asyncio.StreamWriter, headers: Mapping[str, str]) -> None:
    own = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers}
    writer.write(_head(200, own))
    await writer.drain()


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send one chunk; an empty one ends the body."""
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    with contextlib.suppress(ConnectionError):
        await writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Stub", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


# --- the pieces of a stream ------------------------------------------------------------------------


def cut(text: str) -> list[str]:
    """Return a text in the pieces in which a stream brings it."""
    size = max(_PIECE, -(-len(text) // _PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]
