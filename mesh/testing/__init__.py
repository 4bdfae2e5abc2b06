"""Doubles and servers for the tests of this project, and of every fleet built with it (docs/testing.md)."""

from mesh.local.mesh import LocalBus, LocalMesh, fleet_of
from mesh.testing.harness import FleetHarness
from mesh.testing.in_memory_guard import InMemoryGuard, NotDecided
from mesh.testing.memory import MemoryLog, MemorySteps
from mesh.testing.models import StrictModel, calls, driven_by, says
from mesh.testing.turns import turn, turn_in

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
