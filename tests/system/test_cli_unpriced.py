"""Models without a price are named by `mesh doctor` and `mesh setup`, before a bill does it."""

from pathlib import Path

import msgspec

from mesh.agent._presence import publish_card
from protocol.wire import subjects
from protocol.wire.config import Policy
from protocol.wire.handoff import Budget
from protocol.wire.notices import Card
from tests.guard.stage import Stage
from tests.system.office import Office

FILE = """
name = "stage"
entry = "a"
[agents.a]
[agents.b]
[agents.c]
[agents.d]
[agents.e]
[clients.c1]
[clients.c2]
[operators.op]
[viewers.audit]
[human]
"""
PRICE = {"input": 1, "output": 2}


async def test_models_of_cards_that_have_no_price_are_named(own_stage: Stage, tmp_path: Path) -> None:
    office, admin = Office(own_stage, tmp_path), await own_stage.bus("admin")

    async def found() -> tuple[str, str]:
        done = await office.mesh("doctor", "--json", who="audit")
        ((state, text),) = [(each["state"], each["text"]) for each in done.json if each["check"] == "prices"]
        return state, text

    assert (await found())[0] == "ok"
    drives = {"a": "big-20261101", "b": "small", "c": "scripted", "d": "small", "e": "other"}
    for name, model in drives.items():
        await publish_card(await own_stage.bus(name), Card(name=name, version="1", model=model))
    await (await own_stage.bus("e")).publish_durable(subjects.card("e"), b'{"model":5}')
    await admin.publish_durable(subjects.PRICES, msgspec.json.encode({"big": PRICE}))
    said = "no price is known of small of b, d: say [prices] in the fleet file and run `mesh setup`"
    assert await found() == ("unknown", said)
    poor = Policy(name="poor", budget=Budget(nano_dollars=5))
    await admin.publish_durable(subjects.policy("poor"), msgspec.json.encode(poor))
    assert await found() == ("found", f"{said}; policy poor limits dollars")

    prices = "[prices]\nbig = {input = 1, output = 2}\n"
    (tmp_path / "mesh.toml").write_text(FILE + prices)
    assert f"mesh: {said}" in (await office.mesh("setup", who="admin")).err
    (tmp_path / "mesh.toml").write_text(f"{FILE}{prices}small = {{input = 0, output = 0}}\n")
    assert "no price" not in (await office.mesh("setup", who="admin")).err
    assert (await found())[0] == "ok"
