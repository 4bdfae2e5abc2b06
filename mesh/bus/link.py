"""The state of a connection (up, reconnecting or ended) and the faults that it reports as conditions."""

import asyncio
import re
import ssl
import time
from collections.abc import Callable

from nats import errors as nats_errors

from mesh.bus import credentials
from mesh.bus.claims import claim_and_seed
from mesh.bus.credentials import RenewableKey, TlsFiles
from mesh.bus.nats_protocol import NatsProtocol, is_refusal
from mesh.bus.streams import stream_of
from mesh.errors import (
    AuthenticationFailed,
    BadAddress,
    BusError,
    NoResponders,
    OutcomeUnknown,
    StreamFull,
    TimedOut,
    TlsFailed,
    Unreachable,
)
from mesh.service.conditions import Conditions, Kind
from mesh.service.logs import get_logger

_log = get_logger(__name__)

DISCONNECTED = Kind(
    "bus_disconnected", "bus_reconnected", "no connection to the bus", settle_s=1.0, lasts=True
)
NOT_SECURED = Kind(
    "bus_not_secured", "bus_secured", "the connection to the bus cannot be secured by TLS", lasts=True
)
REFUSED = Kind(
    AuthenticationFailed.code,
    "bus.authenticated",
    "the bus refuses the key of {}: give this process the valid one (`mesh key ls` shows which that is), or "
    "reload the server with the accounts that have it",
    lasts=True,
)
FULL = Kind("stream_full", "stream_has_room", "{} is full")
ABSENT = Kind("nobody_answers", "somebody_answers", "nobody answers for {}")
SILENT = Kind("bus_slow", "bus_quick_again", "the bus does not answer in time", settle_s=7.0)
"""It settles later than a request times out, since even a stuck disk lets some requests through."""

_CLOSE_S = 1.0
"""How long closing waits for unsent bytes. A hanging server never takes them."""
_PASSWORD = re.compile(r"//[^/]*@")
_AGAIN_S = 0.1
_AGAIN_REFUSED_S = 1.0
"""Pause between two attempts to reconnect to a server, and if it refuses the key."""
_POLL_S = 0.05
"""Pause before checking again a connection that broke but has not been reported yet."""


