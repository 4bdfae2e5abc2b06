"""Delivering alarms: to a command of the user's own, or to a URL.

The text of an alarm comes from strangers. It reaches the command in its environment and on its standard
input, never on the command line, where a shell would interpret it.

A URL gets signed posts, repeated until they are accepted, and none is lost over a restart. The form is that
of Standard Webhooks (https://www.standardwebhooks.com): `webhook-id` is the same each time that an alarm is
posted, so a receiver can drop duplicates; `webhook-signature` is the HMAC-SHA256 of id, time and body. The
body has a line under `text`, which is all that Slack and similar receivers read.
"""

import asyncio
import base64
import binascii
import contextlib
import email.utils
import hashlib
import hmac
import itertools
import os
import signal
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from mesh.errors import ReceiverGone, UsageWrong
from mesh.ops.checks import web_url
from mesh.ops.watch import Alarm, WatchPoint
from mesh.service.printable import counted, short
from mesh.settings import STATE


class Outbox(ABC):
    """Delivers alarms one after the other, concurrently with everything else: `run` it until cancelled.

    Args:
        reached: called with a place once everything up to it is delivered.
    """

    _LAST: tuple[str, ...] = ()
    """Kinds of alarm that are delivered after all others."""

    def __init__(self, reached: Callable[[WatchPoint], None] = lambda place: None) -> None:
        self._reached = reached
        self._items = asyncio.PriorityQueue[tuple[bool, int, Alarm | None, WatchPoint | None]]()
        self._numbers = itertools.count()
        self._left = 0
        """Number of alarms not yet delivered."""

    def add(self, alarm: Alarm | None, place: WatchPoint | None) -> None:
        """Queue an alarm for delivery, then the place to reach; either may be None. Returns at once."""
        self._left += alarm is not None
        last = alarm is not None and alarm.what in self._LAST
        self._items.put_nowait((last, next(self._numbers), alarm, place))

    async def run(self) -> None:
        """Deliver until cancelled. Raises errors that no later delivery can fix."""
        while True:
            _, _, alarm, place = await self._items.get()
            if alarm is not None:
                await self._deliver(alarm)
                self._left -= 1
            if place is not None:
                self._reached(place)
            self._items.task_done()

    async def finish(self) -> str:
        """Wait until everything is delivered; describe what was not in time, or return an empty string."""
        await self._items.join()
        return ""

    @abstractmethod
    async def _deliver(self, alarm: Alarm) -> None:
        """Return once an alarm is delivered or given up."""


@contextlib.asynccontextmanager
async def delivering(outboxes: Sequence[Outbox]) -> AsyncIterator[None]:
    """Deliver while the block runs, and what is left at its end.

    Raises a group with the error that ended a delivery as soon as that happens, and TimeoutError for what was
    left.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(outbox.run()) for outbox in outboxes]
        yield
        late = [await outbox.finish() for outbox in outboxes]
        for task in running:
            task.cancel()
    if left := "; ".join(filter(None, late)):
        raise TimeoutError(left)


# --- a command for each alarm ---------------------------------------------------------------------

_VALUE_CHARS = 1_000
_STDERR = 2


def environment(alarm: Alarm) -> dict[str, str]:
    """Return what a command finds in its environment besides our own variables."""
    facts: dict[str, object] = {
        "MESH_WHAT": alarm.what,
        "MESH_AT": alarm.at,
        "MESH_REQUEST": alarm.request,
        "MESH_AGENT": alarm.agent,
        "MESH_SUMMARY": alarm.summary,
        "MESH_REASON": alarm.reason,
        "MESH_URL": alarm.url,
        "MESH_SEQ": "" if alarm.seq is None else alarm.seq,
        "MESH_TIER": "" if alarm.waiting is None else alarm.waiting.tier or "",
        "MESH_TIER_NAME": alarm.tier_name,
        "MESH_ID": alarm.id,
    }
    return {name: short(str(value), _VALUE_CHARS) for name, value in facts.items()}


class Hook(Outbox):
    """Runs a command through the shell for each alarm. Its output goes to our standard error.

    Alarms about waiting people come before dead letters, of which strangers can write many.

    Args:
        within_s: how long one run may take (s); then it is killed, with everything that it started.
        on_trouble: called for each failed run.
    """

    _LAST = ("dead_letter",)

    def __init__(self, command: str, *, within_s: float, on_trouble: Callable[[str], None]) -> None:
        super().__init__()
        self._command, self._within_s, self._on_trouble = command, within_s, on_trouble

    async def _deliver(self, alarm: Alarm) -> None:
        what = f"the command for {alarm.what} {alarm.request}".rstrip()
        try:
            status = await self._status_of(alarm)
        except TimeoutError:
            self._on_trouble(f"{what} had not ended after {self._within_s:g} s, and was killed")
        except OSError as error:
            self._on_trouble(f"{what} could not be started: {error}")
        else:
            if status:
                self._on_trouble(f"{what} ended with {status}")

    async def _status_of(self, alarm: Alarm) -> int | None:
        process = await asyncio.create_subprocess_shell(
            self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=_STDERR,
            stderr=_STDERR,
            env={**os.environ, **environment(alarm)},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._within_s):
                await process.communicate(msgspec.json.encode(alarm) + b"\n")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode


# --- a post for each alarm ------------------------------------------------------------------------

SECRET = "MESH_WEBHOOK_SECRET"
_PREFIX = "whsec_"
_LEAST_KEY = 24
"""Bytes of a key, by Standard Webhooks: 24 to 64."""
_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LONGEST_ASKED_S = 3600.0
"""The longest `Retry-After` of a receiver that is followed (s)."""
_TEXT_CHARS = 300


def new_secret() -> str:
    """Return a new secret as Standard Webhooks writes it."""
    return _PREFIX + base64.b64encode(os.urandom(32)).decode()


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
    """Return the body of a post: the alarm, and a line about it without Slack's markup."""
    line = f"{alarm.what} {alarm.request} ({alarm.agent}) {alarm.reason}: {alarm.summary}"
    text = short(line, _TEXT_CHARS).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return msgspec.json.encode(msgspec.to_builtins(alarm) | {"text": text})


