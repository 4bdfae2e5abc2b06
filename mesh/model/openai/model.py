"""OpenAI's models behind the port, through the vendor's own SDK; with a `base_url`, any server of its API.

model = OpenAIModel("qwen3", base_url="http://127.0.0.1:11434/v1")
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mesh.model.openai.messages import StreamedCompletion, request_of
from mesh.model.port import Prompt
from mesh.model.vendor import VendorModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream
    from openai.types.chat import ChatCompletionChunk

_NO_KEY = "none"
"""Sent to a server of one's own, which wants no key; the SDK wants one."""


class OpenAIModel(VendorModel):
    """One model.

    Its `more` are arguments of `chat.completions.create`: `reasoning_effort`, or `max_tokens` for a server
    that knows no other limit.
    """

    error_code = "code"
    request_header = "x-request-id"

    def request(self, prompt: Prompt, model: str | None = None) -> dict[str, Any]:
        """Return exactly the request for `prompt`."""
        return request_of(prompt, model=model or self.mode, max_tokens=self._max_tokens, more=self._more)

    def _sdk(self) -> Any:
        import openai

        return openai

    def _connected(self) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        own_server = self._base_url or os.environ.get("OPENAI_BASE_URL")
        return AsyncOpenAI(
            api_key=self._api_key or os.environ.get("OPENAI_API_KEY") or (_NO_KEY if own_server else None),
            base_url=self._base_url,
            timeout=self._timeout_s,
            max_retries=0,
        )

    def _streamed(self) -> StreamedCompletion:
        return StreamedCompletion()

    @asynccontextmanager
    async def _stream(self, request: Mapping[str, Any]) -> "AsyncIterator[AsyncStream[ChatCompletionChunk]]":
        async with await self._client.chat.completions.create(**request) as stream:
            yield stream
