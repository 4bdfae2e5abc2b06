"""The research fleet at work: three levels, citations that hold, and contradictions that are told."""

import re
from collections import Counter

import pytest
from typing_extensions import TypedDict

from agents.research.library import documents, sentences
from agents.research.team import uncited
from mesh.agent.values import Results
from mesh.model import Flaw
from mesh.model import choice as driven
from mesh.testing import FleetHarness, turn
from mesh.testing.harness import delivered, undelivered
from tests.scripted_claude import ask_at, scripted_claude
from tests.unit.agents.crews import RESEARCH, Sample, disagreements, walk

_AS = "You are: lead-{}"
_GIVEN = re.compile(r"(?P<value>[\w .]+?) \[(?P<ids>d-\d{4}(?:, d-\d{4})*)\]")


@pytest.mark.parametrize("sample", RESEARCH.of_kind("ruled"), ids=lambda sample: str(sample.id_hint))
async def test_what_rules_were_written_for_comes_out_right_and_cites_who_says_so(sample: Sample) -> None:
    found = await walk(RESEARCH, sample.text)
    assert disagreements(found, sample) == []
    cited = [
        (given["value"].split(": ")[-1].strip(), document)
        for given in _GIVEN.finditer(str(found.answer or ""))
        for document in given["ids"].split(", ")
    ]
    for value, document in cited:
        text = documents()[document].text
        assert value in text or value.endswith("."), (value, text)
    if found.status == "completed" and "does not say" not in found.answer:
        assert len(cited) >= 3


async def test_what_no_rule_covers_comes_out_wrong_and_is_counted_so() -> None:
    verdicts: Counter[str] = Counter()
    for sample in RESEARCH.samples:
        right = disagreements(await walk(RESEARCH, sample.text), sample) == []
        verdicts[f"{'ruled' if sample.kind == 'ruled' else 'other'} {'right' if right else 'wrong'}"] += 1
    assert verdicts == {"ruled right": 23, "other wrong": 7}


def lineages(found: FleetHarness) -> set[tuple[str, ...]]:
    return {tuple(map(str, each.path)) for each in found.turns}


async def test_sources_that_disagree_are_looked_for_again_on_the_third_level() -> None:
    agreed = await walk(RESEARCH, "How high is Hesk Light?")
    assert max(map(len, lineages(agreed))) == 2
    disputed = await walk(RESEARCH, "When was Skarra Light first lit?")
    assert ("lead", "fact-checker", "searcher") in lineages(disputed)
    second = next(each for each in disputed.turns if len(each.path) == 3)
    assert set(second.facts) == {"question"}, "it is given what it needs, and not the request"


async def test_two_questions_do_not_wait_for_each_other() -> None:
    found = await walk(RESEARCH, "How long is Tolm Bridge? When was Inver Bridge opened?")
    opened = [each.task_name for each in found.turns if each.task_name and each.round == 0]
    assert opened[:2] == ["find", "find-2"]


async def test_a_search_that_finds_nothing_is_a_typed_failure_up_to_the_answer() -> None:
    found = await walk(RESEARCH, "How much is a pint at the Anchor Inn?")
    lead = [each for each in found.turns if each.agent == "lead"][-1]
    error = lead.results["find"].error
    assert error is not None
    assert (error.code, error.agent, error.lineage) == ("failed", "searcher", ("lead", "searcher"))
    assert "Anchor Inn" in found.answer
    assert "check" not in lead.results, "what rests on it was not begun"


class ValueTold(TypedDict):
    """One of the values that a check found."""

    value: str
    documents: list[str]


FOUND = {"found": [{"document": "d-0011", "sentence": "Hesk Light stands 27 metres high."}]}


@pytest.mark.parametrize(
    ("summary", "flaws"),
    [
        ("Hesk Light stands 27 metres high [d-0011].", []),
        (
            "Hesk Light stands 27 metres high.",
            ["no sentence without a document: cite those that it rests on"],
        ),
        ("So it is [d-0011, d-0404].", ["cites d-0404, which the search did not find"]),
    ],
)
def test_a_summary_that_cites_what_nobody_found_is_done_again(summary: str, flaws: list[str]) -> None:
    told = Results([delivered("find", facts=FOUND), delivered("sum-up", summary)])
    expected = [Flaw("sum-up", what, "summary") for what in flaws]
    assert list(uncited(turn(), told)) == expected
    assert list(uncited(turn(), Results([undelivered("find", "failed"), delivered("sum-up", "x")]))) == []


async def test_a_verdict_names_every_document_that_has_a_value_and_no_other() -> None:
    found = await walk(RESEARCH, "How deep is Skarra Harbour?")
    checked = next(each for each in found.turns if each.agent == "lead" and "check" in each.results)
    values = checked.results["check"].fact("values", list[ValueTold])
    told = {each["value"]: each["documents"] for each in values}
    for value, ids in told.items():
        truly = [
            each.id
            for each in documents().values()
            for sentence in sentences(each.text)
            if "Skarra Harbour" in sentence and "metres" in sentence and f" {value} " in sentence
        ]
        assert sorted(ids) == truly


async def test_the_planner_and_the_synthesizer_are_two_prompts_that_share_no_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scripted_claude(RESEARCH.home / "rules.toml") as stub:
        ask_at(stub.url, monkeypatch)
        await walk(RESEARCH, "How high is Ardvane Light?")
        await driven.close_models()
    asked = [each.body for each in stub.asked]
    of_lead = {
        name: [
            each for each in asked if each["messages"][0]["content"][0]["text"].startswith(_AS.format(name))
        ]
        for name in ("planner", "synthesizer")
    }
    for name, means in (("planner", ["plan"]), ("synthesizer", ["complete"])):
        text = (RESEARCH.home / "prompts" / f"{name}.md").read_text().partition("\n")[2].strip()
        assert of_lead[name], name
        for body in of_lead[name]:
            assert [block["text"] for block in body["system"]] == [text]
            assert [tool["name"] for tool in body["tools"]] == means
