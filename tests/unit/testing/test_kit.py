"""A model of the test's own behind agents that a model drives, and the turn that a guard gives next."""

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mesh.agent import Agent, ApprovalNeeded, Retry, Turn, agent, tool
from mesh.agent.errors import failure_of
from mesh.fleet.file import parse_fleet
from mesh.fleet.setup import prices_of
from mesh.model import ClaudeAgent
from mesh.model.loop import drive
from mesh.model.port import Prompt, Reply, ToolCall
from mesh.model.prompt import Instructions
from mesh.testing import (
    FleetHarness,
    InMemoryGuard,
    NotDecided,
    StrictModel,
    calls,
    driven_by,
    fleet_of,
    says,
    turn,
    turn_in,
)
from protocol.wire import events
from protocol.wire.commands import Cancel, Usage
from protocol.wire.config import Policy
from protocol.wire.errors import Malformed
from protocol.wire.handoff import Budget, Constraints, Fact
from protocol.wire.moves import Ask, Complete, Escalate, Move, Transfer
from protocol.wire.prices import MTOK, Price, Tokens
from tests.certain import is_, known
from tests.servers import ran

TOLD = Instructions("1", "Help.")
FRONT, BACK = ClaudeAgent("front", instructions=TOLD), ClaudeAgent("back", instructions=TOLD)
GIVE = calls(("transfer_to_back", {"summary": "go on"}))


async def test_one_model_for_all() -> None:
    with driven_by(StrictModel(GIVE, says("done"))) as model:
        walk = await FleetHarness(
            InMemoryGuard(fleet_of("front", "back")), {"front": FRONT, "back": BACK}
        ).go("hello")
    assert (walk.path, walk.answer) == (["front", "back"], "done")
    assert [prompt.agent for prompt in model.prompts] == ["front", "back"]


async def test_a_model_for_each() -> None:
    cast = {"front": StrictModel(GIVE), "back": StrictModel(says("done"))}
    with driven_by(cast):
        walk = await FleetHarness(
            InMemoryGuard(fleet_of("front", "back")), {"front": FRONT, "back": BACK}
        ).go("hello")
    assert walk.answer == "done"
    with pytest.raises(AssertionError, match="no model for back"), driven_by({"front": StrictModel()}):
        await BACK(turn(agent="back"))


async def test_who_had_no_model_is_named_at_the_blocks_end_whatever_became_of_it() -> None:
    cast = {"front": StrictModel(GIVE), "bakc": StrictModel(says("done"))}
    agents = {"front": FRONT, "back": BACK}
    walk = FleetHarness(InMemoryGuard(fleet_of("front", "back")), agents, keep_going=True)
    with pytest.raises(AssertionError, match="no model for back; there are front, bakc"), driven_by(cast):
        await walk.go("hello")
    assert (walk.status, set(walk.broke)) == ("escalated", {"bug"})


async def test_outside_of_the_block_it_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESH_MODEL", raising=False)
    with driven_by(StrictModel()):
        pass
    with pytest.raises(Exception, match="has no script"):
        await BACK(turn(agent="back"))


async def test_the_turn_of_the_holder_has_what_was_handed_over() -> None:
    guard = InMemoryGuard(fleet_of("front", "back"))
    with pytest.raises(NotDecided):
        turn_in(guard)
    guard.submit("hello")
    guard.move(turn_in(guard).transfer("back", summary="go on", facts={"tier": "gold"}))
    given = turn_in(guard)
    assert (given.agent, given.facts["tier"]) == ("back", "gold")
    with driven_by(StrictModel(says("done"))):
        assert await BACK(given) == Complete(answer="done")


