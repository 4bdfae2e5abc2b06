"""Commands on a file with a supervised request: the tree, why it stands so, costs, pictures, replay."""

import json
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from mesh.ops.words import WIDTH, story
from protocol.views.timeline import timeline
from tests.mermaid import read
from tests.tree_story import TreeStory
from tests.unit.cli.conftest import Mesh


def exported(story: TreeStory, folder: Path) -> Path:
    path = folder / "story.jsonl"
    path.write_bytes(b"".join(body + b"\n" for body in story.guard.bodies))
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return exported(TreeStory().whole(), tmp_path)


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    story = TreeStory()
    story.refused()
    story.searching()
    return exported(story, tmp_path)


TREE = """\
lead                                          ended           $0.0120     9.0 s
├─ find (searcher)                            failed          $0.0020     4.0 s
│  │  error: failed (lead → searcher, 2 attempts): no source could be fetched
│  │  from: site_down (lead → searcher → fetcher, 1 attempt): the site answers …
│  └─ fetch (fetcher)                         failed                      1.0 s
│        error: site_down (lead → searcher → fetcher, 1 attempt): the site answ…
├─ check (checker)                            delivered       $0.0010     1.0 s
│     result: 1998 it was
├─ write (writer)                             delivered       $0.0040     1.0 s
│     result: written
└─ again (searcher)                           cancelled                   2.0 s
      revises find
      the request is over
"""


def test_show_draws_the_tree_within_a_terminal(mesh: Mesh, whole: Path) -> None:
    said = mesh("request", "show", whole).output
    first, rest = said.split("\n", 1)
    assert first.endswith("completed  policy default, led by lead, 5 tasks")
    assert rest.startswith(TREE)
    assert max(map(len, TREE.splitlines())) <= WIDTH
    assert "checker → lead  deliver  admitted  1998 it was\n       task: check" in said


def test_what_is_open_has_lasted_until_now() -> None:
    waits = TreeStory()
    waits.searching()
    told, newest = timeline(waits.guard.events), waits.guard.events[-1].at

    def lasting(now: int) -> float:
        line = next(each.plain for each in story(told, now=now) if "find (searcher)" in each.plain)
        return float(line.split()[-2])

    assert lasting(newest + 25_000_000) == lasting(0) + 25


def test_show_as_json_has_the_tree(mesh: Mesh, whole: Path) -> None:
    (root,) = json.loads(mesh("request", "show", whole, "--json").output)["tree"]
    assert [task["name"] for task in root["tasks"]] == ["find", "check", "write", "again"]
    assert root["tasks"][0]["errors"][1]["code"] == "site_down"
    assert root["cost"]["model_calls"] == 12


def test_why_explains_a_lead_that_waits(mesh: Mesh, waiting: Path) -> None:
    said = mesh("why", waiting).output
    assert "searcher asked for: delegate (fetch)." in said
    assert "\nlead waits for all of: find. find: searcher waits for tasks of its own, since " in said
    assert "\nsearcher (task find) waits for all of: fetch. fetch: fetcher works on it, since " in said
    assert "level 2 of at most 3." in said
    assert "max_levels = 3, max_open_tasks = 8, max_tasks = 50" in said
    assert "Who could have had a task: fetcher (served, breaker closed)." in said


def test_why_explains_a_failed_task_from_its_origin_on(mesh: Mesh, whole: Path) -> None:
    said = mesh("why", whole).output
    assert "The task failed: failed (lead → searcher, 2 attempts): no source could be fetched." in said
    assert "It came from: site_down (lead → searcher → fetcher, 1 attempt): the site answers 503." in said
    assert "waits for" not in said  # nobody does any more
    channel = json.loads(mesh("why", whole, "--json").output)["channel"]
    assert [level["code"] for level in channel] == ["failed", "site_down"]


def test_why_explains_a_refused_plan(mesh: Mesh, whole: Path) -> None:
    said = mesh("why", whole, "1").output
    assert "Refused by rule `known_agent`: task 'find': 'nobody' is not in the fleet." in said
    assert "Numbers: task = find" in said


def test_cost_is_summed_up_by_lead_and_worker(mesh: Mesh, whole: Path) -> None:
    by_lead = json.loads(mesh("cost", whole, "--by", "lead", "--json").stdout)
    assert [(row["name"], row["model_calls"]) for row in by_lead["rows"]] == [("lead", 12), ("searcher", 2)]
    assert by_lead["total"]["model_calls"] == 12
    by_worker = json.loads(mesh("cost", whole, "--by", "worker", "--json").stdout)
    assert {row["name"]: row["model_calls"] for row in by_worker["rows"]} == {
        "writer": 4,
        "searcher": 2,
        "checker": 1,
    }


def test_pictures_show_the_tasks(mesh: Mesh, whole: Path) -> None:
    drawn = mesh("request", "show", whole, "-o", "mermaid").output
    assert read(drawn).rows > 5
    assert "p1->>p2: task: find it" in drawn
    assert "p3-->>p1: deliver: 1998 it was" in drawn
    assert "p4-->>p2: task_failed: the site answers 503" in drawn
    page = mesh("request", "show", whole, "-o", "html").output
    assert '<h2 id="tasks">Tasks</h2>' in page
    assert "<dt>Levels</dt><dd>3</dd>" in page
    assert "site_down (lead → searcher → fetcher, 1 attempt): the site answers 503" in page
    assert "style=" not in page  # the page's own policy would not obey it


def test_a_tree_is_judged_again_to_the_letter_and_by_another_policy(
    mesh: Mesh, whole: Path, tmp_path: Path
) -> None:
    said = mesh("replay", whole)
    assert (said.exit_code, "; 0 differ" in said.output) == (Exit.DONE, True)
    (tmp_path / "p.toml").write_text('topology = "supervised"\nmax_open_tasks = 1\n')
    said = mesh("replay", whole, "--policy", tmp_path / "p.toml")
    assert said.exit_code == Exit.FAILED
    assert "was turn.delegated, would be move.refused (rule fan_out, next round)" in said.output
