"""Requests over HTTP: what a caller submits, asks, hears and answers is what a client of the bus would."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]  # it ships none

from mesh.gateway import GatewayLimits
from mesh.gateway.tokens import TokenLimits, add_token, read_tokens, revoke_token
from protocol.wire import codec, events, subjects
from protocol.wire.moves import Ask, Complete
from protocol.wire.records import LiveNote
from tests.gateway.conftest import Open, bearer, gateway_up, heard_in, is_problem
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually


def new_key() -> str:
    return str(uuid.uuid4())


async def submitted(http: httpx.AsyncClient, text: str = "hello", **fields: Any) -> str:
    answer = await http.post("/requests", json={"text": text, **fields})
    assert answer.status_code == 202, answer.text
    request: str = answer.json()["request"]
    assert answer.headers["location"] == f"/requests/{request}"
    return request


async def ended(http: httpx.AsyncClient, request: str) -> dict[str, Any]:
    async with http.stream("GET", f"/requests/{request}/events") as answer:
        heard = [each async for each in heard_in(answer)]
    assert heard[-1].name == "ended"
    found: dict[str, Any] = heard[-1].data
    return found


async def test_a_request_gets_its_answer(echoing: Stage, caller: Open) -> None:
    async with caller() as http:
        request = await submitted(http, facts={"order": 1042}, to="a", conversation="k1")
        assert await ended(http, request) == (await http.get(f"/requests/{request}")).json()
        shown = (await http.get(f"/requests/{request}")).json()
    assert (shown["status"], shown["answer"], shown["agent"]) == ("completed", "hello", "a")
    opened = (await echoing.log(request))[0]
    assert opened.work is not None
    assert {fact.key: fact.value for fact in opened.work.handoff.facts} == {"text": "hello", "order": 1042}


async def test_a_repeated_post_is_the_same_request_also_after_the_gateway_was_started_again(
    echoing: Stage, caller: Open
) -> None:
    keyed, another = {"idempotency-key": new_key()}, {"idempotency-key": new_key()}
    found = set()
    for _ in range(2):
        async with caller() as http:
            answers = await asyncio.gather(
                *(http.post("/requests", json={"text": "pay"}, headers=keyed) for _ in range(8))
            )
            found |= {answer.json()["request"] for answer in answers}
            (request,) = found
            assert (await ended(http, request))["answer"] == "pay"
            other = await http.post("/requests", json={"text": "pay twice"}, headers=keyed)
            assert request in is_problem(other, 422, "gateway.key_reused")["detail"]
            new = await http.post("/requests", json={"text": "pay"}, headers=another)
            assert new.json()["request"] != request
    assert (await echoing.types(request)).count("request.opened") == 1


async def test_a_key_of_another_client_is_another_request(echoing: Stage, caller: Open) -> None:
    keyed = {"idempotency-key": new_key()}
    async with caller("c1") as one:
        mine = (await one.post("/requests", json={"text": "x"}, headers=keyed)).json()["request"]
    async with caller("c2") as other:
        theirs = (await other.post("/requests", json={"text": "x"}, headers=keyed)).json()["request"]
        assert {mine[:3], theirs[:3]} == {"c1_", "c2_"}
        for path in ("", "/events"):
            is_problem(await other.get(f"/requests/{mine}{path}"), 404, "gateway.not_found")
        for path in ("reply", "cancel"):
            refused = await other.post(f"/requests/{mine}/{path}", json={"value": 1})
            is_problem(refused, 404, "gateway.not_found")
        assert await ended(other, theirs)


async def test_a_question_is_heard_once_and_answered(stage: Stage, caller: Open) -> None:
    schema = {"type": "integer", "minimum": 1}
    agent = await stage.actor("a")
    async with caller() as http:
        request = await submitted(http)
        work = await agent.work(request)
        await agent.propose(request, work, Ask(to_agent=work.handoff.from_agent, question="?", schema=schema))
        async with http.stream("GET", f"/requests/{request}/events") as answer:
            question = await anext(heard_in(answer))
        assert (question.name, question.data["schema"], question.id) == (
            "question",
            schema,
            str(question.data["n"]),
        )
        shown = (await http.get(f"/requests/{request}")).json()
        assert (shown["status"], shown["questions"]) == ("asks", [question.data])

        n = question.data["n"]
        is_problem(await http.post(f"/requests/{request}/reply", json={"value": 1}), 422)  # to which?
        wrong = is_problem(await http.post(f"/requests/{request}/reply", json={"value": 0, "n": n}), 422)
        assert wrong["code"] == "client.reply_invalid"
        none = await http.post(f"/requests/{request}/reply", json={"value": 2, "n": 7})
        is_problem(none, 409, "gateway.no_question")
        after = {"last-event-id": question.id}  # it is open, and not heard again
        async with http.stream("GET", f"/requests/{request}/events", headers=after) as answer:
            said = await http.post(f"/requests/{request}/reply", json={"value": 2, "n": n, "by": "Ada"})
            assert said.status_code == 202, said.text
            work = await agent.work(request, round_=1)
            await agent.propose(request, work, Complete(answer=2))
            rest = [each async for each in heard_in(answer)]
        assert [(each.name, each.data["answer"]) for each in rest] == [("ended", 2)]
        [resumed] = [each for each in await stage.log(request) if isinstance(each, events.TurnResumed)]
        assert resumed.sender == "c1"
        seen = await http.get(f"/requests/{request}/events", headers={"last-event-id": rest[0].id})
        assert seen.status_code == 204
        late = await http.post(f"/requests/{request}/reply", json={"value": 2, "n": n})
        is_problem(late, 409, "gateway.no_question")


async def test_a_repeated_reply_does_not_answer_the_next_question(stage: Stage, caller: Open) -> None:
    agent = await stage.actor("a")
    async with caller() as http:
        request = await submitted(http)
        for round_, asked in enumerate(("which?", "delete all of it?")):
            work = await agent.work(request, round_=round_)
            await agent.propose(request, work, Ask(to_agent=work.handoff.from_agent, question=asked))
            await stage.reaches(request, "turn.suspended", round_ + 1)
            if round_ == 0:
                [question] = (await http.get(f"/requests/{request}")).json()["questions"]
                said = {"value": True, "n": question["n"]}
                assert (await http.post(f"/requests/{request}/reply", json=said)).status_code == 202
        again = await http.post(f"/requests/{request}/reply", json=said)
        is_problem(again, 409, "gateway.no_question")
        await http.post(f"/requests/{request}/cancel", json={})
    assert (await stage.types(request)).count("turn.resumed") == 1


async def test_live_notes_are_heard(stage: Stage, caller: Open) -> None:
    agent = await stage.actor("a")
    async with caller() as http:
        request = await submitted(http)
        work = await agent.work(request)
        note = LiveNote(v=1, turn=work.turn, round=0, n=0, at=1, kind="text", text="so\n\nfar")
        async with http.stream("GET", f"/requests/{request}/events") as answer:

            async def talk() -> None:
                while True:  # core NATS: what nobody listens to yet is lost
                    agent.bus.send(subjects.live("c1", request, "a", work.turn), codec.encode(note))
                    await asyncio.sleep(0.05)

            talking = asyncio.create_task(talk())
            heard = await anext(heard_in(answer))
            talking.cancel()
        assert (heard.name, heard.data["agent"], heard.data["text"], heard.id) == (
            "note",
            "a",
            "so\n\nfar",
            "",
        )
        await agent.propose(request, work, Complete(answer="done"))
        await stage.reaches(request, "request.completed")


async def test_a_request_is_cancelled(stage: Stage, caller: Open) -> None:
    async with caller() as http:
        request = await submitted(http)
        said = await http.post(f"/requests/{request}/cancel", json={"reason": "changed my mind", "by": "Ada"})
        assert said.status_code == 202, said.text
        end = await ended(http, request)
        assert (end["status"], end["reason"]) == ("cancelled", "cancelled by Ada (c1): changed my mind"), end
        is_problem(await http.post(f"/requests/{request}/cancel"), 409, "gateway.ended")


async def test_a_refusal_is_an_end(stage: Stage, caller: Open) -> None:
    async with caller() as http:
        refused = await ended(http, await submitted(http, to="nobody"))
        assert refused["status"] == "refused"
        assert "nobody" in refused["reason"]


async def test_a_submit_that_the_guard_does_not_take_is_told(
    stage: Stage, caller: Open, tmp_path: Path
) -> None:
    keyed = {"idempotency-key": new_key()}
    async with caller() as http:
        request = (await http.post("/requests", json={"text": "x"}, headers=keyed)).json()["request"]
    await asyncio.to_thread((tmp_path / "gateway.sqlite").unlink)
    async with caller() as http:  # it has lost its file, and the guard knows better
        await http.post("/requests", json={"text": "not the same"}, headers=keyed)
        async with http.stream("GET", f"/requests/{request}/events") as answer:
            (told,) = [each async for each in heard_in(answer)]
        assert (told.name, told.data["code"], told.data["status"]) == (
            "rejected",
            "rejected.request_exists",
            422,
        )
        shown = (await http.get(f"/requests/{request}")).json()
        assert (shown["status"], shown["reason"][:14]) == ("rejected", "request_exists")
        again = await http.post("/requests", json={"text": "not the same"}, headers=keyed)
        is_problem(again, 422, "rejected.request_exists")


async def test_without_a_token_nothing_is_answered_but_the_document(
    stage: Stage, caller: Open, tokens: Path
) -> None:
    async with caller() as http:
        known = dict(http.headers)["authorization"]
        shown = ("", "Bearer", "Bearer x", f"Basic {known[7:]}", f"{known}x", known[:-1], "Bearer \xfc")
        for wrong in shown:
            for method, path in (("POST", "/requests"), ("GET", "/requests/x"), ("GET", "/nothing")):
                answer = await http.request(method, path, headers={b"authorization": wrong.encode("latin-1")})
                is_problem(answer, 401, "gateway.token")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert (await http.get("/openapi.json", headers={"authorization": ""})).status_code == 200
        is_problem(await http.get("/nothing"), 404)
        refused = await http.delete("/requests")
        is_problem(refused, 405)
        assert refused.headers["allow"] == "POST"


async def test_a_new_token_is_good_at_once_and_a_revoked_one_is_not(caller: Open, tokens: Path) -> None:
    async with caller() as http:
        made, entry = add_token(tokens, "c2", note="shop")
        theirs = {"authorization": f"Bearer {made}"}
        assert (await http.post("/requests", json={"text": "x"}, headers=theirs)).status_code == 202
        revoke_token(tokens, entry.id)
        is_problem(await http.post("/requests", json={"text": "x"}, headers=theirs), 401)
        await asyncio.to_thread(tokens.write_text, "not a file of tokens")
        assert (await http.post("/requests", json={"text": "x"})).status_code == 202


def test_the_file_holds_no_token_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tokens.json"
    made, entry = add_token(path, "c1")
    assert made not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_tokens(path) == (entry,)
    assert entry.sha256 != made


async def test_each_token_has_limits(stage: Stage, caller: Open) -> None:
    limits = TokenLimits(per_second=0.001, body_kib=1, streams=1)
    async with caller(limits=limits) as http:
        large = await http.post("/requests", json={"text": "x" * 2_000})
        is_problem(large, 413, "gateway.body_too_large")
        slow = is_problem(await http.get("/requests/x"), 429, "gateway.too_fast")
        assert "0.001" in slow["detail"]
    async with caller(limits=TokenLimits(streams=1)) as http:
        request = await submitted(http)
        async with http.stream("GET", f"/requests/{request}/events") as one:
            assert one.status_code == 200
            second = await http.get(f"/requests/{request}/events")
            is_problem(second, 429, "gateway.too_many_streams")


async def test_the_stream_of_a_revoked_token_ends(stage: Stage, caller: Open, tokens: Path) -> None:
    async with caller(shared=GatewayLimits(beat_s=0.05)) as http:
        request = await submitted(http)
        async with http.stream("GET", f"/requests/{request}/events") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "retry: 1000"
            revoke_token(tokens, read_tokens(tokens)[0].id)
            assert {line async for line in lines} <= {"", ": here"}
        is_problem(await http.get(f"/requests/{request}"), 401)


async def test_a_client_whose_key_the_gateway_lacks_is_told_so(caller: Open) -> None:
    async with caller("c9") as http:
        is_problem(await http.post("/requests", json={"text": "x"}), 503, "gateway.client_unusable")


async def test_a_bus_that_is_away_is_told_and_a_repeated_post_is_the_same_request(
    own_stage: Stage, tmp_path: Path, tokens: Path
) -> None:
    token, _ = add_token(tokens, "c1")
    keyed = {"idempotency-key": new_key(), **bearer(token)}
    async with (
        gateway_up(own_stage.mesh, tmp_path / "gw", tokens) as (_, address),
        httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as http,
    ):
        known = (await http.post("/requests", json={"text": "x"}, headers=bearer(token))).json()["request"]
        await own_stage.mesh.server.kill()
        away = await http.post("/requests", json={"text": "y"}, headers=keyed)
        assert "Idempotency-Key" in is_problem(away, 503)["remedy"]
        assert away.headers["retry-after"] == "1"
        is_problem(await http.get(f"/requests/{known}", headers=bearer(token)), 503)
        await own_stage.mesh.server.start()
        await own_stage.back()
        made = set[str]()

        async def taken() -> bool:
            answer = await http.post("/requests", json={"text": "y"}, headers=keyed)
            if answer.status_code == 202:
                made.add(answer.json()["request"])
            return answer.status_code == 202

        await eventually(taken)
        await taken()
        (request,) = made
        await own_stage.reaches(request, "request.opened")


async def test_the_document_describes_what_is_answered(echoing: Stage, caller: Open) -> None:
    async with caller() as http:
        document = (await http.get("/openapi.json")).json()
        request = await submitted(http)
        await ended(http, request)
        shown = (await http.get(f"/requests/{request}")).json()
        problem = (await http.get("/requests/x")).json()

    def fits(value: object, name: str) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(json.loads(json.dumps(schema))).validate(value)

    fits(shown, "RequestDocument")
    fits(problem, "ProblemDocument")
    fits({"text": "x", "facts": {"a": 1}}, "NewRequest")
    assert set(document["paths"]) == {
        "/requests",
        "/requests/{request}",
        "/requests/{request}/events",
        "/requests/{request}/reply",
        "/requests/{request}/cancel",
    }
