"""Replay: run the live code over a log, from a file or the bus. It never writes to the bus.

    from mesh.replay import Recording, Replayer

A guard's verdicts are judged again (`rejudge`); an agent's code runs again over the record of a round
(`code`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mesh.replay.code import Recording, Replayed, Replayer
    from mesh.replay.differences import CodeDifference

__all__ = ["CodeDifference", "Recording", "Replayed", "Replayer"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # exports are read by commands that need no agent
        home = "differences" if name == "CodeDifference" else "code"
        return getattr(import_module(f"mesh.replay.{home}"), name)
    raise AttributeError(f"module 'mesh.replay' has no attribute {name!r}")
