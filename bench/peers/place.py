"""Where the peers' packages lie, and how they get there: a folder beside the checkout's own environment."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PEERS = HERE.parent.parent / "build" / "peers"
NODE_MODULES = Path("node_modules")
RESTATE = "@restatedev/restate-server@1.7.12"


class NotFetched(RuntimeError):
    """The peers are not there; the text says how to get them."""


class Fetched(NamedTuple):
    """The peers' packages."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process of a peer gets besides its own environment: its packages come first."""
        return {"PYTHONPATH": os.pathsep.join((str(self.directory / "python"), str(HERE.parent.parent)))}


def install() -> Fetched:
    """Fetch the peers with pip and npm. Raises CalledProcessError, FileNotFoundError."""
    PEERS.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(PEERS / "python")]
    subprocess.run([*pip, "-r", str(HERE / "requirements.txt")], check=True)
    npm = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
    subprocess.run([*npm, "--prefix", str(PEERS), RESTATE], check=True)
    return Fetched(PEERS)


def fetched() -> Fetched:
    """Return what `install` has fetched. Raises NotFetched."""
    if not (PEERS / "python").is_dir() or not (PEERS / NODE_MODULES).is_dir():
        raise NotFetched("the peers are not here; fetch them: python -m bench.peers --install")
    return Fetched(PEERS)
