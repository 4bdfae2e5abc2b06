"""`make test` on a bare machine: tools are found, installed or named. `.ci/run` does no more than make."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers import PATIENCE_S, ROOT

SAID = '#!/bin/bash\necho "${0##*/} $*" >> "$SAID"\n'
WORKS = "#!/bin/bash\n"
BROKEN = "#!/bin/bash\nexit 1\n"
APT = """
[[ " $* " == *" $FAILS "* ]] && exit 100
[[ " $* " == *" install "* ]] || exit 0
for package in "${@:6}"; do
  case $package in
    nodejs) names=node ;;
    systemd) names=systemd-analyze ;;
    iproute2) names=ip ;;
    *) names=$package ;;
  esac
  for name in $names; do cp "$WORKS" "${0%/*}/$name"; done
done
"""
PLAYWRIGHT = """
[ -n "$ATOMIC" ] || exit 127
[[ $1 == --version ]] && exit
[[ " $* " == *" --dry-run "* ]] && echo "  Install location:    $BROWSERS/chromium-1" && exit
[ "$DOWNLOADS" = yes ] || exit 1
mkdir -p "$BROWSERS/chromium-1/chrome-linux" && cp "$WORKS" "$BROWSERS/chromium-1/chrome-linux/chrome"
"""
SUITE = SAID + 'echo "browser ${CHROMIUM:-none}" >> "$SAID"\nexit 7\n'
OFFERS = {"FAILS": "nothing", "DOWNLOADS": "no", "ATOMIC": "here"}
USED = ("bash", "chmod", "cp", "dirname", "env", "id", "mkdir", "timeout")
ALL = ["chromium", "nodejs", "npm", "systemd", "curl", "iproute2"]


def program(path: Path, body: str) -> Path:
    path.unlink(missing_ok=True)
    path.write_text(body)
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with apt, and with nothing that the suite needs; in its environment there is Playwright."""
    programs, environment = tmp_path / "bin", tmp_path / "environment"
    programs.mkdir()
    environment.mkdir()
    for name in USED:
        (programs / name).symlink_to(shutil.which(name) or "")
    program(tmp_path / "works", WORKS)
    program(programs / "apt-get", SAID + APT)
    program(programs / "sleep", SAID)
    program(environment / "playwright", SAID + PLAYWRIGHT)
    program(environment / "pytest", SUITE)
    return programs


