"""The code fleet at work, through a guard: on rules, and on a stand-in of the vendor's API."""

from pathlib import Path

import pytest

from agents.code.projects import git, origin
from mesh.model import choice as driven
from mesh.testing import FleetHarness
from protocol.wire import events
from tests.scripted_claude import ask_at, scripted_claude
from tests.unit.agents.crews import CODE, Sample, disagreements, walk


def sample(name: str) -> Sample:
    return next(each for each in CODE.samples if each.id_hint == name)


def claimed(found: FleetHarness) -> set[str]:
    return {str(event.to) for event in found.guard.events if isinstance(event, events.TaskOpened)}


@pytest.mark.parametrize("name", ["slugs", "nowhere"])
async def test_what_rules_were_written_for_comes_to_what_it_should(name: str, scratch: Path) -> None:
    found = await walk(CODE, sample(name).text)
    assert disagreements(found, sample(name)) == []
    assert claimed(found) == (set() if name == "nowhere" else {"historian", "tracer", "specifier"})


async def test_on_the_vendors_sdk_it_comes_to_the_same_with_one_clone_and_one_edit(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_claude(CODE.home / "rules.toml") as stub:
        ask_at(stub.url, monkeypatch)
        found = await walk(CODE, sample("prices").text)
        await driven.close_models()
    assert disagreements(found, sample("prices")) == []
    speakers = {each.body["messages"][0]["content"][0]["text"].split("\n")[0] for each in stub.asked}
    assert speakers == {f"You are: {name}" for name in CODE.agents}
    (workspace,) = (scratch / "workspaces").iterdir()
    subjects = git(workspace, "log", "--format=%s").splitlines()
    assert subjects == ["Change prices/total.py", "Return a plain number", "Add totals with a discount"]


async def test_what_no_rule_covers_is_for_a_person_and_changes_nothing(scratch: Path) -> None:
    found = await walk(CODE, sample("medians").text)
    assert disagreements(found, sample("medians")) == [
        "status: 'escalated', expected 'completed'",
        "answer: 'None', expected 'medians/median.py' in it",
        "answer: 'None', expected 'mended' in it",
    ]
    (workspace,) = (scratch / "workspaces").iterdir()
    assert git(workspace, "rev-parse", "HEAD") == git(origin("medians"), "rev-parse", "HEAD")
