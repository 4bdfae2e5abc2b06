"""Somebody who does what a page says: writes its files, runs its Python, and types its commands in order."""

import contextlib
import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.docs.pages import blocks, commands, written
from tests.servers import PATIENCE_S, ROOT
from tests.system.terminal import Folder, environment

USUAL_PORTS = ("4222", "8000")
"""On pages; the reader takes free ones."""
_REQUEST = re.compile(r"\b[a-z0-9-]+_[0-7][0-9A-HJKMNP-TV-Z]{25}\b")
_EARLY = ("is open, but", "there is no request", "Connection refused")
"""Said of what is not there yet."""


class Reader:
    """One folder, one mesh if the page starts one, and what was printed last."""

    def __init__(self, page: str, folder: Path, *, differs: str = "\0") -> None:
        """Write the page's files. A command with `differs` in it finds something, and says so by status 1."""
        self._folder = folder
        self._differs = differs
        for port in USUAL_PORTS:
            page = page.replace(port, _free_port())
        self._added: dict[str, str] = {}
        self.blocks = list(blocks(page))
        self._commands = commands(page)
        self._started: list[subprocess.Popen[bytes]] = []
        self._request = ""
        written(self.blocks, folder)

    def type_all(self) -> int:
        """Type every command of the page; return how many. AssertionError for one that goes wrong."""
        for command, shown in self._commands:
            self._type(command, shown)
        return len(self._commands)

    def run_python(self) -> int:
        """Run the page's Python without titles, from top to bottom in one process; return how many blocks."""
        told = [each.text for each in self.blocks if (each.language, each.kind) == ("python", "")]
        if told:
            (self._folder / "page.py").write_text("\n".join(told))
            ended = self._run("python page.py")
            assert ended.returncode == 0, ended.stdout + ended.stderr
        return len(told)

    def _type(self, command: str, shown: list[str]) -> None:
        words = shlex.split(command, comments=True)
        if words[:2] == ["pip", "install"]:
            require_installed(words[2:])
            return
        if words[0] == "export":
            name = words[1].partition("=")[0]
            self._added[name] = self._run(f'{command}; printf %s "${name}"').stdout
            return
        if words[-1] == "&" or words[:2] == ["mesh", "dev"]:
            self._start(command.removesuffix("&"))
            return
        if "ID" in words:
            command = re.sub(r"\bID\b", self._request, command)
        ended = self._run(command)
        out = ended.stdout + ended.stderr
        assert ended.returncode == (self._differs in command), f"{command}\n{out}"
        if found := _REQUEST.search(ended.stdout):
            self._request = found.group()
        for line in shown:
            assert line in out, f"{command}: {line!r} is not in\n{out}"

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; type it again where what it needs is not there yet."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = self._once(command)
            early = ended.returncode == 4 or any(said in ended.stderr for said in _EARLY)
            if not early or time.monotonic() > deadline:
                return ended
            time.sleep(0.1)

    def _once(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command: one of ours in this process, which spares starting Python, any other as its own."""
        added, words = _split(command)
        if words[:1] == ["mesh"]:
            done = Folder(self._folder).mesh(*words[1:], **self._environment | added)
            return subprocess.CompletedProcess(words, done.status, done.out, done.err)
        return subprocess.run(
            _of_python(words) or ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment | added,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def _start(self, command: str) -> None:
        added, words = _split(command)
        dev = words[:2] == ["mesh", "dev"]
        if dev:
            words += ["--port", "0"]
        log = self._folder / f"started-{len(self._started)}"
        with log.open("wb") as out:
            self._started.append(
                subprocess.Popen(
                    _of_python(words) or words,
                    cwd=self._folder,
                    env=self._environment | added,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            )
        deadline = time.monotonic() + PATIENCE_S
        while dev and not (self._folder / ".mesh" / "dev.json").exists():
            assert self._started[-1].poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    @property
    def _environment(self) -> dict[str, str]:
        own = Path(sys.executable).parent
        return environment(
            PATH=f"{own}:{os.environ['PATH']}",
            PYTHONPATH=f"{self._folder}:{ROOT}",
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",  # pages install pytest and none of the plugins that are here
            **self._added,
        )

    def close(self) -> None:
        """End what the page started, the last first, and wait for it."""
        for process in reversed(self._started):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _split(command: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables before a command, and its words."""
    words = shlex.split(command, comments=True)
    named = list(itertools.takewhile(lambda word: "=" in word, words))
    return dict(each.split("=", 1) for each in named), words[len(named) :]


def _of_python(words: list[str]) -> list[str]:
    """Return what runs a program in Python, and no shell, so that it starts warm; [] for another program."""
    match words:
        case ["python", *arguments]:
            return [sys.executable, *arguments]
        case ["mesh" | "uvicorn" as program, *arguments]:
            return [sys.executable, "-m", program, *arguments]
    return []


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def require_installed(wanted: list[str]) -> None:
    """AssertionError unless this environment is one that `pip install` with these requirements makes."""
    for each in (Requirement(word.replace(".[", "handoff-mesh[", 1)) for word in wanted):
        found = distribution(each.name)
        assert each.specifier.contains(found.version, prereleases=True), each
        assert each.extras <= set(found.metadata.get_all("Provides-Extra") or ()), f"no such extra: {each}"
        for needed in map(Requirement, found.requires or ()):
            if needed.marker and any(needed.marker.evaluate({"extra": extra}) for extra in each.extras):
                assert needed.specifier.contains(distribution(needed.name).version, prereleases=True), needed
