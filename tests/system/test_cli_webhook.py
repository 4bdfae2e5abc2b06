"""`mesh human watch --post`: what waits for people reaches a URL, signed, at least once."""

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from mesh.cli.exits import Exit
from mesh.ops.delivery import key_of, retry_after_s, signature
from protocol.wire.moves import Escalate
from tests.guard.stage import Stage
from tests.servers import until
from tests.system.office import Office

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """A server that takes posts, once it is told to."""

    def __init__(self) -> None:
        self.status = 200
        self.retry_after: str | None = None
        self.tried: list[float] = []
        """When each post came, by `time.monotonic`."""
        self.got: list[tuple[dict[str, str], bytes]] = []
        ours = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                ours.tried.append(time.monotonic())
                if ours.status == 200:
                    ours.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(ours.status)
                self.send_header("Location", "/elsewhere")
                if ours.retry_after is not None:
                    self.send_header("Retry-After", ours.retry_after)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]

    def requests(self) -> list[str]:
        return [each["request"] for each in self.told]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("MESH_WEBHOOK_SECRET", SECRET)
    with receiving() as made:
        yield made


def watch(receiver: Receiver, path: Path, *more: str) -> tuple[str, ...]:
    return ("human", "watch", "--post", receiver.url, "--state", str(path / "state"), *more)


