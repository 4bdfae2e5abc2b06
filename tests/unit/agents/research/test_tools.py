"""The research tools over the whole corpus: what they find, what they judge, and what they do not know."""

import asyncio
import re

import pytest

from agents.research import library
from agents.research.tools import check_claim, read_document, search
from mesh.agent import Permanent, ToolError
from tests.unit.agents.research.test_corpus import DISPUTES, facts

VERDICTS = {"correction": "corrected", "superseded": "changed", "contradiction": "disputed"}


def test_every_question_finds_documents_about_it_alone() -> None:
    wrong = []
    for subject, attribute, value, how in facts():
        other = DISPUTES.get((subject, attribute), {}).get("other", value)
        found = search(how["ask"].format(name=subject), limit=20)["documents"]
        sentences = [each["sentence"] for each in found]
        wrong += [each for each in sentences if not (str(value) in each or str(other) in each)]
        assert all(subject in each for each in sentences)
        assert len({each["document"] for each in found}) == len(found) >= 3
    assert wrong == []


def test_every_claim_is_judged_as_its_sources_are() -> None:
    for subject, attribute, value, how in facts():
        dispute = DISPUTES.get((subject, attribute))
        expected = "agreed" if dispute is None else VERDICTS[dispute["how"]]
        for sentence in how["say"]:
            judged = check_claim(sentence.format(name=subject, value=value))
            assert judged["verdict"] == expected, judged
            values = {str(value)} if dispute is None else {str(value), str(dispute["other"])}
            assert {each["value"] for each in judged["values"]} == values, judged
            assert judged["holds"] == (None if expected == "disputed" else str(value))


def test_a_false_claim_is_told_by_the_values_of_those_who_speak_of_it() -> None:
    judged = check_claim("Hesk Light stands 99 metres high.")
    assert (judged["verdict"], judged["holds"]) == ("agreed", "27")
    assert check_claim("The moon is made of 3 cheeses.")["verdict"] == "unsupported"


def test_a_question_in_small_letters_is_understood() -> None:
    assert search("how tall is hesk light?")["subject"] == "hesk light"
    assert "27" in search("how tall is hesk light?")["documents"][0]["sentence"]


@pytest.mark.parametrize(
    "question", ["How much does a pint cost?", "?!", "", '"; DROP TABLE found --', "NEAR(a b) AND OR *"]
)
def test_what_nobody_wrote_about_is_a_refusal_to_read(question: str) -> None:
    with pytest.raises(ToolError, match="No document answers that"):
        search(question)


def test_a_document_is_read_by_its_id() -> None:
    found = search("How high is Ardvane Light?", limit=20)["documents"]
    read = [read_document(each["document"]) for each in found]
    assert all(each["sentence"] in one["text"] for each, one in zip(found, read, strict=True))
    assert "correction" in {each["kind"] for each in read}
    with pytest.raises(ToolError, match=re.escape("There is no document d-9999.")):
        read_document("d-9999")


async def test_threads_share_one_index() -> None:
    async with asyncio.TaskGroup() as group:
        found = [group.create_task(search.run({"question": "How long is Tolm Bridge?"})) for _ in range(20)]
    assert len({str(each.result()) for each in found}) == 1
    assert library.index() is library.index()


def test_a_sqlite_that_cannot_search_is_named() -> None:
    with pytest.raises(Permanent, match="fts_of_no_build"):
        library.Index("fts_of_no_build")
