"""Admins that work at once on one fleet file, or on one folder of `mesh setup --out`: nothing is lost."""

import contextlib
import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mesh.fleet.operator
import mesh.fleet.setup
from mesh.bus.accounts import revoked_in
from mesh.bus.claims import read_claim
from mesh.bus.credentials import read_key
from mesh.bus.roles import CORE
from mesh.fleet.file import FleetFile, load_fleet
from mesh.fleet.keys import keys_of, retire, rotate
from mesh.fleet.operator import signed_in
from mesh.fleet.setup import ACCOUNTS, KEYS, prepare
from tests.deploy.place import FLEET, Place
from tests.servers import PATIENCE_S, ROOT
from tests.system.terminal import in_process

LIKE_THE_OTHERS = """
import sys
import mesh.cli.agent, mesh.cli.fleet, mesh.fleet.setup
from mesh.cli import main
print("ready", flush=True)
sys.stdin.readline()
main()
"""
AUTHS = pytest.mark.parametrize("auth", ["nkeys", "jwt"])


def at_once(*commands: list[str]) -> list[tuple[int, str]]:
    """Run `mesh` in a process for each command; all begin together. Return how each ended, and its errors."""
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", LIKE_THE_OTHERS, *words],
                    cwd=ROOT,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            for words in commands
        ]
        for each in running:
            stack.callback(each.kill)
        for each in running:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in running:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        errors = [each.communicate(timeout=PATIENCE_S)[1] for each in running]
        return [(each.returncode, error) for each, error in zip(running, errors, strict=True)]


def listed_in(out: Path) -> list[str]:
    return re.findall(r"\bU[A-Z2-7]{55}\b", (out / ACCOUNTS).read_text())


def is_valid(place: Place, key: str) -> bool:
    """Return True if the accounts let the old key of the guard in."""
    if place.auth == "nkeys":
        return key in listed_in(place.out)
    [core] = [claim for each in signed_in(place.out) if (claim := read_claim(each)).name == CORE]
    return key not in revoked_in(core.content)


def old_key(place: Place) -> str | None:
    return next(each.old for each in keys_of(load_fleet(place.file), place.out) if each.name == "guard")


class Beside:
    """Does something in another thread, up to its end or up to where it waits for a lock."""

    def __init__(self, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
        self._work = work
        self._goes_on = threading.Event()
        self._thread: int | None = None
        self._pool = ThreadPoolExecutor(1)
        self.done: Future[None] | None = None
        lock = fcntl.flock

        def flock(opened: int, how: int) -> None:
            if threading.get_ident() == self._thread:
                self._goes_on.set()
            lock(opened, how)

        monkeypatch.setattr(fcntl, "flock", flock)

    def begin(self) -> None:
        """Begin, unless it began already, and come back once it ended or waits."""
        if self.done is None:
            self.done = self._pool.submit(self._run)
            assert self._goes_on.wait(PATIENCE_S)

    def end(self) -> None:
        assert self.done is not None
        self.done.result(PATIENCE_S)
        self._pool.shutdown()

    def _run(self) -> None:
        self._thread = threading.get_ident()
        try:
            self._work()
        finally:
            self._goes_on.set()


# --- processes at once ----------------------------------------------------------------------------


@AUTHS
def test_six_agents_that_are_added_at_once_are_all_in_the_file(tmp_path: Path, auth: str) -> None:
    place = Place(tmp_path, auth)
    where = ["--file", str(place.file), "--out", str(place.out)]
    names = [f"a{number}" for number in range(6)]
    ended = at_once(*(["agent", "add", name, *where] for name in names))
    assert [code for code, _ in ended] == [0] * 6, ended
    fleet = load_fleet(place.file)
    assert {*names, "echo"} == set(fleet.agents)
    before = (place.out / ACCOUNTS).read_bytes()
    prepare(fleet, place.out)
    assert (place.out / ACCOUNTS).read_bytes() == before


@AUTHS
def test_setups_at_once_into_a_fresh_folder_make_one_set_of_keys(tmp_path: Path, auth: str) -> None:
    file, out = tmp_path / "mesh.toml", tmp_path / "new" / "out"
    file.write_text(f'{FLEET}[bus]\nauth = "{auth}"\n')
    ended = at_once(*[["setup", "--file", str(file), "--out", str(out)]] * 3)
    assert [code for code, _ in ended] == [0] * 3, ended
    seeds = sorted((out / KEYS).glob("*.nk"))
    made = {path.stem: read_key(path).public for path in seeds}
    assert {"admin", "guard", "echo", "app", "ops", "eye"} <= made.keys()
    assert {name: (out / KEYS / f"{name}.pub").read_text().strip() for name in made} == made
    if auth == "nkeys":
        assert sorted(listed_in(out)) == sorted(made.values())
    else:
        assert all(read_claim(read_key(path).claim).subject == made[path.stem] for path in seeds)
        assert all(claim in (out / ACCOUNTS).read_text() for claim in signed_in(out))
    assert {path.suffix for path in (out / KEYS).iterdir() if path.is_file()} == {".nk", ".pub"}
    assert {path.name for path in out.iterdir()} <= {KEYS, ACCOUNTS, "accounts"}


# --- a key is retired meanwhile -------------------------------------------------------------------


def rotated(directory: Path, auth: str) -> tuple[Place, FleetFile, str]:
    """Return a place whose guard has two keys, its fleet, and the older key."""
    place = Place(directory, auth)
    fleet = load_fleet(place.file)
    rotate(fleet, place.out, "guard")
    old = old_key(place)
    assert old is not None
    return place, fleet, old


@pytest.mark.parametrize(
    ("auth", "step"), [("nkeys", (mesh.fleet.setup, "old_keys")), ("jwt", (mesh.fleet.operator, "issue"))]
)
def test_a_setup_that_began_before_a_key_was_retired_does_not_list_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: str, step: tuple[Any, str]
) -> None:
    place, fleet, old = rotated(tmp_path, auth)
    assert is_valid(place, old)
    real = getattr(*step)
    other = Beside(lambda: retire(fleet, place.out, "guard"), monkeypatch)

    def read_then_wait(*arguments: Any, **named: Any) -> Any:
        done = real(*arguments, **named)
        if auth == "nkeys" or CORE in arguments:
            other.begin()
        return done

    monkeypatch.setattr(*step, read_then_wait)
    prepare(fleet, place.out)
    other.end()
    assert old_key(place) is None
    assert not is_valid(place, old)


