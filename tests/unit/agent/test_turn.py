"""A turn as its code sees it."""

import asyncio
import math
import weakref
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.agent import Budget, BudgetExhausted, Turn, _ahead, tool
from mesh.agent.errors import ActionNotAllowed, Superseded, failure_of
from mesh.local.in_memory import turn_of
from mesh.model.loop import drive
from mesh.model.port import Hear, Prompt, Reply
from mesh.testing import MemorySteps, StrictModel, calls, says, turn
from protocol.domain.timers import is_by_the_clock
from protocol.wire.commands import Failure, Report, Usage
from protocol.wire.event_parts import RoundOutcome
from protocol.wire.handoff import Constraints
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Transfer
from tests.unit.model.doubles import TalkingModel
from tests.unit.model.doubles import says as costs


@tool
async def look(key: str) -> str:
    """Look something up."""
    return f"found {key}"


@tool(effect="idempotent")
async def pay(amount: int, idempotency_key: str = "") -> str:
    """Pay."""
    return idempotency_key


def test_facts_cannot_be_changed_in_place() -> None:
    with pytest.raises(TypeError):
        turn(facts={"a": 1}).facts["a"] = 2  # type: ignore[index]


def test_a_transfer_says_only_what_is_new() -> None:
    move = turn(facts={"old": 1}).transfer("b", summary="two\nlines", facts={"new": 2}, drop=["old"])
    assert isinstance(move, Transfer)
    assert move.summary == "two lines"
    assert [fact.key for fact in move.facts] == ["new"]
    assert move.drop == ("old",)


def test_a_later_round_knows_what_was_refused() -> None:
    asked = turn().transfer("b", summary="go")
    later = turn(refused=[(asked, "cycle")])
    assert later.round == 1
    assert later.refusals[0].rule == "cycle"
    assert later.refusals[0].move == asked


async def test_a_tool_call_is_reported() -> None:
    given = turn()
    assert await given.call(look, key="x") == "found x"
    await given.call(look, key="y")
    assert given.execution.report.actions == ("look",)


async def test_a_round_that_is_over_is_freed_at_once() -> None:
    """Its parts do not refer in circles: what does waits for the collector, a fifth of an agent's CPU."""
    given = turn()
    await given.call(look, key="x")
    execution, journal = weakref.ref(given.execution), weakref.ref(given.execution.journal)
    del given
    assert execution() is None
    assert journal() is None


async def test_a_tool_that_is_not_allowed_is_not_run() -> None:
    given = turn(constraints=Constraints(allowed_actions=("other",)))
    with pytest.raises(ActionNotAllowed):
        await given.call(look, key="x")
    assert given.execution.report.actions == ()


def gone(**about: Any) -> Turn:
    """Return a turn whose agent was taken out of the fleet after the guard gave it the work."""
    made = turn(agent="a", peers=("b", "c"), **about)
    fleet = made.execution.fleet
    others = {name: entry for name, entry in fleet.agents.items() if name != "a"}
    return turn_of(made.request, made.execution.work, replace(fleet, entry=AgentName("b"), agents=others))


@pytest.mark.parametrize("own", [None, ("look", "pay")])
async def test_an_agent_that_has_left_the_fleet_has_no_peers_and_may_call_nothing(
    own: tuple[str, ...] | None,
) -> None:
    left = gone(constraints=Constraints(allowed_actions=own), steps=MemorySteps())
    assert left.peers == {}
    assert left.allowed_actions == frozenset()
    with pytest.raises(ActionNotAllowed):
        await left.call(look, key="x")
    assert left.execution.report.actions == ()


async def test_its_model_is_offered_neither_tools_nor_whom_to_hand_to() -> None:
    with StrictModel(calls(("look", {"key": "x"})), says("I cannot.")) as model:
        await drive(gone(), model, instructions="", tools=(look, pay))
    names = {spec.name for spec in model.prompts[0].tools}
    assert [name for name in names if name in ("look", "pay") or name.startswith("transfer")] == []


async def test_equal_calls_have_keys_of_their_own_and_every_round_has_the_same_ones() -> None:
    first, again = turn(), turn(refused=[(turn().complete(1), "size")])
    keys = [await first.call(pay, amount=1), await first.call(pay, amount=1), await first.call(pay, amount=2)]
    assert len(set(keys)) == 3
    assert [await again.call(pay, amount=1), await again.call(pay, amount=1)] == keys[:2]


def test_what_is_spent_is_reported() -> None:
    given = turn()
    given.spend(tokens=10, model_calls=1)
    given.spend(tokens=5, model_calls=1, nano_dollars=7)
    usage = given.execution.report.usage
    assert (usage.tokens, usage.model_calls, usage.nano_dollars) == (15, 2, 7)


TIMED_OUT = Failure(code="timeout", message="the round took longer than the policy's turn_timeout_s")


