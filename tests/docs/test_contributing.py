"""CONTRIBUTING.md: its targets are those of make, its script can be run, its commands do what make does."""

import os
import re
import subprocess

from tests.docs.pages import blocks
from tests.servers import PATIENCE_S, ROOT

TARGETS, FILL, PIN = (
    each.text for each in blocks((ROOT / "CONTRIBUTING.md").read_text()) if each.language == "sh"
)


def made(target: str) -> str:
    """Return what `make` would run for a target, each command on one line."""
    done = subprocess.run(
        ["make", "--always-make", "-n", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return _on_one_line(done.stdout)


def _on_one_line(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text.replace("\\\n", " "))


def test_each_line_names_a_target_or_a_script() -> None:
    for line in TARGETS.splitlines():
        words = line.split("#")[0].split()
        if words[0] == "make":
            assert made(words[1])
        else:
            assert os.access(ROOT / words[0], os.X_OK), words[0]
            assert subprocess.run(["bash", "-n", ROOT / words[0]], check=False).returncode == 0


def test_without_make_one_does_what_make_does() -> None:
    done = made("types").replace(" --without-pip", "")  # the page's reader has a pip
    for line in FILL.splitlines():
        program, _, rest = line.partition(" install ")
        asked = rest or line.removeprefix("python3 ")
        assert asked in done, asked
        assert not rest or program == ".venv/bin/pip"


def test_the_pins_are_made_by_these_commands() -> None:
    done = made("constraints").replace(' --quiet --custom-compile-command "make constraints"', "")
    for command in _on_one_line(PIN).splitlines():
        assert f".venv/bin/{command}" in done, command
