"""`mesh eval`: a file of requests through a running fleet, and through one that is started for it."""

import json
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mesh.agent import Move, Turn
from mesh.agent.definition import Agent
from mesh.cli.exits import Exit
from tests.guard.stage import Stage
from tests.system.office import Office
from tests.system.terminal import Folder


async def answers(turn: Turn) -> Move:
    """Hand on, or answer; the second `flaky` request is answered otherwise than the first."""
    word = str(turn.facts["text"]).split()[0]
    if word == "person":
        return turn.escalate("a person has to decide")
    if word == "on":
        return turn.transfer("b", summary="go on")
    FLAKY[word] = FLAKY.get(word, 0) + 1
    return turn.complete({"said": word, "time": FLAKY[word]})


async def ends(turn: Turn) -> Move:
    return turn.complete({"said": "the end", "by": "b"})


FLAKY: dict[str, int] = {}


def written(folder: Path, *requests: dict[str, Any]) -> str:
    (folder / "evals.jsonl").write_text("\n".join(json.dumps(each) for each in requests))
    return "evals.jsonl"


ON = {
    "name": "on",
    "text": "on and on",
    "expect": {"agents": ["a", "b"], "answer": {"by": "b"}, "max_hops": 1},
}
PERSON = {"name": "person", "text": "person", "expect": {"status": "escalated", "forbidden_agents": ["b"]}}
WRONG = {"name": "wrong", "text": "on", "expect": {"forbidden_agents": ["b"], "answer_matches": "^no"}}


async def served(stage: Stage) -> None:
    await stage.runtime(Agent("a", answers))
    await stage.runtime(Agent("b", ends))


async def test_right_and_wrong_are_told_beside_the_last_run(office: Office, stage: Stage) -> None:
    await served(stage)
    file = written(office.folder.path, ON, PERSON)
    first = await office.mesh("eval", file)
    assert first.status == Exit.DONE, first
    assert first.out.splitlines()[-1] == "2 requests: 2 right, 0.0000 dollars"
    file = written(office.folder.path, ON, PERSON, WRONG)
    second = await office.mesh("eval", file, "--json", "--junit", "report.xml", "--jobs", 2)
    assert second.status == Exit.FAILED
    told = second.json
    assert told["summary"] == {
        **{"requests": 3, "right": 2, "flaky": 0, "wrong": 1, "unfinished": 0, "nano_dollars": 0}
    }
    on, person, wrong = told["requests"]
    assert (on["verdict"], on["last"]["verdict"], wrong["last"]) == ("right", "right", None)
    assert (on["attempts"][0]["agents"], on["attempts"][0]["hops"]) == (["a", "b"], 1)
    assert person["attempts"][0]["outcome"] == "escalated"
    assert len(wrong["attempts"][0]["wrong"]) == 2
    (suite,) = ElementTree.parse(office.folder.path / "report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    kept = json.loads((office.folder.path / "evals.jsonl.last.json").read_text())
    assert {name: each["verdict"] for name, each in kept["requests"].items()} == {
        **{"on": "right", "person": "right", "wrong": "wrong"}
    }


async def test_a_request_that_is_right_now_and_then_is_flaky(office: Office, stage: Stage) -> None:
    await served(stage)
    file = written(office.folder.path, {"name": "flaky", "text": "flaky", "expect": {"answer": {"time": 1}}})
    found = await office.mesh("eval", file, "--repeat", 3, "--jobs", 1)
    assert found.status == Exit.FAILED
    assert "flaky\tflaky 1/3\t" in found.out
    assert found.out.splitlines()[-1] == "1 request: 1 flaky, 0.0000 dollars"


async def test_nothing_at_rest_and_a_mistake_have_their_own_status(office: Office, stage: Stage) -> None:
    file = written(office.folder.path, ON)
    nobody = await office.mesh("eval", file, "--timeout", 0.2)
    assert (nobody.status, "no request came to rest" in nobody.err) == (Exit.NOTHING_JUDGED, True)
    file = written(office.folder.path, ON, {"name": "x"})
    wrong = await office.mesh("eval", file)
    assert wrong.status == Exit.USAGE
    assert "evals.jsonl, line 2: " in wrong.err


async def test_what_is_known_is_told_when_it_is_interrupted(office: Office, stage: Stage) -> None:
    await stage.runtime(Agent("a", answers))
    path = office.folder.path
    file = written(path, PERSON, {**ON, "name": "first"})  # nobody serves b
    async with office.running("eval", file, "--jobs", 1, until="1 of 2 requests so far") as running:
        assert running.end(signal.SIGINT) == Exit.INTERRUPTED
        assert "person\tright\t" in running.said
        assert "interrupted after 1 of 2 requests; what was sent goes on" in running.said
    assert not (path / "evals.jsonl.last.json").exists()


def test_a_fleet_is_started_for_it_and_thrown_away(tmp_path: Path) -> None:
    hours = {
        "name": "hours",
        "text": "Hello! What are your opening hours on Sundays?",
        "expect": {"agents": ["triage"], "answer_matches": "10:00", "max_hops": 0},
    }
    found = Folder(tmp_path).process(
        "eval", written(tmp_path, hours), "--fleet", "support", TMPDIR=str(tmp_path)
    )
    assert found.status == Exit.DONE, found
    assert found.out.splitlines()[-1].startswith("1 request: 1 right")
    assert list(tmp_path.glob("mesh-eval-*")) == []
