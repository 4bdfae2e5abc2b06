"""A fallback on a real mesh: it gets what failed for good, and what a breaker keeps out."""

from pathlib import Path

from mesh.agent import Move, Permanent, Turn, agent
from mesh.fleet.file import parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.testing import LocalMesh
from protocol.wire import codec
from protocol.wire.events import HandoffAdmitted

FLEET = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
[agents.billing]
fallback = "desk"
[agents.desk]
[clients.app]
[breaker]
failures = 1
open_s = 3600.0
""").fleet


@agent(name="front")
async def front(turn: Turn) -> Move:
    return turn.transfer("billing", summary="say what is owed")


@agent(name="billing")
async def billing(turn: Turn) -> Move:
    raise Permanent("the ledger is gone") if turn.facts["text"] == "hopeless" else RuntimeError("a bug")


@agent(name="desk")
async def desk(turn: Turn) -> Move:
    return turn.complete(f"{turn.handoff.move} from {turn.handoff.from_agent}: {turn.handoff.summary}")


async def test_the_fallback_answers_what_failed_and_what_a_breaker_keeps_out(tmp_path: Path) -> None:
    async with LocalMesh([front, billing, desk], tmp_path, fleet=FLEET) as mesh:
        failed = await mesh.send("hopeless")
        assert failed.answer == "fallback from billing: say what is owed"
        broken = await mesh.send("what do I owe?")  # a bug opens the breaker
        assert broken.answer == "fallback from billing: say what is owed"
        kept_out = await mesh.send("what do I owe?")
        assert kept_out.answer == "transfer from front: say what is owed"
        for outcome, instead_of in ((failed, None), (broken, None), (kept_out, "billing")):
            happened = await mesh.events(outcome.request)
            given = [event for event in happened if isinstance(event, HandoffAdmitted)]
            assert (given[-1].to, given[-1].instead_of) == ("desk", instead_of)
            assert rejudge([codec.encode(event) for event in happened]).same
