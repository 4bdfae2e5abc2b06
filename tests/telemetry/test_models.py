"""Model calls: one span each, whoever makes it, with the request's id and without a word that was said."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mesh.model.anthropic.model import ClaudeModel
from mesh.model.loop import drive
from mesh.model.port import Prompt, Reply
from mesh.service import tracing
from mesh.testing.harness import REQUEST, turn
from protocol.wire.commands import Usage
from protocol.wire.prices import Price, Tokens
from tests.claude_stub import StubClaude, fails, says
from tests.telemetry.seen import Readings, Seen, id_of, parent_of, said

CANARY = "xylophone"
MODEL = "claude-haiku-5-5"


class Parrot:
    """A model without an SDK."""

    mode = "parrot"

    async def reply(self, prompt: Prompt, hear: Any = None) -> Reply:
        tokens = Tokens(input=5, cache_read=20, output=3)
        return Reply(text=CANARY, tokens=tokens, usage=Usage(tokens=28, model_calls=1), model="parrot-2")


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
        "gen_ai.request.model": "parrot",
        "gen_ai.response.model": "parrot-2",
        "gen_ai.agent.name": "agent",
        "gen_ai.conversation.id": REQUEST,
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