async def test_the_turn_of_the_holder_has_the_prices_of_its_request() -> None:
    prices = {"big": Price(input=1, output=2)}
    budget = Policy(budget=Budget(nano_dollars=10**9))
    guard = InMemoryGuard(fleet_of("back"), {"default": budget}, prices=prices)
    guard.submit("hello")
    given = turn_in(guard)
    assert given.execution.prices == prices
    costly = Reply(text="done", usage=Usage(tokens=1, model_calls=1), tokens=Tokens(input=MTOK), model="big")
    with driven_by(StrictModel(costly)):
        assert await BACK(given) == Complete(answer="done")
    assert given.execution.report.usage.nano_dollars == 1


FLEET = fleet_of("a", "b")
TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]


def test_a_log_is_taken_up_where_it_ended() -> None:
    guard = InMemoryGuard(FLEET)
    guard.submit("hello")
    guard.move(TO_B)
    later = InMemoryGuard.given(guard.bodies, FLEET)
    refused = later.move(Transfer(to_agent="a", summary="no, you"))  # type: ignore[arg-type]
    assert isinstance(refused, events.MoveRefused)
    assert refused.refusal.rule == "cycle"
    assert (later.request, later.client) == (guard.request, guard.client)


def test_people_reply_and_resolve() -> None:
    guard = InMemoryGuard(FLEET)
    guard.submit("hello")
    guard.move(Ask(to_agent="client", question="which?"))  # type: ignore[arg-type]
    assert isinstance(guard.reply("this one"), events.TurnResumed)
    guard.move(Escalate(summary="help"))
    resolved = is_(guard.resolve(again=True, by="Ada"), events.EscalationResolved)
    assert resolved.by == "Ada"


def test_what_a_guard_would_not_hear_is_no_verdict() -> None:
    guard = InMemoryGuard(FLEET)
    with pytest.raises(NotDecided, match="nobody holds"):
        guard.move(TO_B)
    guard.submit("hello")
    with pytest.raises(NotDecided, match="unknown_turn"):
        guard.resolve(complete=True, answer=1)
    with pytest.raises(NotDecided, match="too late"):
        guard.submit("hello")


async def test_a_step_left_over_fails_as_the_context_ends() -> None:
    with (
        pytest.raises(AssertionError, match="1 of the model's steps left over"),
        StrictModel(says("one"), says("other")) as model,
    ):
        await drive(turn(), model, instructions="", tools=())


async def test_a_call_too_many_fails_even_if_somebody_swallows_it() -> None:
    model = StrictModel()
    with pytest.raises(AssertionError, match="a call too many, number 1, by agent") as said:
        await drive(turn(), model, instructions="", tools=())
    assert failure_of(said.value).code == "bug"
    with pytest.raises(AssertionError, match="a call too many"):
        model.done()


async def test_a_step_may_look_at_the_prompt() -> None:
    def looks(prompt: Prompt) -> Reply:
        assert "Summary: Add up." in prompt.brief
        return says("3")

    with StrictModel(looks) as model:
        move = await drive(turn(summary="Add up."), model, instructions="", tools=())
    assert move.answer == "3"  # type: ignore[union-attr]


async def test_an_error_of_the_test_itself_is_not_hidden_by_steps_left_over() -> None:
    with pytest.raises(KeyError), StrictModel(says("one")):
        raise KeyError("mine")


async def test_the_first_mistake_is_the_one_that_is_told() -> None:
    model = StrictModel(says("one"))
    await drive(turn(), model, instructions="", tools=())
    for number in (2, 3):
        with pytest.raises(AssertionError, match=f"number {number}, by agent"):
            await drive(turn(), model, instructions="", tools=())
    with pytest.raises(AssertionError, match="a call too many, number 2, by agent"):
        model.done()


@pytest.mark.parametrize(("text", "said"), [("no parcel", "no parcel"), ("", "an assertion of step 1")])
async def test_what_a_step_asserts_fails_even_if_another_round_goes_well(text: str, said: str) -> None:
    def looks(prompt: Prompt) -> Reply:
        raise AssertionError(text)

    model = StrictModel(looks, says("done"))
    with pytest.raises(AssertionError):
        await drive(turn(), model, instructions="", tools=())
    await drive(turn(), model, instructions="", tools=())
    with pytest.raises(AssertionError, match=said):
        model.done()


