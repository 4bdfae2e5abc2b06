"""`mesh demo` on the fleets of trees: tasks on three levels, and many that read before one writes."""

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mesh.cli.exits import Exit
from tests.docs.pages import commands
from tests.servers import ROOT
from tests.system.terminal import Folder

TYPED = {
    line.split()[3]: shlex.split(line)[1:]
    for line, _ in commands((ROOT / "agents" / "README.md").read_text())
}
"""The commands of the page of fleets, by the fleet."""


def played(fleet: str, tmp_path_factory: pytest.TempPathFactory, *more: str) -> dict[str, Any]:
    finished = Folder(tmp_path_factory.mktemp("demo")).process(*TYPED[fleet], "--json", *more)
    assert finished.status == Exit.DONE, finished
    told: dict[str, Any] = finished.json
    return told


@pytest.fixture(scope="module")
def research(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return played("research", tmp_path_factory)


MENDED = {"slugs": "slugs/slug.py", "tallies": "tallies/tally.py"}
LEFT = ("leaps", "medians", "nowhere")
"""A test that is wrong, a fault that has to be understood, and a project that is not there."""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Some of the code fleet's requests: each starts pytest several times."""
    lines = (ROOT / "agents/code/requests.jsonl").read_text().splitlines()
    some = tmp_path_factory.mktemp("code") / "requests.jsonl"
    chosen = [line for line in lines if json.loads(line)["id_hint"] in (*MENDED, *LEFT)]
    assert len(chosen) == len(MENDED) + len(LEFT)
    some.write_text("\n".join(chosen))
    return played("code", tmp_path_factory, "--requests", str(some))


def opened(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events that opened tasks."""
    events = [event for each in told["requests"] for event in each["events"]]
    return [event for event in events if event["type"] == "task.opened"]


def test_of_research_right_and_wrong_are_counted_as_they_are(research: dict[str, Any]) -> None:
    lines = (ROOT / "agents/research/requests.jsonl").read_text().splitlines()
    kinds = Counter(json.loads(line)["kind"] == "ruled" for line in lines)
    wrong = {each["id_hint"] for each in research["requests"] if each["wrong"]}
    assert wrong == {each["id_hint"] for each in research["requests"] if each["kind"] != "ruled"}
    summary = research["summary"]
    assert (summary["right"], summary["wrong"], summary["unfinished"]) == (kinds[True], kinds[False], 0)
    assert summary["tasks"] == len(opened(research)) > 80


def test_a_task_is_opened_where_sources_disagree_on_the_third_level(research: dict[str, Any]) -> None:
    paths = Counter(tuple(event["work"]["path"]) for event in opened(research))
    assert paths[("lead", "fact-checker", "searcher")] > 10
    assert max(map(len, paths)) == 3


def test_no_worker_is_told_of_the_plan_or_of_its_siblings(research: dict[str, Any]) -> None:
    for event in opened(research):
        body = json.dumps(event)
        others = {"find", "check", "sum-up", "sources"} - {event["name"].removesuffix("-2")}
        given = {result["name"].removesuffix("-2") for result in event["work"].get("results", ())}
        assert not [name for name in others - given if f'"name": "{name}' in body], body


def replayed(told: dict[str, Any], folder: Path) -> str:
    """Return what a replay of all logs says, after it has found no difference."""
    events = [event for each in told["requests"] for event in each["events"]]
    file = folder / "demo.jsonl"
    file.write_text("".join(f"{json.dumps(event, separators=(',', ':'))}\n" for event in events))
    judged = Folder(folder).mesh("replay", file)
    assert judged.status == Exit.DONE, judged
    return judged.out


def test_every_log_of_research_is_replayed_to_the_letter(research: dict[str, Any], tmp_path: Path) -> None:
    assert replayed(research, tmp_path).startswith(f"{len(research['requests'])} requests, ")


def test_of_code_right_and_wrong_are_counted_as_they_are(code: dict[str, Any]) -> None:
    found = {each["id_hint"]: each for each in code["requests"]}
    assert {name for name, each in found.items() if each["wrong"]} == {"medians"}
    assert (code["summary"]["right"], code["summary"]["wrong"]) == (4, 1)
    for name, path in MENDED.items():
        assert path in found[name]["answer"]
    assert found["leaps"]["outcome"] == found["medians"]["outcome"] == "escalated"


def test_three_claim_their_part_and_one_alone_changes_anything(code: dict[str, Any]) -> None:
    effects = Counter[str]()
    for each in code["requests"]:
        claimed = [event["to"] for event in opened({"requests": [each]})]
        assert sorted(claimed) == (
            [] if each["id_hint"] == "nowhere" else ["historian", "specifier", "tracer"]
        )
        for move in each["moves"]:
            steps = () if move["turn"] is None else move["turn"]["steps"]
            effects.update(move["turn"]["agent"] for step in steps if step["kind"] == "effect")
    assert set(effects) == {"mender"}
    assert all(event["work"]["handoff"]["constraints"]["read_only"] for event in opened(code))


def test_the_logs_of_a_swarm_are_replayed_to_the_letter(code: dict[str, Any], tmp_path: Path) -> None:
    assert replayed(code, tmp_path).startswith(f"{len(code['requests'])} requests, ")
