"""The stand-in with a fleet's rules behind it: what the scripted model would say, as the API says it.

So the very prompts, tools and SDK of a fleet run without a key; only the model is rules. As a process:
`python -m mesh.testing.scripted_claude RULES|MODULE:NAME…`, files of rules or agents that name theirs, prints
where it listens and serves until it is ended.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mesh.agent.definition import load
from mesh.errors import MeshError
from mesh.model.port import Exchange, Prompt, Reply, Said, ToolCall, ToolResult, ToolSpec
from mesh.model.script import Role, ScriptInvalid, load_script
from mesh.model.scripted import ScriptedModel
from mesh.service.parent_death import hold
from mesh.testing.claude_stub import Answer, StubClaude, calls, says

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


def _said(content: list[Mapping[str, Any]]) -> Said:
    made = tuple(
        ToolCall(block["id"], block["name"], block["input"])
        for block in content
        if block["type"] == "tool_use"
    )
    return Said("".join(block["text"] for block in content if block["type"] == "text"), made)


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


def scripted_claude(*rules: Path, port: int = 0) -> StubClaude:
    """Return a stand-in that answers by files of rules. Raises ScriptInvalid."""
    script: dict[str, Role] = {}
    for file in dict.fromkeys(rules):
        found = load_script(file)
        twice = sorted(script.keys() & found)
        if twice:
            raise ScriptInvalid(f"{file}: {', '.join(twice)} has a part in another file, too")
        script |= found
    model = ScriptedModel(script)

    async def answer(body: Mapping[str, Any]) -> Answer:
        return answer_of(await model.reply(prompt_of(body)), body)

    return StubClaude(answer, port=port)


def rules_of(named: Iterable[str]) -> list[Path]:
    """Return files of rules: those that are named, and those of the agents that are.

    An agent without any has no model, and asks none. Raises AgentNotFound, and ScriptInvalid for none at all.
    """
    files = []
    for each in named:
        file = Path(each) if each.endswith(".toml") else load(each).script
        if file is not None:
            files.append(file)
    if not files:
        raise ScriptInvalid("no agent here has rules (`script`) that a stand-in could follow")
    return files


async def _serve(rules: Sequence[Path]) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with scripted_claude(*rules) as stub:
        sys.stdout.write(stub.url + "\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    hold()
    try:
        asyncio.run(_serve(rules_of(sys.argv[1:])))
    except MeshError as wrong:
        sys.exit(str(wrong))
