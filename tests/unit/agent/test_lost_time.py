"""After a restore, an effect without a record may have been begun: the tool is asked, or a person."""

from typing import Any

import msgspec
import pytest

from mesh.agent import tool
from mesh.agent.errors import ApprovalNeeded, InDoubt
from mesh.agent.tools import NOT_DONE, Effect
from mesh.testing import MemorySteps, replied
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.ids import NOBODY, submitted_ms
from protocol.wire.records import LostTime
from protocol.wire.subjects import KNOWN, LOST
from tests.unit.agent.journals import given


def restored(*, before_the_request: bool = False, known: bool = True) -> MemorySteps:
    """Return journals as a restore leaves them.

    Args:
        before_the_request: True if it was submitted later.
        known: True if the backup had the turn.
    """
    steps = MemorySteps()
    made = given(steps)
    submitted_us = submitted_ms(made.request) * 1000
    lost = LostTime(since=0, until=submitted_us + (0 if before_the_request else 1))
    steps.steps[NOBODY, NOBODY, LOST] = msgspec.json.encode(lost)
    if known:
        steps.steps[made.request, made.id, KNOWN] = b"{}"
    return steps


class Wires:
    """A bank that knows no key."""

    def __init__(self) -> None:
        self.sent: list[str] = []

        @tool(effect="once")
        async def wire(to: str) -> str:
            """Wire money."""
            self.sent.append(to)
            return f"wired to {to}"

        self.wire = wire


@pytest.mark.parametrize(
    ("word", "value", "sent"), [("done", "by hand", []), ("not_done", "wired to Ann", ["Ann"])]
)
async def test_a_once_effect_of_an_older_request_is_in_doubt_and_a_person_settles_it(
    word: Any, value: str, sent: list[str]
) -> None:
    bank, steps = Wires(), restored()
    for _ in range(2):  # it stays in doubt if the round is run again
        with pytest.raises(InDoubt) as caught:
            await given(steps).call(bank.wire, to="Ann")
    assert bank.sent == []
    settled = RoundOutcome(
        round=0, how="settled", settled=word, step=caught.value.step, reply="by hand", by="Ada"
    )
    assert await given(steps, past=[settled]).call(bank.wire, to="Ann") == value
    assert bank.sent == sent


async def test_a_doubt_of_lost_time_says_when_the_effect_may_have_begun() -> None:
    with pytest.raises(InDoubt) as caught:
        await given(restored()).call(Wires().wire, to="Ann")
    assert "between 1970-01-01T00:00:00Z and 20" in caught.value.why


async def test_an_effect_of_a_newer_request_is_begun() -> None:
    bank = Wires()
    assert await given(restored(before_the_request=True)).call(bank.wire, to="Ann") == "wired to Ann"
    assert bank.sent == ["Ann"]


@pytest.mark.parametrize(("shipped", "times"), [("long ago", 0), (NOT_DONE, 1)])
async def test_a_reconcilable_effect_without_a_record_is_asked_about(shipped: object, times: int) -> None:
    ran: list[str] = []

    @tool(effect="reconcilable", reconcile=lambda key: shipped)
    async def ship(idempotency_key: str = "") -> str:
        """Ship."""
        ran.append(idempotency_key)
        return "now"

    assert await given(restored()).call(ship) == ("now" if times else "long ago")
    assert len(ran) == times


async def test_an_idempotent_effect_without_a_record_is_run_under_its_key() -> None:
    ran: list[str] = []

    @tool(effect="idempotent")
    async def pay(idempotency_key: str = "") -> str:
        """Pay."""
        ran.append(idempotency_key)
        return "paid"

    assert await given(MemorySteps()).call(pay) == "paid"
    assert await given(restored()).call(pay) == "paid"
    assert ran == ran[:1] * 2


@pytest.mark.parametrize("effect", ["idempotent", "reconcilable"])
async def test_in_a_turn_that_the_backup_did_not_have_every_effect_is_in_doubt(effect: Effect) -> None:
    """It has the id that it had only if the turns before it take as many rounds, and so have its keys."""
    ran: list[str] = []

    @tool(effect=effect, reconcile=(lambda key: NOT_DONE) if effect == "reconcilable" else None)
    async def pay(idempotency_key: str = "") -> str:
        """Pay."""
        ran.append(idempotency_key)
        return "paid"

    steps = restored(known=False)
    with pytest.raises(InDoubt) as caught:
        await given(steps).call(pay)
    assert ran == []
    settled = RoundOutcome(round=0, how="settled", settled="not_done", step=caught.value.step, by="Ada")
    assert await given(steps, past=[settled]).call(pay) == "paid"
    newer = restored(before_the_request=True, known=False)
    assert await given(newer).call(pay) == "paid"
    assert len(ran) == 2


async def test_an_approval_is_asked_for_before_the_doubt_is_raised() -> None:
    """A doubt that is settled as not done lets the effect begin: by then it must have been approved."""
    sent: list[str] = []

    @tool(effect="once", approve="human")
    async def wire(to: str) -> str:
        """Wire money."""
        sent.append(to)
        return f"wired to {to}"

    steps = restored()
    with pytest.raises(ApprovalNeeded) as needed:
        await given(steps).call(wire, to="Ann")
    yes = replied(needed.value.ask, True, by="Ada")
    with pytest.raises(InDoubt) as caught:
        await given(steps, past=[yes]).call(wire, to="Ann")
    settled = RoundOutcome(round=1, how="settled", settled="not_done", step=caught.value.step, by="Ada")
    assert sent == []
    assert await given(steps, past=[yes, settled]).call(wire, to="Ann") == "wired to Ann"
    assert sent == ["Ann"]
