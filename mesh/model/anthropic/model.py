"""Claude behind the port, through the vendor's own SDK."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mesh.model.anthropic.messages import StreamedMessage, request_of
from mesh.model.port import Prompt
from mesh.model.vendor import VendorModel
from mesh.service import tracing

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncMessageStream, AsyncStream
    from anthropic.types import RawMessageStreamEvent

    _AnyStream = AsyncStream[RawMessageStreamEvent] | AsyncMessageStream[None]

ROUTING = "claude-haiku-5-5"
"""Cheap and quick: for agents that route."""
WORK = "claude-sonnet-5-5"
HARD = "claude-opus-5-5"


class ClaudeModel(VendorModel):
    """One of Anthropic's models.

    Its `more` are arguments of `messages.create`: `thinking`, `output_config`.
    """

    makes_spans = True
    error_code = "error_code"
    request_header = "request-id"

    def __init__(self, model: str = WORK, **more: Any) -> None:
        super().__init__(model, **more)

    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly the request for `prompt`."""
        asked = model or self.mode
        return request_of(
            prompt,
            model=asked,
            max_tokens=self._max_tokens,
            more=self._more,
            own=lambda said: self.asked_of(said.model) == asked,
        )

    def _sdk(self) -> Any:
        import anthropic

        return anthropic

    def _connected(self) -> "AsyncAnthropic":
        from anthropic import AsyncAnthropic

        return AsyncAnthropic(
            api_key=self._api_key or os.environ.get("ANTHROPIC_API_KEY"),
            base_url=self._base_url,
            timeout=self._timeout_s,
            max_retries=0,
        )

    def _on_record(self) -> "AsyncAnthropic":
        """Return the client; where its spans are kept, one that names the request in them."""
        client: AsyncAnthropic = self._client
        request = tracing.conversation.get()
        if not request or not tracing.traced():
            return client
        return client.with_options(open_telemetry={**client.open_telemetry, "conversation_id": request})

    def _streamed(self) -> StreamedMessage:
        return StreamedMessage()

    @asynccontextmanager
    async def _stream(self, request: Mapping[str, Any]) -> "AsyncIterator[_AnyStream]":
        """Ask for a stream, and yield it.

        The SDK's own helper breaks on a call whose arguments are no JSON. But it alone gives a span the
        content. So it is used only where spans have content, which is for looking closely.
        """
        client = self._on_record()
        if client.open_telemetry.get("traces", {}).get("content_mode") == "content":
            async with client.messages.stream(**request) as helped:
                yield helped
        else:
            async with await client.messages.create(**request, stream=True) as plain:
                yield plain
