"""`mesh demo` on the real fleet: what is printed is what a stranger sees first."""

import html
import json
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh.cli.exits import Exit
from mesh.model import ROUTING, WORK
from tests.scripted_claude import running_stand_in
from tests.servers import ROOT
from tests.system.terminal import READY, Finished, Folder, environments, kill, wait_until_gone
from tests.system.test_cli_dev import eventually

RULES_FILE = ROOT / "agents" / "support" / "rules.toml"
REQUESTS = ROOT / "agents" / "support" / "requests.jsonl"
SAMPLES = [json.loads(line) for line in REQUESTS.read_text().splitlines()]
KEPT = ("demo", "--keep", "kept")
RULED = next(sample for sample in SAMPLES if sample["kind"] == "ruled" and "story" not in sample)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def finished(folder: Folder) -> Finished:
    """All samples, played once for this module; their store stays in the folder `kept`."""
    return folder.process(*KEPT, "--json")


@pytest.fixture
def said(finished: Finished) -> dict[str, Any]:
    assert finished.status == Exit.DONE, finished
    told: dict[str, Any] = finished.json
    return told


def test_everything_that_a_rule_was_written_for_comes_out_right(said: dict[str, Any]) -> None:
    wrong = {
        each["id_hint"]: each["wrong"]
        for each in said["requests"]
        if each["kind"] == "ruled" and each["wrong"]
    }
    assert wrong == {}
    assert said["summary"]["unfinished"] == 0
    assert said["mode"] == "scripted"


def test_requests_come_in_the_files_order_and_in_the_documented_form(said: dict[str, Any]) -> None:
    assert [each["id_hint"] for each in said["requests"]] == [sample["id_hint"] for sample in SAMPLES]
    form = "request status policy topology client entry path depth answer error cost moves events"
    assert all(set(form.split()) <= set(each) for each in said["requests"])


def test_each_turn_that_an_agent_took_has_the_steps_that_it_journaled(said: dict[str, Any]) -> None:
    done = next(
        each for each in said["requests"] if each["kind"] == "ruled" and each["status"] == "completed"
    )
    turns = [move["turn"] for move in done["moves"] if move["turn"] is not None]
    steps = [step for turn in turns for step in turn["steps"]]
    assert {turn["agent"] for turn in turns if turn["steps"]} == set(done["trail"])
    assert all(step["kind"] and step["at"] and step["after"] >= 0 for step in steps)
    assert "model" in {step["kind"] for step in steps}


def test_the_guard_refused_what_goes_in_circles_or_too_far(said: dict[str, Any]) -> None:
    assert {"cycle", "depth"} <= set(said["summary"]["refusals"])
    for each in said["requests"]:
        refused = {move["rule"] for move in each["moves"] if move["verdict"] == "refused"}
        if each["kind"] == "ruled":
            assert set(each["expect"].get("refused", ())) <= refused


def test_what_comes_out_wrong_is_counted_as_wrong(said: dict[str, Any]) -> None:
    """A paraphrase that comes out wrong fails nothing: no rule was written for it."""
    counted = sum(bool(each["wrong"]) for each in said["requests"])
    assert said["summary"]["wrong"] == counted > 0
    assert said["summary"]["right"] == len(SAMPLES) - counted


