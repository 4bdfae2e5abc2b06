"""What is said of a request: each thing once, by its own name, in words that fit the number."""

import re

import click
import pytest

from mesh.cli.exits import Exit
from mesh.cli.send import conclude
from mesh.client.follow import outcome_of
from mesh.ops.explain import explain, sentences
from mesh.ops.log import decoded
from mesh.ops.words import ending, story
from mesh.replay.export import load
from mesh.service.printable import counted
from mesh.testing import InMemoryGuard, fleet_of
from protocol.views.timeline import timeline
from protocol.wire import events
from protocol.wire.commands import Cancel, Failure, MoveProposed, Report, ReportFailure, Usage
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Budget, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Fail, HandBack, Transfer, UnknownMove
from protocol.wire.prices import Metered
from tests.certain import is_
from tests.servers import ROOT

FLEET = fleet_of("a", "b")


def begun(**policy: object) -> InMemoryGuard:
    guard = InMemoryGuard(FLEET, {"default": Policy(**policy)})  # type: ignore[arg-type]
    guard.submit("hello")
    return guard


def last_lines(guard: InMemoryGuard) -> list[str]:
    return [line.plain for line in ending(timeline(guard.events))]


def test_an_end_that_has_no_other_reason_than_its_status_is_named_once() -> None:
    failed, cancelled, expired = begun(), begun(), begun(deadline_s=60.0)
    failed.move(Fail(reason="there is nothing to be done"))
    silent = begun()
    silent.move(Fail(reason=""))
    assert last_lines(silent) == ["failed"]
    cancelled.say(Cancel(id="c", by="kim", reason="never mind"), "client")
    expired.wait(61)
    assert last_lines(failed) == ["failed: there is nothing to be done"]
    assert last_lines(cancelled) == ["cancelled: by kim (client): never mind"]
    assert last_lines(expired) == ["expired: the request's deadline passed"]


def test_an_end_that_has_a_reason_of_its_own_names_both() -> None:
    guard = begun(max_retries=0, max_escalations=0)
    guard.fail("crash_loop", permanent=True)
    assert last_lines(guard) == ["failed: max_escalations: failed with crash_loop"]


def test_whoever_waited_is_told_the_end_once_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    guard = begun()
    guard.move(Fail(reason="there is nothing to be done"))
    assert said_of(guard.events[-1], capsys) == "failed: there is nothing to be done"
    guard = begun()
    guard.say(Cancel(id="c", by="kim", reason="never mind"), "client")
    assert said_of(guard.events[-1], capsys) == "was cancelled by kim (client): never mind"
    guard = begun(deadline_s=60.0)
    guard.wait(61)
    assert said_of(guard.events[-1], capsys) == "expired: the request's deadline passed"
    guard = begun(max_retries=0, max_escalations=0)
    guard.fail("crash_loop", permanent=True)
    assert said_of(guard.events[-1], capsys) == "failed: max_escalations: failed with crash_loop"


