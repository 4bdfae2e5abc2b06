"""What the loopback Claude refuses, as the vendor does: one rule after the other."""

from typing import TYPE_CHECKING, Any

import pytest

from tests.vendors.claude import StubClaude
from tests.vendors.claude_rules import signed, violations
from tests.vendors.stand_in import says

if TYPE_CHECKING:  # to import the SDK takes two seconds of CPU, and every worker collects every test
    import anthropic

ASK = {"model": "claude-haiku-5-5", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}


def client(stub: StubClaude) -> "anthropic.AsyncAnthropic":
    import anthropic

    return anthropic.AsyncAnthropic(base_url=stub.url, api_key="stub", max_retries=0)


async def test_what_the_vendor_would_refuse_is_refused_with_the_reason_and_uses_up_nothing() -> None:
    import anthropic

    twice: Any = {**ASK, "messages": [*ASK["messages"], *ASK["messages"]]}  # type: ignore[misc]
    async with StubClaude([says("ok")]) as stub, client(stub) as sdk:
        with pytest.raises(anthropic.BadRequestError, match="roles must alternate") as failed:
            await sdk.messages.create(**twice)
        assert failed.value.type == "invalid_request_error"
        assert failed.value.request_id == "req_stub_1"
        assert (await sdk.messages.create(**ASK)).content[0].text == "ok"  # type: ignore[call-overload]
    assert stub.refused == ["messages.1: roles must alternate, beginning with user"]
    assert len(stub.asked) == 2


TEXT = {"type": "text", "text": "hi"}
CALL = {"type": "tool_use", "id": "t1", "name": "a", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "1"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}
HIDDEN = {"type": "redacted_thinking", "data": "x"}
LOOKED = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
CACHED = {"type": "ephemeral"}
TOOL = {"name": "a", "description": "A.", "input_schema": {"type": "object"}}


