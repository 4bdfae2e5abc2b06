"""Alarms posted to a URL: signed, retried until they are taken, and none lost over a restart.

The form is that of Standard Webhooks (https://www.standardwebhooks.com): `webhook-id` is the same each time
that an alarm is posted, so that a receiver can drop what it has; `webhook-signature` is the HMAC-SHA256 of
id, time and body. The body has a line under `text`, which is all that Slack and its like look at.
"""

import asyncio
import base64
import binascii
import contextlib
import email.utils
import hashlib
import hmac
import os
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import IO, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from mesh.errors import ReceiverGone, UsageWrong
from mesh.ops.watch import Alarm, Place
from mesh.service.printable import counted, short
from mesh.settings import STATE

T = TypeVar("T")

SECRET = "MESH_WEBHOOK_SECRET"
_PREFIX = "whsec_"
_LEAST_KEY = 24
"""Bytes of a key, by Standard Webhooks: 24 to 64."""
_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LONGEST_TOLD_S = 3600.0
"""The most that a receiver's `Retry-After` is followed."""
_TEXT_CHARS = 300


def key_of(secret: str) -> bytes:
    """Return the key in a secret as Standard Webhooks writes it: `whsec_` and base64. Raises UsageWrong."""
    with contextlib.suppress(binascii.Error):
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        if secret.startswith(_PREFIX) and len(key) >= _LEAST_KEY:
            return key
    raise UsageWrong(f"--post needs {SECRET}: {_PREFIX} and {_LEAST_KEY} random bytes or more in base64")


def signature(key: bytes, id_: str, at_s: int, body: bytes) -> str:
    """Return `v1,` and the base64 of HMAC-SHA256 over `<id>.<Unix seconds>.<body>`."""
    signed = hmac.new(key, f"{id_}.{at_s}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed.digest()).decode()}"


def body_of(alarm: Alarm) -> bytes:
    """Return what is posted: the alarm, and a line about it with Slack's markup taken out."""
    said = f"{alarm.what} {alarm.request} ({alarm.agent}) {alarm.reason}: {alarm.summary}"
    text = short(said, _TEXT_CHARS).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return msgspec.json.encode(msgspec.to_builtins(alarm) | {"text": text})


def retry_after_s(said: str, *, now_s: float) -> float | None:
    """Return the seconds to wait by a `Retry-After` (RFC 9110, 10.2.3): a number of seconds, or a date.

    Args:
        said: the header.
        now_s: Unix time, against which a date is held.

    It is 1 s at least and an hour at most; None for what is neither form.
    """
    if said.isascii() and said.isdecimal():
        told_s = float(said[:12])
    else:
        try:
            told_s = email.utils.parsedate_to_datetime(said).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return min(max(told_s, _FIRST_PAUSE_S), _LONGEST_TOLD_S)


class _NotTaken(NamedTuple):
    """What came of a post that was not taken: why, in words, and when to come again if that was said."""

    wrong: str
    again_s: float | None = None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: object, newurl: str
    ) -> None:
        """Follow none: a POST would become a GET without its body."""


def state_of(url: str) -> Path:
    """Return the file of a URL for which none is named: in the state's folder here, one for each URL."""
    return Path(STATE) / f"watch-{hashlib.sha256(url.encode()).hexdigest()[:12]}.json"


class State:
    """A file that holds how far alarms were delivered."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Place | None:
        """Return the place; None if nothing was delivered yet. Raises UsageWrong for another file."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Place)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as wrong:
            raise UsageWrong(f"--state {self._path}: {wrong}") from wrong

    def write(self, place: Place) -> None:
        """Replace the place as a whole. Raises UsageWrong if nothing can be written."""
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            part.parent.mkdir(mode=0o700, exist_ok=True)
            part.write_bytes(msgspec.json.encode(place))
            part.replace(self._path)
        except OSError as wrong:
            raise UsageWrong(f"--state {self._path}: {wrong.strerror}") from wrong


class _Item(NamedTuple):
    alarm: Alarm | None
    place: Place | None


