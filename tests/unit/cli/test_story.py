"""What is said of a request: each thing once, by its own name, in words that fit the number."""

import pytest
import typer

from mesh.cli.counts import counted
from mesh.cli.exits import Exit
from mesh.cli.outcomes import conclude
from mesh.cli.reasons import reasons, sentences
from mesh.cli.story import ending, story
from mesh.client import outcome_of
from mesh.testing import Court, fleet_of
from protocol import events
from protocol.events import AnyEvent
from protocol.messages import Cancel, Complete, Fail, Report, Usage
from protocol.policy import Policy
from protocol.timeline import timeline

FLEET = fleet_of("a", "b")


def begun(**policy: object) -> Court:
    court = Court(FLEET, {"default": Policy(**policy)})  # type: ignore[arg-type]
    court.submit("hello")
    return court


def last_lines(court: Court) -> list[str]:
    return [line.plain for line in ending(timeline(court.events))]


def test_an_end_that_has_no_other_reason_than_its_status_is_named_once() -> None:
    failed, cancelled, expired = begun(), begun(), begun(deadline_s=60.0)
    failed.move(Fail(reason="there is nothing to be done"))
    silent = begun()
    silent.move(Fail(reason=""))
    assert last_lines(silent) == ["failed"]
    cancelled.say(Cancel(id="c", by="kim", reason="never mind"), "client")
    expired.wait(61)
    assert last_lines(failed) == ["failed: there is nothing to be done"]
    assert last_lines(cancelled) == ["cancelled: by kim: never mind"]
    assert last_lines(expired) == ["expired: the request's deadline passed"]


def test_an_end_that_has_a_reason_of_its_own_names_both() -> None:
    court = begun(max_retries=0, max_escalations=0)
    court.fail("crash_loop", permanent=True)
    assert last_lines(court) == ["failed: max_escalations: crash_loop: it broke"]


def test_whoever_waited_is_told_the_end_once_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    court = begun()
    court.move(Fail(reason="there is nothing to be done"))
    assert said_of(court.events[-1], capsys) == "was given up: there is nothing to be done"
    court = begun()
    court.say(Cancel(id="c", by="kim", reason="never mind"), "client")
    assert said_of(court.events[-1], capsys) == "was cancelled by kim: never mind"
    court = begun(deadline_s=60.0)
    court.wait(61)
    assert said_of(court.events[-1], capsys) == "was too late: the request's deadline passed"
    court = begun(max_retries=0, max_escalations=0)
    court.fail("crash_loop", permanent=True)
    assert said_of(court.events[-1], capsys) == "was given up: max_escalations: crash_loop: it broke"


def said_of(event: AnyEvent, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `mesh send` says of an end, without whose it is."""
    assert isinstance(event, events.Ended)
    with pytest.raises(typer.Exit) as ended:
        conclude(outcome_of(event))
    assert ended.value.exit_code == Exit.FAILED
    return capsys.readouterr().err.strip().removeprefix(f"mesh: {event.request} ")


def test_a_round_that_the_clock_ended_is_not_told_as_its_agents_own_doing() -> None:
    court = begun(turn_timeout_s=30.0, retry_backoff_s=1.0)
    court.wait(31)
    timed_out = court.events[1]
    assert isinstance(timed_out, events.TurnFailed)
    lines = [line.plain for line in story(timeline(court.events))]
    assert any("  guard → a  turn_failed  recorded  the round took longer" in line for line in lines), lines
    assert "guard: turn_failed to a (the round took longer" in "\n".join(sentences(reasons(court.events, 1)))
    [told] = [move for move in timeline(court.events).moves if move.move == "turn_failed"]
    assert (told.from_, told.to, told.detail) == ("guard", "a", "timeout")


def test_a_round_that_its_agent_gave_up_is_told_as_the_agents() -> None:
    court = begun()
    court.fail("bug")
    [told] = [move for move in timeline(court.events).moves if move.move == "turn_failed"]
    assert (told.from_, told.to, told.detail) == ("a", None, "bug")


def test_one_is_not_told_as_several() -> None:
    assert [counted(number, "event") for number in (0, 1, 2)] == ["0 events", "1 event", "2 events"]
    assert counted(1, "delivery", "deliveries") == "1 delivery"
    assert counted(3, "delivery", "deliveries") == "3 deliveries"
    court = begun()
    court.move(Complete(answer="yes"), Report(usage=Usage(model_calls=1, tokens=1, nano_dollars=5_000)))
    assert last_lines(court)[-1] == "reported cost: 1 model call, 1 token, 0.000005 dollars"
