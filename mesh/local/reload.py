"""Changes on disk, taken up by a mesh that runs: code, prompts, rules, and the fleet file.

An agent's new process takes the place of the old one only once it takes work. What cannot be read or started
is told, once, and the old one goes on.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mesh.bus.roles import GUARD
from mesh.errors import MeshError, UsageWrong
from mesh.fleet.file import FleetFile
from mesh.local.fleet import LocalFleet
from mesh.settings import FILE_NAME

_READ = {".j2", ".jinja", ".md", ".py", ".toml", ".txt"}
"""Endings of code, prompts and rules. Agents may write files with others."""
_NOT_READ = ("tests", "build", "dist")


class Reload:
    """Watches folders for a mesh, until it is cancelled.

    Args:
        paths: the project's folders.
        read: reads the fleet file again. Raises FleetFileError, UsageWrong.
        tell: told in a line what was taken up, or why not.
        started: set once the mesh has started; what is saved before is taken up then.
    """

    def __init__(
        self,
        mesh: LocalFleet,
        paths: Sequence[Path],
        read: Callable[[], FleetFile],
        tell: Callable[[str], None],
        started: asyncio.Event,
    ) -> None:
        self._mesh, self._paths, self._read, self._tell, self._started = mesh, paths, read, tell, started

    async def run(self) -> None:
        """Take up every change. Raises UsageWrong where `watchfiles` is not installed."""
        try:
            from watchfiles import DefaultFilter, awatch
        except ImportError:
            raise UsageWrong("nothing is reloaded: install handoff-mesh[server] for that") from None

        ignored = (*DefaultFilter.ignore_dirs, *_NOT_READ, self._mesh.directory.name)
        files = DefaultFilter(ignore_dirs=ignored)
        async for changes in awatch(
            *dict.fromkeys(path.resolve() for path in self._paths),
            watch_filter=lambda change, path: Path(path).suffix in _READ and files(change, path),
            ignore_permission_denied=True,
        ):
            await self._started.wait()
            await self._take_up(sorted({Path(path) for _, path in changes}))

    async def _take_up(self, changed: Sequence[Path]) -> None:
        try:
            if any(path.name == FILE_NAME for path in changed):
                await self._adopt()
            if others := [path for path in changed if path.name != FILE_NAME]:
                _compiled(others)
                await self._renew(others)
        except (MeshError, OSError, ValueError) as wrong:
            self._tell(f"{wrong}; what ran before goes on")

    async def _adopt(self) -> None:
        file = self._read()
        if file != self._mesh.file:
            changes = await self._mesh.adopt(file)
            told = "; ".join(f"{change.action} {change.what}" for change in changes)
            self._tell(f"{FILE_NAME} changed: {told or 'modules alone'}")

    async def _renew(self, changed: Sequence[Path]) -> None:
        names = ", ".join(path.name for path in changed)
        for service in list(self._mesh.services.values()):
            if service.name != GUARD:
                runs = await self._mesh.renew(service)
                told = "started again" if runs else "cannot start with it; its old process goes on"
                self._tell(f"{names} changed: {service.identity} {told}")


def _compiled(files: Iterable[Path]) -> None:
    """Raise ValueError, with file and line, for one that is no Python."""
    for file in files:
        if file.suffix == ".py" and file.is_file():
            try:
                compile(file.read_bytes(), str(file), "exec")
            except SyntaxError as wrong:
                line = (wrong.text or "").strip()
                raise ValueError(f"{file}:{wrong.lineno}: {wrong.msg}: {line}") from None
