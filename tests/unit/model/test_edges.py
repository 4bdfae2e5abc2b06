"""Edges of model agents: strict forms, and handoffs that are offered in some rounds."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from mesh.agent import Agent, Artifact, FactUnusable, Move, Turn, agent, tool
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.fleet.file import parse_fleet
from mesh.model import ClaudeAgent, Instructions, Prompt, Reply, to
from mesh.model.edges import Edge
from mesh.model.moves import MoveTools
from mesh.model.port import ToolCall, ToolResult, ToolSpec
from mesh.replay.code import Replayer
from mesh.testing import (
    FleetHarness,
    InMemoryGuard,
    MemorySteps,
    StrictModel,
    calls,
    driven_by,
    fleet_of,
    says,
    turn,
)
from protocol.wire.handoff import Fact
from protocol.wire.moves import Transfer
from tests.certain import is_
from tests.unit.model.test_openai_model import openai
from tests.unit.model.test_openai_responses import responses
from tests.unit.model.vendor import claude
from tests.vendors.stand_in import calls as asks

WORDS = Instructions("1", "Be brief.")


class Item(BaseModel):
    sku: str
    count: int = 1


class RefundRequest(BaseModel):
    """What billing needs for a refund."""

    order: str = Field(description="Such as O-17.")
    cents: int = Field(gt=0)
    why: Literal["broken", "late", "other"]
    bought: dt.date | None = None
    items: tuple[Item, ...] = ()


GOOD: dict[str, Any] = {"order": "O-17", "cents": 25, "why": "late"}


LONE: Any = to("billing")


def front(*handoffs: str | Edge, **more: Any) -> ClaudeAgent:
    return ClaudeAgent("front", instructions=WORDS, handoffs=handoffs, **more)


async def moved(agent: Agent, *replies: Reply, **about: Any) -> tuple[Move, list[Prompt]]:
    with driven_by(StrictModel(*replies)) as model:
        move = await agent(turn(agent="front", peers=["billing", "archive"], **about))
    return move, model.prompts


def handing(facts: Any, name: str = "transfer_to_billing", **more: Any) -> Reply:
    return calls((name, {"summary": "refund it", "facts": facts, **more}))


def told(prompt: Prompt) -> str:
    return is_(prompt.transcript[-1], ToolResult).text


def tools(prompt: Prompt) -> dict[str, ToolSpec]:
    return {spec.name: spec for spec in prompt.tools}


# --- the form -----------------------------------------------------------------------------------------


async def test_the_fields_of_a_form_are_facts() -> None:
    given = {**GOOD, "bought": "2026-11-20", "items": [{"sku": "cup"}]}
    move, (prompt,) = await moved(front(to("billing", carries=RefundRequest)), handing(given))
    assert {fact.key: fact.value for fact in is_(move, Transfer).facts} == {
        **GOOD,
        "bought": "2026-11-20",
        "items": [{"sku": "cup", "count": 1}],
    }
    schema = tools(prompt)["transfer_to_billing"].schema
    form = schema["$defs"]["RefundRequest"]
    assert form["description"] == "What billing needs for a refund."
    assert (form["additionalProperties"], form["required"]) == (False, ["order", "cents", "why"])
    assert {"summary", "facts"} <= set(schema["required"])


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ({"cents": "25"}, "facts.cents: Input should be a valid integer"),
        ({"cents": 25.0}, "facts.cents: Input should be a valid integer"),
        ({"cents": True}, "facts.cents: Input should be a valid integer"),
        ({"cents": 0}, "facts.cents: Input should be greater than 0"),
        ({"order": 17}, "facts.order: Input should be a valid string"),
        ({"why": "bored"}, "facts.why: Input should be 'broken', 'late' or 'other'"),
        ({"bought": "yesterday"}, "facts.bought: Input should be a valid date"),
        ({"items": [{"sku": "cup", "count": "2"}]}, "facts.items.0.count: Input should be a valid integer"),
        ({"colour": "red"}, "facts.colour: Extra inputs are not permitted"),
    ],
    ids=str,
)
async def test_what_does_not_fit_goes_back_with_its_place(wrong: dict[str, Any], mistake: str) -> None:
    edge = to("billing", carries=RefundRequest)
    move, prompts = await moved(front(edge), handing({**GOOD, **wrong}), handing(GOOD))
    assert mistake in told(prompts[1])
    assert {fact.key for fact in is_(move, Transfer).facts} == set(GOOD)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [({"order": "\ud800"}, "surrogate"), ({"items": [{"count": float("nan")}]}, "has to be finite")],
    ids=["half-a-character", "no-number"],
)
def test_what_is_no_json_is_no_form(wrong: dict[str, Any], mistake: str) -> None:
    moves = MoveTools(turn(agent="front", peers=["billing"]), edges=[to("billing", carries=RefundRequest)])
    with pytest.raises(ToolArgumentsInvalid, match=mistake):
        moves.read(ToolCall("1", "transfer_to_billing", {"summary": "x", "facts": {**GOOD, **wrong}}))


async def test_free_facts_are_no_form() -> None:
    edge = to("billing", carries=RefundRequest)
    _, prompts = await moved(front(edge), handing([{"key": "order", "value": "O-17"}]), handing(GOOD))
    assert "facts: Input should be an object" in told(prompts[1])


async def test_what_is_left_out_is_no_fact_and_what_is_carried_stays() -> None:
    _, prompts = await moved(
        front(to("billing", carries=RefundRequest)), handing(GOOD), facts={"bought": "2026-01-02"}
    )
    assert "bought" in prompts[0].brief
    fleet = fleet_of("front", "billing")

    @agent(name="billing")
    async def billing(turn: Turn) -> Move:
        return turn.complete(dict(turn.facts))

    agents = {"front": front(to("billing", carries=RefundRequest)), "billing": billing}
    with driven_by(StrictModel(handing(GOOD))):
        walk = await FleetHarness(InMemoryGuard(fleet), agents).go("x", facts={"bought": "2026-01-02"})
    assert walk.answer == {**GOOD, "bought": "2026-01-02", "text": "x"}


async def test_the_next_agent_reads_the_form_again() -> None:
    class Priced(BaseModel):
        model_config = ConfigDict(populate_by_name=True)

        amount: Decimal = Field(alias="price")
        bought: dt.date

    @agent(name="billing")
    async def billing(turn: Turn) -> Move:
        found = turn.form(Priced)
        assert (found.amount, found.bought) == (Decimal("1.50"), dt.date(2026, 11, 20))
        return turn.complete(str(found.amount))

    edge = to("billing", carries=Priced)
    agents = {"front": front(edge), "billing": billing}
    with driven_by(StrictModel(handing({"price": "1.50", "bought": "2026-11-20"}))):
        walk = await FleetHarness(InMemoryGuard(fleet_of("front", "billing")), agents).go("x")
    assert walk.answer == "1.50"


def test_facts_that_are_no_form_name_the_mistake_and_what_is_hidden() -> None:
    given = turn(facts={"order": "O-17", "cents": "many", "why": "late", "text": "x"})
    with pytest.raises(FactUnusable, match="the facts are no RefundRequest: cents: Input should be"):
        given.form(RefundRequest)
    with pytest.raises(TypeError, match="a form is a pydantic model"):
        given.form(int)


async def test_labels_of_the_agent_hold_for_a_form() -> None:
    edge = to("billing", carries=RefundRequest)
    move, _ = await moved(front(edge, labels={"order": ("pii",)}), handing(GOOD))
    assert Fact(key="order", value="O-17", labels=("pii",)) in is_(move, Transfer).facts


async def test_the_rest_of_a_transfer_is_as_ever() -> None:
    scan = {"name": "scan", "uri": "s3://b/scan.pdf"}
    move, _ = await moved(
        front(to("billing", carries=RefundRequest)),
        handing(
            GOOD, artifacts=[scan], drop=["text"], no_return=True, constraints={"allowed_actions": ["x"]}
        ),
    )
    found = is_(move, Transfer)
    assert (found.artifacts, found.drop, found.no_return) == (
        (Artifact(name="scan", uri="s3://b/scan.pdf"),),
        ("text",),
        True,
    )


@pytest.mark.parametrize("carries", [int, dict, "RefundRequest", GOOD, None])
def test_a_form_is_a_pydantic_model(carries: Any) -> None:
    if carries is None:
        assert to("billing", carries=carries).form is None
        return
    with pytest.raises(ToolsUnusable, match="transfer_to_billing carries a pydantic model"):
        to("billing", carries=carries)


def test_a_form_without_a_schema_is_refused_where_it_is_given() -> None:
    class Opaque(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        socket: Turn

    with pytest.raises(ToolsUnusable, match="what transfer_to_billing carries has no JSON schema"):
        to("billing", carries=Opaque)


WRONG = {"summary": "refund it", "facts": {**GOOD, "cents": "25"}}
RIGHT = {"summary": "refund it", "facts": GOOD}


@pytest.mark.parametrize("vendor", [claude, openai, responses], ids=lambda vendor: vendor.__name__)
async def test_the_form_reaches_a_real_sdk_and_its_mistakes_come_back(vendor: Any) -> None:
    """The vendor's own SDK, against a stand-in for its API."""
    script = [asks(("transfer_to_billing", given)) for given in (WRONG, RIGHT)]
    async with vendor(*script) as (stub, model):
        with driven_by(model):
            move = await front(to("billing", carries=RefundRequest))(turn(agent="front", peers=["billing"]))
    assert {fact.key: fact.value for fact in is_(move, Transfer).facts} == GOOD
    first, second = (json.dumps(asked.body) for asked in stub.asked)
    assert '"cents": {"exclusiveMinimum": 0, "type": "integer"}' in first
    assert "facts.cents: Input should be a valid integer" in second


