"""Agents and how they are found."""

from pathlib import Path

import pytest

from mesh.agent import Turn, agent
from mesh.agent._instance import semantic
from mesh.agent.definition import VERSION_GRACE_S, AgentNotFound, load
from mesh.testing import turn
from protocol.wire.moves import Move


async def test_a_decorated_function_is_an_agent_and_still_a_function() -> None:
    @agent(version="1.2", description="Answers")
    async def helper(given: Turn) -> Move:
        return given.complete("yes")

    assert (helper.name, helper.version, helper.description) == ("helper", "1.2", "Answers")
    assert await helper(turn()) == turn().complete("yes")


def test_a_function_called_agent_is_named_after_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "front_desk.py").write_text(
        'async def agent(turn):\n    """Greets people.\n\n    At length."""\n    return turn.complete("hi")\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load("front_desk:agent")
    assert (found.name, found.description) == ("front-desk", "Greets people.")
    assert load("front_desk").name == "front-desk"


@pytest.mark.parametrize(
    "reference", ["no_such_module:agent", "mesh.agent.turn:nothing", "mesh.agent.turn:__doc__"]
)
def test_what_is_no_agent_is_said_to_be_none(reference: str) -> None:
    with pytest.raises(AgentNotFound):
        load(reference)


def test_a_name_that_no_subject_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="not an agent's name"):
        agent(name="No Good")


@pytest.mark.parametrize(
    ("version", "shown"), [("1", "1.0.0"), ("1.2", "1.2.0"), ("1.2.3", "1.2.3"), ("nightly", "0.0.0")]
)
def test_versions_are_shown_as_the_service_api_demands(version: str, shown: str) -> None:
    assert semantic(version) == shown


@pytest.mark.parametrize(("more", "own"), [({}, VERSION_GRACE_S), ({"version_grace_s": 0.5}, 0.5)])
def test_an_agent_says_how_long_its_version_is_waited_for(more: dict[str, float], own: float) -> None:
    @agent(**more)  # type: ignore[arg-type]
    async def helper(given: Turn) -> Move:
        return given.complete("yes")

    assert helper.version_grace_s == own
