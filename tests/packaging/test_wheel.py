"""The wheel: what is in it, and that it lives beside openai-agents, which owns the import name `agents`.

The one test module that needs the package index. It builds from a copy, so that the checkout stays clean.
"""

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.docs.pages import blocks, commands
from tests.docs.test_readme import START
from tests.packaging.wheel import wrong_in
from tests.servers import PATIENCE_S

pytestmark = pytest.mark.timeout(1200)
INSTALLED_S = 5 * PATIENCE_S
"""The limit of one step: on a busy machine an installation takes minutes."""

ROOT = Path(__file__).parents[2]
_PIP, _INIT, _CD, _DEV, _PYTEST = START
"""What the README types to start a project."""
OPENAI_AGENTS = "openai-agents>=0.24,<0.25"

UV = Path(sys.executable).parent / "uv"
TRUSTING = "--system-certs"
"""An index may be reached by certificates that only this machine trusts, as pip's is."""
"""It installs with half of pip's processor time."""

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "mesh", "protocol", "agents")
"""What is copied to be built. `agents` is there to be left out."""

BOTH = """
import json, agents, mesh, protocol
from importlib.metadata import files, version
named = [file for file in files("openai-agents") if str(file) == "agents/__init__.py"]
print(json.dumps({
    "sdk": agents.Agent(name="triage").name,
    "sdk_untouched": agents.__file__ == str(named[0].locate()),
    "beside": [mesh.__file__.rsplit("/", 2)[0], protocol.__file__.rsplit("/", 2)[0]],
    "version": version("handoff-mesh"),
}))
"""


def alone() -> dict[str, str]:
    """Return an environment that knows nothing of this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: str | Path, cwd: Path) -> str:
    """Return what `command` prints, in an environment of its own."""
    finished = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=alone(),
        capture_output=True,
        text=True,
        timeout=INSTALLED_S,
        check=False,
    )
    assert finished.returncode == 0, f"{finished.stdout}{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """The project's wheel, built without build isolation: by the pinned backend."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path) -> Path:
    """The programs of a fresh environment that holds the wheel and openai-agents."""
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    uv = (UV, TRUSTING, "--cache-dir", folder / "uv", "pip")
    here = ("--python", environment / "bin" / "python")
    checkout, *more = _PIP[2:]
    assert checkout.startswith(".[")
    first = [f"{wheel}{checkout[1:]}", *more]
    wanted = (*first, OPENAI_AGENTS)
    run(*uv, "install", "--quiet", *here, *wanted, cwd=folder)
    run(*uv, "check", *here, cwd=folder)
    return environment / "bin"


def test_the_wheel_has_what_it_should_and_nothing_else(wheel: Path) -> None:
    assert list(wrong_in(wheel)) == []


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        ("agents/openai.py", "it ships agents"),
        ("tests/servers.py", "it ships tests"),
        ("mesh/errors.py", "it lacks mesh/errors.py"),
        ("mesh/ui/static/htmx.min.js", "it lacks mesh/ui/static/htmx.min.js"),
        ("protocol/py.typed", "it lacks protocol/py.typed"),
        ("mesh/fleet/templates/compose.yaml", "it lacks mesh/fleet/templates/compose.yaml"),
        ("protocol/schema/asyncapi.json", "it lacks protocol/schema/asyncapi.json"),
        ("licenses/LICENSE", "it lacks the licence"),
        (
            "share/handoff-mesh/agents/support/mesh.toml",
            "it lacks the reference fleets' agents/support/mesh.toml",
        ),
        ("share/handoff-mesh/agents/notes.md", "it has agents/notes.md among the reference fleets"),
    ],
)
def test_a_wheel_that_is_made_wrong_is_found(wheel: Path, tmp_path: Path, faulty: str, said: str) -> None:
    """A file that the wheel has is left out of a copy; any other is added to it."""
    copy = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(copy, "w") as made:
        left_out = [name for name in whole.namelist() if name.endswith(faulty)]
        for name in whole.namelist():
            if name not in left_out:
                made.writestr(name, whole.read(name))
        if not left_out:
            (data,) = {name.split("/")[0] for name in whole.namelist() if ".data/" in name}
            made.writestr(f"{data}/data/{faulty}" if faulty.startswith("share/") else faulty, "")
    assert list(wrong_in(copy)) == [said]