# --- the form of the fleet file -----------------------------------------------------------------------

LISTED = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
carries.billing = { required = ["cents", "text"], properties.cents = { type = "integer" } }
[agents.billing]
""").fleet


@agent(name="billing")
async def cashier(turn: Turn) -> Move:
    return turn.complete(turn.facts["cents"])


async def test_the_form_of_the_fleet_file_is_told_to_a_model_and_its_mistakes_cost_no_refusal() -> None:
    def cents(value: object) -> Reply:
        return handing([{"key": "cents", "value": value}])

    agents = {"front": front("billing"), "billing": cashier}
    with driven_by(StrictModel(cents("25"), cents(25))) as model:
        walk = await FleetHarness(InMemoryGuard(LISTED), agents).go("Pay me back")
    assert (walk.answer, walk.refused) == (25, [])
    assert (
        told(model.prompts[1]) == "transfer_to_billing was not called: facts.cents: expected `int`, got `str`"
    )
    words = tools(model.prompts[0])["transfer_to_billing"].description
    assert words.endswith(
        'JSON Schema: {"required": ["cents", "text"], "properties": {"cents": {"type": "integer"}}}'
    )
    (same,) = await Replayer({"front": front("billing")}, walk.recording).replay(walk.guard.bodies)
    assert (same.result, same.difference) == ("same", None)


async def test_the_form_of_the_code_comes_first_and_the_fleets_is_checked_too() -> None:
    class Loose(BaseModel):
        cents: int | str

    agents = {"front": front(to("billing", carries=Loose)), "billing": cashier}
    with driven_by(StrictModel(handing({"cents": "25"}), handing({"cents": 25}))) as model:
        walk = await FleetHarness(InMemoryGuard(LISTED), agents).go("Pay me back")
    assert (walk.answer, walk.refused) == (25, [])
    assert "JSON Schema" not in tools(model.prompts[0])["transfer_to_billing"].description
    assert "facts.cents: expected `int`, got `str`" in told(model.prompts[1])


async def test_what_was_withheld_from_the_giver_is_left_to_the_guard() -> None:
    fleet = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
carries.billing.required = ["ssn", "cents"]
[agents.billing]
clearance = ["pii"]
""").fleet
    agents = {"front": front("billing"), "billing": cashier}
    facts = (Fact(key="ssn", value="1", labels=("pii",)),)
    given = [handing([]), handing([{"key": "cents", "value": 1}])]
    with driven_by(StrictModel(*given)):
        walk = await FleetHarness(InMemoryGuard(fleet), agents).go("Pay", facts=facts)
    assert (walk.answer, walk.refused) == (1, ["form"])


