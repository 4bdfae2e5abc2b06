"""A supervised request on a real mesh: by rules in a file, and by Claude's own SDK against its stand-in."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from mesh.agent import Turn, agent
from mesh.model import WORK, ClaudeAgent, Supervisor
from mesh.model.choice import VARIABLE, close_models
from mesh.model.prompt import Instructions
from mesh.model.vendors.claude import KEY
from mesh.testing import LocalMesh, fleet_of
from protocol.wire import events
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.ids import AgentName
from protocol.wire.moves import Move
from protocol.wire.prices import MTOK, Price
from tests.servers import PATIENCE_S
from tests.vendors.claude import StubClaude
from tests.vendors.stand_in import Answer, calls, says

RULES = """
["lead-planner"]
fallback = { call = "plan", with = { steps = [
    { name = "find", goal = "find what is said", intent = "find" },
    { name = "sum", goal = "sum it up", agent = "writer", needs = ["find"] },
] } }

["lead-synthesizer"]
fallback = { answer = "In short: {results.sum.summary}" }

[writer]
fallback = { call = "deliver", with = { summary = "summed up {results.find.facts.seen}" } }
"""


@agent(name="finder")
async def finder(turn: Turn) -> Move:
    return turn.deliver("found", facts={"seen": turn.task_name})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    folder = tmp_path_factory.mktemp("tree")
    script = folder / "rules.toml"
    script.write_text(RULES)
    lead = Supervisor(
        "lead",
        planner=Instructions("1", "Plan the work."),
        synthesizer=Instructions("1", "Write the answer."),
        script=script,
    )
    writer = ClaudeAgent("writer", instructions=Instructions("1", "Sum up."), script=script)
    finds = AgentEntry(name=AgentName("finder"), intents=("find",))
    async with LocalMesh(
        [lead, finder, writer],
        Path(folder / "mesh"),
        fleet=fleet_of("lead", finds, "writer"),
        policies={"default": Policy(topology="supervised")},
        prices={WORK: Price(input=3 * MTOK, output=15 * MTOK)},
    ) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
async def test_rules_in_a_file_plan_work_and_answer(mesh: LocalMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "scripted")
    outcome = await mesh.send("What is said?", within_s=PATIENCE_S)
    assert (outcome.status, outcome.answer) == ("completed", "In short: summed up find")


@pytest.mark.asyncio(loop_scope="module")
async def test_claudes_sdk_plans_works_and_answers(mesh: LocalMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    systems: list[str] = []

    def reply(body: Mapping[str, Any]) -> Answer:
        system = "".join(block["text"] for block in body["system"])
        systems.append(system)
        if "Plan the work." in system:
            find = {"name": "find", "goal": "find it", "agent": "finder"}
            first = {"name": "sum", "goal": "sum it up", "agent": "writer", "needs": ["find"]}
            wrong = len([each for each in systems if "Plan" in each]) == 1
            return calls(("plan", {"steps": [first] if wrong else [find, first]}))
        return says("Summed up." if "Sum up." in system else "It is blue.")

    async with StubClaude(reply) as claude:
        monkeypatch.setenv(VARIABLE, "claude")
        monkeypatch.setenv(KEY, "stub")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.url)
        warm = ClaudeAgent("warm", instructions=Instructions("1", "Say nothing.")).prepare
        assert warm is not None
        await (
            warm()
        )  # as at each start: in a turn, the SDK's import may block the loop for longer than a lease
        outcome = await mesh.send("What is said?", within_s=PATIENCE_S)
        happened = await mesh.events(outcome.request)
        await close_models()
    assert (outcome.status, outcome.answer) == ("completed", "It is blue.")
    assert claude.refused == []
    assert len(claude.asked) == 4  # the first plan needs a step that is not in it
    ends = [event for event in happened if isinstance(event, events.TaskDelivered)]
    [summed] = [event for event in ends if event.name == "sum"]
    assert [(fact.key, fact.value) for fact in summed.facts] == [("answer", "Summed up.")]
    assert summed.report.usage.nano_dollars > 0
