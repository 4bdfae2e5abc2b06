"""Which model drives an agent: the environment says, nobody else.

`MESH_MODEL` is `scripted`, the default, or `claude`. It is read when a turn asks, not at import.
"""

import os
from functools import cache
from pathlib import Path
from typing import ClassVar

from mesh.agent.failures import Permanent
from mesh.model.port import Model
from mesh.model.script import load_script
from mesh.model.scripted import ScriptedModel

VARIABLE = "MESH_MODEL"
SCRIPTED = ScriptedModel.mode


class ModelUnavailable(Permanent):
    """This build has no model of that name. Another round does not help; another `MESH_MODEL` does."""

    code: ClassVar[str] = "model.unavailable"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{VARIABLE}={name}: {why}")
        self.name = name


def mode() -> str:
    """Return which model is asked for, for cards and summaries. Raises ModelUnavailable."""
    name = os.environ.get(VARIABLE) or SCRIPTED
    if name == "claude":
        raise ModelUnavailable(name, "not available in this version")
    if name != SCRIPTED:
        raise ModelUnavailable(name, f"there is no such model; leave it out for {SCRIPTED}")
    return name


def model_for(agent: str, *, script: Path) -> Model:
    """Return the model that `agent` is driven by.

    Args:
        script: the fleet's rule file, for the scripted model.

    Raises ModelUnavailable, ScriptInvalid.
    """
    mode()
    model = _scripted(script)
    model.require(agent)
    return model


@cache
def _scripted(script: Path) -> ScriptedModel:
    return ScriptedModel(load_script(script))