def test_a_wheel_of_another_version_is_found(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / wheel.name.replace("-0.", "-9.")
    shutil.copy(wheel, other)
    assert "pyproject.toml says version" in next(wrong_in(other))


def test_the_wheel_and_openai_agents_work_in_one_environment(installed: Path, folder: Path) -> None:
    seen = json.loads(run(installed / "python", "-c", BOTH, cwd=folder))
    assert seen["sdk"] == "triage"
    assert seen["sdk_untouched"]
    assert all(place.startswith(str(installed.parent)) for place in seen["beside"])


def test_the_command_runs_where_only_the_wheel_is_installed(installed: Path, folder: Path) -> None:
    assert "demo" in run(installed / "mesh", "--help", cwd=folder)
    assert run(installed / "mesh", "--version", cwd=folder).startswith("mesh 0.")


def test_a_file_of_agents_runs_where_only_the_wheel_is_installed(installed: Path, tmp_path: Path) -> None:
    (file,) = (block for block in blocks((ROOT / "README.md").read_text()) if block.language == "python")
    (tmp_path / "hello.py").write_text(file.text)
    assert run(installed / "mesh", "run", "hello.py:front", "Ada", cwd=tmp_path) == "Hello, Ada!\n"


@pytest.mark.usefixtures("installed")  # so that everything is fetched and built already
def test_uvx_runs_the_wheel_without_an_installation(wheel: Path, folder: Path) -> None:
    uvx = (UV, TRUSTING, "--cache-dir", folder / "uv", "--offline", "tool", "run", "--python", sys.executable)
    said = run(*uvx, "--from", f"{wheel}[server]", "mesh", "--version", cwd=folder)
    assert said.startswith("mesh 0.")


@pytest.mark.usefixtures("installed")
def test_uv_tool_install_puts_mesh_on_the_path(wheel: Path, folder: Path, tmp_path: Path) -> None:
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    uv = (UV, TRUSTING, "--cache-dir", folder / "uv", "--offline", "tool", "install", "--quiet")
    env = [f"{name}={value}" for name, value in places.items()]
    run("env", *env, *uv, "--python", sys.executable, f"{wheel}[server]", cwd=tmp_path)
    assert run(tmp_path / "bin" / "mesh", "--version", cwd=tmp_path).startswith("mesh 0.")


def test_the_demo_runs_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "mesh", "demo", cwd=tmp_path)
    assert "A loop that the guard stops" in said
    assert "not covered by the rules (needs a model)" in said
    assert list(tmp_path.iterdir()) == []


def test_a_starter_project_passes_its_tests_and_runs_from_the_wheel_alone(
    installed: Path, tmp_path: Path
) -> None:
    run(installed / _INIT[0], *_INIT[1:], cwd=tmp_path)
    project = tmp_path / _CD[1]
    assert "3 passed" in run(installed / _PYTEST[0], cwd=project)
    typed = [
        shlex.split(command, comments=True) for command, _ in commands((project / "README.md").read_text())
    ]
    assert [typed[0], typed[-1]] == [_DEV, _PYTEST]
    dev = subprocess.Popen(
        [installed / _DEV[0], *_DEV[1:], "--port", "0"],
        cwd=project,
        env=alone(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert dev.stdout is not None
        said = list(itertools.takewhile(lambda line: "Ctrl-C" not in line, iter(dev.stdout.readline, "")))
        (page,) = (line.split()[-1] for line in said if line.startswith("the page is at "))
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(page) as shown:
            assert "<h1>Requests</h1>" in shown.read().decode()
        sent, listed, why = (words[1:] for words in typed[1:-1])
        answer = run(installed / "mesh", *sent, cwd=project)
        assert answer == "Order 1042 left the warehouse this morning.\n"
        (request,) = re.findall(r"app_[0-9A-Z]{26}", run(installed / "mesh", *listed, cwd=project))
        told = run(installed / "mesh", *(request if word == "ID" else word for word in why), cwd=project)
        assert "What came of it: the request ended." in told
    finally:
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=PATIENCE_S)
