"""A stand-in for OpenAI's Responses API."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.openai import StubOpenAI
from tests.vendors.stand_in import Answer, cut

SEALED = "sealed:"
"""What the stub's encrypted thoughts begin with."""
_CUT = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}


class StubResponses(StubOpenAI):
    """OpenAI's Responses API. An answer's `usage` is counted as it counts."""

    path = "/v1/responses"

    def violations(self, wanted: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with the input: calls are answered, thoughts are ours and led to something."""
        wrong, items = [], wanted.get("input") or []
        if not items:
            wrong.append("input: empty")
        if wanted.get("store") is not False or wanted.get("previous_response_id"):
            wrong.append("store: the log is the state")
        called = [item["call_id"] for item in items if item.get("type") == "function_call"]
        answered = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
        if sorted(called) != sorted(answered):
            wrong.append(f"No tool output found for function call: {called} is answered by {answered}")
        for number, item in enumerate(items):
            if item.get("type") != "reasoning":
                continue
            if not item["encrypted_content"].startswith(SEALED):
                wrong.append(f"input.{number}: encrypted content that this vendor did not make")
            if not any(_is_made(after) for after in items[number + 1 : number + 2]):
                wrong.append(f"input.{number}: a reasoning item without its required following item")
        return wrong

    def message(self, answer: Answer, wanted: Mapping[str, Any], number: int) -> dict[str, Any]:
        output = [_item(block, f"{number}_{at}") for at, block in enumerate(answer.content)]
        usage = {"input_tokens": 100, "output_tokens": 20, **answer.usage}
        cut_off = _CUT.get(answer.stop_reason or "")
        failed = answer.stop_reason == "failed"
        return {
            "id": f"resp_stub_{number}",
            "object": "response",
            "created_at": 0,
            "model": answer.model or str(wanted.get("model", "")),
            "status": "failed" if failed else "incomplete" if cut_off else "completed",
            "error": {"code": "server_error", "message": "told to"} if failed else None,
            "incomplete_details": {"reason": cut_off} if cut_off else None,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {**usage, "total_tokens": usage["input_tokens"] + usage["output_tokens"]},
        }

    def events(self, message: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a response's events; the last one has the whole of it."""
        number = 0

        def event(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            body = json.dumps({"type": kind, "sequence_number": number, **data})
            return f"event: {kind}\ndata: {body}\n\n".encode()

        yield event("response.created", response={**message, "status": "in_progress", "output": []})
        for at, item in enumerate(message["output"]):
            place = {"output_index": at, "item_id": item["id"]}
            yield event("response.output_item.added", output_index=at, item=item)
            if item["type"] == "message":
                for piece in cut(item["content"][0].get("text", "")):
                    more = {**place, "content_index": 0, "logprobs": []}
                    yield event("response.output_text.delta", delta=piece, **more)
            if item["type"] == "function_call":
                for piece in cut(item["arguments"]):
                    yield event("response.function_call_arguments.delta", delta=piece, **place)
            yield event("response.output_item.done", output_index=at, item=item)
        yield event(f"response.{message['status']}", response=message)


def _is_made(item: Mapping[str, Any]) -> bool:
    """Return True for an item that a model makes, thoughts aside."""
    return item.get("type") == "function_call" or item.get("role") == "assistant"


def _item(block: Mapping[str, Any], number: str) -> dict[str, Any]:
    if block["type"] == "thinking":
        sealed = SEALED + block["thinking"]
        return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": sealed}
    if block["type"] == "tool_use":
        written = block["input"] if isinstance(block["input"], str) else json.dumps(dict(block["input"]))
        return {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": block["id"],
            "name": block["name"],
            "arguments": written,
            "status": "completed",
        }
    said = (
        {"type": "refusal", "refusal": block["refusal"]}
        if block["type"] == "refusal"
        else {"type": "output_text", "text": block["text"], "annotations": []}
    )
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "status": "completed",
        "content": [said],
    }
