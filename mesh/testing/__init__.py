"""Doubles and servers for tests: of this project, and of whoever builds a fleet with it (docs/testing.md)."""

from mesh.testing.driving import driven_by
from mesh.testing.fleets import fleet_of
from mesh.testing.in_memory_guard import InMemoryGuard, NotDecided
from mesh.testing.memory_log import MemoryLog
from mesh.testing.memory_steps import MemorySteps
from mesh.testing.server import LocalBus
from mesh.testing.strict_model import StrictModel, calls, says
from mesh.testing.turns import turn, turn_in
from mesh.testing.walking import FleetHarness
from mesh.testing.whole_mesh import LocalMesh

__all__ = [
    "FleetHarness",
    "InMemoryGuard",
    "LocalBus",
    "LocalMesh",
    "MemoryLog",
    "MemorySteps",
    "NotDecided",
    "StrictModel",
    "calls",
    "driven_by",
    "fleet_of",
    "says",
    "turn",
    "turn_in",
]