class Link:
    """Tracks whether the connection is up, and whether it may come back.

    Args:
        on_broken: called each time the connection breaks, and when it ends.
    """

    def __init__(
        self, name: str, wire: NatsProtocol, raised: Conditions, on_broken: Callable[[], None]
    ) -> None:
        self._name = name
        self._wire = wire
        self._conditions = raised
        self._on_broken = on_broken
        self._back: set[Callable[[], None]] = set()
        self._changed = asyncio.Event()
        """Set while the connection is up, and after it has ended."""
        self._up = False
        self._closing: asyncio.Task[None] | None = None
        self.since_s = 0.0
        """When the connection last came up (UTC s)."""
        self.disconnects = 0
        self.ended = ""
        """Why the connection ended for good; empty before that."""

    @property
    def connected(self) -> bool:
        return self._up and bool(self._wire.is_connected)

    def require(self, subject: str = "") -> None:
        """Raise Unreachable without a connection, and record that calls on `subject` are held up."""
        if self.ended:
            raise Unreachable(self.ended)
        if not self.connected:
            self._conditions.hold(DISCONNECTED, held=subject)
            raise Unreachable("no connection to the bus")

    def on_back(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time the connection comes back. Return a function that stops this."""
        self._back.add(callback)
        return lambda: self._back.discard(callback)

    async def wait_connected(self) -> None:
        """Wait until the connection is up. Raises Unreachable if it has ended for good."""
        while not self.connected:
            if self.ended:
                raise Unreachable(self.ended)
            await self._changed.wait()
            await asyncio.sleep(0 if self.connected else _POLL_S)

    async def open(
        self,
        servers: list[str],
        inbox: str,
        seed: str | RenewableKey | None,
        files: TlsFiles,
        timeout_s: float,
    ) -> None:
        """Try to connect once. After that succeeds, the connection reconnects by itself.

        Raises Unreachable, TlsFailed, AuthenticationFailed or BadAddress; then the link has ended.
        """
        context = files.context() if files.are_given else None  # otherwise nats-py makes one if needed
        self._wire.tls = files
        self._wire.key = seed if isinstance(seed, RenewableKey) else None
        credential = seed.take() if isinstance(seed, RenewableKey) else seed
        claim, own_seed = ("", None) if credential is None else claim_and_seed(credential)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wire.connect(
                    servers=servers,
                    name=self._name,
                    nkeys_seed_str=own_seed,
                    user_jwt_cb=claim.encode if claim else None,
                    tls=context,
                    allow_reconnect=False,  # at first: otherwise nats-py would keep trying on its own
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.05,  # type: ignore[arg-type]  # seconds; a float does
                    ping_interval=5,
                    max_outstanding_pings=2,
                    pending_size=0,
                    inbox_prefix=inbox,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnect,
                    reconnected_cb=self._on_reconnect,
                    closed_cb=self._on_close,
                )
        except (nats_errors.Error, OSError, TimeoutError, ValueError) as failed:
            silent = self._wire.silent  # before it is closed
            if isinstance(failed, ssl.SSLError):
                self._wire.drop()
            await self.close()
            if isinstance(failed, ssl.SSLError):
                raise TlsFailed(credentials.in_words(failed, files)) from failed
            if isinstance(failed, ConnectionError):
                raise self.broke_at_once() from failed
            if is_refusal(failed):
                raise AuthenticationFailed(
                    f"the bus at {_shown(servers)} does not know these credentials"
                ) from None
            if isinstance(failed, ValueError) or "connect url" in str(failed):
                raise BadAddress(
                    f"not a server's URL: {_shown(servers)!r}; it looks like nats://host:4222"
                ) from failed
            hint = "; it takes connections and does not greet: is `handshake_first` set in its tls block?"
            raise Unreachable(
                f"the bus does not answer at {_shown(servers)}{hint if silent else ''}"
            ) from failed
        self._wire.options.update(allow_reconnect=True, max_reconnect_attempts=-1)
        self._come_up()

    def broke_at_once(self) -> BusError:
        """Return the error of a connection that broke before the server answered anything.

        A server that rejects a certificate hangs up at this point, and its TLS alert is usually lost.
        """
        if self._wire.showed_certificate:
            return TlsFailed(credentials.not_accepted(self._wire.tls))
        return Unreachable("the connection broke as it was made")

    def failed(self, subject: str, error: OutcomeUnknown | StreamFull) -> None:
        """Raise the condition that a failed call on `subject` indicates."""
        stream = stream_of(subject)
        if not stream:
            return  # a question to another member, which need not be there
        if isinstance(error, StreamFull):
            self._conditions.raise_(FULL, stream, held=subject)
        elif isinstance(error, NoResponders):
            self._conditions.raise_(ABSENT, stream, held=subject)
        elif isinstance(error, TimedOut):
            self._conditions.raise_(SILENT, held=subject, stream=stream)
        else:
            self._conditions.hold(DISCONNECTED, held=subject)

    def answered(self, subject: str) -> None:
        """Clear the conditions that an answer on `subject` disproves."""
        if self._conditions and (stream := stream_of(subject)):
            self._conditions.clear(SILENT)
            self._conditions.clear(ABSENT, stream)

    def stored(self, subject: str) -> None:
        """Clear "full": a message on `subject` was stored."""
        if self._conditions:
            self._conditions.clear(FULL, stream_of(subject))

    async def close(self) -> None:
        """End the connection and its conditions, completely even if the caller is cancelled. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
            self._end("this connection is closed")
            self._conditions.close()
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        aborting = asyncio.get_running_loop().call_later(_CLOSE_S, self._wire.abort)
        try:
            async with asyncio.timeout(2 * _CLOSE_S):
                await self._wire.close()
        except AssertionError:
            _log.debug("bus_never_opened", name=self._name)  # nats-py raises it if it never began to connect
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            # otherwise nats-py cancelled its own wait for the old socket, together with its reconnecting
        except OSError:  # it took too long, or the server is gone
            _log.debug("bus_close_given_up", name=self._name)
        finally:
            aborting.cancel()
            self._wire.abort()  # closes what nats-py has left open

    def reconnect(self) -> None:
        """Make another connection in place of this one, if it is up."""
        if self.connected:
            self._wire.reconnect()

    def _come_up(self) -> None:
        self._up = True
        self._wire.options["reconnect_time_wait"] = _AGAIN_S
        if self._wire.key is not None:
            self._wire.key.accept()
        self.since_s = time.time()
        self._changed.set()

    def _end(self, why: str) -> None:
        self._up = False
        self.ended = why
        self._changed.set()
        self._on_broken()

    async def _on_error(self, error: Exception) -> None:
        if self.since_s and not self._closing and (reason := self._not_secured(error)):
            self._conditions.raise_(NOT_SECURED, reason=reason)
        if self._wire.key is not None and is_refusal(error) and self.since_s and not self._closing:
            if not self._wire.key.refuse():
                self._wire.options["reconnect_time_wait"] = _AGAIN_REFUSED_S
                self._conditions.raise_(REFUSED, self._name)
            return
        if not self._up or self._closing or isinstance(error, OSError | nats_errors.Error):
            return  # every failed attempt to reconnect; `_on_disconnect` has reported it once
        _log.error("bus_error", error=type(error).__name__)

    def _not_secured(self, error: Exception) -> str:
        """Return why TLS keeps us from reconnecting; empty if it does not."""
        if isinstance(error, ssl.SSLError):
            return credentials.in_words(error, self._wire.tls)
        refused = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
        if refused and not self._up and self._wire.showed_certificate:
            return credentials.not_accepted(self._wire.tls)
        return ""

    async def _on_disconnect(self) -> None:
        if not self._up:
            return
        self._up = False
        self._changed.clear()
        self.disconnects += 1
        if not self._closing:
            self._conditions.raise_(DISCONNECTED)
        self._on_broken()

    async def _on_reconnect(self) -> None:
        self._come_up()
        self._conditions.clear(DISCONNECTED)
        self._conditions.clear(NOT_SECURED)
        self._conditions.clear(REFUSED, self._name)
        for callback in tuple(self._back):
            callback()

    async def _on_close(self) -> None:
        """End for good: the server closed the connection, for example because credentials were revoked."""
        self._up = False
        if not self._closing:
            self._end("the bus closed this connection for good")
            _log.error("bus_closed", name=self._name)


def _shown(servers: list[str]) -> str:
    """Return URLs without user and password."""
    return ", ".join(_PASSWORD.sub("//", server) for server in servers)