class Model:
    """Ten tokens a call."""

    def __init__(self) -> None:
        self.called = 0

    async def ask(self, given: Turn, prompt: str) -> str:
        async def reply() -> str:
            self.called += 1
            return f"re: {prompt}"

        said, _ = await given.model("m", prompt, reply, str, cost=lambda _: Usage(tokens=10, model_calls=1))
        return said


def granting(**budget: int) -> Constraints:
    return Constraints(budget=Budget(**budget))


def spent(given: Turn) -> tuple[int, int]:
    usage = given.execution.report.usage
    return usage.tokens, usage.model_calls


async def test_a_reply_that_was_paid_before_the_process_died_is_still_on_the_bill() -> None:
    steps, model = MemorySteps(), Model()
    await model.ask(turn(steps=steps), "one")  # and dies before it reports anything
    again = turn(steps=steps)
    await model.ask(again, "one")
    assert (spent(again), model.called) == ((10, 1), 1)
    await model.ask(again, "two")
    assert spent(again) == (20, 2)


async def test_it_is_on_the_bill_even_if_the_code_does_not_come_to_it_again() -> None:
    steps, model = MemorySteps(), Model()
    await model.ask(turn(steps=steps), "one")
    again = turn(steps=steps)
    await again.execution.journal.load()
    assert spent(again) == (10, 1)


async def test_a_reply_that_an_earlier_round_reported_is_not_counted_twice() -> None:
    steps, model = MemorySteps(), Model()
    first = turn(steps=steps)
    await model.ask(first, "one")
    past = [RoundOutcome(round=0, how="refused")]
    later = turn(past=past, reported=first.execution.report, steps=steps)
    await model.ask(later, "one")
    assert (spent(later), model.called) == ((10, 1), 1)
    await model.ask(later, "two")
    assert spent(later) == (20, 2)


async def test_what_a_round_cost_that_only_the_clock_ended_is_counted_once() -> None:
    steps, model = MemorySteps(), Model()
    await model.ask(turn(steps=steps), "one")  # and its time runs out: nothing is reported
    past = [RoundOutcome(round=0, how="failed", failure=TIMED_OUT)]
    second = turn(past=past, steps=steps)
    assert second.execution.journal.has_unreported
    await model.ask(second, "one")
    await model.ask(second, "two")
    assert (spent(second), model.called) == ((20, 2), 2)
    past.append(RoundOutcome(round=1, how="refused"))
    third = turn(past=past, reported=second.execution.report, steps=steps)
    assert not third.execution.journal.has_unreported
    await model.ask(third, "three")
    assert spent(third) == (30, 3)


def test_a_failure_that_only_resembles_a_timeout_is_its_holders_own() -> None:
    assert is_by_the_clock(TIMED_OUT)
    assert not is_by_the_clock(Failure(code="timeout", message="the vendor took too long"))
    assert not is_by_the_clock(Failure(code="bug"))


async def test_tools_of_a_round_that_only_the_clock_ended_are_reported() -> None:
    from mesh.agent import tool

    @tool
    def look() -> None: ...

    steps = MemorySteps()
    await turn(steps=steps).call(look)
    later = turn(past=[RoundOutcome(round=0, how="failed", failure=TIMED_OUT)], steps=steps)
    await later.remark("on to something else")
    assert later.execution.report.actions == ("look",)


async def test_what_is_left_is_the_grant_less_what_all_rounds_cost() -> None:
    steps, model = MemorySteps(), Model()
    reported = Report(usage=Usage(tokens=30, model_calls=3))
    given = turn(
        constraints=granting(tokens=100),
        past=[RoundOutcome(round=0, how="refused")],
        reported=reported,
        steps=steps,
    )
    assert given.budget_left == Budget(tokens=70)
    await model.ask(given, "one")
    given.spend(tokens=5)
    assert given.budget_left == Budget(tokens=55)
    assert turn().budget_left == Budget()


async def test_what_is_left_is_the_same_at_the_same_place_when_a_round_runs_again() -> None:
    steps, model = MemorySteps(), Model()

    async def seen(given: Turn) -> list[Any]:
        found = [given.budget_left.tokens]
        for prompt in ("one", "two"):
            await model.ask(given, prompt)
            found.append(given.budget_left.tokens)
        return found

    first = await seen(turn(constraints=granting(tokens=100), steps=steps))
    assert first == [100, 90, 80]
    assert await seen(turn(constraints=granting(tokens=100), steps=steps)) == first


@pytest.mark.parametrize(
    ("grant", "said"),
    [
        pytest.param({"tokens": 10}, "spent 10 of 10 tokens", id="used-up"),
        pytest.param({"tokens": 7}, "spent 10 of 7 tokens", id="overspent"),
        pytest.param({"model_calls": 1, "tokens": 99}, "spent 1 of 1 model_calls", id="calls"),
        pytest.param({"nano_dollars": 0}, "spent 0 of 0 nano_dollars", id="nothing-granted"),
    ],
)
async def test_no_model_is_called_once_the_grant_is_spent(grant: dict[str, int], said: str) -> None:
    model = Model()
    given = turn(constraints=granting(**grant), steps=MemorySteps())
    if "nano_dollars" not in grant:
        await model.ask(given, "one")
    before = model.called
    with pytest.raises(BudgetExhausted, match=said) as stopped:
        await model.ask(given, "two")
    assert model.called == before
    assert failure_of(stopped.value) == Failure(code="budget_exhausted", message=said, permanent=True)


