"""The operators' pages: every command that they mention exists, and names and numbers are the code's."""

import re

from mesh.cli.exits import Exit
from mesh.ops.delivery import environment
from mesh.ops.watch import Alarm
from tests.docs.pages import blocks, read

PAGES = (
    "operations.md",
    "many.md",
    "troubleshooting.md",
    "people.md",
    "replay.md",
    "backup.md",
    "metrics.md",
)
PAGE = "".join(map(read, PAGES))
TYPED = [
    line.removeprefix("$ ")
    for block in blocks(PAGE)
    if block.language == "console"
    for line in block.text.splitlines()
    if line.startswith("$ ")
]


def test_the_page_names_every_variable_that_a_hook_finds() -> None:
    alarm = Alarm(what="ask", at=1, request="r", agent="a", summary="s", reason="x", url="u")
    said = read("people.md")
    assert [name for name in environment(alarm) if f"`{name}`" not in said] == []


def test_the_page_names_the_exit_statuses() -> None:
    said = PAGE.split("Exit statuses: ", 1)[1].split("\n")[0]
    named = {int(number) for number in re.findall(r"\d+", said)}
    assert named == {status.value for status in Exit} - {Exit.INTERRUPTED}