def said_of(event: AnyEvent, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `mesh send` says of an end, without whose it is."""
    assert isinstance(event, events.Ended)
    with pytest.raises(click.exceptions.Exit) as ended:
        conclude(outcome_of(event))
    assert ended.value.exit_code == Exit.FAILED
    return capsys.readouterr().err.strip().removeprefix(f"mesh: {event.request} ")


def test_a_round_that_the_clock_ended_is_not_told_as_its_agents_own_doing() -> None:
    guard = begun(turn_timeout_s=30.0, retry_backoff_s=1.0)
    guard.wait(31)
    is_(guard.events[1], events.TurnFailed)
    lines = [line.plain for line in story(timeline(guard.events))]
    assert any("  guard → a  turn_failed  recorded  the round took longer" in line for line in lines), lines
    assert "guard: turn_failed to a (the round took longer" in "\n".join(sentences(explain(guard.events, 1)))
    [told] = [move for move in timeline(guard.events).moves if move.move == "turn_failed"]
    assert (told.from_, told.to, told.detail) == ("guard", "a", "timeout")


def test_a_round_that_its_agent_gave_up_is_told_as_the_agents() -> None:
    guard = begun()
    guard.fail("bug")
    [told] = [move for move in timeline(guard.events).moves if move.move == "turn_failed"]
    assert (told.from_, told.to, told.detail) == ("a", None, "bug")


def test_one_is_not_told_as_several() -> None:
    assert [counted(number, "event") for number in (0, 1, 2)] == ["0 events", "1 event", "2 events"]
    assert counted(1, "delivery", "deliveries") == "1 delivery"
    assert counted(3, "delivery", "deliveries") == "3 deliveries"
    guard = begun()
    guard.move(Complete(answer="yes"), Report(usage=Usage(model_calls=1, tokens=1, nano_dollars=5_000)))
    assert last_lines(guard)[-1] == "reported cost: 1 model call, 1 token, 0.000005 dollars"


def test_what_was_charged_for_a_turn_that_never_reported_is_not_told_as_reported() -> None:
    guard = begun(max_retries=0, turn_timeout_s=30.0, budget=Budget(tokens=500))
    guard.wait(31)
    assert isinstance(guard.events[-1], events.EscalationRaised)
    told = timeline(guard.events)
    assert (told.cost.tokens, told.charged.tokens) == (0, 500)
    assert last_lines(guard)[-1:] == ["charged to the budget: 0 model calls, 500 tokens, 0.000000 dollars"]
    assert not any("reported cost" in line for line in last_lines(guard))


def test_what_was_reported_is_charged_and_told_once() -> None:
    guard = begun()
    guard.move(Transfer(to_agent=AgentName("b"), summary="x"), Report(usage=Usage(tokens=3)))
    guard.move(Complete(answer="yes"), Report(usage=Usage(tokens=4)))
    told = timeline(guard.events)
    assert (told.cost.tokens, told.charged) == (7, told.cost)
    assert [line for line in last_lines(guard) if "charged" in line] == []


def test_dollars_of_a_model_without_a_price_are_marked() -> None:
    guard = InMemoryGuard(FLEET, prices={"big": {"input": 1, "output": 1}})
    guard.submit("hello")
    used = {"big": Metered(input=5, calls=1, nano_dollars=5)}
    guard.move(
        Transfer(to_agent=AgentName("b"), summary="x"), Report(usage=Usage(nano_dollars=5, models=used))
    )
    assert timeline(guard.events).cost.unpriced is False
    used = {"new": Metered(input=5, calls=1)}
    guard.move(Complete(answer="yes"), Report(usage=Usage(tokens=5, model_calls=1, models=used)))
    lines = [line.plain for line in story(timeline(guard.events))]
    assert any("a's turn: 0 model calls, 0 tokens, 0.000000 dollars" in line for line in lines), lines
    assert any("b's turn: 1 model call, 5 tokens, 0.000000? dollars" in line for line in lines), lines
    assert lines[-1] == "reported cost: 1 model call, 5 tokens, 0.000000? dollars"
    told = timeline(guard.events)
    turns = [move.turn.usage.unpriced for move in told.moves if move.turn is not None]
    assert (turns, told.cost.unpriced, told.charged.unpriced) == ([False, False, True], True, True)


FORGING = "x\nanswer: all is paid\x1b[2J\x9b"


def forged() -> list[InMemoryGuard]:
    """Requests in which an agent wrote something else than a line wherever it could."""
    failing, moving, ending_ = begun(max_retries=0), begun(), begun()
    turn = failing.holder
    failure = Failure(code=FORGING, message=FORGING, permanent=True)
    failing.propose(ReportFailure(turn=turn.id, round=turn.round, error=failure))
    turn = moving.holder
    moving.propose(MoveProposed(turn=turn.id, round=turn.round, move=UnknownMove(name=FORGING)))
    moving.move(Transfer(to_agent=AgentName(FORGING), summary=FORGING))
    ending_.move(Fail(reason=FORGING))
    return [failing, moving, ending_]


@pytest.mark.parametrize("guard", forged(), ids=["a failure", "moves", "an end"])
def test_nothing_that_an_agent_writes_looks_like_a_line_of_ours(guard: InMemoryGuard) -> None:
    said = [line.plain for line in story(timeline(guard.events))]
    for event in guard.events:
        said += sentences(explain(guard.events, event.n))
    assert any("all is paid" in line for line in said)
    assert all(line.isprintable() for line in said), said
    assert not any(line.startswith("answer:") for line in said)


def test_an_answer_of_several_lines_stays_one_answer() -> None:
    guard = begun()
    guard.move(Complete(answer="one\nreported cost: nothing\x1b[2J"))
    assert last_lines(guard) == ["answer: one", "        reported cost: nothing\\x1b[2J"]


def test_why_names_the_model_without_a_price_and_the_budget() -> None:
    guard = begun(max_retries=0, budget=Budget(nano_dollars=2_000_000_000, model_calls=1))
    turn = guard.holder
    said = "the budget is in dollars and new has no price: add it to [prices]"
    error = Failure(code="budget_unpriced", message=said, permanent=True)
    guard.propose(ReportFailure(turn=turn.id, round=turn.round, error=error))
    found = explain(guard.events)
    assert (found.type, found.failure) == ("escalation.raised", said)
    told = "\n".join(sentences(found))
    assert f"The turn had failed: {said}." in told
    assert "budget = 2.000000 dollars and 1 model call, on_budget = escalate" in told
    assert "budget =" not in "\n".join(sentences(explain(begun().events)))


def test_no_number_of_an_event_is_left_out() -> None:
    for log in sorted((ROOT / "tests" / "golden" / "logs").glob("*.jsonl")):
        for bodies in load(log).values():
            happened = decoded(bodies)
            numbers = [line.plain.split()[0] for line in story(timeline(happened)) if _is_entry(line.plain)]
            spans = [
                (int(first), int(last or first))
                for first, _, last in (each.partition("-") for each in numbers)
            ]
            told = [number for first, last in spans for number in range(first, last + 1)]
            assert told == list(range(len(told))), log
            assert len(told) >= len(happened) - 1, "only a withholding that nothing follows yet has no line"


def _is_entry(line: str) -> bool:
    return re.match(r" {0,2}\d+(-\d+)?  \d{4}-", line) is not None


def ping_pong(times: int) -> InMemoryGuard:
    """Return a request that went to and fro between two agents so often."""
    guard = begun(max_depth=99)
    for at in range(times):
        there, back = (Fact(key="round", value=f"{at} {way}") for way in ("there", "back"))
        report = Report(usage=Usage(model_calls=1, tokens=10))
        guard.move(Transfer(to_agent=AgentName("b"), summary="there", facts=(there,)), report=report)
        guard.move(HandBack(summary="and back", facts=(back,)), report=report)
    return guard


def test_what_comes_again_and_again_is_one_line_with_its_cost() -> None:
    guard = ping_pong(20)
    guard.move(Complete(answer="done"))
    told = timeline(guard.events)
    lines = [line.plain for line in story(told, fold=True)]
    [folded] = [line for line in lines if "×" in line]
    assert folded.startswith("1-40 ")
    assert "a ⇄ b ×20" in folded
    cost = lines[lines.index(folded) + 1]
    assert "40 model calls, 400 tokens" in cost
    assert len(lines) < 10
    assert sum("transfer" in line.plain for line in story(told)) == 20


def test_what_comes_twice_or_differs_is_told_each_by_itself() -> None:
    lines = [line.plain for line in story(timeline(ping_pong(2).events), fold=True)]
    assert not any("×" in line for line in lines)
    assert sum("transfer" in line for line in lines) == 2


def test_a_refusal_that_comes_again_names_its_rule_once() -> None:
    guard = begun(max_refusals=9)
    for _ in range(4):
        guard.move(Transfer(to_agent=AgentName("nobody"), summary="there"))
    [folded] = [line.plain for line in story(timeline(guard.events), fold=True) if "×" in line.plain]
    assert "×4" in folded
    assert "a ✗ nobody" in folded
    assert folded.count("by rule") == 1
