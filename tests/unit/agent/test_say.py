"""`turn.say`: a line that a round shows while it works."""

import msgspec

from mesh.agent import Turn, tool
from mesh.agent._telemetry import LiveOutput
from mesh.testing import MemorySteps, turn
from protocol.wire.records import LiveNote


def heard(given: Turn) -> list[LiveNote]:
    """Have a turn's live notes kept in a list, which is returned."""
    notes: list[LiveNote] = []
    execution = given.execution
    execution.live = LiveOutput(
        lambda _, body: notes.append(msgspec.json.decode(body, type=LiveNote)), execution.key
    )
    return notes


@tool
async def look(what: str, at: Turn | None = None) -> str:
    """Look something up."""
    assert at is not None
    await at.say(f"looking for {what}")
    return what


def lines(notes: list[LiveNote]) -> list[str]:
    return [note.text for note in notes if note.kind == "text"]


async def test_a_line_goes_out_as_a_live_note() -> None:
    given = turn()
    notes = heard(given)
    await given.say("Looking…")
    given.execution.live.close()
    assert lines(notes) == ["Looking…\n"]


async def test_a_tool_that_takes_the_turn_says_something_too() -> None:
    given = turn()
    notes = heard(given)
    await given.call(look, "seats")
    given.execution.live.close()
    assert lines(notes) == ["looking for seats\n"]


async def test_what_was_shown_before_a_recorded_step_is_not_shown_again() -> None:
    async def code(given: Turn) -> list[str]:
        notes = heard(given)
        await given.say("first")
        await given.call(look, "seats")
        await given.say("second")
        given.execution.live.close()
        return lines(notes)

    journal = MemorySteps()
    assert await code(turn(steps=journal)) == ["first\n", "looking for seats\n", "second\n"]
    assert await code(turn(steps=journal)) == ["second\n"], "the step is recorded"
