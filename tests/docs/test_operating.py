"""docs/operating.md can be typed: every command in it exists, and takes what it is given there."""

import re
import shlex
from typing import Any

import click
import pytest

from mesh.cli import app
from mesh.cli.exits import Exit
from mesh.ops.watch import Alarm, environment
from tests.docs.pages import blocks, codes, read, section
from tests.system.terminal import commands_of

PAGE = read("operating.md")
TYPED = [
    line.removeprefix("$ ")
    for block in blocks(PAGE)
    if block.language == "console"
    for line in block.text.splitlines()
    if line.startswith("$ ")
]


def read_by_its_command(words: list[str]) -> None:
    """Have a command read its arguments as if it was about to run. Raises UsageError."""
    context = app.make_context("mesh", list(words), resilient_parsing=True)
    command: Any = app
    rest = words
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(context, rest)
        if rest or not isinstance(command, click.Group):
            context = command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("line", TYPED)
def test_every_command_of_the_page_can_be_typed(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    assert program == "mesh"
    read_by_its_command([word.replace("ID", "app_01M7ZDH2DWH5AVEC81SJHJH4N1") for word in words])


def test_a_command_that_cannot_be_typed_would_be_noticed() -> None:
    for wrong in (["request", "freezes", "ID"], ["request", "freeze", "ID", "--nope"], ["request", "freeze"]):
        with pytest.raises(click.UsageError):
            read_by_its_command(wrong)


@pytest.mark.parametrize("text", sorted({code for code in codes(PAGE) if code.startswith("mesh ")}))
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


def test_the_page_names_every_variable_that_a_hook_finds() -> None:
    alarm = Alarm(what="ask", at=1, request="r", agent="a", summary="s", reason="x", url="u")
    said = section(PAGE, "It waits for a person")
    assert [name for name in environment(alarm) if f"`{name}`" not in said] == []


def test_the_page_names_the_exit_statuses() -> None:
    said = PAGE.split("Exit statuses: ", 1)[1].split("\n")[0]
    named = {int(number) for number in re.findall(r"\d+", said)}
    assert named == {status.value for status in Exit} - {Exit.INTERRUPTED}
