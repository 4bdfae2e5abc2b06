"""The loopback Claude, through the vendor's own SDK."""

from typing import Any

import anthropic
import pytest

from tests.claude_stub import Answer, StubClaude, calls, fails, says, thinks, writes

ASK = {"model": "claude-haiku-5-5", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


def client(stub: StubClaude) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=stub.url, api_key="stub", max_retries=0)


async def test_text_thinking_and_a_call_come_whole_with_their_usage() -> None:
    answer = thinks("Who is it?", calls(("look", {"what": "it"}), text="I look.", usage={"input_tokens": 7}))
    async with StubClaude([answer]) as stub, client(stub) as sdk:
        message = await sdk.messages.create(**ASK)  # type: ignore[call-overload]
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == {"what": "it"}
    assert (message.stop_reason, message.usage.input_tokens) == ("tool_use", 7)
    assert message._request_id == "req_stub_1"
    assert stub.asked[0].body["messages"] == ASK["messages"]


async def test_a_stream_adds_up_to_the_same() -> None:
    answer = thinks(
        "So.", calls(("look", {"what": "a longer argument than one piece"}), text="I look for it now.")
    )
    async with StubClaude([answer]) as stub, client(stub) as sdk, sdk.messages.stream(**ASK) as stream:  # type: ignore[arg-type]
        heard = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert "".join(heard) == "I look for it now."
    assert len(heard) > 1
    assert message.content[2].input == {"what": "a longer argument than one piece"}  # type: ignore[union-attr]
    assert message.usage.output_tokens == 20


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, anthropic.BadRequestError),
        (401, anthropic.AuthenticationError),
        (403, anthropic.PermissionDeniedError),
        (429, anthropic.RateLimitError),
        (500, anthropic.InternalServerError),
        (529, anthropic.OverloadedError),
    ],
)
async def test_an_error_is_the_sdks_own_class_of_it(
    status: int, kind: type[anthropic.APIStatusError]
) -> None:
    async with (
        StubClaude([fails(status, retry_after_s=3, error_code="because")]) as stub,
        client(stub) as sdk,
    ):
        with pytest.raises(kind) as failed:
            await sdk.messages.create(**ASK)  # type: ignore[call-overload]
    assert failed.value.response.headers["retry-after"] == "3"
    assert failed.value.error_code == "because"


async def test_a_stream_that_breaks_off_and_no_answer_at_all_are_connection_errors() -> None:
    script = [says("long enough for a few", cut_after=4), Answer(cut_after=0)]
    async with StubClaude(script) as stub, client(stub) as sdk:
        with pytest.raises(Exception) as broken:  # noqa: PT011 - which one is the SDK's own affair
            async with sdk.messages.stream(**ASK) as stream:  # type: ignore[arg-type]
                await stream.get_final_message()
        assert not isinstance(broken.value, anthropic.APIStatusError)
        with pytest.raises(anthropic.APIConnectionError):
            await sdk.messages.create(**ASK)  # type: ignore[call-overload]


async def test_a_request_beyond_the_script_is_counted_and_fails() -> None:
    async with StubClaude([]) as stub, client(stub) as sdk:
        with pytest.raises(anthropic.InternalServerError):
            await sdk.messages.create(**ASK)  # type: ignore[call-overload]
        assert stub.unexpected == 1


async def test_a_function_may_answer_by_what_is_asked() -> None:
    async with (
        StubClaude(lambda asked: says(str(asked["messages"][-1]["content"]))) as stub,
        client(stub) as sdk,
    ):
        message = await sdk.messages.create(**ASK)  # type: ignore[call-overload]
    assert message.content[0].text == "hi"


async def test_a_stream_may_end_early_as_if_that_were_all() -> None:
    answer = says("long enough for a few", cut_after=4, cut_cleanly=True)
    async with StubClaude([answer]) as stub, client(stub) as sdk, sdk.messages.stream(**ASK) as stream:  # type: ignore[arg-type]
        message = await stream.get_final_message()
    assert (message.stop_reason, message.content[0].type) == (None, "text")


async def test_what_is_written_for_a_call_need_be_no_json() -> None:
    async with StubClaude([writes("look", "{what")]) as stub, client(stub) as sdk:
        with pytest.raises(ValueError, match=r"\{what"):
            async with sdk.messages.stream(**ASK) as stream:  # type: ignore[arg-type]
                await stream.get_final_message()


async def test_a_body_is_answered_as_it_is() -> None:
    answer = Answer(body=b"<html>", content_type="text/html")
    async with StubClaude([answer]) as stub, client(stub) as sdk:
        assert await sdk.messages.create(**ASK) == "<html>"  # type: ignore[call-overload]


async def test_what_the_vendor_would_refuse_is_refused_with_the_reason_and_uses_up_nothing() -> None:
    twice: Any = {**ASK, "messages": [*ASK["messages"], *ASK["messages"]]}  # type: ignore[misc]
    async with StubClaude([says("ok")]) as stub, client(stub) as sdk:
        with pytest.raises(anthropic.BadRequestError, match="roles must alternate") as failed:
            await sdk.messages.create(**twice)
        assert failed.value.type == "invalid_request_error"
        assert failed.value.request_id == "req_stub_1"
        assert (await sdk.messages.create(**ASK)).content[0].text == "ok"  # type: ignore[call-overload]
    assert stub.refused == ["messages.1: roles must alternate, beginning with user"]
    assert len(stub.asked) == 2


async def test_one_that_is_not_strict_takes_it() -> None:
    twice: Any = {**ASK, "messages": [*ASK["messages"], *ASK["messages"]]}  # type: ignore[misc]
    async with StubClaude([says("ok")], strict=False) as stub, client(stub) as sdk:
        await sdk.messages.create(**twice)
    assert stub.refused == []