# --- names and conditions -----------------------------------------------------------------------------


async def test_an_edge_has_a_name_and_a_description_of_its_own() -> None:
    class Question(BaseModel):
        question: str

    edges = (
        to("billing", carries=RefundRequest, name="refund", description="Give money back."),
        to("billing", carries=Question, name="ask_billing"),
        "archive",
    )
    move, (prompt,) = await moved(front(*edges), handing({"question": "how much?"}, "ask_billing"))
    assert is_(move, Transfer).to_agent == "billing"
    handoffs = {name: spec.description for name, spec in tools(prompt).items() if "facts" in str(spec.schema)}
    assert handoffs["refund"] == "Give money back."
    assert handoffs["ask_billing"] == "Give the work to billing."
    assert "transfer_to_archive" in handoffs
    assert "transfer_to_billing" not in handoffs


@pytest.mark.parametrize(
    ("make", "mistake"),
    [
        (lambda: to("billing", name="no name"), "no model can call a tool 'no name'"),
        (lambda: to("Billing!"), "not an agent's name"),
        (lambda: to("billing", name="transfer_to_archive"), "the name of a handoff to another agent"),
        (lambda: front("billing", to("billing", description="x")), "two handoffs are called"),
        (lambda: front(to("billing", name="x"), to("archive", name="x")), "two handoffs are called x"),
        (lambda: ClaudeAgent("front", instructions=WORDS, handoffs="billing"), "is a list of agents"),
        (lambda: ClaudeAgent("front", instructions=WORDS, handoffs=LONE), "is a list of agents"),
    ],
    ids=["no-tool", "no-agent", "another-agents", "twice", "two-agents", "a-text", "an-edge"],
)
def test_a_mistake_in_an_edge_is_found_where_it_is_written(make: Any, mistake: str) -> None:
    with pytest.raises(ValueError, match=mistake):
        make()


