"""The README does what it says: its commands exist, and its agent moves as it says."""

import asyncio
import re
import shlex

from mesh.agent import Agent
from mesh.testing import turn
from protocol.wire.moves import Escalate, Transfer
from tests.certain import is_
from tests.docs.pages import blocks, commands, section
from tests.docs.reader import require_installed
from tests.servers import ROOT

README = (ROOT / "README.md").read_text()
START = [shlex.split(command, comments=True) for command, _ in commands(section(README, "Start a project"))]
"""Typed in `tests/packaging/test_wheel.py`, where nothing but the wheel is installed."""


def test_it_begins_with_what_a_checkout_can_do() -> None:
    begins, *_ = (block for block in blocks(README) if block.language == "console")
    typed = [command.split("#")[0].split() for command, _ in commands(README)]
    assert typed[: len(begins.text.splitlines())] == [["make", "demo"], ["make", "test"]]
    for _, target in typed[:2]:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_what_it_installs_is_what_the_suite_runs_with() -> None:
    require_installed(START[0][2:])


def test_its_agent_hands_over_and_escalates_what_is_refused() -> None:
    (code,) = (block.text for block in blocks(README) if block.language == "python")
    names: dict[str, Agent] = {}
    exec(compile(code, "README.md", "exec"), names)
    front = names["front"]
    move = is_(asyncio.run(front(turn(agent="front", peers=["greeter"], facts={"name": "Ada"}))), Transfer)
    assert [fact.value for fact in move.facts] == ["Ada"]
    again = turn(agent="front", peers=["greeter"], refused=[(move, "agent_available")])
    assert is_(asyncio.run(front(again)), Escalate).summary == "refused: agent_available"


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
