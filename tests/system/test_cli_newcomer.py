"""What a newcomer meets: an agent with a model, one without rules, a `mesh dev` that stopped."""

import json
import shutil
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from tests.system.terminal import READY, Folder
from tests.system.test_cli_dev import in_queue

RULES = '    script=Path(__file__).with_name("rules.toml"),\n'
SAID = "front has no rules to go by in the place of a model, so that what is given to it goes to a person: "
WAYS = "give it some (script=), or ask the real model (--model pinned, with a key)"


def front_desk(path: Path) -> Folder:
    """Copy a fleet whose entry agent is driven by a model; return its folder."""
    shutil.copytree(Path(__file__).with_name("front_desk"), path, dirs_exist_ok=True)
    return Folder(path)


@pytest.fixture
def desk(tmp_path: Path) -> Folder:
    return front_desk(tmp_path)


def answers_a_newcomer(desk: Folder) -> None:
    """Check what the front desk says, whatever replies to its prompts."""
    assert desk.mesh("send", "Say hello", "--fact", "name=Ada").out == "Hello, Ada!\n"
    assert "Who is asking?" in desk.mesh("send", "Say hello").out
    assert "no agent goes by rules and has none" in desk.mesh("doctor").out


def without_rules(path: Path) -> None:
    front = path / "front.py"
    assert RULES in front.read_text()
    front.write_text(front.read_text().replace(RULES, ""))


def test_an_agent_that_a_model_drives_answers_by_its_rules(desk: Folder) -> None:
    with desk.running("dev", "--port", 0, until=READY) as dev:
        assert "model: scripted" in dev.said
        assert "no rules" not in dev.said
        answers_a_newcomer(desk)
        assert dev.end() == Exit.DONE
    stopped = desk.mesh("request", "ls")
    assert stopped.status == Exit.UNREACHABLE
    assert f"no `mesh dev` runs in {desk.path} any more: start it again" in stopped.err


def test_an_agent_without_rules_is_named_by_dev_and_found_by_doctor(desk: Folder) -> None:
    without_rules(desk.path)
    with desk.running("dev", "--port", 0, until=READY) as dev:
        lines = dev.said.splitlines()
        model = next(n for n, line in enumerate(lines) if line.startswith("model: scripted"))
        assert lines[model + 1] == f"  {SAID}{WAYS}"
        done = desk.mesh("doctor")
        assert done.status == Exit.FAILED
        assert f"FOUND    rules: {SAID}{WAYS}\n" in done.out
        in_queue(desk, "Say hello")  # as it was said
        assert dev.end() == Exit.DONE


def test_an_agent_without_rules_is_named_by_demo(desk: Folder, tmp_path: Path) -> None:
    fleet = tmp_path / "agents" / "desk"
    fleet.mkdir(parents=True)
    without_rules(tmp_path)
    shutil.copy(tmp_path / "mesh.toml", fleet)
    sample = {"id_hint": "one", "kind": "hello", "text": "Say hello", "expect": {"status": "escalated"}}
    (fleet / "requests.jsonl").write_text(json.dumps(sample) + "\n")
    done = desk.process("demo", "--fleet", "desk")
    first, second = (n for n, line in enumerate(done.out.splitlines()) if line == f"  {SAID}{WAYS}")
    assert "model: scripted " in done.out.splitlines()[first - 1]
    assert second > first
