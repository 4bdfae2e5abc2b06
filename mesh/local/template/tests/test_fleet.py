"""The agents without a bus, a server or a key. The guard that judges here is the real one, in memory."""

import asyncio
from pathlib import Path

import pytest
from yours.front import front
from yours.orders import orders

from mesh.testing import FleetHarness, InMemoryGuard, load_fleet, turn

FILE = load_fleet(Path(__file__).parents[1] / "mesh.toml")


@pytest.fixture(autouse=True)
def _rules_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks a real model, whatever keys the shell has."""
    monkeypatch.setenv("MESH_MODEL", "scripted")


def test_orders_says_where_an_order_is() -> None:
    move = asyncio.run(orders(turn(agent="orders", facts={"order": "1042"})))
    assert move.answer == "Order 1042 left the warehouse this morning."


def test_a_request_goes_through_the_fleet() -> None:
    fleet = FleetHarness(InMemoryGuard(FILE.fleet, FILE.rules), {"front": front, "orders": orders})
    walk = asyncio.run(fleet.go("Where is order 1042?"))
    assert walk.path == ["front", "orders"]
    assert walk.answer == "Order 1042 left the warehouse this morning."
    assert walk.refused == []


def test_a_person_decides_what_nobody_knows() -> None:
    fleet = FleetHarness(InMemoryGuard(FILE.fleet, FILE.rules), {"front": front, "orders": orders})
    walk = asyncio.run(fleet.go("Where is order 9999?"))
    assert walk.status == "escalated"
