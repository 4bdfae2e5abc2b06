"""The previous version's wheel, built from the commit that `previous.txt` names; processes of either version.

Both use the packages of this environment. A version's folder comes first on the path, before what is
installed. Every process is an interpreter of its own: a warm start would have this version's code.
"""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mesh.local.service import ServiceProcess
from tests.archives import unpack
from tests.servers import PATIENCE_S, ROOT, until
from tests.warm import COLD

HERE = Path(__file__).parent
PINNED = HERE / "previous.txt"
_BUILD_S = 10 * PATIENCE_S
_READY = ("agent_ready", "guard_ready")


class Version(NamedTuple):
    """A version's code, as a folder to import it from."""

    name: str
    folder: Path

    def run(
        self, *arguments: str | Path, folder: Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a `mesh` command of this version to its end, in a folder with a fleet file."""
        return subprocess.run(
            [sys.executable, "-m", "mesh", *arguments],
            cwd=folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def environment(self, **own: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MESH_", "NATS_"))}
        # Without PYTHONSAFEPATH, `-m` would look first in the folder that it is started in: in this checkout.
        found = {"PYTHONPATH": str(self.folder), "PYTHONSAFEPATH": "1"}
        return kept | found | {"MESH_LOG_FORMAT": "json", COLD: "1"} | own


NOW = Version("now", ROOT)


class NotBuilt(AssertionError):
    """The previous version is not there to be tried."""


def pinned() -> str:
    """Return the commit of the previous version."""
    return PINNED.read_text().strip()


def built(folder: Path, commit: str = "") -> Version:
    """Build the wheel of a commit, install it below `folder`, and return it. Raises NotBuilt.

    Args:
        commit: by default the pinned one.
    """
    commit = commit or pinned()
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], capture_output=True, check=False)
    if archive.returncode != 0:
        raise NotBuilt(f"the commit {commit} of {PINNED.name} is not in this clone: fetch its whole history")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as source:
        unpack(source, folder / "source")
    _python(folder, "-m", "build", "--wheel", "--no-isolation", "--outdir", "wheel", "source")
    (wheel,) = (folder / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:  # of a wheel of pure Python that is all there is to install
        packed.extractall(folder / "installed")
    return Version("before", folder / "installed")


def _python(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if done.returncode != 0:
        raise NotBuilt(f"{' '.join(arguments[:3])} failed:\n{done.stdout}{done.stderr}")


class Services:
    """The processes of a mesh, each of one version at a time.

    Args:
        home: a folder with the fleet file, its agents' code and their keys.
        url: where the bus is.
    """

    def __init__(self, home: Path, url: str, ledger: Path) -> None:
        self._home, self._url, self._ledger = home, url, ledger
        self._running: dict[str, ServiceProcess] = {}
        self._started = 0

    async def put(self, version: Version, *names: str) -> None:
        """Run these members (`guard` or agents) in this version, beside those that run; then stop theirs.

        As an upgrade does: the new process is ready before the old one ends.
        """
        for name in names:
            earlier = self._running.pop(name, None)
            await self._start(version, name)
            if earlier is not None:
                await earlier.stop(PATIENCE_S)

    async def stop(self, *names: str) -> None:
        """Stop these members; all of them by default."""
        for name in names or tuple(self._running):
            if (running := self._running.pop(name, None)) is not None:
                await running.stop(PATIENCE_S)

    async def _start(self, version: Version, name: str) -> None:
        self._started += 1
        identity = f"{name}-{version.name}-{self._started}"
        command: Sequence[str] = ("guard", "run") if name == "guard" else ("agent", "run", f"desk:{name}")
        environment = version.environment(
            NATS_URL=self._url,
            MESH_CREDENTIALS=str(self._home / "deployed" / "keys" / f"{name}.nk"),
            LEDGER=str(self._ledger),
        )
        environment["PYTHONPATH"] += f"{os.pathsep}{self._home}"
        service = ServiceProcess(name, identity, command, environment, self._home / f"{identity}.log")
        await service.start()
        self._running[name] = service
        await until(lambda: not service.running or any(ready in service.log.read_text() for ready in _READY))
        assert service.running, service.tail()
