"""What a model was sent stays known: each fixed part of an agent's prompts is stored once."""

import json

import msgspec

from mesh.agent import Turn, tool
from mesh.agent.definition import Agent
from mesh.bus.reader import every, get
from mesh.bus.streams import steps_of
from mesh.model.loop import drive
from mesh.model.port import Reply, ToolCall
from mesh.testing import StrictModel
from protocol.wire import subjects
from protocol.wire.ids import RequestId, derive
from protocol.wire.moves import Move
from protocol.wire.records import PromptParts, decode_record
from tests.certain import known
from tests.guard.stage import Stage
from tests.logs import captured_logs


@tool
async def look() -> str:
    """Look."""
    return "seen"


def agent(instructions: str) -> Agent:
    async def work(turn: Turn) -> Move:
        model = StrictModel(Reply(calls=(ToolCall("1", "look", {}),)), Reply(text="done"))
        return await drive(turn, model, instructions=instructions, tools=[look])

    return Agent("a", work, tools=(look,))


async def sent(stage: Stage, request: RequestId) -> list[PromptParts]:
    """Return the parts that a request's model steps name, in order."""
    viewer = await stage.bus("audit")
    steps = [
        decode_record(kept.data)
        async for kept in every(viewer, steps_of("a"), subjects.journals(request, "a"))
    ]
    return [known(step.prompt) for step in steps if step.kind == "model"]


async def test_a_fixed_part_is_stored_once_and_each_step_names_what_was_sent(stage: Stage) -> None:
    await stage.runtime(agent("Be brief."))
    client, viewer = await stage.client(), await stage.bus("audit")
    for _ in range(2):
        request = await client.submit("hello")
        await stage.reaches(request, "request.completed")
    first, second = await sent(stage, request)
    assert first.fixed == second.fixed
    assert first.brief == second.brief
    assert (first.transcript, bool(second.transcript)) == ("", True)
    (kept,) = [kept async for kept in every(viewer, "PROMPTS", None)]
    assert kept.subject == subjects.prompt("a", first.fixed)
    assert derive(kept.data.decode()) == first.fixed
    body = json.loads(kept.data)
    assert body["instructions"] == "Be brief."
    assert "look" in {each["name"] for each in body["tools"]}
    assert body["parameters"]["model"] == "strict"


async def test_another_version_of_the_code_stores_its_own(stage: Stage) -> None:
    found = set[str]()
    client, viewer = await stage.client(), await stage.bus("audit")
    for instructions in ("Be brief.", "Be kind."):
        runtime = await stage.runtime(agent(instructions), instructions[3:6])
        request = await client.submit("hello")
        await stage.reaches(request, "request.completed")
        await stage.stop(runtime)
        parts = (await sent(stage, request))[0]
        stored = known(await get(viewer, "PROMPTS", subjects.prompt("a", parts.fixed)))
        found.add(msgspec.json.decode(stored.data)["instructions"])
    assert found == {"Be brief.", "Be kind."}


async def test_a_turn_goes_on_where_no_prompt_can_be_stored(stage: Stage) -> None:
    """Such as on a bus that an older `mesh setup` made."""
    await (await stage.bus("admin")).api("STREAM.DELETE.PROMPTS")
    with captured_logs() as logs:
        await stage.runtime(agent("Be brief."))
        request = await (await stage.client()).submit("hello")
        await stage.reaches(request, "request.completed")
    assert [each["event"] for each in logs].count("prompt_not_kept") == 1