def run(programs: Path, **more: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the suite's command; return it, and what was called, with the suite and its browser last."""
    home = programs.parent
    named = {"PATH": programs, "SAID": home / "said", "WORKS": home / "works", "BROWSERS": home / "browsers"}
    done = subprocess.run(
        [ROOT / "tests" / "with-tools", home / "environment" / "pytest", "-k", "cycle"],
        env={name: str(path) for name, path in named.items()} | OFFERS | more,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    said = (home / "said").read_text().splitlines()
    assert said[-2] == "pytest -k cycle"
    assert done.returncode == 7, "the suite's exit status is the command's"
    return done, said


def not_root(programs: Path) -> None:
    program(programs / "id", "#!/bin/bash\necho 1000\n")


def installed(said: list[str]) -> list[list[str]]:
    lines = [line.split() for line in said if line.startswith("apt-get") and " install " in line]
    return [line[line.index("--no-install-recommends") + 1 :] for line in lines]


def test_what_is_missing_is_installed_before_the_first_test(machine: Path) -> None:
    done, said = run(machine)
    assert installed(said) == [ALL]
    assert said[-1] == f"browser {machine / 'chromium'}"
    assert "not installed" not in done.stderr


def test_where_everything_is_there_nothing_is_done_or_said(machine: Path) -> None:
    for name in ("google-chrome", "node", "npm", "systemd-analyze", "curl", "ip"):
        program(machine / name, WORKS)
    done, said = run(machine)
    assert said == ["playwright --version", "pytest -k cycle", f"browser {machine / 'google-chrome'}"]
    assert done.stderr == ""


def test_a_browser_that_is_named_comes_first(machine: Path) -> None:
    program(machine / "chromium", WORKS)
    own = os.path.realpath(shutil.which("bash") or "")
    assert run(machine, CHROMIUM=own)[1][-1] == f"browser {own}"


@pytest.mark.parametrize("by_name", [True, False])
def test_a_browser_that_does_not_run_is_none(machine: Path, by_name: bool, tmp_path: Path) -> None:
    broken = program(tmp_path / "chromium" if by_name else machine / "chromium", BROKEN)
    done, said = run(machine, **({"CHROMIUM": str(broken)} if by_name else {}))
    assert installed(said) == [ALL]
    assert said[-1] == f"browser {machine / 'chromium'}"
    assert (f"CHROMIUM={broken} does not run" in done.stderr) is by_name


def test_playwrights_own_browser_is_found_where_it_was_downloaded(machine: Path) -> None:
    browsers = machine.parent / "browsers"
    own = browsers / "chromium-1" / "chrome-linux64" / "chrome"
    own.parent.mkdir(parents=True)
    program(own, WORKS)
    _, said = run(machine)
    assert said[-1] == f"browser {own}"
    assert installed(said) == [ALL[1:]]


def test_a_library_that_playwright_itself_lacks_is_installed(machine: Path) -> None:
    done, said = run(machine, ATOMIC="", FAILS="libatomic1")
    assert installed(said)[0] == [*ALL, "libatomic1"]
    assert "not installed: libatomic1 (apt-get install libatomic1 failed)" in done.stderr


def test_a_browser_is_downloaded_before_apt_is_asked_for_one(machine: Path) -> None:
    _, said = run(machine, DOWNLOADS="yes")
    assert "playwright install chromium" in said
    assert said[-1] == f"browser {machine.parent}/browsers/chromium-1/chrome-linux/chrome"
    assert installed(said) == [ALL[1:]]


def test_an_old_node_is_as_good_as_none(machine: Path) -> None:
    for name in ("chromium", "npm", "systemd-analyze", "curl", "ip"):
        program(machine / name, WORKS)
    program(machine / "node", BROKEN)
    done, said = run(machine, FAILS="nodejs")
    assert installed(said)[0] == ["nodejs"]
    assert "not installed: nodejs (apt-get install nodejs failed)" in done.stderr
    assert "18 or newer" in done.stderr


def test_a_package_that_this_system_lacks_keeps_out_no_other_and_is_named(machine: Path) -> None:
    done, said = run(machine, FAILS="chromium")
    assert installed(said)[1:] == [[each] for each in ALL]
    assert "not installed: chromium (apt-get install chromium failed); install" in done.stderr
    assert said[-1] == "browser none"


def test_lists_that_cannot_be_fetched_are_tried_again(machine: Path) -> None:
    done, said = run(machine, FAILS="update")
    assert sum(line.endswith(" update") for line in said) == 3
    assert [line for line in said if line.startswith("sleep")][:2] == ["sleep 5", "sleep 15"]
    assert "trying with the lists that are here" in done.stderr
    assert installed(said) == [ALL]


@pytest.mark.parametrize("may", [True, False])
def test_without_root_it_takes_sudo_that_asks_nothing_or_says_what_to_install(
    machine: Path, may: bool
) -> None:
    not_root(machine)
    program(machine / "sudo", f'{SAID}shift\n{"exec " if may else "exit 1 #"}"$@"\n')
    (machine / "true").symlink_to(shutil.which("true") or "")
    done, said = run(machine)
    assert installed(said) == ([ALL] if may else [])
    (*_, last) = done.stderr.splitlines()
    named = f"not installed: {' '.join(ALL)} (this is not root, and sudo would ask for a password)"
    assert (named in last) is not may
    assert (f"sudo apt-get install {' '.join(ALL)}" in last) is not may


def test_without_apt_it_says_what_to_install(machine: Path) -> None:
    (machine / "apt-get").unlink()
    done, _ = run(machine)
    (_, last) = done.stderr.splitlines()
    assert f"not installed: {' '.join(ALL)} (there is no apt here)" in last


def test_the_test_target_runs_the_suite_with_its_tools() -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "--always-make", "test", "ARGS=-k cycle"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tests/with-tools .venv/bin/pytest -k cycle" in shown.stdout.splitlines()


@pytest.mark.parametrize("fails", ["check", "test", "nothing"])
def test_ci_runs_both_targets_whatever_the_first_says(machine: Path, fails: str) -> None:
    program(machine / "make", SAID + '[[ " $* " != *" $FAILS "* ]]\n')
    program(machine / "python3.12", WORKS)
    said = machine.parent / "said"
    named = {"PATH": str(machine), "SAID": str(said), "FAILS": fails}
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env=named, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert said.read_text().splitlines() == ["make --keep-going check", "make test"]
    assert done.returncode == (0 if fails == "nothing" else 1)
