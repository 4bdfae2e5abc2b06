"""`--model`: who replies to prompts is said, is what was asked for, and alone gets what it needs for that."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from mesh.model import ROUTING
from tests.scripted_claude import running_stand_in, sdk_at
from tests.system.terminal import READY, Folder, Running, environments
from tests.system.test_cli_newcomer import answers_a_newcomer, front_desk
from tests.vendors.claude import StubClaude
from tests.vendors.openai import StubOpenAI
from tests.vendors.stand_in import calls, says

LOOKED_UP = """
[[front.rules]]
name = "a customer is looked up"
says = "who is (?P<email>[a-z@.]+)"
call = "find_customer"
with = { email = "{email}" }

[[front.rules]]
name = "and named"
where = { "find_customer.name" = ".*" }
answer = "{find_customer.name}"
"""
"""Rules of the stand-in alone, after those of the fleet."""


@pytest.fixture(scope="module")
def paid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Folder, Running]]:
    """The front desk, in which `mesh dev` runs on the vendor's SDK, which asks the stand-in."""
    folder = front_desk(tmp_path_factory.mktemp("paid"))
    rules = folder.path / "stand-in.toml"
    rules.write_text((folder.path / "rules.toml").read_text() + LOOKED_UP)
    arguments = ("dev", "--port", 0, "--model", "claude")
    with running_stand_in(rules) as sdk, folder.running(*arguments, until=READY, **sdk) as dev:
        yield folder, dev
        dev.end(signal.SIGINT)


def test_the_key_goes_to_agents_and_to_nobody_else(paid: tuple[Folder, Running]) -> None:
    folder, dev = paid
    assert "model: claude (real models, paid for with your key)" in dev.said
    assert "no rules" not in dev.said
    found = environments(dev)
    with_key = {name.split()[0] for name, each in found.items() if each.get("ANTHROPIC_API_KEY")}
    assert with_key == {"agent"}
    assert any(name.startswith("guard") for name in found)
    shown = folder.mesh("agent", "ls", "--json").json
    models = {each["name"]: each["card"].get("model") for each in shown}
    assert models == {"front": ROUTING, "greeter": None}


def test_an_agent_that_a_model_drives_answers(paid: tuple[Folder, Running]) -> None:
    """The vendor's own SDK asks, over HTTP, a stand-in that follows the fleet's rules."""
    answers_a_newcomer(paid[0])


def test_what_an_agent_does_and_says_is_followed_and_its_prompt_shown_afterwards(
    paid: tuple[Folder, Running],
) -> None:
    folder, _ = paid
    sent = folder.mesh("send", "Who is ada@example.org", "--follow")
    assert (sent.status, sent.out) == (Exit.DONE, "Ada\n"), sent
    lines = [line.strip() for line in sent.err.splitlines()]
    assert f"front: [asks {ROUTING}]" in lines
    assert "front: [find_customer]" in lines
    assert "front: Ada" in lines
    request = folder.mesh("request", "ls", "--json").json[0]["request"]
    shown = folder.mesh("agent", "prompt", "front", "--request", request)
    assert shown.status == Exit.DONE, shown
    assert "exact: this is what was sent, to the letter" in shown.out
    assert "You are the front desk" in shown.out
    told = folder.mesh("request", "show", request, "--json").json
    assert {event["report"]["prompt"] for event in told["events"] if "report" in event} == {"1"}
    assert {
        name
        for event in told["events"]
        for name in event.get("report", {}).get("usage", {}).get("models", {})
    } == {ROUTING}


TWO = """
from mesh.model import ROUTING, ClaudeAgent
from mesh.model.prompt import Instructions

front = ClaudeAgent("front", instructions=Instructions("1", "Route."), model=ROUTING)
clerk = ClaudeAgent("clerk", instructions=Instructions("1", "Answer."), model="openai:gpt-6-luna")
"""
OF_TWO = """
name = "two"
entry = "front"
[agents.front]
module = "two:front"
to = ["clerk"]
[agents.clerk]
module = "two:clerk"
[clients.app]
[operators.ops]
[human]
"""


async def test_a_fleet_of_two_vendors_asks_each_agents_own(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "mesh.toml").write_text(OF_TWO)
    folder = Folder(tmp_path)
    give = calls(("transfer_to_clerk", {"summary": "hours"}))
    async with StubClaude([give]) as claude, StubOpenAI([says("From eight to six.")]) as openai:
        keys = sdk_at(claude.url) | {
            "OPENAI_BASE_URL": openai.url,
            "OPENAI_API_KEY": "not-a-key",
            "MESH_MODEL": "",
        }

        def sent() -> tuple[str, str, dict[str, str]]:
            with folder.running("dev", "--port", 0, "--model", "pinned", until=READY, **keys) as dev:
                answer = folder.mesh("send", "When are you open?").out
                cards = {each["name"]: each["card"] for each in folder.mesh("agent", "ls", "--json").json}
                dev.end(signal.SIGINT)
                return dev.said, answer, {name: card["model"] for name, card in cards.items()}

        said, answer, models = await asyncio.to_thread(sent)
    assert answer == "From eight to six.\n", said
    assert "model: pinned (real models, paid for with your key)" in said
    assert models == {"front": ROUTING, "clerk": "gpt-6-luna"}
    assert (len(claude.asked), len(openai.asked)) == (1, 1)


@pytest.mark.parametrize("command", ["demo", "dev"])
def test_the_real_models_without_a_key_are_a_matter_of_usage(command: str, tmp_path: Path) -> None:
    done = Folder(tmp_path).mesh(command, "--fleet", "support", "--model", "claude", ANTHROPIC_API_KEY="")
    assert done.status == Exit.USAGE
    assert "ANTHROPIC_API_KEY" in done.err


def test_a_model_that_is_none_is_a_matter_of_usage(tmp_path: Path) -> None:
    assert Folder(tmp_path).mesh("demo", "--model", "parrot").status == Exit.USAGE
    assert Folder(tmp_path).mesh("demo", MESH_MODEL="parrot").status == Exit.USAGE
