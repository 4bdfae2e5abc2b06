"""The pictures: what is in them by their structure, and that no stranger's text can be more than text."""

import re
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import msgspec
import pytest

from mesh import ops
from mesh.replay.export import load
from mesh.ui.drawing.request import PART_ROWS, course, parts, sequence, strip
from mesh.ui.drawing.scene import Scene, mermaid, scene
from mesh.ui.story import as_html, environment, standing
from protocol.views.spending import Cost
from protocol.views.timeline import Timeline, TimelineEntry, timeline
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.handoff import Budget
from tests import mermaid as diagram
from tests.servers import ROOT

_NONE = Cost(nano_dollars=0, tokens=0, model_calls=0)
_DRAWN = {"svg", "title", "desc", "g", "a", "line", "rect", "path", "text", "tspan", "circle"}
HOSTILE = (
    "<script>alert(1)</script>",
    "</text></svg><img src=x onerror=alert(1)>",
    '" onload="alert(1)" x="',
    "]]><!--",
    "&lt;b&gt; &amp;",
    "a\x00b\x1b[31mred\x07",
    "\u202edlrow",
    "\ud800",
    "end\n    p0->>p1: forged",
    "#35; ; %% note",
    "漢字" * 400,
    "x" * 1_000_000,
    "",
)


_Move = tuple[str, str, str | None, dict[str, object]]


def _logs() -> list[Path]:
    return sorted((ROOT / "tests" / "golden" / "logs").glob("*.jsonl"))


def _happened(log: str) -> list[AnyEvent]:
    return ops.log.decoded(next(iter(load(ROOT / "tests/golden/logs" / f"{log}-story.jsonl").values())))


def _parsed(svg: str) -> Element:
    """Return a picture as a tree. Raises ParseError for what is no XML; asserts that it is only a picture."""
    root = fromstring(svg)
    for each in root.iter():
        each.tag = each.tag.removeprefix("{http://www.w3.org/2000/svg}")
        assert each.tag in _DRAWN
        assert not any(name.startswith("on") or name == "style" for name in each.attrib)
    names = root.attrib["aria-labelledby"].split()
    assert [each.tag for each in root if each.get("id") in names] == ["title", "desc"]
    return root


def _of_class(root: Element, *names: str) -> list[Element]:
    return [each for each in root.iter() if set(names) <= set(each.get("class", "").split())]


def _texts(each: Element) -> list[str]:
    return [text for part in each.iter("text") if (text := "".join(part.itertext()))]


def told(*moves: _Move) -> Timeline:
    """Return a timeline of entries: move, from, to, and other fields."""
    entries = [
        TimelineEntry(
            **{"seq": n, "id": str(n), "at": n * 1000, "move": move, "from_": from_, "to": to}
            | {"verdict": "admitted"}
            | fields  # type: ignore[arg-type]
        )
        for n, (move, from_, to, fields) in enumerate(moves)
    ]
    trail = tuple(
        str(each.to)
        for each in entries
        if each.verdict != "refused" and each.move in ("submit", "transfer", "hand_back", "escalate")
    )
    return Timeline(
        request="c1.x",
        status="open",
        policy="default",
        topology="handoff",
        client="c1",
        entry=trail[0],
        path=(),
        trail=trail,
        depth=0,
        cost=_NONE,
        charged=_NONE,
        moves=tuple(entries),
    )


def _circles(rounds: int) -> Timeline:
    """Return a request of two agents that give the work to each other, refused every third time."""
    circle: list[_Move] = [
        ("transfer", "a", "b", {"summary": "yours"}),
        ("transfer", "b", "a", {"verdict": "refused", "rule": "cycle", "detail": "a → b → a"}),
        ("hand_back", "b", "a", {"summary": "no, yours"}),
    ]
    return told(("submit", "c1", "a", {}), *circle * rounds, ("complete", "a", "c1", {}))


def test_a_story_is_drawn_with_its_lanes_its_refusals_and_its_people() -> None:
    drawn = _parsed(sequence(scene(timeline(_happened("long")))))
    heads = [text for lane in _of_class(drawn, "lane") for text in _texts(lane)]
    assert heads == ["c1", "triage", "billing", "refunds", "people"]
    rows = _of_class(drawn, "row")
    assert [row.get("href") for row in rows[:3]] == ["#e1", "#e2", "#e3"]
    (broken,) = _of_class(drawn, "row", "broken")
    assert "known_agent" in _texts(broken)
    assert "to sales" in _texts(broken)
    assert _of_class(broken, "cross")
    assert not _of_class(broken, "tip")
    (back,) = _of_class(drawn, "row", "back")
    assert _of_class(back, "tip")
    assert {"waiting", "failed", "doubt", "working"} <= {
        state for held in _of_class(drawn, "held") for state in held.get("class", "").split()
    }
    assert [_texts(band)[2] for band in _of_class(drawn, "band")] == [
        "freeze by Ada (op1)",
        "thaw by Ada (op1)",
    ]


@pytest.mark.parametrize("log", _logs(), ids=lambda log: log.stem)
def test_every_entry_of_a_log_has_its_row_and_every_row_is_in_the_picture(log: Path) -> None:
    story = timeline(ops.log.decoded(next(iter(load(log).values()))))
    drawn = _parsed(sequence(scene(story, folded=False)))
    assert [row.get("href") for row in _of_class(drawn, "row")] == [f"#e{move.seq}" for move in story.moves]
    whole, folded = scene(story, folded=False), scene(story)
    assert diagram.read(mermaid(whole)) == (len(whole.lanes), len(story.moves))
    assert diagram.read(mermaid(folded)) == (len(folded.lanes), len(folded.rows))


