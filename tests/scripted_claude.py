"""A stand-in for the vendor's API that answers by a fleet's rules: prompts, tools and SDK are the real ones.

As a process: `python -m tests.scripted_claude RULES` prints where it listens and serves until it is ended.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mesh.model import choice as driven
from mesh.model.port import Exchange, PastReply, Prompt, Reply, ToolCall, ToolResult, ToolSpec
from mesh.model.scripted import ScriptedModel, load_script
from mesh.model.vendors.claude import KEY
from tests.certain import known
from tests.servers import ROOT
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, calls, says

_AGENT = "You are: "
_CHARS_A_TOKEN = 4
"""The usual rule of thumb; a stand-in counts nothing better."""


def prompt_of(body: Mapping[str, Any]) -> Prompt:
    """Return the prompt that a request to the Messages API was made from, as far as a model can tell."""
    brief, *rest = body["messages"]
    text = brief["content"][0]["text"]
    agent = next(line.removeprefix(_AGENT) for line in text.split("\n") if line.startswith(_AGENT))
    extra = [ToolResult("", "", block["text"]) for block in brief["content"][1:]]
    names: dict[str, str] = {}
    transcript: list[Exchange] = [*extra]
    for message in rest:
        if message["role"] == "assistant":
            said = _said(message["content"])
            names |= {call.id: call.name for call in said.calls}
            transcript.append(said)
        else:
            transcript += (_result(block, names) for block in message["content"])
    return Prompt(
        agent=agent,
        instructions="\n".join(block["text"] for block in body.get("system", ())),
        brief=text,
        tools=tuple(
            ToolSpec(tool["name"], tool["description"], tool["input_schema"])
            for tool in body.get("tools", ())
        ),
        transcript=tuple(transcript),
    )


def _said(content: list[Mapping[str, Any]]) -> PastReply:
    made = tuple(
        ToolCall(block["id"], block["name"], block["input"])
        for block in content
        if block["type"] == "tool_use"
    )
    return PastReply("".join(block["text"] for block in content if block["type"] == "text"), made)


def _result(block: Mapping[str, Any], names: Mapping[str, str]) -> ToolResult:
    if block["type"] == "text":
        return ToolResult("", "", block["text"])
    call = block["tool_use_id"]
    return ToolResult(call, names.get(call, ""), block["content"], bool(block.get("is_error")))


def answer_of(reply: Reply, body: Mapping[str, Any]) -> Answer:
    """Return a reply as the API gives it."""
    read = len(json.dumps([body.get("system"), body.get("tools"), body["messages"]])) // _CHARS_A_TOKEN
    written = len(reply.text) + sum(len(json.dumps(dict(call.arguments))) for call in reply.calls)
    usage = {"input_tokens": read, "output_tokens": max(1, written // _CHARS_A_TOKEN)}
    if not reply.calls:
        return says(reply.text, usage=usage)
    return calls(*((call.name, call.arguments) for call in reply.calls), text=reply.text, usage=usage)


def scripted_claude(rules: Path) -> StubClaude:
    """Return a stand-in that answers by a file of rules. Raises ScriptInvalid."""
    model = ScriptedModel(load_script(rules))

    async def answer(body: Mapping[str, Any]) -> Answer:
        return answer_of(await model.reply(prompt_of(body)), body)

    return StubClaude(answer)


def sdk_at(url: str) -> dict[str, str]:
    """Return the environment in which agents ask the vendor's API at `url`, with a key that is none."""
    return {driven.VARIABLE: "claude", KEY: "not-a-key", "ANTHROPIC_BASE_URL": url}


def ask_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agents of this process ask the vendor's API at `url`."""
    for name, value in sdk_at(url).items():
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def running_stand_in(rules: Path) -> Iterator[dict[str, str]]:
    """Run a stand-in as a process; give the environment in which agents ask it."""
    command = [sys.executable, "-m", "tests.scripted_claude", str(rules)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield sdk_at(known(process.stdout).readline().strip())
        finally:
            process.kill()


async def _serve(rules: Path) -> None:
    async with scripted_claude(rules) as stub:
        print(stub.url, flush=True)  # noqa: T201 - for the test
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
