"""A stand-in for the Claude Messages API. It signs and binds thoughts as the vendor does (`claude_rules`)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.claude_rules import signed, violations
from tests.vendors.stand_in import Answer, Block, VendorStub, cut

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class StubClaude(VendorStub):
    """Anthropic's Messages API."""

    path = "/v1/messages"
    request_header = "request-id"

    def violations(self, wanted: Mapping[str, Any]) -> list[str]:
        return violations(wanted)

    def error(self, status: int, code: str | None, request_id: str = "req_stub", why: str = "") -> bytes:
        kind = _ERRORS.get(status, "api_error")
        error: dict[str, Any] = {"type": kind, "message": why or f"the stub was told to answer {status}"}
        if code is not None:
            error["details"] = {"error_code": code}
        return json.dumps({"type": "error", "error": error, "request_id": request_id}).encode()

    def message(self, answer: Answer, wanted: Mapping[str, Any], number: int) -> dict[str, Any]:
        usage = {
            "input_tokens": 100,
            "output_tokens": 20,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "service_tier": "standard",
            **answer.usage,
        }
        return {
            "id": f"msg_stub_{number}",
            "type": "message",
            "role": "assistant",
            "model": answer.model or str(wanted.get("model", "")),
            "content": [dict(block) for block in signed(wanted, answer.content)],
            "stop_reason": answer.stop_reason,
            "stop_sequence": None,
            "stop_details": answer.stop_details,
            "usage": usage,
        }

    def events(self, message: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a reply as the events of a stream."""

        def event(kind: str, **data: Any) -> bytes:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

        begun = {
            **message,
            "content": [],
            "stop_reason": None,
            "usage": {**message["usage"], "output_tokens": 1},
        }
        yield event("message_start", message=begun)
        yield event("ping")
        for index, block in enumerate(message["content"]):
            empty, deltas = _pieces(block)
            yield event("content_block_start", index=index, content_block=empty)
            for delta in deltas:
                yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        ended = {
            "stop_reason": message["stop_reason"],
            "stop_sequence": None,
            "stop_details": message["stop_details"],
        }
        yield event("message_delta", delta=ended, usage={"output_tokens": message["usage"]["output_tokens"]})
        yield event("message_stop")

    def stream_error(self, status: int) -> bytes:
        return b"event: error\ndata: " + self.error(status, None) + b"\n\n"


def _pieces(block: Block) -> tuple[Block, list[Block]]:
    """Return a block as a stream begins it, and what then fills it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": part} for part in cut(block["text"])
            ]
        case "tool_use" if "input" in block:
            given = block["input"]
            written = given if isinstance(given, str) else json.dumps(given)
            parts: list[Block] = [{"type": "input_json_delta", "partial_json": part} for part in cut(written)]
            return {**block, "input": {}}, parts
        case "thinking":
            thought: list[Block] = [
                {"type": "thinking_delta", "thinking": part} for part in cut(block["thinking"])
            ]
            thought.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, thought
    return block, []
