"""Links lead somewhere, files that a page names exist, and decisions are numbered, formed and listed."""

import re
from pathlib import Path

import pytest

from tests.docs.adr_index import ADR, INDEX, index, records
from tests.docs.pages import BESIDE, DOCS, MOST_CHARS, prose
from tests.servers import ROOT

PAGES = [*sorted(DOCS.rglob("*.md")), *BESIDE]
PROSE = [*(page for page in PAGES if page.parent != ADR), ROOT / "CHANGELOG.md"]
GUIDES = [page for page in (*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")) if page.stem != "glossary"]
"""The glossary is looked up, not read."""
MOST_BYTES = 10 << 10
_LONG_LINK = re.compile(r"\S{60}")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`((?:protocol|mesh|tests|docs|agents)/[\w./-]+\.\w+)`")


def _anchors(page: Path) -> set[str]:
    """Return the anchors that a renderer makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    lost = []
    for link in _LINK.findall(page.read_text()):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(_FILE.findall(page.read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_longer_than_an_editor_is_wide(page: Path) -> None:
    long = [line for line in prose(page.read_text()) if len(line) > MOST_CHARS]
    assert [line for line in long if not _LONG_LINK.search(line)] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_is_read_in_one_go(page: Path) -> None:
    assert page.stat().st_size <= MOST_BYTES, "split it by what its readers come for"


HEADINGS = re.findall(r"^## .+$", (ADR / "template.md").read_text(), re.MULTILINE)


def test_the_index_lists_every_decision_as_it_stands() -> None:
    assert INDEX.read_text() == index(), "run: python -m tests.docs.adr_index"


def test_the_numbers_rise_and_agree_with_the_file_names() -> None:
    titles = [re.match(r"# (\d+)\.", path.read_text()) for path in records()]
    named = [int(path.name[:4]) for path in records()]
    assert [int(title[1]) for title in titles if title] == named == sorted(set(named))


@pytest.mark.parametrize("path", records(), ids=lambda path: path.stem)
def test_a_decision_has_the_parts_of_the_template(path: object) -> None:
    text = (ADR / f"{path}").read_text()
    assert re.findall(r"^## .+$", text, re.MULTILINE) == HEADINGS
    states = r"accepted|accepted, amended by \d+(, \d+)*|superseded by \d+"
    assert re.search(rf"^Status: ({states}) · \d{{4}}-\d{{2}}-\d{{2}}$", text, re.MULTILINE)


@pytest.mark.parametrize("path", records(), ids=lambda path: path.stem)
def test_a_decision_that_another_amends_or_supersedes_says_so(path: Path) -> None:
    if "superseded" in _state(path):
        return
    for older in re.findall(r"(?:amends|supersedes|narrows) \[ADR (\d+)\]", path.read_text()):
        (amended,) = ADR.glob(f"{int(older):04}-*.md")
        state = _state(amended)
        assert "superseded" in state or int(path.name[:4]) in map(int, re.findall(r"\d+", state)), state


def _state(path: Path) -> str:
    """Return a record's status without its date."""
    status = re.search(r"^Status: (.+) · ", path.read_text(), re.MULTILINE)
    assert status
    return status[1]
