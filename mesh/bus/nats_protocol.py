"""The NATS protocol on the hot path: turns bytes into callbacks and calls into bytes.

`NatsProtocol` is nats-py's client, which connects, authenticates, reconnects, keeps alive and speaks TLS. Two
parts are replaced. Reading finds a message by its stated length and calls a *sink* in the same callback that
read it. Writing joins everything written by the sinks of one read, or otherwise in one pass of the event
loop, into one system call; a lone request is written at once. nats-py itself needs a stream, a task, a queue
and regular expressions for each message.

A sink runs inside that callback. It must not block and must not raise; an exception is logged.
"""

import asyncio
import contextlib
import functools
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from nats.aio.client import Client
from nats.errors import AuthorizationError, Error, ProtocolError

from mesh.bus.claims import claim_and_seed
from mesh.bus.credentials import NO_FILES, RenewableKey, agree
from mesh.bus.transport import Reading, Transport
from mesh.errors import TlsUnusable
from mesh.service.logs import get_logger

_log = get_logger(__name__)

_M, _H = ord("M"), ord("H")
_DENIED = re.compile(r'permissions violation for (\w+)\b.*?"([^"]*)"', re.IGNORECASE)
_REFUSALS = ("authorization violation", "authentication revoked", "authentication expired")
FULL_BYTES = 1 << 20
"""Unsent bytes above which `publish` waits for the socket."""