def retry_after_s(header: str, *, now_s: float) -> float | None:
    """Return the seconds to wait by a `Retry-After` (RFC 9110, 10.2.3): a number of seconds, or a date.

    Args:
        header: the header.
        now_s: Unix time, to compare a date with.

    It is at least 1 s and at most an hour; None if it has neither form.
    """
    if header.isascii() and header.isdecimal():
        asked_s = float(header[:12])
    else:
        try:
            asked_s = email.utils.parsedate_to_datetime(header).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return min(max(asked_s, _FIRST_PAUSE_S), _LONGEST_ASKED_S)


class NotTaken(NamedTuple):
    """Why a post was not accepted, and when to try again if the receiver named a time."""

    wrong: str
    again_s: float | None = None
    status: int = 0
    """The HTTP status; 0 if there was no answer."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: object, newurl: str
    ) -> None:
        """Follow no redirect: a POST would become a GET without its body."""


class SignedPost:
    """Posts JSON to one URL, signed as Standard Webhooks says.

    Args:
        url: `http://…` or `https://…`, as `web_url` returns it.
        key: of the signature.
        agent: the `User-Agent`.
    """

    def __init__(self, url: str, key: bytes, agent: str) -> None:
        self._url, self._key, self._agent = url, key, agent
        self._opener = urllib.request.build_opener(_NoRedirect)

    def post(self, id_: str, body: bytes) -> NotTaken | None:
        """Post once, and return the failure; None if it was accepted. Raises ReceiverGone."""
        at_s = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": self._agent,
            "webhook-id": id_,
            "webhook-timestamp": str(at_s),
            "webhook-signature": signature(self._key, id_, at_s, body),
        }
        asked = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(asked, timeout=_TIMEOUT_S):
                return None  # other answers than 2xx raise
        except urllib.error.HTTPError as refused:
            refused.close()
            return _refused(refused.code, refused.headers.get("Retry-After", ""))
        except (OSError, ValueError) as failed:
            return NotTaken(str(getattr(failed, "reason", failed)))


def state_of(url: str) -> Path:
    """Return the default state file of a URL: in the state folder of this machine, one for each URL."""
    return Path(STATE) / f"watch-{hashlib.sha256(url.encode()).hexdigest()[:12]}.json"


class State:
    """A file that records how far alarms were delivered."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> WatchPoint | None:
        """Return the place; None if nothing was delivered yet. Raises UsageWrong for another file."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=WatchPoint)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as wrong:
            raise UsageWrong(f"--state {self._path}: {wrong}") from wrong

    def write(self, place: WatchPoint) -> None:
        """Replace the place atomically. Raises UsageWrong if nothing can be written."""
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            part.parent.mkdir(mode=0o700, exist_ok=True)
            part.write_bytes(msgspec.json.encode(place))
            part.replace(self._path)
        except OSError as wrong:
            raise UsageWrong(f"--state {self._path}: {wrong.strerror}") from wrong


class Webhook(Outbox):
    """Posts each alarm until it is accepted, then records how far it is.

    Args:
        url: `http://…` or `https://…`.
        key: of the signature.
        within_s: how long it may take at the end to deliver what is left (s); the next run continues there.
        on_trouble: called once for an alarm that is not accepted, and once it is delivered.

    Raises UsageWrong for another URL. ReceiverGone ends the deliveries: the answer was 410.
    """

    def __init__(
        self, url: str, key: bytes, state: State, *, within_s: float, on_trouble: Callable[[str], None]
    ) -> None:
        super().__init__(state.write)
        self._post = SignedPost(web_url(url, "--post"), key, "mesh-watch").post
        self._on_trouble = on_trouble
        self._within_s = within_s
        self._wrong = "it has not answered"

    async def finish(self) -> str:
        try:
            async with asyncio.timeout(self._within_s):
                return await super().finish()
        except TimeoutError:
            left = f"{counted(self._left, 'alarm')} within {self._within_s:g} s"
            return f"the URL has not taken {left} ({self._wrong}); the next run begins there"

    async def _deliver(self, alarm: Alarm) -> None:
        body, pause_s, was_reported = body_of(alarm), _FIRST_PAUSE_S, False
        while (failed := await asyncio.to_thread(self._post, alarm.id, body)) is not None:
            self._wrong = failed.wrong
            if not was_reported:
                self._on_trouble(f"{alarm.id} is not taken ({failed.wrong}); it is posted again until it is")
            was_reported = True
            await asyncio.sleep(pause_s if failed.again_s is None else failed.again_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if was_reported:
            self._on_trouble(f"{alarm.id} is taken now")


def _refused(status: int, retry_after: str) -> NotTaken:
    """Return the meaning of an answer other than 2xx. Raises ReceiverGone for 410."""
    if status == HTTPStatus.GONE:
        raise ReceiverGone(
            "the URL is gone for good (HTTP 410); nothing more is posted there: name another with --post, "
            "and this one's --state to go on where it stopped"
        )
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        again_s = retry_after_s(retry_after, now_s=time.time())
        if again_s is not None:
            return NotTaken(f"HTTP {status}, asks for {again_s:g} s", again_s, status)
    return NotTaken(f"HTTP {status}", status=status)
