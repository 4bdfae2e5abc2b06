"""docs/adr: numbered without a gap, formed by the template, and listed."""

import re

import pytest

from tests.docs.adr_index import ADR, INDEX, index, records

HEADINGS = re.findall(r"^## .+$", (ADR / "template.md").read_text(), re.MULTILINE)


def test_the_index_lists_every_decision_as_it_stands() -> None:
    assert INDEX.read_text() == index(), "run: python -m tests.docs.adr_index"


def test_the_numbers_are_dense_and_agree_with_the_file_names() -> None:
    titles = [re.match(r"# (\d+)\.", path.read_text()) for path in records()]
    named = [int(path.name[:4]) for path in records()]
    assert [int(title[1]) for title in titles if title] == named == list(range(1, len(named) + 1))


@pytest.mark.parametrize("path", records(), ids=lambda path: path.stem)
def test_a_decision_has_the_parts_of_the_template(path: object) -> None:
    text = (ADR / f"{path}").read_text()
    assert re.findall(r"^## .+$", text, re.MULTILINE) == HEADINGS
    assert re.search(r"^Status: (accepted|superseded by \d+) · \d{4}-\d{2}-\d{2}$", text, re.MULTILINE)
