"""The README does what it says: its files are written, its commands are run, against a mesh of their own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PATIENCE_S, ran

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
MESH = (sys.executable, "-m", "mesh")


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (title, text) of each block in `language`."""
    return [(title, text) for found, title, text in FENCE.findall(README) if found == language]


def mesh(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return ran("-m", "mesh", *arguments, folder=folder)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The README's own fleet, as `mesh dev` runs it."""
    folder = tmp_path_factory.mktemp("desk")
    for title, text in (*blocks("python"), *blocks("toml"), *blocks("markdown")):
        (folder / title).write_text(text)
    dev = subprocess.Popen(
        [*MESH, "dev", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert dev.stdout is not None
        for line in dev.stdout:
            if "mesh send" in line:
                break
        else:
            pytest.fail(f"mesh dev ended with {dev.wait()}")
        yield folder
    finally:
        os.kill(dev.pid, signal.SIGINT)
        dev.communicate(timeout=PATIENCE_S)


def test_every_file_and_command_of_the_readme_is_here() -> None:
    assert {title for title, _ in (*blocks("python"), *blocks("toml"))} == {
        "desk.py",
        "front.py",
        "mesh.toml",
        "rules.toml",
    }
    commands = [line for _, text in blocks("console") for line in text.splitlines() if line.startswith("$")]
    assert len(commands) == 13
    for target in ("demo", "test"):
        assert f"`make {target}`" in README
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_a_request_is_sent_shown_explained_and_judged_again(desk: Path) -> None:
    sent = mesh("send", "Say hello", "--fact", "name=Ada", folder=desk)
    assert (sent.returncode, sent.stdout.strip()) == (0, "Hello, Ada!"), sent.stderr
    listed = mesh("request", "ls", folder=desk)
    found = re.search(r"app_[0-9A-Z]{26}", listed.stdout)
    assert found is not None, listed.stdout + listed.stderr
    request = found.group()
    shown = mesh("request", "show", request, folder=desk)
    assert "front → greeter" in shown.stdout, shown.stderr
    why = mesh("why", request, folder=desk)
    assert why.returncode == 0, why.stderr
    replayed = mesh("replay", request, folder=desk)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_the_agent_that_a_model_drives_can_be_loaded(desk: Path) -> None:
    told = "from front import front; print(front.name, front.prompt_version, [t.name for t in front.tools])"
    found = ran("-c", told, folder=desk)
    assert found.stdout.strip() == "front 1 ['find_customer']", found.stderr


def test_another_policy_would_have_refused(desk: Path) -> None:
    sent = mesh("send", "Say hello", "--json", folder=desk)
    found = re.search(r"app_[0-9A-Z]{26}", sent.stdout)
    assert found is not None, sent.stdout + sent.stderr
    (desk / "p.toml").write_text("max_handoff_bytes = 10\n")
    changed = mesh("replay", found.group(), "--policy", "p.toml", folder=desk)
    assert (changed.returncode, "size" in changed.stdout) == (1, True), changed.stdout + changed.stderr


def test_every_link_leads_to_a_file() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
