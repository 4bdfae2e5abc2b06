"""What a visitor of the page can do to the mesh and to other visitors, with its token and without."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from mesh.errors import UsageWrong
from mesh.ops import control
from mesh.ops.roster import mesh_freeze
from mesh.ui import Options, PageLimits
from mesh.ui.security import IDLE_S, Security
from mesh.web import server
from mesh.web.connections import Timed, timed
from tests.servers import PATIENCE_S, eventually, until
from tests.system.office import Office
from tests.ui.conftest import Serve, Visitor

TOKEN = "a token of more than sixteen characters"
HALF = b"GET /login HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


def place_of(address: str) -> tuple[str, int]:
    place = urlsplit(address)
    assert place.hostname is not None
    assert place.port is not None
    return place.hostname, place.port


@contextlib.asynccontextmanager
async def half_sent(address: str, count: int) -> AsyncIterator[list[socket.socket]]:
    """Open connections that each send a part of a request."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(raw := stack.enter_context(socket.socket()))
            raw.setblocking(False)
            await loop.sock_connect(raw, place_of(address))
            await loop.sock_sendall(raw, HALF)
        yield sockets


@pytest.mark.parametrize("protection", [False, True])
async def test_requests_that_are_half_sent_keep_nobody_out(
    protection: bool, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of them are cut, long before the limit of all connections is reached."""
    if not protection:
        monkeypatch.setattr(server, "timed", lambda limits: H11Protocol)
    async with (
        serve(limits=PageLimits(waiting=20, connections=40)) as address,
        half_sent(address, 40),
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as visitor,
    ):
        status = (await visitor.get("/me")).status_code
    assert status == (200 if protection else 503)


@pytest.mark.parametrize(
    "sent", [b"", HALF, b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\na"]
)
async def test_a_request_that_never_comes_whole_is_cut_though_it_goes_on_coming(
    sent: bytes, serve: Serve
) -> None:
    loop = asyncio.get_running_loop()
    async with serve(limits=PageLimits(head_s=0.2, body_s=0.2)) as address:
        with socket.socket() as raw:
            raw.setblocking(False)
            await loop.sock_connect(raw, place_of(address))
            await loop.sock_sendall(raw, sent)

            async def is_cut() -> bool:
                try:
                    if sent == HALF:
                        raw.send(b"x")
                    return raw.recv(1 << 16) == b""
                except BlockingIOError:
                    return False
                except OSError:
                    return True

            await eventually(is_cut)


async def test_a_browser_that_reads_nothing_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = []

    kind, ended = timed(PageLimits(stalled_s=0.2)), Timed.connection_lost

    def connection_lost(self: Timed, error: Exception | None) -> None:
        lost.append(self)
        ended(self, error)

    monkeypatch.setattr(kind, "connection_lost", connection_lost, raising=False)
    monkeypatch.setattr(server, "timed", lambda limits: kind)
    async with serve() as address:
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            raw.connect(place_of(address))
            raw.setblocking(False)
            asked = b"GET /static/htmx.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300
            await asyncio.get_running_loop().sock_sendall(raw, asked)
            await until(lambda: bool(lost))
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as visitor:
            assert (await visitor.get("/me")).status_code == 200


# --- sessions -------------------------------------------------------------------------------------


async def test_a_copy_of_a_cookie_opens_nothing_once_its_session_was_ended(
    serve: Serve, tmp_path: Path
) -> None:
    """Not after a restart either, where the key of the sessions lasts."""
    lasting = {"token": TOKEN, "session_key": b"k" * 32, "ended_sessions": tmp_path / "ended"}
    async with serve(**lasting) as address, Visitor(address) as kim, Visitor(address) as eve:
        await kim.browser.get("/", params={"token": TOKEN})
        for name, value in kim.browser.cookies.items():
            eve.browser.cookies.set(name, value)
        stolen = dict(eve.browser.cookies)
        assert (await eve.browser.get("/people")).status_code == 200
        form = await eve.form("/me")
        await kim.sends("/me", "/login/out", {})
        assert (await eve.browser.get("/people", headers={"cookie": cookie(stolen)})).status_code == 401
        for path in ("/me", "/login/out"):
            late = await eve.browser.post(path, data=form, headers={"cookie": cookie(stolen)})
            assert late.status_code == 401, path
    port = urlsplit(address).port
    assert (tmp_path / "ended").stat().st_mode & 0o777 == 0o600
    async with (
        serve(**lasting, port=port) as address,
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as eve_again,
    ):
        assert (await eve_again.get("/people", headers={"cookie": cookie(stolen)})).status_code == 401


def cookie(cookies: dict[str, str]) -> str:
    return "; ".join(f"{name}={value}" for name, value in cookies.items())


async def test_what_a_session_shows_ends_with_it(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with serve(token=TOKEN, limits=PageLimits(beat_s=0.05)) as address, Visitor(address) as kim:
        await kim.browser.get("/", params={"token": TOKEN})
        async with kim.browser.stream("GET", f"/requests/{request}/live", timeout=PATIENCE_S) as shown:
            lines = shown.aiter_lines()
            assert await anext(lines)
            await kim.sends("/me", "/login/out", {})
            async for _ in lines:  # until it ends
                pass


def test_a_session_is_put_off_by_requests_and_ends_all_the_same() -> None:
    security = Security(Options(token=TOKEN), 1)
    fresh = security.fresh(known=True)
    assert security.prolonged(fresh) == fresh
    idle = fresh.__class__(id="x", known=True, until=fresh.until - IDLE_S + 60, last=fresh.last)
    assert security.prolonged(idle).until >= fresh.until
    old = fresh.__class__(id="x", known=True, until=fresh.until - IDLE_S + 60, last=fresh.until - 5)
    assert security.prolonged(old).until == old.last
    over = fresh.__class__(id="x", known=True, until=fresh.until - IDLE_S - 5, last=fresh.last)
    assert security.is_over(over)


# --- live views -----------------------------------------------------------------------------------


async def opened(address: str, request: str, count: int, cookies: dict[str, str] | None = None) -> list[int]:
    """Open live views at once; return their statuses."""
    async with contextlib.AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=count)

        async def open_one() -> int:
            browser = await stack.enter_async_context(
                httpx.AsyncClient(base_url=address, limits=limits, timeout=PATIENCE_S, cookies=cookies)
            )
            answer = await stack.enter_async_context(browser.stream("GET", f"/requests/{request}/live"))
            return answer.status_code

        return await asyncio.gather(*(open_one() for _ in range(count)))


async def test_no_more_views_are_live_than_are_allowed_however_fast_they_come(
    serve: Serve, office: Office
) -> None:
    request = await office.escalated()
    async with serve(limits=PageLimits(streams=12)) as address:
        statuses = await opened(address, request, 20)
        assert sorted(set(statuses)) == [200, 503]
        assert statuses.count(200) == 12

        async def all_are_free() -> bool:
            return (await opened(address, request, 12)).count(200) == 12

        await eventually(all_are_free)


async def test_a_visitor_cannot_take_all_live_views(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with serve(limits=PageLimits(streams_of_one=6)) as address, Visitor(address) as kim:
        await kim.form("/me")
        statuses = await opened(address, request, 10, dict(kim.browser.cookies))
        assert statuses.count(200) == 6


# --- ids ------------------------------------------------------------------------------------------

NO_IDS = ["_", "*", "%3E", "c1.x", "c1_*", "c1_%3E", "human_01JZZZZZZZZZZZZZZZZZZZZZZZ%0A"]
GETS = ["/requests/{}", "/requests/{}/arrival", "/requests/{}/events/0", "/requests/{}/live", "/people/{}"]
GETS += [f"/requests/{{}}/download/{form}" for form in ("html", "mermaid", "json")]
POSTS = [f"/requests/{{}}/order/{order}" for order in ("freeze", "thaw", "cancel")]
POSTS += [f"/people/{{}}/{decision}" for decision in ("resolve", "assign", "reply", "settle")]


@pytest.mark.parametrize("name", NO_IDS)
async def test_what_is_no_id_of_a_request_orders_and_shows_nothing(
    name: str, serve: Serve, office: Office
) -> None:
    """`_` stands for the whole mesh in a subject, and a writer froze it by a request's form."""
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim:
        form = await kim.form("/me") | {"n": "1", "how": "again", "person": "x", "outcome": "done"}
        for path in GETS:
            shown = await kim.browser.get(path.format(name))
            assert shown.status_code in (400, 404), (path, shown.text)
        for path in POSTS:
            answer = await kim.posts(path.format(name), form)
            assert answer.status_code in (400, 404, 405), (path, answer.text)
        async with office.stage.mesh.connected_as("op") as bus:
            assert not (await mesh_freeze(bus)).frozen


async def test_no_order_about_a_request_is_one_about_the_mesh(office: Office) -> None:
    async with office.stage.mesh.connected_as("op") as bus:
        for order in (control.freeze, control.thaw, control.cancel):
            for name in ("_", ">", "c1", ""):
                with pytest.raises(UsageWrong, match="not a request's id"):
                    await order(bus, name, by="Kim")
        assert not (await mesh_freeze(bus)).frozen