async def test_the_stop_cannot_be_swallowed() -> None:
    given = turn(constraints=granting(tokens=0), steps=MemorySteps())
    with pytest.raises(BudgetExhausted):
        await Model().ask(given, "one")
    with pytest.raises(BudgetExhausted):
        await given.remark("never mind")
    assert isinstance(given.execution.journal.broken, BudgetExhausted)


async def test_a_recorded_reply_is_replayed_however_little_is_left() -> None:
    steps, model = MemorySteps(), Model()
    constraints = granting(tokens=10)
    await model.ask(turn(constraints=constraints, steps=steps), "one")
    again = turn(constraints=constraints, steps=steps)
    assert await model.ask(again, "one") == "re: one"
    with pytest.raises(BudgetExhausted):
        await model.ask(again, "two")


@pytest.mark.parametrize("steps", [None, MemorySteps()], ids=["no-journal", "journal"])
async def test_the_loop_stops_too_and_counts_what_it_was_told(steps: MemorySteps | None) -> None:
    model = TalkingModel(costs("", tokens=6, model_calls=1), costs("done", tokens=5, model_calls=1))
    given = turn(constraints=granting(tokens=10), steps=steps)
    assert await drive(given, model, instructions="", tools=()) == Complete(answer="done")
    assert spent(given) == (11, 2)
    with pytest.raises(BudgetExhausted):
        await drive(given, model, instructions="again", tools=())


async def test_each_call_that_asks_reads_or_pays_looks_if_the_turn_is_over() -> None:
    looks: list[str] = []

    async def looked() -> bool:
        looks.append("looked")
        return False

    async def reply() -> str:
        return "yes"

    given = turn(is_over=looked)
    for prompt in ("one", "two"):
        await given.model("m", prompt, reply, str)
    await given.call(look, key="x")
    assert len(looks) == 3
    await given.call(pay, amount=1)
    assert len(looks) == 4


@pytest.mark.parametrize("ends_in", ["the first call", "the tool", "no call"])
async def test_the_loop_looks_while_it_stores_and_asks_nobody_once_the_turn_is_over(
    monkeypatch: pytest.MonkeyPatch, ends_in: str
) -> None:
    """A look that is begun with the storing of a step comes after what that step waited for."""
    monkeypatch.setattr(_ahead, "PROBE_S", math.inf)
    monkeypatch.setattr(_ahead, "NEXT_PROBE_S", 0.0)
    looked_at: list[int] = []
    ended = False

    async def was_ended() -> bool:
        looked_at.append(steps.written)
        return ended

    @tool
    async def slow(key: str) -> str:
        """Look something up, while the turn may end."""
        nonlocal ended
        ended = ended or ends_in == "the tool"
        return key

    class Ending(StrictModel):
        async def reply(self, prompt: Prompt, hear: Hear | None = None) -> Reply:
            nonlocal ended
            reply = await super().reply(prompt, hear)
            ended = ended or ends_in == "the first call"
            return reply

    steps = RemoteSteps()
    model = Ending(calls(("slow", {"key": "x"})), says("done"))
    given = turn(is_over=was_ended, steps=steps)
    driven = drive(given, model, instructions="", tools=(slow,))
    if ends_in == "no call":
        assert await driven == Complete(answer="done")
        assert looked_at == [0, 0, 1], "each but the first goes out before the step before it is stored"
    else:
        with pytest.raises(Superseded):
            await driven
        assert len(model.prompts) == 1


@pytest.mark.parametrize("at", [1, 2])
async def test_a_turn_that_ends_while_a_step_is_long_in_storing_does_nothing_more(at: int) -> None:
    """The look that went out with the step has found nothing: its answer is too old."""
    ended, done = False, []

    async def was_ended() -> bool:
        return ended

    class HangingSteps(RemoteSteps):
        async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
            nonlocal ended
            await super().put(request, turn, name, body)
            if self.written == at:
                ended = True
                await asyncio.sleep(_ahead.PROBE_S)

    @tool
    async def note(key: str) -> str:
        """Note something."""
        done.append(key)
        return key

    model = StrictModel(calls(("note", {"key": "x"})), says("done"))
    with pytest.raises(Superseded):
        await drive(turn(is_over=was_ended, steps=HangingSteps()), model, instructions="", tools=(note,))
    assert (len(model.prompts), len(done)) == (1, at - 1)


class RemoteSteps(MemorySteps):
    """Steps that take a while to store."""

    async def put(self, request: str, turn: str, name: str, body: bytes) -> None:
        await asyncio.sleep(0.001)
        await super().put(request, turn, name, body)
