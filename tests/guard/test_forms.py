"""A form on a real mesh: the guard refuses what does not fit, and code learns why."""

from pathlib import Path

from mesh.agent import Move, Turn, agent
from mesh.fleet.file import parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.testing import LocalMesh
from protocol.wire import codec
from protocol.wire.events import HandoffAdmitted, MoveRefused

FLEET = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
carries.billing = { required = ["cents"], properties.cents = { type = "integer", minimum = 1 } }
[agents.billing]
[clients.app]
""").fleet


@agent(name="front")
async def front(turn: Turn) -> Move:
    """Hands on a text for a number, as an agent of any language may, until it is told."""
    cents = 25 if turn.refusals else "25"
    return turn.transfer("billing", summary="pay back", facts={"cents": cents})


@agent(name="billing")
async def billing(turn: Turn) -> Move:
    return turn.complete(turn.facts["cents"])


async def test_a_real_guard_judges_by_the_form_and_says_what_does_not_fit(tmp_path: Path) -> None:
    async with LocalMesh([front, billing], tmp_path, fleet=FLEET) as mesh:
        outcome = await mesh.send("pay me back")
        assert outcome.answer == 25
        happened = await mesh.events(outcome.request)
    (no,) = [event for event in happened if isinstance(event, MoveRefused)]
    assert (no.refusal.rule, no.refusal.numbers["mistakes"]) == ("form", ["cents: expected `int`, got `str`"])
    (yes,) = [event for event in happened if isinstance(event, HandoffAdmitted)]
    assert yes.grounds is not None
    assert yes.grounds.form == {
        "required": ["cents"],
        "properties": {"cents": {"type": "integer", "minimum": 1}},
    }
    assert rejudge([codec.encode(event) for event in happened]).same
