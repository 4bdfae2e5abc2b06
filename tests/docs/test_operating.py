"""docs/operating.md: every command that it mentions exists, and its names and numbers are the code's."""

import re
import shlex

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