def body(*contents: Any, **more: Any) -> dict[str, Any]:
    """Return a request: what the user and the assistant say in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents or ("hi",))]
    asked = {"model": "m", "max_tokens": 9, "system": [TEXT], "tools": [TOOL], "messages": messages}
    return {**asked, **more}


@pytest.mark.parametrize(
    "sound",
    [
        body(),
        body("hi", "yes", "so"),
        body([TEXT], [TEXT, CALL], [RESULT, TEXT]),
        body([TEXT], [CALL, {**CALL, "id": "t2"}], [{**RESULT, "tool_use_id": "t2"}, RESULT]),
        body([TEXT], [LOOKED, FOUND]),
        body([{**TEXT, "cache_control": CACHED}], system=[{**TEXT, "cache_control": CACHED}]),
        body(tool_choice={"type": "auto"}),
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]},
    ],
)
def test_what_is_sound_is_taken(sound: dict[str, Any]) -> None:
    assert violations(sound) == []


MARKED = {**TEXT, "cache_control": CACHED}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (body(temperature=1), "temperature"),
        (body(top_p=1), "top_p"),
        (body(top_k=1), "top_k"),
        (body(max_tokens=0), "max_tokens"),
        (body(tool_choice={"type": "any"}), "forced choice"),
        (body(tool_choice={"type": "tool", "name": "a"}), "forced choice"),
        (body(system=""), "system.0: text content blocks must be non-empty"),
        (body(system=[{"type": "text", "text": " "}]), "system.0"),
        (body(tools=[TOOL, TOOL]), "unique"),
        (body(tools=[{**TOOL, "name": "look up!"}]), "does not match"),
        (body(tools=[{**TOOL, "name": "n" * 65}]), "does not match"),
        (body(tools=[{**TOOL, "input_schema": {"$ref": "#/x"}}]), "must be object"),
        (body(tools=[{**TOOL, "input_schema": {"type": "object", "anyOf": []}}]), "top level"),
        (body([MARKED] * 5), "at most 4"),
        (body([TEXT], [{**THOUGHT, "cache_control": CACHED}, TEXT], "so"), "cache_control cannot be set"),
        (body(messages=[]), "at least one message"),
        (body(messages=[{"role": "assistant", "content": "hi"}]), "alternate"),
        (body(messages=[{"role": "user", "content": "hi"}] * 2), "alternate"),
        (body([]), "must have content"),
        (body([{"type": "text", "text": ""}]), "non-whitespace"),
        (body([TEXT], [{"type": "text", "text": "\n"}], "so"), "non-whitespace"),
        (body([TEXT], [{"type": "hologram"}], "so"), "'hologram' is no block"),
        (body([CALL]), "'tool_use' is no block that user can have"),
        (body([TEXT], [RESULT], "so"), "'tool_result' is no block that assistant can have"),
        (body([{**TEXT, "parsed_output": None}]), "extra inputs are not permitted: parsed_output"),
        (body([TEXT], [{**CALL, "id": "a b"}], [{**RESULT, "tool_use_id": "a b"}]), ".id: does not match"),
        (body([TEXT], [{**CALL, "name": "a b"}], [RESULT]), ".name: does not match"),
        (body([TEXT], [{**CALL, "input": [1]}], [RESULT]), "must be an object"),
        (body([TEXT], [CALL], [{**RESULT, "content": "", "is_error": True}]), "cannot be empty"),
        (body([TEXT], [CALL]), "without `tool_result` blocks: t1"),
        (body([TEXT], [CALL], [TEXT]), "without `tool_result` blocks immediately after: t1"),
        (body([TEXT], [CALL], [TEXT], [TEXT], [RESULT]), "immediately after: t1"),
        (body([TEXT], [CALL], [RESULT, RESULT]), "unexpected `tool_use_id`"),
        (body([TEXT], [TEXT], [RESULT]), "unexpected `tool_use_id`"),
        (body([TEXT], [CALL], [TEXT, RESULT]), "must come first"),
        (body([TEXT], [CALL, CALL], [RESULT]), "ids must be unique"),
        (body([TEXT], [CALL], [RESULT], [CALL], [RESULT]), "ids must be unique"),
        (body([TEXT], [TEXT, THOUGHT], "so"), "cannot be `thinking`"),
        (body([TEXT], [{**THOUGHT, "signature": ""}, TEXT], "so"), ".signature: must be there"),
        (body([TEXT], [{**HIDDEN, "data": ""}, TEXT], "so"), ".data: must be there"),
        (body([TEXT], [TEXT]), "prefill"),
        (body([TEXT], "yes"), "prefill"),
        ({"max_tokens": 1, "messages": [{"role": "user"}]}, "lacks something"),
        ({"max_tokens": 1, "messages": [{"role": "user", "content": 5}]}, "of another kind"),
    ],
)
def test_what_is_not_is_refused(wrong: dict[str, Any], why: str) -> None:
    assert any(why in each for each in violations(wrong)), violations(wrong)


ASKED = body([TEXT])
REPLY = signed(ASKED, (THOUGHT, LOOKED, FOUND, HIDDEN, CALL))


def later(*contents: Any, **more: Any) -> dict[str, Any]:
    return body(*(contents or ([TEXT], list(REPLY), [RESULT])), **more)


def test_thoughts_come_back_where_they_were() -> None:
    assert violations(later()) == []
    marked = body([MARKED], [*REPLY[:-1], {**CALL, "cache_control": CACHED}], [RESULT])
    assert violations(marked) == [], "a marker is no part of what was said"
    more = signed(later(), (THOUGHT, TEXT))
    assert more[0] != REPLY[0], "the same thought, after something else"
    assert violations(later([TEXT], list(REPLY), [RESULT], list(more), [TEXT])) == []


@pytest.mark.parametrize(
    "elsewhere",
    [
        later(model="n"),
        later(system=[{"type": "text", "text": "Be long."}]),
        later(tools=[{**TOOL, "description": "B."}]),
        later(tools=[]),
        later([{"type": "text", "text": "ho"}], list(REPLY), [RESULT]),
        later([TEXT], [TEXT, *REPLY], [RESULT]),
        later([TEXT], [REPLY[0], *REPLY[3:]], [RESULT]),
        later([TEXT], [*REPLY[1:3], REPLY[0], *REPLY[3:]], [RESULT]),
        later([TEXT], [TEXT], [TEXT], list(REPLY), [RESULT]),
    ],
)
def test_anywhere_else_they_are_bound_to_a_different_conversation(elsewhere: dict[str, Any]) -> None:
    assert any("bound to a different conversation" in each for each in violations(elsewhere))


def test_nobody_else_signs_them() -> None:
    altered = {**REPLY[0], "thinking": "hm!"}
    assert "invalid `signature`" in violations(later([TEXT], [altered, *REPLY[1:]], [RESULT]))[0]
    assert "invalid `signature`" in violations(later([TEXT], [THOUGHT, *REPLY[1:]], [RESULT]))[0]


def test_thoughts_may_be_left_out_if_none_came_after_them() -> None:
    assert violations(later([TEXT], [*REPLY[1:3], REPLY[4]], [RESULT])) == []
    more = signed(later(), (THOUGHT, TEXT))
    assert violations(later([TEXT], list(REPLY), [RESULT], [TEXT], [TEXT])) == []
    assert violations(later([TEXT], list(REPLY), [RESULT], list(more[1:]), [TEXT])) == []
    assert violations(later([TEXT], [*REPLY[1:3], REPLY[4]], [RESULT], list(more), [TEXT])) != []


def test_a_thought_that_was_cut_off_has_no_signature() -> None:
    assert signed(ASKED, ({**THOUGHT, "signature": ""},))[0]["signature"] == ""
