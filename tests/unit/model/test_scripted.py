"""The scripted model: it follows rules over what its prompt says, and knows nothing else."""

import json

import pytest

from mesh.agent.tools import tool
from mesh.model.context_window import ContextWindow, Passage
from mesh.model.loop import drive
from mesh.model.port import PastReply, Prompt, ToolCall, ToolResult, ToolSpec
from mesh.model.prompt import render
from mesh.model.scripted import ScriptedModel, ScriptInvalid, parse_script, read_prompt
from mesh.testing import turn
from protocol.wire.commands import Usage
from protocol.wire.handoff import Fact
from protocol.wire.moves import Complete, Escalate, Transfer

SCRIPT = r"""
[agent]
fallback = { call = "escalate", with = { reason = "No rule fits: {text}" } }

[[agent.rules]]
name = "after a refusal"
where = { "refused.cycle" = '.*on the path.*' }
answer = "Refused: {refused.cycle}"

[[agent.rules]]
name = "what was found is told"
where = { "find.items.1.name" = '.*' }
answer = "{find.items.1.name} costs {find.items.1.cents}"

[[agent.rules]]
name = "what failed is told"
where = { "find.error" = '.*' }
answer = "Failed: {find.error}"

[[agent.rules]]
name = "a thing is looked for"
says = ['find (?P<thing>\w+)', 'please']
unless = 'not'
without = ["find"]
call = "find"
with = { thing = "{thing}", most = 3, near = ["{facts.place}"] }

[[agent.rules]]
name = "work for the other one"
where = { intent = "give|grant", "facts.n" = '[0-9]+' }
call = "transfer_to_other"
with = { summary = "Take {facts.n}" }
facts = { n = "{facts.n}", missing = "{facts.missing}", said = "n is {facts.n}" }
"""

FIND = ToolSpec("find", "", {})
ESCALATE = ToolSpec("escalate", "", {})


def model() -> ScriptedModel:
    return ScriptedModel(parse_script(SCRIPT))


def prompt(text: str, *transcript: PastReply | ToolResult, place: str | None = "here") -> Prompt:
    facts = {"text": text} | ({} if place is None else {"place": place})
    brief = render(turn(facts=facts))
    return Prompt("agent", "", brief, (FIND, ESCALATE), transcript)


async def test_the_first_rule_that_fits_is_followed() -> None:
    reply = await model().reply(prompt("Please find shoes"))
    (call,) = reply.calls
    assert (call.name, call.arguments) == ("find", {"thing": "shoes", "most": 3, "near": ["here"]})


async def test_it_costs_nothing_and_says_what_it_is() -> None:
    assert model().mode == "scripted"
    assert (await model().reply(prompt("Please find shoes"))).usage == Usage()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Find shoes", id="one-of-several-patterns-lacks"),
        pytest.param("Please do not find shoes", id="a-word-that-forbids"),
        pytest.param("Hello", id="nothing-fits"),
    ],
)
async def test_where_no_rule_fits_the_declared_fallback_is_followed(text: str) -> None:
    (call,) = (await model().reply(prompt(text))).calls
    assert (call.name, call.arguments) == ("escalate", {"reason": f"No rule fits: {text}"})


async def test_a_rule_whose_template_cannot_be_filled_does_not_fit() -> None:
    (call,) = (await model().reply(prompt("Please find shoes", place=None))).calls
    assert call.name == "escalate"


async def test_results_are_read_from_their_text() -> None:
    asked = PastReply("", (ToolCall("1", "find", {}),))
    found = ToolResult("1", "find", '{"items": [{}, {"name": "boot", "cents": 900}]}')
    assert (await model().reply(prompt("Please find shoes", asked, found))).text == "boot costs 900"


async def test_an_error_is_something_to_go_by() -> None:
    asked = PastReply("", (ToolCall("1", "find", {}),))
    failed = ToolResult("1", "find", "no shop", is_error=True)
    assert (await model().reply(prompt("Please find shoes", asked, failed))).text == "Failed: no shop"


async def test_the_same_call_is_not_made_twice() -> None:
    arguments = {"thing": "shoes", "most": 3, "near": ["here"]}
    asked = PastReply("", (ToolCall("1", "find", arguments),))
    remark = ToolResult("", "", "An empty reply is no answer.", is_error=True)
    (call,) = (await model().reply(prompt("Please find shoes", asked, remark))).calls
    assert (call.id, call.name) == ("call_2", "escalate")


