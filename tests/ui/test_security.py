"""What the page does not let happen: each try gets a clear answer, and the log is as it was."""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from mesh.errors import UsageWrong
from mesh.ui import LEAST_TOKEN, Keys, Options, secret, serving
from mesh.ui.security import MOST_BODY
from protocol.wire.handoff import Fact
from protocol.wire.moves import Ask
from tests.servers import PATIENCE_S
from tests.system.office import Office
from tests.ui.conftest import Serve, Visitor

RESOLVE = {"how": "complete", "answer": "42"}
TOKEN = "a token of more than sixteen characters"


async def refused(office: Office, request: str, answer: httpx.Response, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert 'role="alert"' in answer.text
    assert (await office.last(request)).n == 1


async def test_a_page_that_only_shows_does_nothing(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with serve(by="Kim") as address, Visitor(address) as kim:
        form = await kim.form("/me") | {"n": "1"} | RESOLVE
        answer = await kim.posts(f"/people/{request}/resolve", form)
        await refused(office, request, answer, 403, "--allow-write")
        for path in ("/mesh/freeze", "/mesh/dead/1/resend", f"/requests/{request}/order/cancel"):
            assert (await kim.posts(path, form | {"reason": "x"})).status_code == 403, path
        assert (await office.last(request)).n == 1


@pytest.mark.parametrize(
    ("said", "headers", "status", "words"),
    [
        *(({"csrf": csrf}, {}, 403, "load the page again") for csrf in ("", "x", "0" * 64, "ünïcode")),
        *(({}, {"origin": origin}, 403, "") for origin in ("https://evil.example", "null")),
        *(({}, {"sec-fetch-site": site}, 403, "") for site in ("cross-site", "same-site")),
        *(({}, {"host": host}, 421, "") for host in ("evil.example", "127.0.0.1.evil.example", "")),
    ],
    ids=str,
)
async def test_a_form_that_is_forged_or_from_elsewhere_does_nothing(
    serve: Serve, office: Office, said: dict[str, str], headers: dict[str, str], status: int, words: str
) -> None:
    request = await office.escalated()
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim:
        form = await kim.form(f"/people/{request}") | RESOLVE | said
        answer = await kim.posts(f"/people/{request}/resolve", form, **headers)
        await refused(office, request, answer, status, words)


async def test_an_old_form_of_a_page_that_was_started_again_does_nothing(
    keys: Keys, office: Office, page_port: int, tmp_path: Path
) -> None:
    request = await office.escalated()
    options = Options(allow_write=True, by="Kim", store=tmp_path, port=page_port)
    async with serving(keys, options) as address, Visitor(address) as kim:
        form, cookies = await kim.form(f"/people/{request}"), dict(kim.browser.cookies)
    async with serving(keys, options) as address, Visitor(address) as kim:
        for name, value in cookies.items():
            kim.browser.cookies.set(name, value)
        answer = await kim.posts(f"/people/{request}/resolve", form | RESOLVE)
        await refused(office, request, answer, 403, "load the page again")


async def test_a_form_of_somebody_elses_session_does_nothing(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim, Visitor(address) as eve:
        form = await eve.form(f"/people/{request}") | RESOLVE
        await kim.form("/me")
        answer = await kim.posts(f"/people/{request}/resolve", form)
        await refused(office, request, answer, 403, "load the page again")


async def test_a_page_does_not_answer_under_a_name_that_is_not_its_own(serve: Serve) -> None:
    async with serve(names=("mesh.example",)) as address, httpx.AsyncClient(base_url=address) as browser:
        for host, status in (
            ("evil.example:80", 421),
            ("mesh.example", 200),
            ("localhost:1", 200),
            ("[::1]", 200),
        ):
            assert (await browser.get("/people", headers={"host": host})).status_code == status, host


async def test_a_session_that_was_made_up_is_none(serve: Serve) -> None:
    async with serve(allow_write=True, token=TOKEN) as address, Visitor(address) as eve:
        await eve.form("/login")
        (name,) = eve.browser.cookies
        said = {"id": "x", "by": "Kim", "known": True, "until": 2**40}
        body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
        for signature in ("", "0" * 64, hmac.new(b"", body.encode(), hashlib.sha256).hexdigest(), "\u00e9"):
            cookie = f'{name}="{body}.{signature}"'.encode()
            answer = await eve.browser.get("/people", headers={b"cookie": cookie})
            assert answer.status_code == 401, signature


async def test_elsewhere_the_page_asks_for_a_token_and_only_shows(keys: Keys, tmp_path: Path) -> None:
    with pytest.raises(UsageWrong, match="token"):
        async with serving(keys, Options(host="0.0.0.0", store=tmp_path)):
            pass
    options = Options(host="0.0.0.0", token=TOKEN, store=tmp_path)
    async with serving(keys, options) as anywhere:
        address = anywhere.replace("0.0.0.0", "127.0.0.1")
        async with Visitor(address) as visitor:
            for path in ("/people", "/requests", "/mesh", "/me", "/requests/x/live", "/loginx", "/"):
                assert (await visitor.browser.get(path)).status_code == 401, path
            led = await visitor.browser.get("/people?tier=desk", headers={"accept": "text/html"})
            assert led.headers["location"] == "/login?next=%2Fpeople%3Ftier%3Ddesk"
            assert (await visitor.browser.get("/static/htmx.min.js")).status_code == 200
            wrong = await visitor.sends("/login", "/login", {"token": TOKEN[:-1], "next": "/people"})
            assert wrong.status_code == 403
            assert (await visitor.browser.get("/people")).status_code == 401
            bearer = {"authorization": f"Bearer {TOKEN}"}
            assert (await visitor.browser.get("/people", headers=bearer)).status_code == 200
            entered = await visitor.sends("/login", "/login", {"token": TOKEN, "next": "//evil.example"})
            assert entered.headers["location"] == "/"
            cookie = entered.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Lax" in cookie
            shown = await visitor.browser.get("/people")
            assert shown.status_code == 200
            assert "read-only" in shown.text
            await visitor.sends("/me", "/login/out", {})
            assert (await visitor.browser.get("/people")).status_code == 401


async def test_every_answer_has_the_headers_that_keep_others_out(serve: Serve) -> None:
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        answers = [
            await browser.get(path)
            for path in ("/people", "/nothing", "/static/page.css", "/requests/x/live")
        ]
        answers.append(await browser.get("/people", headers={"host": "evil.example"}))
        answers.append(await browser.request("DELETE", "/people"))
        for answer in answers:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert "server" not in answer.headers
        assert answers[-1].status_code == 405


LARGE = "x" * 1_000_000


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (f"answer={LARGE}", "application/x-www-form-urlencoded", 413),
        ("a=1&a=2", "application/x-www-form-urlencoded", 400),
        ("a=%ff", "application/x-www-form-urlencoded", 400),
        ("&".join(f"f{n}=1" for n in range(1_000)), "application/x-www-form-urlencoded", 400),
        ('{"how": "again"}', "application/json", 415),
        ("--x", "multipart/form-data; boundary=x", 415),
    ],
)
async def test_a_form_that_is_none_does_nothing(
    serve: Serve, office: Office, body: str, kind: str, status: int
) -> None:
    request = await office.escalated()
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim:
        answer = await kim.browser.post(
            f"/people/{request}/resolve", content=body, headers={"content-type": kind}
        )
        await refused(office, request, answer, status, "nothing was done")


async def test_a_text_as_long_as_a_form_may_be_ends_in_a_clear_answer(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim:
        page = f"/people/{request}"
        answer = await kim.sends(page, f"{page}/resolve", RESOLVE | {"answer": "x" * (MOST_BODY - 1_000)})
        assert answer.status_code in (303, 409), answer.text[:500]
        assert (answer.status_code == 303) == ((await office.last(request)).n == 2)


NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;title\x07\x1b[31m{{ 7*7 }}\u202e\"'>"


async def test_what_strangers_write_stays_text(serve: Serve, office: Office) -> None:
    client, actor = await office.stage.client(), await office.stage.actor("a")
    facts = [Fact(key="k<script>", value={"deep<script>": NASTY}), Fact(key="long", value="y" * 20_000)]
    request = await client.submit(NASTY, facts=facts, conversation=NASTY[:60])
    work = await actor.work(request)
    ask = Ask(
        to_agent="human",  # type: ignore[arg-type]
        question=NASTY,
        schema={
            "title": NASTY,
            "type": "object",
            "properties": {NASTY: {"enum": [NASTY], "description": NASTY}},
        },
    )
    await actor.propose(request, work, ask)
    await office.stage.reaches(request, "turn.suspended")
    async with (
        serve(allow_write=True, by=NASTY[:40]) as address,
        httpx.AsyncClient(base_url=address) as browser,
    ):
        paths = (
            "/requests",
            "/people",
            f"/people/{request}",
            f"/requests/{request}",
            f"/requests/{request}?at=0",
        )
        for path in (*paths, f"/requests/{request}/events/0", f"/requests/{request}/events/1"):
            shown = await browser.get(path)
            assert shown.status_code == 200, path
            for steering in ("<script>a", "<img", "\x1b", "\x07", "\u202e", "onerror=alert(2)>"):
                assert steering not in shown.text.replace("&gt;", ""), (path, steering)
            assert "{{ 7*7 }}" in shown.text or "7*7" not in shown.text


@pytest.mark.parametrize(
    "name", ["nobody", "c1_01JZ", "..%2f..%2fetc%2fpasswd", "c1_01JZZZZZZZZZZZZZZZZZZZZZZZ", "*", ">"]
)
async def test_an_unknown_id_gets_a_clear_answer(serve: Serve, name: str) -> None:
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        for path in (
            "/requests/{}",
            "/requests/{}/events/0",
            "/requests/{}/live",
            "/requests/{}/download/json",
            "/people/{}",
        ):
            answer = await browser.get(path.format(name))
            assert answer.status_code in (400, 404), (path, answer.text)
            assert 'role="alert"' in answer.text


async def test_a_broken_request_of_http_is_refused(serve: Serve) -> None:
    async with serve() as address:
        place = urlsplit(address)
        for sent in (b"GET / HTTP/1.1\r\nHost: " + b"x" * 70_000, b"\x00\x01\x02\r\n\r\n"):
            with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as raw:
                raw.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(raw, sent)
                assert (await loop.sock_recv(raw, 12)).startswith(b"HTTP/1.1 4")
        async with httpx.AsyncClient(base_url=address) as browser:
            assert (await browser.get("/people")).status_code == 200


async def test_the_address_that_was_printed_opens_the_page_once_and_for_all(serve: Serve) -> None:
    async with serve(token=TOKEN) as address, Visitor(address) as visitor:
        led = await visitor.browser.get("/requests", params={"status": "open", "token": TOKEN})
        assert (led.status_code, led.headers["location"]) == (303, "/requests?status=open")
        assert TOKEN not in led.text + led.headers["set-cookie"]
        assert (await visitor.browser.get("/requests")).status_code == 200
    async with serve(token=TOKEN) as address, Visitor(address) as stranger:
        for said in ("", TOKEN[:-1], "ünïcode"):
            wrong = await stranger.browser.get("/requests", params={"status": "open", "token": said})
            assert wrong.status_code == 403
            assert 'role="alert"' in wrong.text
            assert 'value="/requests?status=open"' in wrong.text  # where the right one leads
        assert (await stranger.browser.get("/requests")).status_code == 401
        piece = await stranger.browser.get("/requests", headers={"hx-request": "true"})
        assert (piece.status_code, piece.headers["hx-refresh"], piece.text) == (401, "true", "")


@pytest.mark.parametrize("key", [b"k" * 32, b""])
async def test_a_session_outlives_the_page_only_with_a_key_that_does(
    serve: Serve, page_port: int, key: bytes
) -> None:
    async with serve(token=TOKEN, session_key=key, port=page_port) as address, Visitor(address) as visitor:
        await visitor.browser.get("/", params={"token": TOKEN})
        cookies = dict(visitor.browser.cookies)
    async with serve(token=TOKEN, session_key=key, port=page_port) as address, Visitor(address) as visitor:
        for name, value in cookies.items():
            visitor.browser.cookies.set(name, value)
        assert (await visitor.browser.get("/requests")).status_code == (200 if key else 401)


def test_a_secret_that_lasts_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "page.token"
    kept = secret(path)
    assert secret(path) == kept
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret() != secret()
    assert len(kept.token) >= LEAST_TOKEN
    assert len(kept.session_key) == 32
