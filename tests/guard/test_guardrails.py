"""Guardrails on a real mesh: the guard refuses, code learns why, and nothing is quoted."""

from pathlib import Path

import msgspec

from mesh.agent import Move, Turn, agent
from mesh.fleet.file import parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.testing import LocalMesh
from protocol.wire import codec
from protocol.wire.events import MoveRefused

SECRET = "DE89370400440532013000"
FILE = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
clearance = ["pii"]
[clients.app]
[labels]
iban = ["pii"]
[[policies.default.guardrails]]
name = "no-personal-data"
looks_at = ["answer"]
forbid_labels = ["pii"]
[[policies.default.guardrails]]
name = "brief"
looks_at = ["answer"]
pattern = '^(\\w+[ .]?)+$'
""")


@agent(name="front")
async def front(turn: Turn) -> Move:
    """Quotes what it should not, until it is told."""
    if not turn.refusals:
        return turn.complete(f"It goes to {turn.facts['iban']}!")
    assert turn.refusals[-1].hint == "leave out of answer what is labelled pii; change answer"
    return turn.complete("It goes to your account.")


async def test_a_real_guard_refuses_and_the_agent_says_it_otherwise(tmp_path: Path) -> None:
    async with LocalMesh([front], tmp_path, fleet=FILE.fleet, policies=FILE.rules) as mesh:
        outcome = await mesh.send("pay me back", facts={"iban": SECRET})
        assert outcome.answer == "It goes to your account."
        happened = await mesh.events(outcome.request)
    (no,) = [event for event in happened if isinstance(event, MoveRefused)]
    assert (no.refusal.rule, no.refusal.numbers["guardrail"], no.refusal.numbers["at"]) == (
        *("guardrail", "no-personal-data", "answer"),
    )
    assert SECRET not in msgspec.json.encode(no.refusal).decode()
    assert rejudge([codec.encode(event) for event in happened]).same