def test_every_log_of_it_is_replayed_to_the_letter(said: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "demo.jsonl"
    lines = (
        json.dumps(event, separators=(",", ":"), ensure_ascii=False)
        for each in said["requests"]
        for event in each["events"]
    )
    file.write_text("\n".join(lines) + "\n")
    judged = Folder(tmp_path).mesh("replay", file)
    assert judged.status == Exit.DONE, judged
    assert judged.out.startswith(f"{len(SAMPLES)} requests, ")


def sampled(path: Path, *samples: dict[str, Any]) -> Path:
    """Write samples into a file; return the file."""
    file = path / "r.jsonl"
    file.write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    return file


STORIES = [sample for sample in SAMPLES if sample.get("story")]
PARAPHRASE = next(sample for sample in SAMPLES if sample["kind"] == "paraphrase")


def is_told_whole(out: str) -> None:
    """Check what is told of the stories and a paraphrase, however the others are told."""
    assert "model: scripted (rules in agents/support/rules.toml, not a language model)" in out
    assert "triage ✗ technical  transfer  refused by rule cycle" in out
    assert "withheld: 3 facts labelled pii" in out
    assert "1 not covered by the rules (needs a model)" in out
    assert "the guard refused 1 move: 1 by cycle" in out


def test_stories_are_told_whole_and_a_ruled_one_that_is_wrong_is_a_failure(tmp_path: Path) -> None:
    away = RULED | {"id_hint": "hopeless", "expect": {"status": "failed", "path": ["billing"]}}
    file = sampled(tmp_path, *STORIES, RULED, PARAPHRASE, away)
    done = Folder(tmp_path).process("demo", "--requests", file)
    assert done.status == Exit.FAILED, done
    is_told_whole(done.out)
    assert "WRONG hopeless (ruled): expected failed, came out completed" in done.out
    assert "3 more requests, a line each:" in done.out
    told = [line.removeprefix("■ ") for line in done.out.splitlines() if line.startswith("■ ")]
    beginnings = ("A hand-over that", "A loop that", "Personal data withheld", "A person resolves")
    assert [each.startswith(begin) for each, begin in zip(told, beginnings, strict=True)] == [True] * 4
    assert "■ hours" not in done.out
    assert "7 requests, " in done.out
    assert "Ada, support lead (ops) → app  complete" in done.out
    assert "mesh demo --keep DIR" in done.err


def test_with_all_every_request_is_told_event_by_event(tmp_path: Path) -> None:
    """At a terminal; what is kept is then served there as a page, until Ctrl-C."""
    file = sampled(tmp_path, *STORIES, RULED, PARAPHRASE)
    with Folder(tmp_path).showing(*KEPT, "--requests", file, "--all", until="Ctrl-C ends it") as demo:
        told = re.sub(r"\x1b\[[\d;]*m", "", demo.said)
        is_told_whole(told)
        assert "WRONG" not in told
        assert "more requests, a line each:" not in told
        assert "■ hours" in told
        assert "6 requests, " in told
        assert "Ada, support lead (ops) → app  complete" not in told
        printed = re.search(r"its page is at (http://127\.0\.0\.1:\d+/\?token=[\w-]+); Ctrl-C", told)
        assert printed is not None, told
        with httpx.Client(follow_redirects=True) as browser:
            shown = browser.get(printed[1])
            assert (shown.status_code, shown.url.path) == (200, "/requests")
            eventually(lambda: RULED["text"][:40] in html.unescape(browser.get(shown.url).text))
        assert demo.end(signal.SIGINT) == Exit.INTERRUPTED


def verdicts(told: dict[str, Any]) -> dict[str, Any]:
    """Return what was decided, by sample, without what differs from run to run."""
    form = ("move", "from", "to", "verdict", "rule")
    return {
        each["id_hint"]: (
            *(each[name] for name in ("verdict", "outcome", "path")),
            [[move[name] for name in form] for move in each["moves"]],
        )
        for each in told["requests"]
    }


def test_with_the_vendors_sdk_the_verdicts_are_the_same(said: dict[str, Any], tmp_path: Path) -> None:
    """Asked are a handful: an answer, refusals by two rules, and what is for people."""
    ruled = [sample for sample in SAMPLES if sample["kind"] == "ruled"]
    refused = {rule: each for each in reversed(ruled) for rule in each["expect"].get("refused", ())}
    chosen = [ruled[0], refused["cycle"], refused["depth"]]
    chosen.append(next(each for each in ruled if each["expect"]["status"] == "escalated"))
    with running_stand_in(RULES_FILE) as sdk:
        arguments = ("demo", "--requests", sampled(tmp_path, *chosen), "--json", "--model", "claude")
        done = Folder(tmp_path).process(*arguments, **sdk)
    assert done.status == Exit.DONE, done
    claude = done.json
    assert claude["mode"] == "claude"
    names = [sample["id_hint"] for sample in chosen]
    assert verdicts(claude) == {name: verdicts(said)[name] for name in names}
    costs = [each["cost"] for each in claude["requests"]]
    assert min(cost["model_calls"] for cost in costs) > 0, "the SDK was asked"
    assert min(cost["nano_dollars"] for cost in costs) > 0, "its models have prices"
    reports = [event.get("report", {}) for each in claude["requests"] for event in each["events"]]
    assert {name for each in reports for name in each.get("usage", {}).get("models", {})} == {ROUTING, WORK}
    assert {each["cost"]["model_calls"] for each in said["requests"]} == {0}


def test_interrupted_it_stops_everything_and_throws_its_data_away(tmp_path: Path) -> None:
    """As nobody said a word of models, nothing is spent meanwhile, and nobody gets the key."""
    with Folder(tmp_path).running(
        "demo", until="sample requests;", TMPDIR=str(tmp_path), ANTHROPIC_API_KEY="not-a-key"
    ) as demo:
        children = demo.children()
        assert "model: scripted (rules in" in demo.said
        assert all("ANTHROPIC_API_KEY" not in each for each in environments(demo).values())
        assert len(children) == 5  # server, guard, three agents
        assert demo.end(signal.SIGINT) == Exit.INTERRUPTED
        wait_until_gone(children)
        assert list(tmp_path.glob("mesh-demo-*")) == []


def test_what_is_kept_can_be_looked_at_afterwards(
    folder: Folder, finished: Finished, said: dict[str, Any]
) -> None:
    assert "mesh dev --fleet support --store kept" in finished.err
    looped = next(each for each in said["requests"] if any(move["rule"] for move in each["moves"]))
    assert f"mesh why {looped['request']}" in finished.err
    assert folder.mesh(*KEPT).status == Exit.USAGE, "never over another one's data"
    looks = ["dev", "--fleet", "support", "--store", "kept", "--port", "0"]
    with folder.running(*looks, until=READY) as dev:
        shown = folder.mesh("request", "show", looped["request"], "--json")
        assert shown.json["status"] == looped["status"]
        assert folder.mesh("cost").status == Exit.DONE
        assert dev.end(signal.SIGINT) == Exit.DONE


def test_when_a_service_dies_the_demo_says_so_and_fails_at_once(tmp_path: Path) -> None:
    with Folder(tmp_path).running("demo", until="sample requests;") as demo:
        children = demo.children()
        kill(demo, "guard-1")
        assert demo.ended() == Exit.FAILED
        assert "guard-1 (process" in demo.said
        assert "was killed by SIGKILL" in demo.said
        assert " 0 unfinished" not in demo.said
        wait_until_gone(children)


def test_a_fleet_that_is_not_there_is_a_matter_of_usage(tmp_path: Path) -> None:
    done = Folder(tmp_path).mesh("demo", "--fleet", "nothing")
    assert done.status == Exit.USAGE
    assert "there is `support`" in done.err
