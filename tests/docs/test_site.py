"""The site: its pages' files, Python and commands do what the pages say, and it builds without a warning."""

import contextlib
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.docs.reader import Reader
from tests.servers import ROOT

PAGES = {
    "index.md": (3, 0),
    "tutorial.md": (13, 0),
    "howto/approval-by-chat.md": (5, 0),
    "howto/chat.md": (1, 0),
    "howto/evals.md": (2, 0),
    "howto/fastapi.md": (3, 0),
    "howto/guardrails.md": (0, 1),
    "howto/handoffs.md": (0, 4),
    "howto/incident.md": (11, 0),
    "howto/own-model.md": (0, 1),
    "howto/schedules.md": (7, 0),
    "howto/shadow.md": (9, 0),
    "running.md": (9, 0),
}
"""Pages that are done as they say: how many commands and blocks of Python each has."""
REFERENCE = {
    name: import_module(f"mesh.{name}")
    for name in ("adapters", "agent", "artifacts", "client", "mcp", "model", "testing")
}
"""The pages of the Python reference, and the module that each is of."""
IN_MODEL = {"ContextWindow", "Flaw", "Supervisor", "Swarm"}
"""Which `mesh.agent` exports too."""
TOLD = ("concepts.md", "is-it-for-me.md", *(f"reference/{name}.md" for name in (*REFERENCE, "journal")))
"""Pages of the site without any."""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    differs = "--tb=line" if page == "howto/incident.md" else "\0"  # the test that finds the mistake
    with contextlib.closing(Reader((DOCS / page).read_text(), tmp_path, differs=differs)) as reader:
        assert (reader.type_all(), reader.run_python()) == PAGES[page]


def test_every_page_with_something_to_run_is_run() -> None:
    assert {f"howto/{path.name}" for path in (DOCS / "howto").glob("*.md")} < set(PAGES)
    for page in TOLD:
        assert list(blocks((DOCS / page).read_text())) == [], page


def test_a_page_that_is_wrong_would_be_noticed(tmp_path: Path) -> None:
    page = "```console\n$ echo one\ntwo\n```\n"
    with contextlib.closing(Reader(page, tmp_path)) as reader, pytest.raises(AssertionError, match="two"):
        reader.type_all()
    page = "```console\n$ pip install 'handoff-mesh[nothing]'\n```\n"
    with (
        contextlib.closing(Reader(page, tmp_path)) as reader,
        pytest.raises(AssertionError, match="no such extra"),
    ):
        reader.type_all()
    with (
        contextlib.closing(Reader("```python\nassert 1 == 2\n```\n", tmp_path)) as reader,
        pytest.raises(AssertionError, match="1 == 2"),
    ):
        reader.run_python()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is built, strictly: a warning is an error."""
    built = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
    return built


def test_every_page_of_the_docs_is_in_the_site(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        at = site / (name.parent if name.name in ("index", "README") else name) / "index.html"
        assert at.is_file(), name
    assert (site / "deploying" / "index.html").is_file()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|link(?=[^>]*stylesheet))[^>]*(?:src|href)=\"?(?:https?:)?//")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


@pytest.mark.parametrize("name", REFERENCE)
def test_a_page_of_the_reference_has_all_that_its_module_makes_public(name: str, site: Path) -> None:
    page = (site / "reference" / name / "index.html").read_text()
    module = "mesh" if name == "client" else f"mesh.{name}"
    shown = re.findall(rf'id="{module}\.(\w+)"', page)
    assert set(shown) >= {each for each in REFERENCE[name].__all__ if name != "agent" or each not in IN_MODEL}


def test_the_reference_begins_with_what_an_author_types(site: Path) -> None:
    page = (site / "reference" / "agent" / "index.html").read_text()
    assert re.findall(r'<h2 id="(mesh[.\w]+)"', page)[:2] == ["mesh.agent.agent", "mesh.agent.Turn"]
    assert 'id="mesh.agent.Turn.transfer"' in page
    assert 'id="mesh.sync.Client"' in (site / "reference" / "client" / "index.html").read_text()


def test_a_model_that_reads_the_site_is_told_every_page(site: Path) -> None:
    told = (site / "llms.txt").read_text()
    assert told.startswith("# Handoff Mesh\n\n> ")
    listed = re.findall(r"^- \[.+\]\((.+?)\): \S", told, re.MULTILINE)
    assert [target for target in listed if not (site / target).exists()] == []
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "adr" not in page.parts}
    assert written <= {target if target.endswith(".md") else f"{target.rstrip('/')}.md" for target in listed}


@pytest.mark.parametrize("picture", sorted((DOCS / "pictures").glob("*.mmd")), ids=lambda path: path.stem)
def test_a_picture_is_that_of_its_text(picture: Path) -> None:
    sys.path.insert(0, str(DOCS / ".site"))
    try:
        from pictures import mark  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    drawn = picture.with_suffix(".svg").read_text()
    assert drawn.startswith(mark(picture.read_text())), "render it again: docs/.site/pictures.py"
    assert "<foreignObject" not in drawn, "an <img> shows none"
    assert f"pictures/{picture.stem}.svg" in (DOCS / "concepts.md").read_text()
