"""Doubles and servers for the tests of this project, and of every fleet built with it (docs/testing.md)."""

from mesh.local.mesh import EmbeddedBus, LocalMesh, fleet_of
from mesh.testing.harness import (
    JOINED,
    FleetHarness,
    MemorySteps,
    TemporaryStore,
    delivered,
    turn,
    turn_in,
    undelivered,
)
from mesh.testing.in_memory_guard import Conversations, InMemoryGuard, NotDecided
from mesh.testing.models import StrictModel, calls, driven_by, says

__all__ = [
    "JOINED",
    "Conversations",
    "EmbeddedBus",
    "FleetHarness",
    "InMemoryGuard",
    "LocalMesh",
    "MemorySteps",
    "NotDecided",
    "StrictModel",
    "TemporaryStore",
    "calls",
    "delivered",
    "driven_by",
    "fleet_of",
    "says",
    "turn",
    "turn_in",
    "undelivered",
]
