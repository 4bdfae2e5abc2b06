"""Links between our own pages lead somewhere, headings included; files that a page names exist."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.servers import ROOT

PAGES = sorted(path for path in DOCS.rglob("*.md") if "node_modules" not in path.parts)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`((?:protocol|mesh|tests|docs|agents)/[\w./-]+\.\w+)`")


def _anchors(page: Path) -> set[str]:
    """Return the anchors that a renderer makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    lost = []
    for link in _LINK.findall(page.read_text()):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(_FILE.findall(page.read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
