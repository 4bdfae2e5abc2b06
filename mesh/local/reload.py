"""Apply what is saved while `mesh dev` runs: the fleet file is adopted, agents start with the new code.

Files that no agent reads restart nothing: those in dot folders, and policies for `mesh replay --policy`.
"""

import asyncio
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from mesh.bus.roles import GUARD
from mesh.errors import MeshError, UsageWrong
from mesh.fleet.file import FleetFile
from mesh.local.fleet import LocalFleet
from mesh.local.service import ServiceProcess
from mesh.settings import FILE_NAME
from protocol.wire.config import Policy

_READ = {".j2", ".jinja", ".md", ".py", ".toml", ".txt"}
"""Suffixes of code, prompts and rules. Agents may write files with others."""
_NOT_READ = ("tests", "build", "dist")
_NOT_CODE = {*_NOT_READ, "node_modules", "__pycache__"}


class Reload:
    """Watches folders for a mesh, until it is cancelled: code, prompts, rules, and the fleet file.

    An agent's new process replaces the old one only once it takes work. What cannot be read or started is
    reported once, and the old process continues. One mistake hides no other.

    Args:
        paths: the project's folders.
        read: reads the fleet file again. Raises FleetFileError, UsageWrong.
        tell: called with one line on what was applied, or why not.
        started: set once the mesh has started; earlier changes are applied then.
    """

    def __init__(
        self,
        mesh: LocalFleet,
        paths: Sequence[Path],
        read: Callable[[], FleetFile],
        tell: Callable[[str], None],
        started: asyncio.Event,
    ) -> None:
        self._mesh, self._read, self._tell, self._started = mesh, read, tell, started
        self._paths = tuple(dict.fromkeys(path.resolve() for path in paths))

    async def run(self) -> None:
        """Apply every change. Raises UsageWrong if `watchfiles` is not installed."""
        try:
            from watchfiles import DefaultFilter, awatch
        except ImportError:
            raise UsageWrong("nothing is reloaded: install handoff-mesh[server] for that") from None

        ignored = (*DefaultFilter.ignore_dirs, *_NOT_READ, self._mesh.directory.name)
        files = DefaultFilter(ignore_dirs=ignored)
        async for changes in awatch(
            *self._paths,
            watch_filter=lambda change, path: self._is_read(Path(path)) and files(change, path),
            ignore_permission_denied=True,
        ):
            await self._started.wait()
            await self._apply(sorted({Path(path) for _, path in changes}))

    def _is_read(self, path: Path) -> bool:
        """Return True if agents or the mesh may read this file."""
        roots = (root for root in self._paths if path.is_relative_to(root))
        hidden = any(part.startswith(".") for root in roots for part in path.relative_to(root).parts)
        return path.suffix in _READ and not hidden and not _is_policy(path)

    async def _apply(self, changed: Sequence[Path]) -> None:
        fleet = [path for path in changed if path.name == FILE_NAME]
        if fleet:
            try:
                await self._adopt()
            except (MeshError, OSError, ValueError) as wrong:
                self._refuse(wrong)
        others = [path for path in changed if path not in fleet]
        mistakes = list(_mistakes(others))
        for mistake in mistakes:
            self._refuse(mistake)
        if others and not mistakes:
            await self._renew(others)

    def _refuse(self, wrong: object) -> None:
        text = str(wrong).replace(":\n", ": ").replace("\n", "; ")
        self._tell(f"{text}; what ran before goes on")

    async def _adopt(self) -> None:
        file = self._read()
        if file != self._mesh.file:
            changes = await self._mesh.adopt(file)
            summary = "; ".join(f"{change.action} {change.what}" for change in changes)
            self._tell(f"{FILE_NAME} changed: {summary or 'modules alone'}")

    async def _renew(self, changed: Sequence[Path]) -> None:
        """Restart every agent concurrently; report each that cannot start, and the others in one line."""
        names = ", ".join(path.name for path in changed)
        began = time.monotonic()
        agents = [each for each in self._mesh.services.values() if each.name != GUARD]
        renewed = await asyncio.gather(*map(self._renewed, agents))
        for agent, failed in zip(agents, renewed, strict=True):
            if failed:
                self._tell(f"{names} changed: {agent.identity} {failed}; its old process goes on")
        running = [agent for agent, failed in zip(agents, renewed, strict=True) if not failed]
        if running:
            took = f"{time.monotonic() - began:.1f} s"
            self._tell(f"{names} changed: {_count(running, agents)} the new code, {took}")

    async def _renewed(self, agent: ServiceProcess) -> str:
        """Restart an agent. Return why that failed; empty if it runs."""
        try:
            return "" if await self._mesh.renew(agent) else "cannot start with it"
        except (MeshError, OSError) as wrong:
            return f"cannot be started ({wrong})"


def _count(running: Sequence[ServiceProcess], agents: Sequence[ServiceProcess]) -> str:
    """Return how many run something, as the beginning of a sentence."""
    if len(running) == 1:
        return f"{running[0].identity} runs"
    return f"{'all' if len(running) == len(agents) else f'{len(running)} of'} {len(agents)} agents run"


def _is_policy(path: Path) -> bool:
    """Return True for a policy file, which only `mesh replay --policy` reads."""
    if path.suffix != ".toml":
        return False
    try:
        keys = tomllib.loads(path.read_text()).keys()
    except (OSError, ValueError):
        return False
    return bool(keys) and keys <= set(Policy.__struct_fields__)


def mistakes_under(folder: Path) -> Iterator[str]:
    """Yield, with file and line, what is not valid Python in a project's folder."""
    for path, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _NOT_CODE]
        yield from _mistakes(Path(path, name) for name in sorted(names) if not name.startswith("."))


def _mistakes(files: Iterable[Path]) -> Iterator[str]:
    """Yield, with file and line, what is not valid Python."""
    for file in files:
        if file.suffix == ".py" and file.is_file():
            try:
                compile(file.read_bytes(), str(file), "exec")
            except SyntaxError as wrong:
                line = (wrong.text or "").strip()
                yield f"{file}:{wrong.lineno}: {wrong.msg}: {line}"
            except (OSError, ValueError) as wrong:
                yield f"{file}: {wrong}"