async def test_a_post_is_signed_and_says_what_a_chat_needs(
    office: Office, stage: Stage, receiver: Receiver, tmp_path: Path
) -> None:
    request, work = await office.begun()
    await (await stage.actor("a")).propose(request, work, Escalate(summary="<!channel> & all"))
    await stage.reaches(request, "escalation.raised")
    done = await office.process(*watch(receiver, tmp_path, "--once"))
    assert done.status == Exit.DONE, done
    [(headers, body)] = [each for each in receiver.got if json.loads(each[1])["request"] == request]
    id_, at = headers["webhook-id"], headers["webhook-timestamp"]
    assert id_ == f"{request}-1"
    signed = hmac.new(KEY, f"{id_}.{at}.".encode() + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    told = json.loads(body)
    assert (told["what"], told["id"], told["waiting"]["summary"]) == ("escalation", id_, "<!channel> & all")
    assert told["text"] == f"escalation {request} (a) asked: &lt;!channel&gt; &amp; all"


async def test_nothing_is_lost_over_a_receiver_that_is_away_and_a_watch_that_is_killed(
    office: Office, stage: Stage, receiver: Receiver, tmp_path: Path
) -> None:
    first = await office.escalated()
    async with office.running(*watch(receiver, tmp_path), until=first) as running:
        await until(lambda: first in receiver.requests() and (tmp_path / "state").exists())
        receiver.status = 503
        second = await office.escalated()
        await asyncio.to_thread(running.wait_for, "is not taken (HTTP 503); it is posted again until it is")
        await until(lambda: len(receiver.tried) > len(receiver.got) + 1)
        os.kill(running.pid, signal.SIGKILL)
        await asyncio.to_thread(running.ended)
    assert second not in receiver.requests()
    for request in (first, second):
        await office.mesh("request", "cancel", request)
    settled = await office.escalated()  # raised and over while nobody watches
    await office.mesh("request", "cancel", settled)
    receiver.status = 200
    before = len(receiver.got)
    async with office.running(*watch(receiver, tmp_path), until=settled) as running:
        await until(lambda: settled in receiver.requests())
        assert await asyncio.to_thread(running.end) == Exit.INTERRUPTED
    again = receiver.requests()[before:]
    assert again.index(second) < again.index(settled), "in the order of the log"
    assert first not in again, "that was taken"
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert f"{second}-1" in ids


async def test_a_redirect_is_no_delivery(office: Office, receiver: Receiver, tmp_path: Path) -> None:
    request = await office.escalated()
    receiver.status = 302
    async with office.running(*watch(receiver, tmp_path), until="HTTP 302"):
        assert receiver.got == []
        receiver.status = 200
        await until(lambda: request in receiver.requests())


async def test_a_receiver_that_is_gone_for_good_ends_the_watch_and_nothing_counts_as_taken(
    office: Office, receiver: Receiver, tmp_path: Path
) -> None:
    first = await office.escalated()
    async with office.running(*watch(receiver, tmp_path), until=first) as running:
        await until(lambda: first in receiver.requests() and (tmp_path / "state").exists())
        taken = (tmp_path / "state").read_bytes()
        receiver.status = 410
        second = await office.escalated()
        assert await asyncio.to_thread(running.ended) == Exit.FAILED  # though no alarm follows it
        assert "the URL is gone for good (HTTP 410); nothing more is posted there" in running.said
        assert "[webhook.gone]" in running.said
    assert len(receiver.tried) == len(receiver.got) + 1, "it is asked once"
    assert (tmp_path / "state").read_bytes() == taken
    once = await office.process(*watch(receiver, tmp_path, "--once"))
    assert (once.status, "[webhook.gone]" in once.err) == (Exit.FAILED, True), once
    receiver.status = 200
    assert (await office.process(*watch(receiver, tmp_path, "--once"))).status == Exit.DONE
    assert second in receiver.requests()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_says_when_to_come_again(
    office: Office, receiver: Receiver, tmp_path: Path, status: int
) -> None:
    request = await office.escalated()
    receiver.status, receiver.retry_after = status, "3"
    async with office.running(*watch(receiver, tmp_path), until=f"(HTTP {status}, asks for 3 s)"):
        receiver.status = 200
        await until(lambda: request in receiver.requests())
    first, second = receiver.tried[:2]
    assert second - first >= 3, "by itself it would have come after 1 s"


@pytest.mark.parametrize(
    ("said", "wait_s"),
    [
        ("120", 120.0),
        ("0", 1.0),
        ("9" * 5_000, 3600.0),
        (format_datetime(datetime.fromtimestamp(1_600_000_090, UTC), usegmt=True), 90.0),
        (format_datetime(datetime.fromtimestamp(1_500_000_000, UTC), usegmt=True), 1.0),
        *((rubbish, None) for rubbish in ("", "soon", "-5", "1.5", "٣", "Mon, 99 Foo 2026")),
    ],
)
def test_when_to_come_again_is_bounded_and_rubbish_says_nothing(said: str, wait_s: float | None) -> None:
    assert retry_after_s(said, now_s=1_600_000_000.0) == wait_s


@pytest.mark.parametrize(
    ("options", "secret", "said"),
    [
        (("--state", "s"), SECRET, "--state goes with --post"),
        (("--post", "ftp://x/", "--state", "s"), SECRET, "--post takes a URL"),
        (("--post", "http://127.0.0.1:1/", "--state", "s"), "", "--post needs MESH_WEBHOOK_SECRET"),
        (("--post", "http://127.0.0.1:1/", "--state", "s"), "whsec_c2hvcnQ=", "24 random bytes or more"),
        (("--post", "http://127.0.0.1:1/", "--state", "bad"), SECRET, "--state bad"),
    ],
)
async def test_what_cannot_be_posted_is_wrong_usage(
    office: Office,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: tuple[str, ...],
    secret: str,
    said: str,
) -> None:
    monkeypatch.setenv("MESH_WEBHOOK_SECRET", secret)
    (tmp_path / "bad").write_text("not a place")
    done = await office.mesh("human", "watch", "--once", *options)
    assert (done.status, said in done.err) == (Exit.USAGE, True), done
    assert secret not in done.err or not secret


def test_the_signature_is_that_of_the_standard() -> None:
    """The vector of the specification's own libraries (standard-webhooks/standard-webhooks, August 2026).

    It is in libraries/csharp/StandardWebhooks.Tests/WebhookTest.cs, `verifyWebhookSignWorks`.
    """
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_without_a_file_each_url_has_one_of_its_own(office: Office, receiver: Receiver) -> None:
    await office.escalated()
    for url in (receiver.url, f"{receiver.url}?other"):
        for news in (True, False):
            before = len(receiver.got)
            done = await office.process("human", "watch", "--post", url, "--once")
            assert done.status == Exit.DONE, done
            assert (len(receiver.got) > before) is news
    files = sorted((office.folder.path / ".mesh").glob("watch-*.json"))
    assert len(files) == 2
    assert files[0].parent.stat().st_mode & 0o777 == 0o700


async def test_once_does_not_wait_for_ever_for_a_receiver_that_is_dead_and_loses_nothing(
    office: Office, receiver: Receiver, tmp_path: Path
) -> None:
    first, second = await office.escalated(), await office.escalated()
    once = watch(receiver, tmp_path, "--once")
    receiver.status = 503
    dead = await office.process(*once, "--post-timeout", "3")  # long enough for an answer on a busy machine
    assert dead.status == Exit.TIMED_OUT, dead
    assert re.search(
        r"has not taken \d+ alarms? within 3 s \(HTTP 503\); the next run begins there", dead.err
    )
    assert (receiver.got, receiver.tried != []) == ([], True)
    assert not (tmp_path / "state").exists()
    receiver.status = 200
    assert (await office.process(*once)).status == Exit.DONE
    assert {first, second} <= set(receiver.requests())
    before = len(receiver.got)
    assert (await office.process(*once)).status == Exit.DONE
    assert len(receiver.got) == before, "all of it was taken"
