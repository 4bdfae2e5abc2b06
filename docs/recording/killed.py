"""Record the pictures at the top of the README: a process is killed in the middle of charging a card.

    python -m docs.recording.killed docs/recording/killed.svg docs/recording/killed-page.png

Every line but the prompts is what real processes wrote on one real terminal: a mesh of its own in a temporary
folder, its agent killed with SIGKILL, and the commands that a person gives. Only long pauses are cut. The
second picture is what the page of that mesh shows of that request in the end, in a real browser.
"""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from docs.recording.picture import COLUMNS, Chunk, drawn

MESH = (sys.executable, "-m", "mesh")
PROMPT = "\x1b[1;32m$\x1b[0m "
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
PATIENCE_S = 60.0
READING_S = 0.9
"""Between what a command says and the next one, for whoever watches."""
_OURS = ("NATS_URL", "MESH_NAME", "MESH_CREDENTIALS", "MESH_LOG_FORMAT", "MESH_LOG_LEVEL")


class Terminal:
    """One terminal, on which processes write; what they write is kept with its time."""

    def __init__(self, folder: Path, reading_s: float = READING_S) -> None:
        self.folder, self.reading_s = folder, reading_s
        self.chunks: list[Chunk] = []
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return b"".join(chunk.data for chunk in self.chunks).decode(errors="replace")

    def _read(self) -> None:
        try:
            while data := os.read(self._ours, 65_536):
                self.chunks.append(Chunk(time.monotonic(), data))
        except OSError:
            return

    def type(self, command: str) -> None:
        """Show a command as it is given."""
        time.sleep(self.reading_s)
        os.write(self._theirs, f"{PROMPT}\x1b[1m{command}\x1b[0m\n".encode())

    def start(self, *command: str) -> "subprocess.Popen[bytes]":
        kept = {name: value for name, value in os.environ.items() if name not in _OURS}
        root = str(Path(__file__).parents[2])
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=kept | {"PYTHONPATH": root, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
            stdin=subprocess.DEVNULL,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
        )

    def run(self, shown: str, *command: str) -> None:
        self.type(shown)
        self.start(*command).wait(PATIENCE_S)

    def wait_for(self, text: str) -> None:
        """Wait until something is on the terminal. Raises TimeoutError."""
        wait_until(lambda: text in self.text, text)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Wait for a fact. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


@contextmanager
def mesh_dev(terminal: Terminal) -> Iterator[None]:
    """Run `mesh dev` on the terminal while the block runs."""
    terminal.type("mesh dev &")
    process = terminal.start(*MESH, "dev", "--port", "0")
    try:
        terminal.wait_for("Ctrl-C stops everything")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


Look = Callable[[str, str], None]
"""Looks at a request on the page; gets the page's address, as it was printed, and the request's id."""


def play(
    folder: Path, look: Look = lambda address, request: None, *, reading_s: float = READING_S
) -> Terminal:
    """Play the story in an empty folder; return the terminal that saw it. Raises TimeoutError.

    Args:
        look: called once the request has ended.
        reading_s: how long a command waits for whoever reads what the last one said.
    """
    for file in (Path(__file__).parent / "till").glob("*.*"):
        shutil.copy(file, folder)
    terminal, bank = Terminal(folder, reading_s), folder / "bank.log"
    with mesh_dev(terminal):
        terminal.type('mesh send "Charge order 1042" &')
        sending = terminal.start(*MESH, "send", "Charge order 1042")
        wait_until(bank.exists, "the card is being charged")
        (pid,) = re.findall(r"^  till +process (\d+),", terminal.text, re.MULTILINE)
        terminal.run(f"kill -9 {pid}     # in the middle of charging the card", "kill", "-9", pid)
        terminal.wait_for("nobody knows if charge_card happened")
        terminal.run("mesh doubt ls", *MESH, "doubt", "ls")
        terminal.run("cat bank.log     # a person asks the bank", "cat", "bank.log")
        wait_until(lambda: "charged" in terminal.text.rpartition("cat bank.log")[2], "all of it was read")
        listed = terminal.text.rpartition("mesh doubt ls")[2]
        request = min(re.findall(r"app_[0-9A-Z]+", listed), key=len)  # the table's, as a person copies it
        settle = ("doubt", "settle", request, "--done", "--result", "charged", "--by", "Ada")
        terminal.run(f"mesh {' '.join(settle)}", *MESH, *settle)
        sending.wait(PATIENCE_S)
        terminal.run("cat bank.log     # once", "cat", "bank.log")
        time.sleep(reading_s)
        said = len(terminal.chunks)
        (address,) = re.findall(r"^the page is at (\S+)", terminal.text, re.MULTILINE)
        look(address, max(re.findall(r"app_[0-9A-Z]+(?= is settled)", terminal.text), key=len))
    del terminal.chunks[said:]
    return terminal


def photograph(picture: Path, address: str, request: str) -> None:
    """Write what a browser shows of a request."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 720}, reduced_motion="reduce")
        page.goto(address)  # the token opens the page
        page.goto(f"{address.partition('/?')[0]}/requests/{request}")
        page.screenshot(path=picture)
        browser.close()


def main() -> None:
    """Play the story and write its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = play(Path(folder), partial(photograph, Path(sys.argv[2])))
    Path(sys.argv[1]).write_text(
        drawn(terminal.chunks, "A process is killed in the middle of charging a card")
    )


if __name__ == "__main__":
    main()
