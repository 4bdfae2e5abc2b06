"""`mesh demo` on the recruiting fleet: the same promises, and people who are kept from some agents."""

import json
from typing import Any

import pytest

from mesh.cli.exits import Exit
from tests.servers import ROOT
from tests.system.terminal import Folder

FLEET = ROOT / "agents" / "recruiting"
SAMPLES = [json.loads(line) for line in (FLEET / "requests.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    finished = Folder(tmp_path_factory.mktemp("demo")).process("demo", "--fleet", "recruiting", "--json")
    assert finished.status == Exit.DONE, finished
    told: dict[str, Any] = finished.json
    return told


def test_everything_that_a_rule_was_written_for_comes_out_right(said: dict[str, Any]) -> None:
    ruled = [each for each in said["requests"] if each["kind"] == "ruled"]
    assert [(each["id_hint"], each["wrong"]) for each in ruled if each["wrong"]] == []
    assert len(said["requests"]) == len(SAMPLES)
    assert said["summary"]["unfinished"] == 0
    assert {"cycle", "depth"} <= set(said["summary"]["refusals"])


def test_nothing_in_the_inbox_of_whoever_judges_says_who_applies(said: dict[str, Any]) -> None:
    inbox = [event for each in said["requests"] for event in each["events"] if event["to"] == "screening"]
    texts = [sample["text"] for sample in SAMPLES]
    assert len(inbox) > 15
    for event in inbox:
        body = json.dumps(event, ensure_ascii=False)
        assert "@" not in body
        assert [text for text in texts if text in body] == []
        assert all(not fact.get("labels") for fact in event["work"]["handoff"].get("facts", ()))


def test_an_offer_waits_for_a_person_and_is_not_sent_without_one(said: dict[str, Any]) -> None:
    asked = [
        event
        for each in said["requests"]
        for event in each["events"]
        if event.get("ask", {}).get("action") == "send_offer"
    ]
    assert [event["to"] for event in asked] == ["human"]
    assert '"euros":64000' in asked[0]["ask"]["question"]
