"""Test doubles and servers for this project and every fleet built with it (docs/testing.md)."""

from mesh.fleet.file import load_fleet
from mesh.local.in_memory import MemorySteps, TemporaryStore
from mesh.local.in_memory_guard import Conversations, InMemoryGuard, NotDecided
from mesh.local.mesh import EmbeddedBus, LocalMesh, fleet_of
from mesh.testing.harness import (
    JOINED,
    FleetHarness,
    delivered,
    replied,
    turn,
    turn_in,
    unanswered,
    undelivered,
)
from mesh.testing.models import StrictModel, calls, driven_by, says
from mesh.testing.recorded import assert_as_recorded
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.event_parts import Posted

__all__ = [
    "JOINED",
    "AgentEntry",
    "Conversations",
    "EmbeddedBus",
    "Fleet",
    "FleetHarness",
    "InMemoryGuard",
    "LocalMesh",
    "MemorySteps",
    "NotDecided",
    "Policy",
    "Posted",
    "StrictModel",
    "TemporaryStore",
    "assert_as_recorded",
    "calls",
    "delivered",
    "driven_by",
    "fleet_of",
    "load_fleet",
    "replied",
    "says",
    "turn",
    "turn_in",
    "unanswered",
    "undelivered",
]
