"""What a vendor's server says of a failure is kept in the log, and the key that was sent with it is not."""

import httpx2 as httpx
import pytest
from openai import APIStatusError, AsyncOpenAI
from pydantic_ai import ModelHTTPError, ModelRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from mesh.adapters._model import failure_of
from mesh.adapters._pydantic_ai import _failure

KEY = "sk-very-secret-4711"


def client() -> AsyncOpenAI:
    """Return a client of a server that repeats the key in its answer."""

    def answer(request: httpx.Request) -> httpx.Response:
        said = request.headers["authorization"].removeprefix("Bearer ")
        return httpx.Response(401, json={"error": {"message": f"no such key: {said} here"}})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return AsyncOpenAI(api_key=KEY, http_client=http, max_retries=0)


async def test_a_key_that_a_server_repeats_is_in_no_failure() -> None:
    with pytest.raises(APIStatusError) as wrong:
        await client().models.list()
    assert KEY in str(wrong.value)
    told = str(failure_of(wrong.value))
    assert "no such key: [key] here" in told
    assert KEY not in told


async def test_nor_in_one_that_pydantic_ai_wraps() -> None:
    model = OpenAIChatModel("gpt", provider=OpenAIProvider(openai_client=client()))
    with pytest.raises(ModelHTTPError) as wrong:
        await model.request([ModelRequest.user_text_prompt("hello")], None, ModelRequestParameters())
    assert KEY in str(wrong.value)
    told = str(_failure(wrong.value))
    assert "no such key: [key] here" in told
    assert KEY not in told
