"""A terminal's view of the mesh: real `mesh` processes in a folder, and what they leave running."""

import contextlib
import json
import logging
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import IO, Any
from unittest import mock

import click
from click.testing import CliRunner, Result

from mesh.cli import app
from tests.logs import plain_logs
from tests.servers import PATIENCE_S, ROOT
from tests.warm import is_warm_parent

READY = "Ctrl-C stops everything"
_OURS = ("NATS_URL", "MESH_NAME", "MESH_CREDENTIALS", "MESH_LOG_FORMAT", "MESH_LOG_LEVEL")
_turn = threading.Lock()
"""Held by the one command that runs in this process: directory, environment and logging are the process's."""


def environment(**added: str) -> dict[str, str]:
    """Return this process's environment without anything that speaks to the mesh, and with its code."""
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    return kept | {"PYTHONPATH": str(ROOT)} | added


def in_process(*arguments: object, program: click.Command = app) -> Result:
    """Run a command in this process, which logs nothing meanwhile. RuntimeError if another one runs."""
    if not _turn.acquire(blocking=False):
        raise RuntimeError("one command at a time in this process; start the other as a process")
    try:
        with (
            plain_logs(logging.CRITICAL),
            mock.patch("mesh.service.logs.configure_logging"),
            mock.patch("mesh.service.logs.silence"),
        ):
            return CliRunner().invoke(program, [str(each) for each in arguments])
    finally:
        _turn.release()


def commands_of(group: click.Command) -> dict[str, click.Command]:
    """Return the commands of a group, each as it is; none of what is no group."""
    if not isinstance(group, click.Group):
        return {}
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


class Finished:
    """A command that has ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit status {self.status}\n{self.out}\n{self.err}"


class Folder:
    """Commands given in one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mesh(self, *arguments: object, **added: str) -> Finished:
        """Run a command to its end, in this process: starting Python for each would take most of the time."""
        with chdir(self.path), mock.patch.dict(os.environ, environment(**added), clear=True):
            ended = in_process(*arguments)
        if ended.exception is not None and not isinstance(ended.exception, SystemExit):
            raise ended.exception
        return Finished(ended.exit_code, ended.stdout, ended.stderr)

    def process(self, *arguments: object, **added: str) -> Finished:
        """The same as a process of its own, as a shell would."""
        return self._process(arguments, added, subprocess.DEVNULL)

    def typed(self, said: str, *arguments: object, **added: str) -> Finished:
        """The same, at a terminal at which `said` is typed."""
        ours, theirs = pty.openpty()
        try:
            os.write(ours, said.encode())
            return self._process(arguments, added, theirs)
        finally:
            os.close(ours)
            os.close(theirs)

    def screen(self, *arguments: object, **added: str) -> str:
        """The same, its output a terminal: return all that the terminal got."""
        return self._screen(arguments, added, keys=False)

    def screen_with_keys(self, *arguments: object, **added: str) -> str:
        """The same, its input that terminal, too."""
        return self._screen(arguments, added, keys=True)

    def _screen(self, arguments: Iterable[object], added: dict[str, str], *, keys: bool) -> str:
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "mesh", *map(str, arguments)],
                cwd=self.path,
                env=environment(**added, TERM="xterm-256color"),
                stdin=theirs if keys else subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
            )
        finally:
            os.close(theirs)
        got = b""
        try:
            with contextlib.suppress(OSError):  # so ends a terminal that nobody writes to any more
                while part := os.read(ours, 65_536):
                    got += part
            process.wait(PATIENCE_S)
        finally:
            os.close(ours)
            process.kill()
            process.wait()
        return got.decode(errors="backslashreplace")

    def _process(self, arguments: Iterable[object], added: dict[str, str], stdin: int) -> Finished:
        ended = subprocess.run(
            [sys.executable, "-m", "mesh", *map(str, arguments)],
            cwd=self.path,
            env=environment(**added),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Finished(ended.returncode, ended.stdout, ended.stderr)

    def running(
        self, *arguments: object, until: str, **added: str
    ) -> contextlib.AbstractContextManager["Running"]:
        """Start a command, wait until it has said `until`, and kill it in the end."""
        return self._running(arguments, until, added, lambda said: said.open("wb"))

    def showing(
        self, *arguments: object, until: str, **added: str
    ) -> contextlib.AbstractContextManager["Running"]:
        """The same, its output a terminal."""
        return self._running(arguments, until, {"TERM": "xterm-256color"} | added, _screen)

    @contextmanager
    def _running(
        self,
        arguments: Iterable[object],
        until: str,
        added: dict[str, str],
        opened: Callable[[Path], contextlib.AbstractContextManager[IO[bytes] | int]],
    ) -> Iterator["Running"]:
        said = self.path / f"said-{time.monotonic_ns()}"
        with opened(said) as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "mesh", *map(str, arguments)],
                cwd=self.path,
                env=environment(**added),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        running = Running(process, said)
        try:
            running.wait_for(until)
            yield running
        finally:
            process.kill()
            process.wait()


@contextmanager
def _screen(said: Path) -> Iterator[int]:
    """Give a terminal to write on while the block runs, and copy all that it ever gets into a file."""
    ours, theirs = pty.openpty()

    def copy() -> None:
        with said.open("ab", buffering=0) as out, contextlib.suppress(OSError), open(ours, "rb", 0) as got:
            while part := got.read(65_536):
                out.write(part)

    threading.Thread(target=copy, daemon=True).start()  # it ends with the last who could write
    try:
        yield theirs
    finally:
        os.close(theirs)


class Running:
    """A command that goes on."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process = process
        self._said = said

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it has said something. AssertionError when it ends instead."""
        self.wait_until(lambda: text in self.said, text)

    def wait_until(self, has_said: Callable[[], bool], text: str) -> None:
        """Wait until it has said what `has_said` looks for, `text` in words."""
        deadline = time.monotonic() + PATIENCE_S
        while not has_said():
            assert self._process.poll() is None, f"it ended with {self._process.returncode}:\n{self.said}"
            assert time.monotonic() < deadline, f"it never said {text!r}:\n{self.said}"
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self._process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end and return the exit status."""
        return self._process.wait(PATIENCE_S)

    def children(self) -> list[int]:
        """Return the processes that it has started and that still run."""
        return [pid for pid, parent in parents().items() if parent == self.pid and not is_warm_parent(pid)]


def parents() -> dict[int, int]:
    """Return every process's parent; those that have ended and wait to be noticed are left out."""
    found = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                state, parent = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                found[int(directory.name)] = int(parent)
    return found


def wait_until_gone(pids: list[int]) -> None:
    """Wait until none of these processes runs any more."""
    deadline = time.monotonic() + PATIENCE_S
    while left := set(pids) & set(parents()):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.02)


def kill(parent: Running, word: str) -> None:
    """Kill the one child of `parent` that has `word` in its command line, with no chance to clean up."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in parent.children()}
    [pid] = [pid for pid, command in commands.items() if word in command]
    os.kill(pid, signal.SIGKILL)


def environments(running: Running) -> dict[str, dict[str, str]]:
    """Return the environment of each child, by what it runs."""
    found = {}
    for pid in running.children():
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
        kind = next((word for word in ("agent", "guard") if word in command), "")
        found[f"{kind} {pid}"] = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return found
