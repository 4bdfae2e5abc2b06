"""What the spans of the vendor's SDK say of a stream that the mesh adds up by itself."""

import pytest

from mesh.model.anthropic.model import ModelUnreadable
from tests.claude_stub import calls, says, writes
from tests.telemetry.seen import Seen, said
from tests.unit.model.vendor import PROMPT, claude, raw

CANARY = "xylophone"


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