done: list[str] = []


@tool(effect="idempotent")
async def book(what: str, idempotency_key: str = "") -> str:
    """Book something."""
    done.append(idempotency_key)
    return what


@agent(name="a", tools=[book])
async def a(turn: Turn):  # type: ignore[no-untyped-def]
    await turn.call(book, what="room")
    if not turn.refusals:
        return turn.transfer("nobody", summary="cannot be")
    return turn.transfer("b", summary="please")


@agent(name="b")
async def b(turn: Turn):  # type: ignore[no-untyped-def]
    if not turn.failures:
        raise Retry("later", after_s=5)
    if turn.reply is None:
        return turn.ask("which?")
    return turn.complete(turn.reply)


async def test_refusals_failures_and_replies_open_rounds_and_effects_happen_once() -> None:
    done.clear()
    walk = await FleetHarness(InMemoryGuard(fleet_of("a", "b")), {"a": a, "b": b}).go(
        "hello", replies=["the red one"]
    )
    assert (walk.path, walk.refused, walk.broke) == (["a", "b"], ["known_agent"], ["retry"])
    assert (walk.status, walk.answer) == ("completed", "the red one")
    assert len(done) == 1
    assert [turn.round for turn in walk.turns] == [0, 1, 0, 1, 2]


async def test_it_stops_where_somebody_says_nothing() -> None:
    walk = await FleetHarness(InMemoryGuard(fleet_of("b")), {"b": b}).go("hello")
    assert (walk.status, walk.answer) == ("open", None)


FILE = """
name = "desk"
entry = "d"
[agents.d]
[clients.app]
[human]
[prices]
strict = {input = 2_000_000_000, output = 0}
[policies.default.budget]
nano_dollars = 3_000_000
"""


async def test_a_budget_in_dollars_ends_a_turn_in_memory_by_the_prices_of_the_fleet_file() -> None:
    file = parse_fleet(FILE)
    asks = Reply(
        calls=(ToolCall("1", "no_such_tool", {}),),
        usage=Usage(tokens=1_000, model_calls=1),
        tokens=Tokens(input=1_000),
    )
    with StrictModel(asks, asks) as model:

        async def work(turn: Turn) -> Move:
            return await drive(turn, model, instructions="Be brief.", tools=())

        guard = InMemoryGuard(file.fleet, file.rules, prices=prices_of(file))
        walk = await FleetHarness(guard, {"d": Agent("d", work)}).go("hello")
    assert (walk.broke, walk.status) == (["budget_exhausted"], "escalated")
    assert guard.ledger.spent.nano_dollars == 4_000_000


# --- as on the bus --------------------------------------------------------------------------------

DAY = dt.date(2026, 11, 22)
TWICE = [Fact(key="tier", value="gold"), Fact(key="tier", value="lead")]


class Order(BaseModel):
    placed: dt.date


@agent(name="a")
async def dated(turn: Turn) -> Move:
    return turn.transfer("b", summary="go on", facts={"day": DAY, "order": Order(placed=DAY), "pair": (1, 2)})


@agent(name="b")
async def telling(turn: Turn) -> Move:
    return turn.complete(dict(turn.facts))


async def test_what_is_handed_on_is_what_comes_out_of_its_bytes() -> None:
    guard = InMemoryGuard(fleet_of("a", "b"))
    walk = await FleetHarness(guard, {"a": dated, "b": telling}).go("hello", facts={"due": DAY})
    day = "2026-11-22"
    facts = {"text": "hello", "due": day, "day": day, "order": {"placed": day}, "pair": [1, 2]}
    assert walk.answer == facts
    assert turn(facts={"due": DAY, "pair": (1, 2)}).facts == {"due": day, "pair": [1, 2]}
    guard = InMemoryGuard(fleet_of("a"))
    guard.submit("hello")
    guard.move(Complete(answer={"pair": (1, 2)}))
    assert getattr(known(guard.ledger.ended), "answer", None) == {"pair": [1, 2]}


