"""What a model call leaves in spans and metrics, and what replay makes of it."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from mesh.model.loop import drive
from mesh.model.port import Model, Prompt, Reply
from mesh.model.vendor import ModelUnreadable
from mesh.model.vendors.claude import ClaudeModel
from mesh.replay.rejudge import rejudge
from mesh.telemetry import tracing
from mesh.testing.harness import REQUEST, turn
from protocol.wire import codec
from protocol.wire.commands import Usage
from protocol.wire.moves import Complete
from protocol.wire.prices import Price, Tokens
from tests.golden.make import LOGS
from tests.telemetry.seen import Readings, Seen, id_of, parent_of, said
from tests.unit.model.vendor import PROMPT, claude, raw
from tests.unit.protocol.worlds import Play, transfer
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import calls, fails, says, writes

CANARY = "xylophone"
MODEL = "claude-haiku-5-5"


class Parrot(Model):
    """A model without an SDK."""

    mode = "parrot"

    async def reply(self, prompt: Prompt, hear: Any = None) -> Reply:
        tokens = Tokens(input=5, cache_read=20, output=3)
        return Reply(
            text=CANARY, tokens=tokens, usage=Usage(tokens=28, model_calls=1), model="parrot-2", id="r-7"
        )


@pytest_asyncio.fixture
async def stub() -> AsyncIterator[StubClaude]:
    async with StubClaude([says(CANARY), says(CANARY)]) as running:
        yield running


async def test_a_call_of_the_vendors_sdk_has_its_span_and_no_second_one(
    seen: Seen, readings: Readings, stub: StubClaude
) -> None:
    model = ClaudeModel(MODEL, base_url=stub.url, api_key="stub")
    tracing.conversation.set(REQUEST)
    with tracing.span("invoke_agent agent") as round_:
        await drive(turn(facts={"text": CANARY}), model, instructions=CANARY, tools=())
    await model.close()
    calls = [span for span in seen.all if said(span).get("gen_ai.operation.name") == "chat"]
    assert len(calls) == 1
    assert said(calls[0])["gen_ai.conversation.id"] == REQUEST
    assert said(calls[0])["gen_ai.request.model"] == MODEL
    assert parent_of(calls[0]) == round_.get_span_context().span_id
    assert not {"gen_ai.agent.name", "mesh.request"} & set(said(calls[0])), "as docs/telemetry.md has it"
    assert readings.value("mesh.tokens", gen_ai__agent__name="agent", mesh__kind="input") > 0
    assert CANARY not in seen.text()


async def test_a_failing_call_tells_nothing_of_what_was_sent(seen: Seen) -> None:
    async with StubClaude([fails(400)]) as stub:
        model = ClaudeModel(MODEL, base_url=stub.url, api_key="stub")
        with pytest.raises(Exception, match="status 400"), tracing.span("invoke_agent agent"):
            await drive(turn(facts={"text": CANARY}), model, instructions=CANARY, tools=())
        await model.close()
    assert len(seen.all) == 2
    assert CANARY not in seen.text()


async def test_any_other_model_has_one_of_ours(seen: Seen, readings: Readings) -> None:
    prices = {"parrot-2": Price(input=1_000_000, cache_read=1_000_000, output=1_000_000)}
    with tracing.span("invoke_agent agent"):
        await drive(turn(facts={"text": CANARY}, prices=prices), Parrot(), instructions=CANARY, tools=())
    call, round_ = seen.all
    assert call.name == "chat parrot"
    assert said(call) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "custom",
        "gen_ai.request.model": "parrot",
        "gen_ai.response.model": "parrot-2",
        "gen_ai.response.id": "r-7",
        "gen_ai.agent.name": "agent",
        "gen_ai.conversation.id": REQUEST,
        "gen_ai.usage.cache_read.input_tokens": 20,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.input_tokens": 25,
        "gen_ai.usage.output_tokens": 3,
        "mesh.request": REQUEST,
    }
    assert parent_of(call) == id_of(round_)
    labels = {"gen_ai.agent.name": "agent", "mesh.model": "parrot-2"}
    assert sorted(readings.points("mesh.tokens"), key=str) == sorted(
        [
            ({**labels, "mesh.kind": "input"}, 5),
            ({**labels, "mesh.kind": "cache_read"}, 20),
            ({**labels, "mesh.kind": "output"}, 3),
        ],
        key=str,
    )
    assert readings.points("mesh.cost") == [(labels, pytest.approx(28e-9))]
    assert CANARY not in seen.text()


async def test_a_span_has_the_usage_and_the_end_of_a_streamed_reply(seen: Seen) -> None:
    async with claude(says(CANARY, usage={"input_tokens": 7})) as (_, model):
        await model.reply(PROMPT)
    (span,) = seen.all
    assert (said(span)["gen_ai.usage.input_tokens"], said(span)["gen_ai.usage.output_tokens"]) == (7, 20)
    assert said(span)["anthropic.message.stop_reason"] == "end_turn"
    assert CANARY not in seen.text()


async def test_it_has_what_was_said_only_where_that_is_asked_for(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE", "content")
    heard: list[str | None] = []
    async with claude(calls(("a", {"x": 1}), text=CANARY)) as (_, model):
        reply = await model.reply(PROMPT, heard.append)
    assert (reply.text, "".join(map(str, heard)), reply.calls[0].arguments) == (CANARY, CANARY, {"x": 1})
    assert CANARY in str(said(seen.all[0])["gen_ai.output.messages"])


async def test_then_a_call_that_cannot_be_read_costs_the_reply(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE", "content")
    async with claude(writes("a", '{"what": }')) as (_, model):
        with pytest.raises(ModelUnreadable):
            await model.reply(PROMPT)


async def test_what_cannot_be_read_ends_the_span_with_an_error(seen: Seen) -> None:
    async with claude(raw(b"event: message_start\ndata: not json\n\n")) as (_, model):
        with pytest.raises(ModelUnreadable):
            await model.reply(PROMPT)
    (span,) = seen.all
    assert not span.status.is_ok


TRACE = "00-{:032x}-{:016x}-01"


def _played(traced: bool) -> list[bytes]:
    played = Play(traced=traced)
    played.submit("hello")
    played.move(transfer("b"))
    played.move(transfer("nobody"))
    played.fail("model.overloaded")
    played.wait(60)
    played.move(Complete(answer="done"))
    return played.bodies


def test_a_log_with_traces_is_judged_again_to_the_letter() -> None:
    bodies = _played(traced=True)
    happened = [codec.decode_event(body) for body in bodies]
    assert [event.trace for event in happened] == [TRACE.format(7, n + 1) for n in range(len(happened))]
    assert rejudge(bodies).same


def test_a_trace_changes_nothing_but_itself_and_the_chain() -> None:
    with_, without = (
        [msgspec.structs.replace(codec.decode_event(body), trace="", prev="") for body in _played(traced)]
        for traced in (True, False)
    )
    assert with_ == without


def test_a_log_from_before_there_were_traces_is_judged_again_to_the_letter() -> None:
    bodies = (LOGS / "long-story.jsonl").read_bytes().splitlines()
    assert not any(b'"trace"' in body for body in bodies)
    assert rejudge(bodies).same


def test_a_trace_that_was_changed_afterwards_breaks_the_chain() -> None:
    bodies = _played(traced=True)
    bodies[1] = bodies[1].replace(TRACE.format(7, 2).encode(), TRACE.format(8, 2).encode())
    assert rejudge(bodies).breaks
