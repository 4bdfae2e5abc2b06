"""What a step records of a call: its arguments, and the exception of a tool that only reads."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from mesh.agent import ApprovalNeeded, Turn, tool
from mesh.agent._execution import Execution
from mesh.agent.errors import Retry
from mesh.settings import own_build
from mesh.testing import MemorySteps, turn
from protocol.wire.commands import MAX_VERSION_CHARS, Failure
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.records import HEAD_BYTES, MOST_ARGUMENTS_BYTES, Record, decode_record

FAILED = RoundOutcome(round=0, how="failed", failure=Failure(code="bug"))


def recorded(steps: MemorySteps) -> dict[str, Record]:
    return {name: decode_record(body) for (_, _, name), body in steps.steps.items()}


class Order(BaseModel):
    number: int


@tool
async def look(order: Order, note: str = "none") -> str:
    """Look."""
    return "seen"


@tool(effect="idempotent", secret=["card"])
async def charge(cents: int, card: str, idempotency_key: str = "") -> str:
    """Charge."""
    return "charged"


@tool(effect="idempotent", secret=["card"], approve="human")
async def charge_big(cents: int, card: str, idempotency_key: str = "") -> str:
    """Charge much."""
    return "charged"


async def test_a_call_records_its_arguments_as_they_were_given() -> None:
    steps = MemorySteps()
    await turn(steps=steps).call(look, order=Order(number=7))
    assert recorded(steps)["0-0"].arguments == {"order": {"number": 7}}


async def test_an_effect_records_them_with_its_intent_and_its_result_and_no_secret() -> None:
    steps = MemorySteps()
    await turn(steps=steps).call(charge, cents=500, card="4111")
    for name in ("0-0", "0-0d"):
        record = recorded(steps)[name]
        assert (record.arguments, record.secret) == ({"cents": 500}, ("card",))
    assert "4111" not in str(steps.steps)


async def test_a_question_for_approval_shows_no_secret() -> None:
    with pytest.raises(ApprovalNeeded) as needed:
        await turn().call(charge_big, cents=500, card="4111")
    assert "4111" not in needed.value.ask.question
    assert '"cents":500' in needed.value.ask.question


@pytest.mark.parametrize(("more", "whole"), [(0, True), (1, False)])
async def test_longer_arguments_are_recorded_in_part(more: int, whole: bool) -> None:
    steps = MemorySteps()
    note = "x" * (MOST_ARGUMENTS_BYTES - len(json.dumps({"order": {"number": 7}, "note": ""})) + more)
    note += "x" * 4  # what json.dumps puts between
    await turn(steps=steps).call(look, order=Order(number=7), note=note)
    record = recorded(steps)["0-0"]
    assert (record.arguments is not None) is whole
    if record.cut is not None:
        assert record.cut.bytes == MOST_ARGUMENTS_BYTES + more
        assert len(record.cut.head) == HEAD_BYTES
        assert record.cut.head.startswith('{"order":{"number":7},"note":"xx')


@pytest.mark.parametrize("secret", ["card", ["nobody"], ["idempotency_key"]])
def test_only_a_tools_own_parameters_can_be_secret(secret: Any) -> None:
    async def pay(card: str, idempotency_key: str = "") -> None:
        """Pay."""

    with pytest.raises(TypeError, match="own parameters"):
        tool(effect="idempotent", secret=secret)(pay)


class Unreachable(OSError):
    pass


RAISED = [ValueError("no such order"), KeyError("order"), Unreachable("away"), Retry("later")]


@pytest.mark.parametrize("error", RAISED, ids=repr)
async def test_what_a_reading_tool_raises_is_raised_again_in_the_same_round(error: Exception) -> None:
    """So a redelivered round goes the same way, though the tool would now answer."""
    steps, ran = MemorySteps(), list[str]()

    @tool
    async def flaky() -> str:
        """Break once."""
        ran.append("ran")
        if len(ran) == 1:
            raise error
        return "well"

    async def agent(given: Turn) -> tuple[str, str]:
        try:
            return "", await given.call(flaky)
        except type(error) as caught:
            return type(caught).__name__, str(caught)

    first = await agent(turn(steps=steps))
    assert first == (type(error).__name__, str(error))
    assert await agent(turn(steps=steps)) == first
    assert ran == ["ran"]
    record = recorded(steps)["0-0"]
    assert record.error is not None
    assert (record.kind, record.error.code, record.arguments) == ("call", "raised", {})
    assert record.error.type.endswith(type(error).__qualname__)
    assert await agent(turn(steps=steps, past=[FAILED])) == ("", "well")


async def test_what_a_tool_with_a_secret_raises_does_not_tell_it() -> None:
    steps = MemorySteps()

    @tool(secret=["card"])
    async def check(card: str) -> bool:
        """Check."""
        raise ValueError(f"{card} is no card")

    for text in ("no card", "check raised ValueError"):
        with pytest.raises(ValueError, match=text):
            await turn(steps=steps).call(check, card="4111")
    assert "4111" not in str(steps.steps)


async def test_a_type_that_is_not_there_any_more_is_raised_as_an_error_all_the_same() -> None:
    steps = MemorySteps()

    @tool
    async def flaky() -> str:
        """Break."""

        class Local(Exception):
            pass

        raise Local("somewhere")

    with pytest.raises(Exception, match="somewhere"):
        await turn(steps=steps).call(flaky)
    with pytest.raises(RuntimeError, match="somewhere"):
        await turn(steps=steps).call(flaky)


def test_a_report_says_which_code_ran_also_of_a_turn_without_steps() -> None:
    made = turn().execution
    ran = Execution(made.key, made.work, made.fleet, made.journal, version="2", build="abc123")
    assert (ran.report.steps, ran.report.version, ran.report.build) == (0, "2", "abc123")


def test_a_build_is_one_line_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_BUILD", " abc\n123 " + "x" * 200)
    assert own_build().startswith("abc 123 xx")
    assert len(own_build()) == MAX_VERSION_CHARS