async def test_it_calls_nothing_that_it_is_not_offered() -> None:
    told = await model().reply(Prompt("agent", "", prompt("Hello").brief, tools=()))
    assert told.calls == ()
    assert "nobody here to ask" in told.text


async def test_it_has_no_part_for_a_stranger() -> None:
    with pytest.raises(ScriptInvalid, match="stranger"):
        await model().reply(Prompt("stranger", "", ""))


async def test_it_drives_a_turn_through_the_same_loop_as_every_model() -> None:
    @tool
    async def find(thing: str, most: int, near: list[str]) -> dict[str, object]:
        """Find a thing."""
        return {"items": [{"name": "hat", "cents": most}, {"name": thing, "cents": len(near)}]}

    asked = turn(facts={"text": "Please find shoes", "place": "here"})
    assert await drive(asked, model(), instructions="", tools=[find]) == Complete(answer="shoes costs 1")


async def test_it_reads_a_refusal_in_its_brief() -> None:
    refused = Transfer(to_agent="other", summary="s")  # type: ignore[arg-type]
    asked = turn(facts={"text": "Hello"}, refused=[(refused, "cycle")])
    assert isinstance(await drive(asked, model(), instructions="", tools=[]), Escalate)
    known = read_prompt(Prompt("agent", "", render(asked)))
    assert known["refused"] == {"cycle": "transfer to other: refused: cycle."}


async def test_facts_of_a_move_that_are_not_known_are_left_out() -> None:
    asked = turn(intent="grant", facts={"n": 5}, peers=["other"])
    move = await drive(asked, model(), instructions="", tools=[])
    assert move == Transfer(
        to_agent="other",  # type: ignore[arg-type]
        summary="Take 5",
        facts=(Fact(key="n", value=5), Fact(key="said", value="n is 5")),
    )


def test_the_brief_is_read_back_as_it_was_meant() -> None:
    facts = {"text": 'A "quote"\nand a line: [pii]', "nested": {"a": [1]}, "odd key: x": True}
    asked = turn(summary="Sum", intent="mend", facts=facts, path=["first", "agent"], from_agent="first")
    known = read_prompt(Prompt("agent", "", render(asked)))
    assert known["facts"] == facts
    assert (known["summary"], known["intent"], known["from"], known["move"], known["path"]) == (
        "Sum",
        "mend",
        "first",
        "submit",
        "first > agent",
    )


def test_results_in_a_context_window_are_read_whole_or_by_their_summary() -> None:
    result = {"status": "delivered", "facts": {"height": 41}}
    passages = [
        Passage("find", "(failed, searcher) failed: nothing there"),
        Passage("check", "(delivered, checker) it is so", json.dumps(result), in_hand=True),
    ]
    brief = ContextWindow(1_000).fit('You are: lead\n\nFacts:\n- text: "How high?"', "Plan:\n- x", passages)
    known = read_prompt(Prompt("lead", "", brief.text))
    assert known["results"]["check"] == result
    assert known["results"]["find"] == {"summary": "(failed, searcher) failed: nothing there"}
    assert known["text"] == "How high?"


def test_a_label_is_no_part_of_a_value() -> None:
    asked = turn(facts=[Fact(key="email", value="a@example.com", labels=("pii", "x"))])
    assert read_prompt(Prompt("agent", "", render(asked)))["facts"] == {"email": "a@example.com"}


def test_without_the_customers_words_the_summary_stands_for_them() -> None:
    assert read_prompt(Prompt("agent", "", render(turn(summary="Mend it"))))["text"] == "Mend it"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("a = [", "script", id="not-toml"),
        pytest.param("[a]\n[[a.rules]]\nname='x'\nanswer='y'", "fallback", id="no-fallback"),
        pytest.param("[a]\nfallback={answer='x'}\n[[a.rules]]\nname='x'", "either", id="nothing-to-do"),
        pytest.param("[a]\nfallback={answer='x', call='y'}", "either", id="two-things-to-do"),
        pytest.param(
            "[a]\nfallback={answer='x'}\n[[a.rules]]\nname='x'\nanswer='y'\nsays='('", "says", id="no-regex"
        ),
        pytest.param("[a]\nfallback={answer='x', then='y'}", "then", id="an-unknown-word"),
    ],
)
def test_a_script_that_is_wrong_says_where(text: str, named: str) -> None:
    with pytest.raises(ScriptInvalid, match=named):
        parse_script(text)
