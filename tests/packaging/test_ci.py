"""`.ci/run` on a bare machine: what is missing is installed, tried again, and named where that fails."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers import PATIENCE_S, ROOT

SAID = '#!/bin/bash\necho "${0##*/} $*" >> "$SAID"\n'
APT = SAID + 'if [[ " $* " == *" $FAILS "* ]]; then exit 100; fi\n'
USED = ("bash", "cat", "dirname", "env", "id")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with apt, python and make, and with nothing else that the tests need."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in USED:
        (programs / name).symlink_to(shutil.which(name) or "")
    for name, body in {"apt-get": APT, "make": SAID, "python3": "#!/bin/bash\n", "sleep": SAID}.items():
        (programs / name).write_text(body)
        (programs / name).chmod(0o755)
    return programs


def run(programs: Path, **more: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    said = programs.parent / "said"
    environment = {"PATH": str(programs), "SAID": str(said), "FAILS": "nothing", **more}
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done, said.read_text().splitlines()


def not_root(programs: Path) -> None:
    (programs / "id").unlink()
    (programs / "id").write_text("#!/bin/bash\necho 1000\n")
    (programs / "id").chmod(0o755)


def installed(said: list[str]) -> list[list[str]]:
    lines = [line.split() for line in said if line.startswith("apt-get") and " install " in line]
    return [line[line.index("--no-install-recommends") + 1 :] for line in lines]


def test_what_is_missing_is_installed_and_everything_is_run(machine: Path) -> None:
    done, said = run(machine)
    assert done.returncode == 0, done.stderr
    assert installed(said) == [["systemd", "nodejs", "npm", "chromium"]]
    assert [line for line in said if line.startswith("make")] == ["make --keep-going check", "make test"]


def test_a_package_that_this_system_lacks_keeps_out_no_other_and_is_named(machine: Path) -> None:
    done, said = run(machine, FAILS="chromium")
    assert installed(said)[1:] == [["systemd"], ["nodejs"], ["npm"], ["chromium"]]
    assert "Not all of this could be installed: systemd nodejs npm chromium" in done.stderr
    assert "make test" in said


def test_lists_that_cannot_be_fetched_are_tried_again(machine: Path) -> None:
    done, said = run(machine, FAILS="update")
    assert sum(line.endswith(" update") for line in said) == 3
    assert [line for line in said if line.startswith("sleep")][:2] == ["sleep 5", "sleep 15"]
    assert "trying with the lists that are here" in done.stderr
    assert len(installed(said)) == 1


@pytest.mark.parametrize("may", [True, False])
def test_without_root_it_takes_sudo_that_asks_nothing_or_says_so(machine: Path, may: bool) -> None:
    not_root(machine)
    (machine / "sudo").write_text(f'#!/bin/bash\n{SAID}shift\n{"exec " if may else "exit 1 #"}"$@"\n')
    (machine / "sudo").chmod(0o755)
    (machine / "true").symlink_to(shutil.which("true") or "")
    done, said = run(machine)
    assert ("sudo would ask for a password" in done.stderr) is not may
    assert bool(installed(said)) is may
    assert "make test" in said


def test_a_browser_that_is_named_is_not_installed(machine: Path) -> None:
    _, said = run(machine, CHROMIUM=os.path.realpath(shutil.which("bash") or ""))
    assert installed(said) == [["systemd", "nodejs", "npm"]]
