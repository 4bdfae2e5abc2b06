"""`mesh replay --html`: what was found as one page, which opens without a server, a network or a script."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from mesh.replay.differences import CodeDifference
from mesh.ui.replayed import MOST_LINES, SideLine, side_by_side, sides_of
from tests.unit.cli.conftest import STORY, Mesh, here, mesh, spoilt
from tests.unit.cli.test_replay_code import _importable, code, export

__all__ = ["_importable", "export", "here", "mesh"]


class _Elements(HTMLParser):
    """The elements of a page, and the texts in its rows that differ."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.changed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        if self.names[-1:] in (["del"], ["ins"]) and data.strip():
            self.changed.append(f"{self.names[-1]} {data.strip()}")


def page_of(path: Path) -> tuple[str, list[str]]:
    """Return a page, and what it says is changed; check that it loads and runs nothing."""
    written = path.read_text()
    found = _Elements(written)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(found.names)
    style = written.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in written
    return written, found.changed


def test_other_code_stands_beside_what_was_recorded(mesh: Mesh, here: Path, export: Path) -> None:
    changed = code(
        here,
        ('"billing", summary', '"refunds", summary'),
        ("cents=cents)", "cents=cents + 1)"),
    )
    result = mesh("replay", export, *changed, "--html", "found.html", "--jobs", 1)
    assert result.exit_code == Exit.FAILED, result.output
    page, differs = page_of(here / "found.html")
    assert "agent\trounds\t" in result.stdout  # it is printed all the same
    assert "front</strong> v1 → disk, event 1: to billing → refunds" in page
    assert "the guard would admit it" in page
    assert 'del "to_agent": "billing",' in differs
    assert 'ins "to_agent": "refunds",' in differs
    assert re.search(r"arguments</span>.*cents \d+ → \d+", page)  # of a later round, in a line
    assert len(differs) == 4 * 2, differs  # nothing but that, whatever order the facts have
    assert page.count('<h2 class="id"') == 4
    assert "1 later round that differs</summary>" in page


def test_a_changed_prompt_stands_line_by_line(mesh: Mesh, here: Path, export: Path) -> None:
    changed = code(here, ("Be kind.", "Be <b>brief</b>."))
    assert mesh("replay", export, *changed, "--html", "found.html").exit_code == Exit.FAILED
    _, differs = page_of(here / "found.html")
    assert differs[0] == "del You write to customers. Be kind."
    assert differs[1] == "ins You write to customers. Be <b>brief</b>."  # a text, and no element


def test_the_same_code_has_a_page_that_says_so(mesh: Mesh, here: Path, export: Path) -> None:
    assert mesh("replay", export, *code(here), "--html", "same.html").exit_code == Exit.DONE
    page, differs = page_of(here / "same.html")
    assert "Every round that could be replayed came to the same." in page
    assert differs == []
    assert mesh("replay", STORY, *code(here), "--html", "none.html").exit_code == Exit.NOTHING_JUDGED
    assert "Nothing was replayable." in page_of(here / "none.html")[0]


def test_other_rules_stand_in_a_table_for_each_file(mesh: Mesh, here: Path) -> None:
    for name, depth in (("tight", 1), ("wide", 30)):
        (here / f"{name}.toml").write_text(f"max_depth = {depth}\n")
    tried = ("--policy", "tight.toml", "--policy", "wide.toml")
    printed = mesh("replay", STORY, *tried, "--html", "found.html").output
    page, differs = page_of(here / "found.html")
    assert "request.opened" not in page
    (line,) = [each for each in printed.splitlines() if "would be" in each][:1]
    was, would = line.partition("was ")[2].partition(";")[0].split(", would be ", 1)
    assert [f"del {was}", f"ins {would}"] == differs[:2]
    for n, name in enumerate(("tight.toml", "wide.toml"), 1):
        assert f">{name}</h2>" in page
        assert f'<a href="#t{n}">{name}</a>' in page
    assert "1 request, " in page


def test_an_event_that_comes_out_otherwise_stands_beside_itself(mesh: Mesh, here: Path) -> None:
    result = mesh("replay", spoilt(here / "log.jsonl"), "--html", "found.html")
    assert result.exit_code == Exit.FAILED
    page, differs = page_of(here / "found.html")
    assert "1 request, " in page
    assert "1 differs." in page
    assert "does not come out as recorded" in page or "cannot be read" in page
    assert any("it is somebody else" in each for each in differs) or "hash chain is broken" in page
    assert mesh("replay", STORY, "--html", "same.html").exit_code == Exit.DONE
    assert "0 differ." in page_of(here / "same.html")[0]


def test_a_page_that_cannot_be_written_is_told(mesh: Mesh, here: Path) -> None:
    refused = mesh("replay", STORY, "--html", "there/is/none.html")
    assert refused.exit_code == Exit.USAGE
    assert "none.html: No such file" in refused.stderr


@pytest.mark.parametrize(
    ("was", "now", "lines"),
    [
        (None, "stops", [SideLine(None, "stops")]),
        ("a\nb\nc", "a\nx\nc", [SideLine("a", "a"), SideLine("b", "x"), SideLine("c", "c")]),
        ("a", "b\nc", [SideLine("a", "b"), SideLine(None, "c")]),
        ({"a": 1}, {"a": 2}, [SideLine("{", "{"), SideLine('  "a": 1', '  "a": 2'), SideLine("}", "}")]),
        (None, None, []),
    ],
)
def test_equal_lines_stand_beside_each_other(was: object, now: object, lines: list[SideLine]) -> None:
    assert list(side_by_side(was, now).lines) == lines


def test_facts_stand_in_the_order_of_their_keys_and_nothing_else_is_sorted() -> None:
    a, b = {"key": "a", "value": 1}, {"key": "b", "value": 2}
    was, now = {"facts": [b, a], "rows": [2, 1]}, {"facts": [a, b], "rows": [1, 2]}
    lines = sides_of(CodeDifference("move", "complete", was, now)).lines
    assert {line.was for line in lines if not line.is_same} <= {None, "    2,", "    2", "    1,", "    1"}
    odd = {"facts": "as text", "remember": [1]}
    assert all(line.is_same for line in sides_of(CodeDifference("arguments", "call", odd, odd)).lines)


def test_of_long_values_the_beginning_is_compared() -> None:
    long = "\n".join(map(str, range(MOST_LINES + 7)))
    sides = side_by_side(long, long)
    assert (len(sides.lines), sides.more) == (MOST_LINES, 7)


def test_a_changed_prompt_is_taken_apart_again() -> None:
    diff = "--- recorded\n+++ now\n@@ -1,3 +1,3 @@\n kept\n--- a rule\n-old\n+new\n… 7 more lines"
    lines = sides_of(CodeDifference("prompt", "instructions", was="d1", now="d2", diff=diff)).lines
    assert list(lines) == [
        SideLine("…", "…"),
        SideLine("kept", "kept"),
        SideLine("-- a rule", "new"),
        SideLine("old", None),
        SideLine("… 7 more lines", "… 7 more lines"),
    ]
