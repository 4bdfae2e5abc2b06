"""An adapter without its SDK names the extra that is missing, and loads nothing before it is asked for."""

import json

import pytest

from tests.servers import ran

WITHOUT = """
import json, sys
import {module} as adapter
before = sorted(name.partition('.')[0] for name in sys.modules)
sys.modules[{package!r}] = None
try:
    adapter.mesh_agent("a", object())
except Exception as error:
    print(json.dumps([before, error.code, str(error)]))
"""


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("mesh.adapters.langgraph", "langgraph", "langgraph"),
        ("mesh.adapters.openai_agents", "agents", "openai-agents"),
        ("mesh.adapters.pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ],
)
def test_a_missing_sdk_is_a_missing_extra(module: str, package: str, extra: str) -> None:
    done = ran("-c", WITHOUT.format(module=module, package=package))
    assert done.returncode == 0, done.stderr
    loaded, code, said = json.loads(done.stdout)
    assert package not in loaded
    assert code == "adapter.not_installed"
    assert f"handoff-mesh[{extra}]" in said


def test_a_folder_of_the_same_name_is_not_taken_for_the_sdk() -> None:
    """This repository has one, and tests run in it."""
    code = "from mesh.adapters.openai_agents import mesh_agent; mesh_agent('a', object())"
    done = ran("-c", code)
    assert "SdkNotInstalled" in done.stderr
    assert "the name `agents` is not the OpenAI Agents SDK's here" in done.stderr
