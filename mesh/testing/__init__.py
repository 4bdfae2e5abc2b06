"""Doubles and servers for the tests of this project, and of every fleet built with it (docs/testing.md)."""

from mesh.local.mesh import LocalBus, LocalMesh, fleet_of
from mesh.testing.claude_stub import StubClaude
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
from mesh.testing.openai_stub import StubOpenAI

__all__ = [
    "JOINED",
    "Conversations",
    "FleetHarness",
    "InMemoryGuard",
    "LocalBus",
    "LocalMesh",
    "MemorySteps",
    "NotDecided",
    "StrictModel",
    "StubClaude",
    "StubOpenAI",
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
