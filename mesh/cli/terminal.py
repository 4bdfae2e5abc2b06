"""What the services of `mesh dev` write, on its terminal: each under its name and in its colour."""

from pathlib import Path
from typing import TYPE_CHECKING

from mesh.cli.output import Line, show_lines

if TYPE_CHECKING:
    from mesh.local.fleet import LocalFleet
    from mesh.local.service import Output

_LOOK_S = 0.1
_COLOURS = ("cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta")
_STYLES = {"warning": "yellow", "error": "red", "critical": "bold red", "place": "bold", "frame": "dim"}


class ServiceTerminal:
    """Shows what services write from their start on.

    Args:
        home: the reader's own project, whose files come first in a traceback.
    """

    def __init__(self, mesh: "LocalFleet", home: Path) -> None:
        self._mesh, self._home = mesh, home
        self._outputs: dict[str, Output] = {}
        log = mesh.server.log
        self._server_began = log.stat().st_size if log.exists() else 0

    async def run(self) -> None:
        """Show everything as it comes, until this is cancelled."""
        import asyncio

        while True:
            self._look()
            await asyncio.sleep(_LOOK_S)

    def _look(self) -> None:
        from mesh.local.service import Output

        server = self._mesh.server
        if server.identity not in self._outputs:
            self._outputs[server.identity] = Output(server.log, self._home, self._server_began)
        for name, service in list(self._mesh.services.items()):
            if name not in self._outputs:
                self._outputs[name] = Output(service.log, self._home, service.began)
        width = max(map(len, self._outputs), default=0)
        for number, (name, output) in enumerate(self._outputs.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            for line in output.more():
                style = _STYLES.get(line.kind, "")
                show_lines(Line((f"{name:<{width}} │ ", colour), (line.text, style)))