def test_an_edge_has_the_name_of_no_other_tool() -> None:
    @tool
    async def refund() -> None:
        """Give money back."""

    with pytest.raises(ToolsUnusable, match="refund is the name of a move"):
        front(to("billing", name="refund"), tools=[refund])
    with pytest.raises(ToolsUnusable, match="complete is the name of another move"):
        front(to("billing", name="complete"))


async def test_an_edge_is_offered_when_its_condition_holds() -> None:
    asked: list[int] = []

    def has_order(turn: Turn) -> bool:
        asked.append(turn.round)
        return "order" in turn.facts

    agent = front(to("billing", when=has_order), "archive")
    _, (without,) = await moved(agent, says("no"))
    assert set(tools(without)).isdisjoint({"transfer_to_billing"})
    assert "- billing" not in without.brief
    _, (with_it,) = await moved(agent, says("no"), facts={"order": "O-17"})
    assert "transfer_to_billing" in tools(with_it)
    assert "- billing" in with_it.brief
    assert asked == [0, 0]


async def test_a_call_of_what_is_not_offered_is_told_so() -> None:
    _, prompts = await moved(front(to("billing", when=lambda turn: False)), handing(GOOD), says("no"))
    assert told(prompts[1]) == "There is no tool 'transfer_to_billing' here."


async def test_a_condition_may_be_async_and_read_what_was_refused() -> None:
    async def after_a_refusal(turn: Turn) -> bool:
        return bool(turn.refusals)

    edge, steps = to("archive", when=after_a_refusal), MemorySteps()
    with driven_by(StrictModel(handing([], "transfer_to_billing"))) as first:
        move = await front("billing", edge)(turn(agent="front", peers=["billing", "archive"], steps=steps))
    later = turn(
        agent="front", peers=["billing", "archive"], steps=steps, refused=[(move, "agent_available")]
    )
    with driven_by(StrictModel(handing([], "transfer_to_archive"))) as second:
        other = await front("billing", edge)(later)
    assert is_(other, Transfer).to_agent == "archive"
    assert "transfer_to_archive" not in tools(first.prompts[0])
    (anew,) = second.prompts
    assert anew.transcript == ()
    assert "rule agent_available refused transfer to billing" in anew.brief
