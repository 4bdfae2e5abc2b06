"""`mesh demo` on the fleets of trees: tasks on three levels, and sources that contradict each other."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mesh.cli.exits import Exit
from tests.servers import ROOT
from tests.system.terminal import Folder


def played(fleet: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    finished = Folder(tmp_path_factory.mktemp("demo")).process("demo", "--fleet", fleet, "--json")
    assert finished.status == Exit.DONE, finished
    told: dict[str, Any] = finished.json
    return told


@pytest.fixture(scope="module")
def research(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return played("research", tmp_path_factory)


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


def test_every_log_of_it_is_replayed_to_the_letter(research: dict[str, Any], tmp_path: Path) -> None:
    events = [event for each in research["requests"] for event in each["events"]]
    file = tmp_path / "demo.jsonl"
    file.write_text("".join(f"{json.dumps(event, separators=(',', ':'))}\n" for event in events))
    judged = Folder(tmp_path).mesh("replay", file)
    assert judged.status == Exit.DONE, judged
    assert judged.out.startswith(f"{len(research['requests'])} requests, ")