@pytest.mark.parametrize(
    ("auth", "step"), [("nkeys", (mesh.fleet.setup, "_written")), ("jwt", (mesh.fleet.operator, "issue"))]
)
@pytest.mark.parametrize("finish", [prepare, lambda fleet, out: retire(fleet, out, "guard")])
def test_a_retirement_that_was_cut_short_is_finished(
    tmp_path: Path, auth: str, step: tuple[Any, str], finish: Callable[..., object]
) -> None:
    place, fleet, old = rotated(tmp_path, auth)

    def dies(*_: object, **__: object) -> Iterator[None]:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(*step, dies)
        with pytest.raises(KeyboardInterrupt):
            retire(fleet, place.out, "guard")
    finish(fleet, place.out)
    assert old_key(place) is None
    assert not is_valid(place, old)
    assert (
        place.out / KEYS / "guard.pub"
    ).read_text() == f"{read_key(place.out / KEYS / 'guard.nk').public}\n"


def test_a_repeated_retirement_says_which_key_it_ended(tmp_path: Path) -> None:
    place = Place(tmp_path)
    fleet = load_fleet(place.file)
    rotate(fleet, place.out, "guard")
    old = old_key(place)
    (place.out / KEYS / "guard.old.pub").replace(place.out / KEYS / "guard.pub")  # and then it died
    assert retire(fleet, place.out, "guard")[1] == old
    assert retire(fleet, place.out, "guard")[1] is None


# --- files and folders of several kinds -----------------------------------------------------------


def test_an_agent_is_added_in_a_folder_that_has_the_keys_too(tmp_path: Path) -> None:
    """It holds the folder of the file, and must not wait for itself to have the one of the keys."""
    place = Place(tmp_path)
    done = in_process("agent", "add", "b", "--file", str(place.file), "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert read_key(tmp_path / KEYS / "b.nk").public in listed_in(tmp_path)


def test_the_fleet_file_keeps_its_mode_and_a_link_to_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.file.chmod(0o640)
    (tmp_path / "linked").mkdir()
    link = tmp_path / "linked" / "mesh.toml"
    link.symlink_to(place.file)
    done = in_process("agent", "add", "b", "--file", str(link), "--out", str(place.out))
    assert done.exit_code == 0, done.output
    assert link.is_symlink()
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o640
    assert "b" in load_fleet(place.file).agents
    assert os.listdir(link.parent) == ["mesh.toml"]
    assert sorted(os.listdir(tmp_path)) == ["linked", "mesh.toml", "out"]


def test_a_fleet_file_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that a container has mounted by itself."""
    place = Place(tmp_path)
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target == place.file:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    done = in_process("agent", "add", "b", "--file", str(place.file), "--out", str(place.out))
    assert done.exit_code == 0, done.output
    assert "b" in load_fleet(place.file).agents
    assert sorted(os.listdir(tmp_path)) == ["mesh.toml", "out"]


def test_a_folder_that_cannot_be_locked_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(_opened: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    place = Place(tmp_path)
    fleet = load_fleet(place.file)
    rotate(fleet, place.out, "guard")
    old = old_key(place)
    assert retire(fleet, place.out, "guard")[1] == old
    assert old not in listed_in(place.out)
