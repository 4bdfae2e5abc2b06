"""Webhooks: each question and each end is posted until it is taken, also by a gateway that was killed."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import standardwebhooks

from mesh.gateway import HookPauses
from mesh.gateway.store import GatewayStore, HookedRequest
from mesh.gateway.tokens import TokenBook, TokenEntry, add_token, revoke_token
from mesh.gateway.webhooks import Webhooks
from protocol.wire.ids import request_id
from protocol.wire.moves import Ask, Complete
from tests.gateway.conftest import bearer, gateway_up
from tests.gateway.test_dies import gateway_process
from tests.guard.stage import Stage
from tests.guard.test_quotas import stage_with
from tests.servers import PATIENCE_S, eventually, until
from tests.system.terminal import in_process
from tests.system.test_cli_webhook import Receiver, receiving

HASTY = HookPauses(first_s=0.1, gone_s=0.1)

PATIENT = HookPauses(first_s=1_000.0, longest_s=1e9)
"""Within a test, nobody posts again."""

Told = list[tuple[str, dict[str, Any]]]


def told(receiver: Receiver, entry: TokenEntry) -> Told:
    """Return what was posted, as a receiver reads it with the library of Standard Webhooks: id and body."""
    assert entry.hook is not None
    verifier, found = standardwebhooks.Webhook(entry.hook.secret), Told()
    for headers, body in tuple(receiver.got):
        found.append((headers["webhook-id"], verifier.verify(body, headers)))
        spoiled = headers | {"webhook-id": "another"}
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            verifier.verify(body, spoiled)
    return found


@contextlib.contextmanager
def holding() -> Iterator[tuple[Receiver, threading.Event]]:
    """Yield a receiver that answers nothing but `100 Continue` until the event is set."""
    with receiving() as receiver:
        released = threading.Event()
        handler: Any = receiver.server.RequestHandlerClass
        usual = handler.send_response

        def send_response(self: Any, code: int, message: str | None = None) -> None:
            while not released.wait(0.5):  # a client that hears nothing would give up
                self.send_response_only(100)
                self.end_headers()
            usual(self, code, message)

        handler.send_response = send_response
        try:
            yield receiver, released
        finally:
            released.set()


@contextlib.asynccontextmanager
async def calling(stage: Stage, folder: Path, tokens: Path, token: str) -> Any:
    async with (
        gateway_up(stage.mesh, folder, tokens, pauses=HASTY) as (_, address),
        httpx.AsyncClient(base_url=address, headers=bearer(token), timeout=PATIENCE_S) as http,
    ):
        yield http


async def posted(http: httpx.AsyncClient, key: str = "") -> str:
    headers = {"idempotency-key": key} if key else {}
    answer = await http.post("/requests", json={"text": "hello"}, headers=headers)
    assert answer.status_code == 202, answer.text
    request: str = answer.json()["request"]
    return request


async def test_a_question_and_the_end_are_posted_once_and_signed(
    stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    agent = await stage.actor("a")
    with receiving() as receiver:
        token, entry = add_token(tokens, "c1", post=receiver.url)
        async with calling(stage, tmp_path, tokens, token) as http:
            request = await posted(http, key := os.urandom(8).hex())
            work = await agent.work(request)
            await agent.propose(request, work, Ask(to_agent=work.handoff.from_agent, question="Which?"))
            await until(lambda: len(receiver.got) == 1)
            [(id_, body)] = told(receiver, entry)
            asked = (await http.get(f"/requests/{request}")).json()["questions"]
            assert (body["type"], body["data"]) == ("request.asks", {"request": request, **asked[0]})
            assert id_ == f"{request}.{asked[0]['n']}"
            await http.post(f"/requests/{request}/reply", json={"n": asked[0]["n"], "value": "blue"})
            work = await agent.work(request, round_=1)
            await agent.propose(request, work, Complete(answer="done"))
            await until(lambda: len(receiver.got) == 2)
            (id_, body) = told(receiver, entry)[1]
            shown = (await http.get(f"/requests/{request}")).json()
            assert (id_, body["type"], body["data"]) == (
                f"{request}.{shown['n']}",
                "request.completed",
                shown,
            )
            assert await posted(http, key) == request  # a repeated post is no news
            await posted(http)
            await agent.propose(made := await posted(http), await agent.work(made), Complete(answer="2"))
            await until(lambda: len(receiver.got) == 3)
            assert told(receiver, entry)[2][1]["data"]["request"] == made


@pytest.mark.parametrize("status", [500, 400, 302, 429, 410])
async def test_a_post_that_is_not_taken_comes_again_until_it_is(
    echoing: Stage, tmp_path: Path, tokens: Path, status: int
) -> None:
    with receiving() as receiver:
        receiver.status = status
        token, entry = add_token(tokens, "c1", post=receiver.url)
        async with calling(echoing, tmp_path, tokens, token) as http:
            request = await posted(http)
            await until(lambda: len(receiver.tried) >= 3)
            receiver.status = 200
            await until(lambda: len(receiver.got) == 1)
            [(_, body)] = told(receiver, entry)
            assert body["data"] == (await http.get(f"/requests/{request}")).json()


async def test_what_is_posted_by_a_gateway_that_is_killed_is_posted_when_it_is_back(
    echoing: Stage, tmp_path: Path, tokens: Path
) -> None:
    requests = list[str]()
    with receiving() as receiver:
        receiver.status = 500  # nothing is taken before the kill
        token, entry = add_token(tokens, "c1", post=receiver.url)
        async with (
            gateway_process(echoing, tmp_path, tokens) as (address, process),
            httpx.AsyncClient(base_url=address, headers=bearer(token), timeout=PATIENCE_S) as http,
        ):
            for _ in range(5):
                requests.append(await posted(http, os.urandom(8).hex()))
            requests.append(await posted(http))
            await until(lambda: bool(receiver.tried))
            process.send_signal(signal.SIGKILL)
            await process.wait()
        assert receiver.got == []
        for request in requests:
            await echoing.reaches(request, "request.completed")
        receiver.status = 200
        async with gateway_process(echoing, tmp_path, tokens):
            await until(lambda: len({each["data"]["request"] for each in receiver.told}) == len(requests))
        ids = {id_ for id_, _ in told(receiver, entry)}
        assert {id_.rpartition(".")[0] for id_ in ids} == set(requests)
        assert len(ids) == len(requests)  # what comes twice has the same id


async def test_a_receiver_that_is_away_keeps_no_other_waiting_and_a_revoked_token_ends_its_posts(
    echoing: Stage, tmp_path: Path, tokens: Path
) -> None:
    with receiving() as one, receiving() as other:
        one.status = 503
        lost, gone = add_token(tokens, "c1", post=one.url)
        token, entry = add_token(tokens, "c1", post=other.url)
        async with calling(echoing, tmp_path, tokens, lost) as http:
            stuck = [await posted(http) for _ in range(20)]
            await until(lambda: bool(one.tried))
            http.headers.update(bearer(token))
            made = {await posted(http) for _ in range(5)}
            await until(lambda: {each["data"]["request"] for each in other.told} == made)
            assert len(told(other, entry)) == 5
            assert one.got == []
            revoke_token(tokens, gone.id)
        async with calling(echoing, tmp_path, tokens, token):
            with contextlib.closing(GatewayStore(tmp_path)) as store:
                await until(lambda: not {each.request for each in store.hooked()} & set(stuck))


async def test_a_receiver_that_does_not_answer_keeps_only_its_own_posts_waiting(
    echoing: Stage, tmp_path: Path, tokens: Path
) -> None:
    with holding() as (one, released), receiving() as other:
        held, _ = add_token(tokens, "c1", post=one.url)
        token, _ = add_token(tokens, "c1", post=other.url)
        async with calling(echoing, tmp_path, tokens, held) as http:
            waiting = {await posted(http) for _ in range(40)}
            for request in waiting:
                await echoing.reaches(request, "request.completed")
            await until(lambda: bool(one.tried))
            http.headers.update(bearer(token))
            made = await posted(http)
            await until(lambda: [each["data"]["request"] for each in other.told] == [made])
            released.set()
            await until(lambda: {each["data"]["request"] for each in one.told} == waiting)


async def test_posts_that_fail_together_make_one_pause(echoing: Stage, tmp_path: Path, tokens: Path) -> None:
    with holding() as (one, released):
        one.status = 503
        token, entry = add_token(tokens, "c1", post=one.url)
        async with (
            gateway_up(echoing.mesh, tmp_path, tokens, pauses=PATIENT) as (gateway, address),
            httpx.AsyncClient(base_url=address, headers=bearer(token), timeout=PATIENCE_S) as http,
        ):
            for _ in range(12):
                await posted(http)
            await until(lambda: len(one.tried) == 4)
            released.set()
            webhooks = gateway._webhooks
            assert webhooks is not None
            await until(lambda: len(webhooks._timers) == 12)  # nothing is on its way any more
            receiver = webhooks._receivers[entry.id]
            assert receiver.closed_until <= time.monotonic() + PATIENT.first_s
            assert receiver._pause_s == 2 * PATIENT.first_s


async def test_the_end_of_a_request_that_a_quota_rejected_before_is_told(
    tmp_path: Path, tokens: Path
) -> None:
    async with stage_with(tmp_path / "mesh", open_requests=1) as stage:
        agent = await stage.actor("a")
        with receiving() as receiver:
            token, _ = add_token(tokens, "c1", post=receiver.url)
            async with calling(stage, tmp_path, tokens, token) as http:

                async def submit() -> None:
                    key = {"idempotency-key": "again"}
                    await http.post("/requests", json={"text": "hello"}, headers=key)

                async def is_taken() -> bool:
                    await submit()
                    return bool(await stage.types(second))

                first = await posted(http)
                work = await agent.work(first)
                await submit()
                await until(lambda: [each["type"] for each in receiver.told] == ["request.rejected"])
                second = receiver.told[0]["data"]["request"]
                await agent.propose(first, work, Complete(answer="1"))
                await eventually(is_taken)
                await agent.propose(second, await agent.work(second), Complete(answer="2"))
                await until(lambda: len(receiver.told) == 3)
                told_of = [each["type"] for each in receiver.told if each["data"]["request"] == second]
                assert told_of == ["request.rejected", "request.completed"]


async def test_a_request_without_a_key_that_a_quota_rejected_is_let_go(tmp_path: Path, tokens: Path) -> None:
    async with stage_with(tmp_path / "mesh", open_requests=1) as stage:
        with receiving() as receiver:
            token, _ = add_token(tokens, "c1", post=receiver.url)
            async with calling(stage, tmp_path, tokens, token) as http:
                first = await posted(http)
                await stage.reaches(first, "request.opened")
                await http.post("/requests", json={"text": "hello"})
                await until(lambda: [each["type"] for each in receiver.told] == ["request.rejected"])
                with contextlib.closing(GatewayStore(tmp_path)) as store:
                    await until(lambda: [each.request for each in store.hooked()] == [first])


class Silent:
    """A pool whose clients hear nothing of any request."""

    async def get(self, name: str) -> "Silent":
        return self

    def on_news(self, heard: Any) -> None:
        pass

    def rejection(self, request: str) -> None:
        return None

    async def latest(self, request: str) -> None:
        return None


def kept_from(tmp_path: Path, tokens: Path, age_s: float) -> tuple[GatewayStore, Webhooks, HookedRequest]:
    """Return a store with one request of this age, which nobody has heard of, and what posts its news."""
    _, entry = add_token(tokens, "c1", post="http://127.0.0.1:9/")
    hooked = HookedRequest(request_id("c1", int((time.time() - age_s) * 1e3), bytes(10)), "c1", entry.id)
    (store := GatewayStore(tmp_path / "store")).hook(hooked)
    return store, Webhooks(store, Silent(), TokenBook(tokens), HASTY), hooked  # type: ignore[arg-type]


async def test_a_tokens_file_that_is_away_for_a_moment_ends_no_posts(tmp_path: Path, tokens: Path) -> None:
    store, webhooks, hooked = kept_from(tmp_path, tokens, 1)
    os.rename(tokens, away := tokens.with_suffix(".away"))
    assert await webhooks._visit(hooked) == HASTY.longest_s
    assert store.hooked() == [hooked]
    os.rename(away, tokens)
    assert await webhooks._visit(hooked) is not None
    assert store.hooked() == [hooked]
    store.close()


@pytest.mark.parametrize(("days", "is_kept"), [(6, True), (8, False)])
async def test_a_request_that_never_began_is_let_go(
    tmp_path: Path, tokens: Path, days: int, is_kept: bool
) -> None:
    store, webhooks, hooked = kept_from(tmp_path, tokens, days * 86_400)
    assert (await webhooks._visit(hooked) is not None) is is_kept
    assert store.hooked() == ([hooked] if is_kept else [])
    store.close()


def test_the_secret_is_shown_once_and_by_no_list(tmp_path: Path) -> None:

    file = tmp_path / "tokens.json"
    made = in_process(
        "gateway", "token", "app", "--tokens", file, "--post", "https://shop.example/hook", "--json"
    )
    shown = json.loads(made.stdout)
    assert shown["secret"].startswith("whsec_")
    listed = in_process("gateway", "tokens", "--tokens", file, "--json")
    assert shown["secret"] not in listed.stdout
    assert json.loads(listed.stdout)[0]["post"] == "https://shop.example/hook"
    assert in_process("gateway", "token", "app", "--tokens", file, "--post", "ftp://x").exit_code != 0
