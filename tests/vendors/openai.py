"""A stand-in for OpenAI's Chat Completions API."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.stand_in import Answer, VendorStub, cut

_STOPS = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}
_ERRORS = {429: "requests", 500: "server_error", 503: "server_error"}


class StubOpenAI(VendorStub):
    """OpenAI's API. An answer's `usage` is counted as Chat Completions does."""

    path = "/v1/chat/completions"
    request_header = "x-request-id"

    @property
    def url(self) -> str:
        """What `OPENAI_BASE_URL` would be. Raises RuntimeError before the server is started."""
        return f"{super().url}/v1"

    def violations(self, wanted: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the messages: each call is answered at once, in a message of its own."""
        wrong, open_calls = [], set[str]()
        messages = wanted.get("messages") or []
        if not messages:
            wrong.append("messages: too short")
        for number, message in enumerate(messages):
            at = f"messages.{number}"
            if message["role"] == "tool":
                if message["tool_call_id"] not in open_calls:
                    wrong.append(f"{at}: a tool message follows the call that it answers")
                open_calls.discard(message["tool_call_id"])
                continue
            if open_calls:
                wrong.append(f"{at}: tool calls without a tool message: {sorted(open_calls)}")
            open_calls = {call["id"] for call in message.get("tool_calls") or ()}
            if not message.get("content") and not open_calls:
                wrong.append(f"{at}: no content")
        if open_calls or (messages and messages[-1]["role"] not in ("user", "tool")):
            wrong.append("messages: the last one is not for the model to answer")
        if "stream_options" in wanted and not wanted.get("stream"):
            wrong.append("stream_options: only with a stream")
        return wrong

    def error(self, status: int, code: str | None, request_id: str = "req_stub", why: str = "") -> bytes:
        kind = _ERRORS.get(status, "invalid_request_error")
        told = why or f"the stub was told to answer {status}"
        return json.dumps({"error": {"message": told, "type": kind, "param": None, "code": code}}).encode()

    def message(self, answer: Answer, wanted: Mapping[str, Any], number: int) -> dict[str, Any]:
        texts = [block["text"] for block in answer.content if block["type"] == "text"]
        calls = [
            {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": written}}
            for block in answer.content
            if block["type"] == "tool_use"
            for written in [
                block["input"] if isinstance(block["input"], str) else json.dumps(dict(block["input"]))
            ]
        ]
        said: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
        thoughts = [block["thinking"] for block in answer.content if block["type"] == "thinking"]
        if thoughts:
            said["reasoning_content"] = "".join(thoughts)
        stop = None if answer.stop_reason is None else _STOPS.get(answer.stop_reason, answer.stop_reason)
        usage = {"prompt_tokens": 100, "completion_tokens": 20, **answer.usage}
        return {
            "id": f"chatcmpl-stub-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": answer.model or str(wanted.get("model", "")),
            "choices": [
                {
                    "index": 0,
                    "message": {**said, "tool_calls": calls} if calls else said,
                    "finish_reason": stop,
                }
            ],
            "usage": {**usage, "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]},
        }

    def events(self, message: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a reply's chunks; counts come in the last one, as `include_usage` has it."""
        ((choice,), common) = message["choices"], {**message, "object": "chat.completion.chunk"}

        def chunk(delta: Mapping[str, Any], stop: str | None = None) -> bytes:
            choices = [{"index": 0, "delta": delta, "finish_reason": stop}]
            return _event({**common, "choices": choices, "usage": None})

        yield chunk({"role": "assistant", "content": ""})
        for piece in cut(choice["message"].get("reasoning_content", "")):
            yield chunk({"reasoning_content": piece})
        for piece in cut(choice["message"]["content"] or ""):
            yield chunk({"content": piece})
        for index, call in enumerate(choice["message"].get("tool_calls", ())):
            begun = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
            yield chunk({"tool_calls": [begun]})
            for piece in cut(call["function"]["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, choice["finish_reason"])
        yield _event({**common, "choices": []})
        yield b"data: [DONE]\n\n"

    def stream_error(self, status: int) -> bytes:
        return b"data: " + self.error(status, None) + b"\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
