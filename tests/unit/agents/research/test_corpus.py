"""The corpus: made from its table of facts, small, and contradictory just where the table says so."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from agents.research.library import CORPUS, documents
from tests.unit.agents.research.corpus_maker import read_table, written

TABLE = read_table()
DISPUTES = {(each["subject"], each["attribute"]): each for each in TABLE["disputes"]}


def facts() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yield every fact: its subject, attribute, value, and how the attribute is said."""
    for kind, subjects in TABLE["subjects"].items():
        for subject, known in subjects.items():
            for attribute, value in known.items():
                yield subject, attribute, value, TABLE["attributes"][kind][attribute]


def said(subject: str, value: Any, how: dict[str, Any]) -> list[int]:
    """Return the years of the documents that say so, but for corrections."""
    sentences = [each.format(name=subject, value=value) for each in how["say"]]
    return sorted(
        each.year
        for each in documents().values()
        if each.kind != "correction" and any(sentence in each.text for sentence in sentences)
    )


def test_the_file_is_what_its_maker_writes_and_small() -> None:
    assert CORPUS.read_text(encoding="utf-8") == written(TABLE)
    assert CORPUS.stat().st_size < 300_000
    assert 300 <= len(documents()) <= 500


def test_every_fact_is_said_by_several_documents() -> None:
    for subject, attribute, value, how in facts():
        least = 1 if (subject, attribute) in DISPUTES else 3
        assert len(said(subject, value, how)) >= least, (subject, attribute)


def test_sources_disagree_as_the_table_says() -> None:
    found: Counter[str] = Counter()
    for subject, attribute, value, how in facts():
        dispute = DISPUTES.get((subject, attribute))
        if dispute is None:
            continue
        right, other = said(subject, value, how), said(subject, dispute["other"], how)
        found[dispute["how"]] += 1
        assert right
        assert other
        is_older = max(other) < min(right)
        assert is_older == (dispute["how"] == "superseded"), (subject, attribute, right, other)
    assert dict(found) == {"correction": 5, "contradiction": 9, "superseded": 3}


def test_a_correction_says_what_holds_and_not_what_was_wrong() -> None:
    notices = [each for each in documents().values() if each.kind == "correction"]
    disputed = [each for each in TABLE["disputes"] if each["how"] == "correction"]
    assert len(notices) == len(disputed)
    for dispute in disputed:
        notice = next(each for each in notices if dispute["subject"] in each.title)
        assert str(dispute["other"]) not in notice.text
        assert notice.year > max(each.year for each in documents().values() if each.kind != "correction")