class Webhook:
    """Posts alarms one after the other, each until it is taken; then it writes down how far it is.

    Args:
        url: `http://…` or `https://…`.
        key: of the signature.
        on_trouble: told of an alarm that is not taken, once, and of its delivery then.

    Raises UsageWrong for another URL. ReceiverGone ends the deliveries: the answer was 410.
    """

    def __init__(self, url: str, key: bytes, state: State, *, on_trouble: Callable[[str], None]) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UsageWrong(f"--post takes a URL, http://… or https://…: {url!r}")
        self._url, self._key, self._state, self._on_trouble = url, key, state, on_trouble
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._items = asyncio.Queue[_Item]()
        self._left = 0
        """Alarms that are not taken yet."""
        self._wrong = "it has not answered"
        self._running = asyncio.create_task(self._run())

    def add(self, alarm: Alarm | None, place: Place | None) -> None:
        """Have an alarm delivered, then the place written down; either may be None. It returns at once.

        Raises what ended the deliveries.
        """
        if self._running.done():
            self._running.result()
        self._left += alarm is not None
        self._items.put_nowait(_Item(alarm, place))

    async def _run(self) -> None:
        while True:
            alarm, place = await self._items.get()
            if alarm is not None:
                await self._deliver(alarm)
                self._left -= 1
            if place is not None:
                self._state.write(place)
            self._items.task_done()

    async def _deliver(self, alarm: Alarm) -> None:
        body, pause_s, told = body_of(alarm), _FIRST_PAUSE_S, False
        while (failed := await asyncio.to_thread(self._post, alarm.id, body)) is not None:
            self._wrong = failed.wrong
            if not told:
                self._on_trouble(f"{alarm.id} is not taken ({failed.wrong}); it is posted again until it is")
            told = True
            await asyncio.sleep(pause_s if failed.again_s is None else failed.again_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if told:
            self._on_trouble(f"{alarm.id} is taken now")

    def _post(self, id_: str, body: bytes) -> _NotTaken | None:
        """Post once, and return what went wrong; None if it was taken. Raises ReceiverGone."""
        at_s = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "mesh-watch",
            "webhook-id": id_,
            "webhook-timestamp": str(at_s),
            "webhook-signature": signature(self._key, id_, at_s, body),
        }
        asked = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(asked, timeout=_TIMEOUT_S):
                return None  # it raises for all but 2xx
        except urllib.error.HTTPError as refused:
            refused.close()
            return _refused(refused.code, refused.headers.get("Retry-After", ""))
        except (OSError, ValueError) as failed:
            return _NotTaken(str(getattr(failed, "reason", failed)))

    async def beside(self, alarms: AsyncIterator[Alarm]) -> AsyncIterator[Alarm]:
        """Yield these alarms as they come. Raises what ended the deliveries as soon as that happens."""
        while True:
            try:
                yield await self._unless_ended(anext(alarms))
            except StopAsyncIteration:
                return

    async def _unless_ended(self, awaited: Awaitable[T]) -> T:
        """Return what is awaited. Raises what ended the deliveries before that."""
        coming = asyncio.ensure_future(awaited)
        try:
            await asyncio.wait((coming, self._running), return_when=asyncio.FIRST_COMPLETED)
            if self._running.done():
                self._running.result()
            return coming.result()
        finally:
            coming.cancel()

    async def finish(self, within_s: float) -> None:
        """Wait until everything is delivered.

        Raises TimeoutError if it takes longer, and what ended the deliveries.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._unless_ended(self._items.join())
        except TimeoutError:
            left = f"{counted(self._left, 'alarm')} within {within_s:g} s"
            told = f"the URL has not taken {left} ({self._wrong}); the next run begins there"
            raise TimeoutError(told) from None

    async def close(self) -> None:
        """Deliver nothing more; the next run goes on where the state says."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


def _refused(status: int, retry_after: str) -> _NotTaken:
    """Return what an answer other than 2xx comes to. Raises ReceiverGone for 410."""
    if status == HTTPStatus.GONE:
        raise ReceiverGone(
            "the URL is gone for good (HTTP 410); nothing more is posted there: name another with --post, "
            "and this one's --state to go on where it stopped"
        )
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        again_s = retry_after_s(retry_after, now_s=time.time())
        if again_s is not None:
            return _NotTaken(f"HTTP {status}, asks for {again_s:g} s", again_s)
    return _NotTaken(f"HTTP {status}")
