"""docs/web-ui.md: every option of `mesh ui` has its place there, and its numbers are those of the code."""

from mesh.cli.ui import ui
from mesh.ops.rows import TEXT
from mesh.ops.where import PREFIX
from mesh.ui import LEAST_TOKEN, USUAL_PORT
from mesh.ui.security import MOST_BODY
from tests.docs.pages import read

PAGE = read("web-ui.md")
SHARED = {"--url", "--context", "--tls-ca", "--tls-cert", "--tls-key", "--read-only", "--port"}
"""What every command takes, and what says what is so anyhow."""


def test_every_option_is_told() -> None:
    options = {name for option in ui.params for name in option.opts if name.startswith("--")}
    assert "--allow-write" in options
    assert [name for name in sorted(options - SHARED) if f"{name}" not in PAGE] == []


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"127.0.0.1:{USUAL_PORT}" in PAGE
    assert f"A token has {LEAST_TOKEN} characters or more" in PAGE
    assert f"A form has {MOST_BODY >> 10} KiB at most" in PAGE
    assert (TEXT, PREFIX) == (1_000, 3)
    assert "the first thousand characters" in PAGE
    assert "from three letters on" in PAGE
