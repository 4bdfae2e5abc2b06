"""Every command in a block of the docs can be typed as it stands, also where a page is not run as a whole."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from mesh.cli import app
from tests.docs.pages import BESIDE, DOCS, blocks, codes, commands, prose
from tests.system.terminal import commands_of

PAGES = (*BESIDE, *sorted(DOCS.rglob("*.md")))
TYPED_IN = ("console", "sh", "bash", "")
STANDS_FOR = {"ID": "app_01M7ZDH2DWH5AVEC81SJHJH4N1"}


def _commands() -> list[tuple[str, str]]:
    """Return each command of ours that a block of a page has, with the page."""
    found = []
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language in TYPED_IN:
                for line in block.text.splitlines():
                    typed = re.sub(r"\$\([^)]*\)", "x", line.removeprefix("$ "))
                    if re.match(r"([A-Z_]+=\S+ )*mesh \w", typed):
                        found.append((page.name, typed))
    return found


def read_by_its_command(words: list[str]) -> None:
    """Have a command read its arguments as if it was about to run. Raises UsageError."""
    context = app.make_context("mesh", list(words), resilient_parsing=True)
    command: Any = app
    rest = words
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
        if rest or not isinstance(command, click.Group):
            context = command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize(("page", "line"), _commands())
def test_it_can_be_typed(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.jsonl").touch()  # what an earlier line of a page has exported
    words = [word for word in shlex.split(line, comments=True) if word != "&"]
    words = list(itertools.dropwhile(lambda word: word != "mesh", words))[1:]
    read_by_its_command([STANDS_FOR.get(word, word) for word in words])


def _mentioned() -> list[str]:
    """Return each command of ours that stands in backticks in the prose of a page."""
    told = (code for page in PAGES for line in prose(page.read_text()) for code in codes(line))
    return sorted({code for code in told if code.startswith("mesh ")})


@pytest.mark.parametrize("text", _mentioned())
def test_every_command_that_is_mentioned_exists(text: str) -> None:
    command: click.Command = app
    for word in shlex.split(text)[1:]:
        if not isinstance(command, click.Group):
            break
        assert word in commands_of(command), text
        command = commands_of(command)[word]
    unknown = [
        option
        for option in re.findall(r"(?<!\S)--[a-z-]+", text)
        if not any(option in each.opts for each in command.params)
    ]
    assert unknown == []


def test_there_are_many_and_one_that_cannot_be_typed_would_be_noticed() -> None:
    assert len(_commands()) > 80
    assert {"telemetry.md", "models.md", "web-ui.md", "operations.md"} <= {page for page, _ in _commands()}
    for wrong in (["request", "freezes", "ID"], ["request", "freeze", "ID", "--nope"], ["request", "watch"]):
        with pytest.raises(click.UsageError):
            read_by_its_command(wrong)


def test_prometheus_looks_where_the_services_of_the_page_answer() -> None:
    page = (DOCS / "telemetry.md").read_text()
    (yaml,) = [each.text for each in blocks(page) if each.language == "yaml"]
    typed = " ".join(command for command, _ in commands(page))
    (job,) = YAML(typ="safe").load(yaml)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == re.findall(r"--health (\S+)", typed)


def test_the_collector_of_the_page_listens_where_the_mesh_is_told_to_send() -> None:
    (shown,) = [each.text for each in blocks((DOCS / "telemetry.md").read_text()) if each.language == "sh"]
    docker, *told = shown.splitlines()
    assert shlex.split(docker)[:3] == ["docker", "run", "--rm"]
    assert len(told) == 2
    ports = re.findall(r"-p 127\.0\.0\.1:(\d+):\1 ", docker)  # on loopback alone
    assert all(line.split("=")[1].split(" ")[0].rpartition(":")[2] in ports for line in told)