async def test_what_a_guard_could_not_read_is_no_verdict_or_a_failure_as_on_the_bus() -> None:
    guard = InMemoryGuard(fleet_of("a"))
    with pytest.raises(NotDecided, match="malformed: submit: `text` is empty"):
        guard.submit(" ")
    guard.submit("hello")
    with pytest.raises(NotDecided, match="malformed: control: `id`"):
        guard.say(Cancel(id="no id!"), "client")
    failed = is_(guard.move(turn().transfer("b", summary="go on", facts=TWICE)), events.TurnFailed)
    assert failed.error.code == "malformed"


def breaks_in(what: str) -> Agent:
    async def handler(turn: Turn) -> Any:
        if what == "code":
            return turn.facts["key"]
        return turn.transfer("b", summary="go on", facts=TWICE) if what == "move" else None

    return Agent("a", handler)


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        ("code", KeyError, "key"),
        (
            "return",
            TypeError,
            r"the handler \(\S+:\d+ in handler\) returned nothing; return a move: turn.transfer",
        ),
        ("move", Malformed, "a name only once"),
    ],
)
async def test_a_bug_ends_the_test_where_it_is_unless_the_test_wants_it_otherwise(
    what: str, error: type[Exception], said: str
) -> None:
    agents = {"a": breaks_in(what)}
    with pytest.raises(error, match=said) as raised:
        await FleetHarness(InMemoryGuard(fleet_of("a")), agents).go("hello")
    if what == "code":
        names = [entry.name for entry in raised.traceback]
        assert names[-2:] == ["handler", "__missing__"]  # the author's line, and what names the missing fact
    walk = await FleetHarness(InMemoryGuard(fleet_of("a")), agents, keep_going=True).go("hello")
    assert (set(walk.broke), walk.status) == ({"bug"}, "escalated")


def test_a_walk_prints_as_a_request_is_shown(tmp_path: Path) -> None:
    agents = {"a": a, "b": b}
    walk = asyncio.run(FleetHarness(InMemoryGuard(fleet_of("a", "b")), agents).go("hello", replies=["this"]))
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(body + b"\n" for body in walk.guard.bodies))
    shown = ran("-m", "mesh", "request", "show", log)
    assert (shown.stdout, shown.returncode) == (f"{walk}\n", 0), shown.stderr
    assert "a ✗ nobody  transfer  refused by rule known_agent" in shown.stdout
    assert "answer: this" in shown.stdout


async def test_a_budget_of_one_call_lets_one_reply_pass() -> None:
    @tool
    async def look(where: str) -> str:
        """Look somewhere."""
        return "nothing"

    front = ClaudeAgent("front", instructions=TOLD, tools=[look])
    looks = calls(("look", {"where": "here"}))
    constraints = Constraints(budget=Budget(model_calls=1))
    guard = InMemoryGuard(fleet_of("front"))
    with (
        pytest.raises(AssertionError, match="left over"),
        driven_by(StrictModel(looks, says("done"))) as model,
    ):
        walk = await FleetHarness(guard, {"front": front}).go("look", constraints=constraints)
    assert len(model.prompts) == 1
    assert (walk.broke, walk.answer) == (["budget_exhausted"], None)


async def test_a_question_for_a_yes_is_found_though_an_sdk_wrapped_it() -> None:
    @tool(effect="once", approve="human")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    @agent(name="front")
    async def front(turn: Turn) -> Move:
        try:
            return turn.complete(await turn.call(pay, 5))
        except ApprovalNeeded as asked:
            raise RuntimeError("the SDK's own error") from asked

    guard = InMemoryGuard(fleet_of("front", human=True))
    walk = await FleetHarness(guard, {"front": front}).go("pay", replies=[True])
    assert [ask.action for ask in walk.approvals] == ["pay"]
    assert walk.answer == "paid 5"