@pytest.mark.parametrize("log", _logs(), ids=lambda log: log.stem)
def test_no_number_is_left_out_of_the_picture_or_the_file(log: Path) -> None:
    bodies = next(iter(load(log).values()))
    happened = ops.log.decoded(bodies)
    drawn = _parsed(sequence(scene(timeline(happened))))
    in_picture = [_texts(row)[0] for row in _of_class(drawn, "row")]
    page = as_html(timeline(happened), happened, bodies)
    in_file = re.findall(r'<span class="n">([\d-]+)</span>', page)
    for numbers in (in_picture, in_file):
        # What is withheld is told with the event after it, under both numbers.
        assert any("-" in number for number in numbers) == any(
            isinstance(event, FactsWithheld) for event in happened
        )
        told = [range(int(first), int(last or first) + 1) for first, _, last in map(_parted, numbers)]
        assert [n for each in told for n in each] == list(range(len(happened)))
    assert page.count("&#34;prev&#34;: ") == len(happened)  # the JSON of every event, also of those


def _parted(number: str) -> tuple[str, str, str]:
    return number.partition("-")


def test_after_the_end_the_facts_are_those_that_were_carried_last() -> None:
    happened = _happened("answered")
    ended, before = standing(happened), standing(happened[:-1])
    assert ended.status == "completed"
    assert ended.facts == before.facts != ()
    page = as_html(timeline(happened), happened, [b"{}"] * len(happened))
    assert "As last carried: the request has ended." in page
    assert "As they were carried last" not in as_html(
        timeline(happened[:-1]), happened[:-1], [b"{}"] * len(happened)
    )


def test_a_request_that_goes_in_circles_is_as_short_as_its_circle() -> None:
    story = scene(_circles(700))
    assert [row.form for row in story.rows] == ["arrow", "arrow", "broken", "arrow", "fold", "arrow"]
    fold = story.rows[4]
    assert (fold.cycle, fold.times, fold.seq, fold.last) == (3, 699, 4, 2100)
    drawn = _parsed(sequence(story))
    assert "the same 3 rows, 699 times more" in _texts(_of_class(drawn, "fold")[0])


def test_what_does_not_repeat_itself_is_drawn_in_parts_with_the_lanes_of_each() -> None:
    hops: list[_Move] = [("transfer", f"a{n}", f"a{n + 1}", {}) for n in range(200)]
    story = scene(told(("submit", "c1", "a0", {}), *hops))
    assert len(story.rows) == 201
    assert parts(story) == 3
    shown = [_parsed(sequence(story, part=part)) for part in range(parts(story))]
    assert [len(_of_class(part, "row")) for part in shown] == [PART_ROWS, PART_ROWS, 41]
    assert [len(_of_class(part, "lane")) for part in shown] == [PART_ROWS + 1, PART_ROWS + 1, 42]
    assert [int(str(part.get("href"))[2:]) for root in shown for part in _of_class(root, "row")] == [
        *range(201)
    ]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_a_hostile_text_is_text_and_no_more(text: str) -> None:
    fields: dict[str, object] = {"summary": text, "detail": text, "sender": text}
    story = scene(
        told(
            ("submit", "c1", "a", fields),
            ("transfer", "a", text or "?", fields | {"verdict": "refused", "rule": "known_agent"}),
            ("transfer", "a", "b", fields),
            ("freeze", text or "?", None, fields),
            ("complete", "b", "c1", fields),
        )
    )
    svg = sequence(story)
    drawn = _parsed(svg)
    assert len(_of_class(drawn, "row")) == 5
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", svg)
    assert max(len(shown) for shown in _texts(drawn)) < 120
    assert diagram.read(mermaid(story)) == (len(story.lanes), 5)


def test_the_strip_shows_depth_and_each_kind_of_spending_against_its_limit() -> None:
    drawn = _parsed(strip(course(_happened("priced"))))
    bands = _of_class(drawn, "band")
    assert [_texts(band) for band in bands] == [
        ["Depth", "0 of 4, at most 1 so far"],
        ["Money", "$0.0150 of $5.0000"],
        ["Tokens", "5,000 of 200,000"],
        ["Model calls", "7 of 40"],
    ]
    assert all(len(_of_class(band, "limit")) == 1 for band in bands)


def test_a_budget_that_is_used_up_is_marked() -> None:
    known = course(_happened("priced"))
    limit = Budget(tokens=known.points[-1].spent.tokens - 1)
    tight = msgspec.structs.replace(known, ceiling=limit)
    assert [_texts(band)[0] for band in _of_class(_parsed(strip(tight)), "band", "over")] == ["Tokens"]


def test_an_empty_scene_is_an_empty_picture() -> None:
    empty = Scene(lanes=("c1",), everyone=("c1",), client="c1", began=0, rows=())
    assert not _of_class(_parsed(sequence(empty)), "row")


def test_a_template_is_compiled_once_in_a_process_for_all_pages_and_files() -> None:
    assert environment().get_template("download.html") is environment().get_template("download.html")