class Incoming:
    """One received message. Headers are parsed on demand."""

    __slots__ = ("data", "head", "reply", "subject")

    def __init__(self, subject: str, reply: str, head: bytes, data: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.head = head
        self.data = data

    @property
    def status(self) -> int:
        """The status of an answer without content (404, 408, 503 …); otherwise 0."""
        text = self.head[9:12]
        return int(text) if text.isdigit() else 0

    @property
    def description(self) -> str:
        """The words after a status."""
        return self.head[12 : self.head.find(b"\r\n")].strip().decode() if self.head else ""

    def header(self, name: str) -> str:
        """Return one header's value; empty if missing. It is cheaper than parsing all `headers`."""
        return self.headers.get(name, "") if f"\r\n{name}:".encode() in self.head else ""

    @property
    def headers(self) -> dict[str, str]:
        found = {}
        for line in self.head.split(b"\r\n")[1:]:
            name, colon, value = line.partition(b":")
            if colon:
                found[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
        return found


Sink = Callable[[Incoming], object]


def encode(subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes that publish one message. Raises ValueError if its parts would break the framing."""
    if not subject or not subject.isprintable() or " " in subject or " " in reply or not reply.isprintable():
        raise ValueError(f"not a subject: {subject!r}, {reply!r}")
    if not headers:
        return f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n"
    lines = "".join([f"{_header(name)}{value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError(f"not a set of headers: {headers!r}")
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    sizes = f"{len(head)} {len(head) + len(data)}"
    return f"HPUB {subject} {reply} {sizes}\r\n".encode() + head + data + b"\r\n"


@functools.lru_cache(256)
def _header(name: str) -> str:
    """Return the beginning of a header's line. Raises ValueError for an invalid name."""
    if not name or not name.isprintable() or ":" in name or " " in name:
        raise ValueError(f"not a header: {name!r}")
    return f"{name}: "


class NatsProtocol(Client):
    """nats-py's client with its own reading and writing."""

    def __init__(self, on_denied: Callable[[str, str], None]) -> None:
        """Create a client that calls `on_denied(operation, subject)` on each permission violation."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._to_run = getattr(self._loop, "_ready", None)
        """Callbacks due in this pass of the loop, including our own writing; None if the loop is not
        asyncio's."""
        self.sinks: dict[int, Sink] = {}
        self.on_denied = on_denied
        self.tls = NO_FILES
        self.key: RenewableKey | None = None
        """Key to take for each attempt to connect; None to keep the first seed."""
        self.greeted = False
        """True if a server sent its greeting in the latest attempt."""
        self.showed_certificate = False
        """True if the server asked for our certificate in the latest attempt, and got it."""
        self._ps: Any = Scanner(self)
        self._out: list[bytes] = []
        self._flushing = False
        self._asked: set[asyncio.Future[bool]] = set()
        self._controls: set[asyncio.Task[None]] = set()
        """Server lines that nats-py is still processing."""

    async def _read_loop(self) -> None:
        """Take over a greeted and secured connection from nats-py's stream, until it is lost."""
        self._ps.reset()
        stream: Any = self._transport
        reading = Reading(self.take, stream._io_reader, stream._io_writer.transport)
        try:
            broken = await reading.lost
        except asyncio.CancelledError:
            return  # nats-py closes or reconnects
        finally:
            reading.end()
        if not (self.is_closed or self.is_reconnecting):
            await self._error_cb(broken)
            await self._process_op_err(broken)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Decide from the greeting if TLS follows. Raises NotSecured instead of sending clear text."""
        if initial_connection:
            assert self._current_server is not None
            self.greeted = True
            info["tls_required"] = agree(self.tls, self._current_server.uri.scheme, info)
            self.showed_certificate = bool(info["tls_required"] and info.get("tls_verify"))
        await super()._process_info(info, initial_connection)

    async def _connect_to_server(self, server: Any) -> None:
        """Connect, and close any earlier attempt.

        If a server does not confirm the subscriptions of a new connection in time, nats-py tries again and
        forgets that connection. The server would serve both, and every message would come twice.
        """
        self.abort()
        if self.is_reconnecting:
            self.showed_certificate = False
            self._read_tls_again()
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:
                task.cancel()
        if self._transport is None and server.uri.scheme in ("nats", "tls"):
            self._transport = Transport()  # type: ignore[no-untyped-call]
        try:
            await _cancellable(super()._connect_to_server(server))
        finally:
            if self.is_closed:  # closed in the meantime: nothing else would close the new connection
                self.abort()

    def _read_tls_again(self) -> None:
        """Take certificates that were renewed. Files that cannot be used change nothing."""
        if self.tls.are_given:
            with contextlib.suppress(TlsUnusable):  # half written, for example
                self.options["tls"] = self.tls.context()

    @property
    def certificate_until(self) -> float | None:
        """When the server's certificate expires (Unix time); None without TLS."""
        return self._transport.certificate_until if isinstance(self._transport, Transport) else None

    def _connect_command(self) -> bytes:
        """Return the line that authenticates, with the current key."""
        if self.key is not None:
            claim, self._nkeys_seed_str = claim_and_seed(self.key.take())
            self._user_jwt_cb = claim.encode if claim else None
            self._setup_nkeys_connect()
        line: bytes = super()._connect_command()
        return line

    async def _process_connect_init(self) -> None:
        """Greet. Raises ConnectionError if anything but a pong comes, which nats-py would accept."""
        await _cancellable(super()._process_connect_init())
        if not self.is_connected:
            raise ConnectionError("the connection broke as it was made")

    async def listen(self, subject: str, sink: Sink, most: int | None) -> int:
        """Subscribe and return the subscription's number, before the server has confirmed it.

        Args:
            most: the server ends the subscription after this many messages.
        """
        inner = await self.subscribe(subject)  # without a callback, so without a task
        self.sinks[inner._id] = sink
        if most is not None:
            await inner.unsubscribe(limit=most)
        return inner._id

    def listen_for(self, subject: str, queue: str, most: int, sink: Callable[[int, Incoming], None]) -> int:
        """Subscribe to the next `most` messages in a queue group, and return the subscription's number.

        The server ends it after these messages, and it also ends with the connection. The sink gets its
        number, too.
        """
        self._sid += 1
        number: int = self._sid
        self.sinks[number] = functools.partial(sink, number)
        self.say(f"SUB {subject} {queue} {number}\r\nUNSUB {number} {most}\r\n")
        return number

    def say(self, lines: str) -> None:
        """Queue protocol lines for the end of this pass of the loop."""
        self._out.append(lines.encode())
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._write_out)

    async def end_listening(self, number: int) -> None:
        """End a subscription. Its sink still gets what the server has already sent, until it is removed."""
        inner = self._subs.get(number)
        if inner is not None:
            with contextlib.suppress(Error):  # no connection, so no subscription
                await inner.unsubscribe()

    async def flush(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - nats-py's own signature
        await self.round_trip(timeout)

    async def round_trip(self, timeout_s: float = 10.0) -> None:
        """Wait until the server has answered a ping. Raises TimeoutError, ConnectionError.

        It replaces nats-py's `flush`, which does not notice if the connection breaks in the meantime.
        """
        if not self.is_connected:
            raise ConnectionError("there is no connection")
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked.add(answered)
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_ping(answered)
                await answered
        except Error as broken:
            raise ConnectionError("the connection broke") from broken
        finally:
            self._asked.discard(answered)

    async def _process_op_err(self, e: Exception) -> None:
        """Treat the connection as broken: fail all pending pings, and drop unsent bytes.

        nats-py would wait for the old socket to send everything: for ever, if the other side hangs.
        """
        if not (self.is_closed or self.is_reconnecting):
            self.abort()
            for answered in self._asked:
                if not answered.done():
                    answered.set_exception(ConnectionError("the connection broke"))
        await super()._process_op_err(e)

    def abort(self) -> None:
        """Close the socket, if open, without sending the rest."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            with contextlib.suppress(AttributeError):  # asyncio raises it for a socket that closed by itself
                writer.transport.abort()

    @property
    def silent(self) -> bool:
        """True if the server accepted the connection without a greeting, as if it begins with TLS."""
        return getattr(self._transport, "_io_writer", None) is not None and not self.greeted

    def drop(self) -> None:
        """Close the socket and forget it, because nothing reports its closing after a failed handshake."""
        self.abort()
        self._transport = None

    def _take_pong(self) -> None:
        """Complete the oldest ping. Its caller may have stopped waiting."""
        if self._pongs:
            asked = self._pongs.pop(0)
            if not asked.done():
                asked.set_result(True)
            self._pongs_received += 1
            self._pings_outstanding = 0

    def write(self, chunk: bytes, *, last: bool = False) -> None:
        """Queue bytes for the end of this pass of the loop. They are lost if the connection breaks.

        Args:
            last: True if the caller waits now. If nothing else is due in this pass, they are written at once.
        """
        self._out.append(chunk)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(chunk)
        if last and self._to_run is not None and len(self._to_run) <= self._flushing:
            self._write_out()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._write_out)

    def take(self, data: bytes) -> None:
        """Dispatch received bytes, and write the answers. Raises ProtocolError."""
        if self._flushing:  # this pass of the loop already collects and will write
            self._ps.feed(data)
            return
        self._flushing = True
        try:
            self._ps.feed(data)
        finally:
            self._write_out()

    def _write_out(self) -> None:
        self._flushing = False
        chunks, self._out = self._out, []
        if chunks and self.is_connected and self._transport is not None:
            self._transport.write(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    async def drained(self) -> None:
        """Wait while more than FULL_BYTES are unsent."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer.transport.get_write_buffer_size() > FULL_BYTES:
            await writer.drain()

    def control(self, line: bytes) -> None:
        """Act on a protocol line that is not a message. Raises ProtocolError for an unknown one."""
        word = line[:4].upper()
        if word == b"PING":
            self._out.append(b"PONG\r\n")
        elif word == b"PONG":
            self._take_pong()
        elif word == b"-ERR":
            self._take_error(line[4:].strip().decode("utf-8", "replace"))
        elif word == b"INFO":
            self._begin(self._process_info(json.loads(line[4:])))
        elif line[:3] != b"+OK":
            raise ProtocolError

    def _take_error(self, text: str) -> None:
        """Pass permission violations to `on_denied`, other errors to nats-py, which closes the connection.

        A connection with a renewable key is made again when its key is not valid any more.
        """
        denied = _DENIED.search(text)
        if denied is not None:
            self.on_denied(denied[1].lower(), denied[2])
        elif self.key is not None and is_refusal(Error(text)):
            self._begin(self._lose(AuthorizationError()))
        else:
            self._begin(self._process_err(text.strip("'").lower()))

    async def _lose(self, error: Exception) -> None:
        await self._error_cb(error)
        await self._process_op_err(error)

    def reconnect(self) -> None:
        """Give up the connection, and make another."""
        self._begin(self._process_op_err(ConnectionResetError()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._controls.add(task)
        task.add_done_callback(self._controls.discard)


class Scanner:
    """Replaces nats-py's parser. It accepts bytes in chunks of any size."""

    def __init__(self, wire: NatsProtocol) -> None:
        self._wire = wire
        self._rest = b""

    def reset(self) -> None:
        """Drop unparsed bytes, for a new connection."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Dispatch all complete messages, and keep the rest. Raises ProtocolError, ValueError."""
        buffer, position = self._rest + data if self._rest else data, 0
        end = len(buffer)
        while (line_end := buffer.find(b"\r\n", position)) >= 0:
            if buffer[position] in (_M, _H):
                position_after = self._message(buffer, position, line_end, end)
                if position_after < 0:
                    break
                position = position_after
                continue
            line, position = buffer[position:line_end], line_end + 2
            self._wire.control(line)
        self._rest = buffer[position:]

    def _message(self, buffer: bytes, position: int, line_end: int, end: int) -> int:
        """Pass one message to its sink. Return where the next begins; -1 if this one is incomplete."""
        words = buffer[position:line_end].split(b" ")  # only at spaces: a subject may contain a form feed
        start = line_end + 2
        stop = start + int(words[-1])
        if stop + 2 > end:
            return -1
        if buffer[position] == _H:
            body = start + int(words[-2])
            reply = words[3] if len(words) == 6 else b""
            head = buffer[start:body]
        else:
            body = start
            reply = words[3] if len(words) == 5 else b""
            head = b""
        stats = self._wire.stats
        stats["in_msgs"] += 1
        stats["in_bytes"] += stop - body
        sink = self._wire.sinks.get(int(words[2]))
        if sink is not None:
            try:
                sink(Incoming(_text(words[1]), _text(reply), head, buffer[body:stop]))
            except Exception:
                _log.exception("bus_sink_failed")
        return stop + 2


async def _cancellable(work: Coroutine[Any, Any, None]) -> None:
    """Await a part of nats-py that calls `asyncio.wait_for`, without losing a cancellation of this task.

    Before Python 3.12, `wait_for` loses a cancellation that coincides with the result. A connection that is
    closed while it reconnects would then try for ever.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        await work
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


def is_refusal(error: Exception) -> bool:
    """Return True if an error says that the server does not accept the credentials."""
    text = str(error).lower()
    return isinstance(error, AuthorizationError) or any(each in text for each in _REFUSALS)


def _text(subject: bytes) -> str:
    """Return a subject as text. Bytes that are not UTF-8, which the server allows, are escaped."""
    return subject.decode("utf-8", "backslashreplace")
