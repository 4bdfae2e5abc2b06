"""Doubles and servers for tests: of this project, and of whoever builds a fleet with it."""

from mesh.testing.memory_log import MemoryLog
from mesh.testing.server import LocalMesh
from mesh.testing.turns import turn

__all__ = ["LocalMesh", "MemoryLog", "turn"]
