"""`mesh request calls`: what each round called, whole."""

import json
from dataclasses import replace

from mesh.agent import Retry, Turn, tool
from mesh.agent.definition import Agent
from mesh.cli.exits import Exit
from mesh.model import ClaudeAgent
from mesh.model.prompt import Instructions
from mesh.testing import StrictModel, calls, driven_by, says
from protocol.wire.moves import Move
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S
from tests.system.office import Office


@tool
async def find(order: str) -> dict[str, str]:
    """Find an order."""
    return {"order": order, "state": "<b>sent</b>\x1b[31m"}


@tool(effect="idempotent", secret=["card"])
async def pay(cents: int, card: str, idempotency_key: str = "") -> str:
    """Pay."""
    return "paid"


async def works(turn: Turn) -> Move:
    found = await turn.call(find, order="A-17")
    if not turn.failures:
        raise Retry("not yet", after_s=0.01)
    await turn.call(pay, cents=5, card="4111")
    return turn.complete(found["order"])


async def test_each_call_is_shown_whole_without_what_is_secret(office: Office, stage: Stage) -> None:
    await stage.runtime(Agent("a", works, version="7", tools=(find, pay)))
    client = await stage.client()
    request = await client.submit("where is it?")
    assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "A-17"

    said = await office.mesh("request", "calls", request, "--json", who="audit")
    assert said.status == Exit.DONE, said
    first, second = json.loads(said.out)
    assert (first["agent"], first["round"], first["version"], first["summary"]) == (
        "a",
        0,
        "7",
        "where is it?",
    )
    assert (first["failure"]["message"], first["again_at"] > first["at"]) == ("not yet", True)
    (looked,) = first["calls"]
    assert (looked["kind"], looked["name"], looked["arguments"]) == ("call", "find", {"order": "A-17"})
    assert (looked["result"]["order"], looked["attempt"], looked["took"] >= 0) == ("A-17", 1, True)
    (paid,) = [call for call in second["calls"] if call["name"] == "pay"]
    assert (paid["kind"], paid["result"], paid["error"]) == ("effect", "paid", None)
    assert (paid["arguments"], paid["secret"]) == ({"cents": 5}, ["card"])
    assert (second["failure"], second["again_at"]) == (None, None)
    assert "4111" not in said.out

    told = await office.mesh("request", "calls", request, who="audit")
    assert "failed retry: not yet; tried again at" in told.out
    assert 'arguments: {"order":"A-17"}' in told.out
    assert 'arguments: {"cents":5} card: secret' in told.out
    assert "result: paid" in told.out
    assert all(line.isprintable() for line in told.out.splitlines())


async def test_a_models_call_has_its_prompt_and_its_reply(office: Office, stage: Stage) -> None:
    clerk = ClaudeAgent("a", instructions=Instructions("1", "Be brief and kind."), tools=[find])
    answer = replace(says("It was sent."), id="msg_7")
    with driven_by(StrictModel(calls(("find", {"order": "A-17"})), answer)):
        await stage.runtime(clerk)
        client = await stage.client()
        request = await client.submit("where is it?")
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "It was sent."

    said = await office.mesh("request", "calls", request, "--json", who="audit")
    (only,) = json.loads(said.out)
    asked, looked, answered = only["calls"]
    assert [call["kind"] for call in only["calls"]] == ["model", "call", "model"]
    assert "Be brief and kind." in json.dumps(asked["fixed"])
    assert asked["prompt"]["fixed"] == answered["prompt"]["fixed"]
    assert "transcript" not in asked["prompt"]  # nothing was said yet
    assert answered["prompt"]["transcript"]
    assert answered["result"]["text"] == "It was sent."
    assert asked["usage"]["model_calls"] == 1
    assert looked["result"]["order"] == "A-17"

    told = (await office.mesh("request", "calls", request, who="audit")).out
    assert told.count("Be brief and kind.") == 1
    assert 'calls: find {"order":"A-17"}' in told
    assert "reply: It was sent." in told
    assert "vendor's id: msg_7" in told
    assert f"mesh agent prompt a --request {request}" in told


async def test_instructions_that_code_made_for_a_round_are_shown(office: Office, stage: Stage) -> None:
    def made(turn: Turn) -> str:
        return f"Try {len(turn.failures) + 1} of 2."

    @tool
    async def stumble() -> None:
        """Fail."""
        raise Retry("not yet", after_s=0.01)

    with driven_by(StrictModel(calls(("stumble", {})), says("done"))):
        await stage.runtime(ClaudeAgent("a", instructions=made, tools=[stumble]))
        client = await stage.client()
        request = await client.submit("do it")
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"

    said = await office.mesh("request", "calls", request, "--json", who="audit")
    models = [call for each in json.loads(said.out) for call in each["calls"] if call["kind"] == "model"]
    assert [call["fixed"]["instructions"] for call in models] == ["Try 1 of 2.", "Try 2 of 2."]
    assert models[0]["prompt"]["fixed"] == models[1]["prompt"]["fixed"]  # kept once
    told = (await office.mesh("request", "calls", request, who="audit")).out
    assert told.count("of 2.") == len(models)
