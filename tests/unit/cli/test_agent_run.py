"""`mesh agent run`: what it says of a reference that leads to no agent, and of a model that there is not."""

from pathlib import Path

import pytest

from mesh.bus.credentials import new_key, write_key
from mesh.cli.exits import Exit
from tests.unit.cli.conftest import Mesh

DESK = """
from mesh.agent import agent


@agent(name="front", prompt_version="1")
async def {module}_front(turn):
    return turn.complete("done")


@agent(name="back")
async def back(turn):
    return turn.complete("done")
"""


def has_module(here: Path, name: str, text: str = DESK) -> None:
    (here / f"{name}.py").write_text(text.replace("{module}", name))


@pytest.mark.parametrize(
    ("name", "attribute", "said"),
    [
        pytest.param("desk_a", "", "desk_a: say which agent", id="none"),
        pytest.param("desk_b", ":agent", "desk_b: say which agent", id="the-decorator"),
        pytest.param("desk_c", ":nobody", "desk_c has no 'nobody'; say which agent", id="nobody"),
    ],
)
def test_a_reference_to_no_agent_is_told_which_there_are(
    here: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch, name: str, attribute: str, said: str
) -> None:
    monkeypatch.syspath_prepend(str(here))
    has_module(here, name)
    done = mesh("agent", "run", f"{name}{attribute}")
    expected = f"mesh: {said}, MODULE:NAME: {name}:{name}_front, {name}:back [agent.not_found]\n"
    assert (done.exit_code, done.stderr) == (Exit.USAGE, expected)


def test_a_module_without_an_agent_is_said_to_have_none(
    here: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    has_module(here, "desk_d", "from mesh.agent import agent\n")
    done = mesh("agent", "run", "desk_d")
    assert (done.exit_code, done.stderr) == (
        Exit.USAGE,
        "mesh: desk_d: there is no agent in it [agent.not_found]\n",
    )


@pytest.mark.parametrize("model", ["bogus", "stub"])
def test_a_model_that_there_is_not_is_a_matter_of_usage(
    here: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.syspath_prepend(str(here))
    has_module(here, "desk_e")
    monkeypatch.setenv("MESH_CREDENTIALS", str(write_key(here, "front", new_key())))
    monkeypatch.setenv("MESH_MODEL", model)
    monkeypatch.delenv("MESH_STUB_URL", raising=False)
    done = mesh("agent", "run", "desk_e:desk_e_front")
    assert done.exit_code == Exit.USAGE
    assert f"mesh: MESH_MODEL={model}: " in done.stderr
