"""`mesh doctor`: looks a mesh over and says what is wrong with it; exit status 1 when something is."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh.cli.exits import Exit, Leave
from mesh.cli.options import A_PATH, Where, on_the_bus, output_options
from mesh.cli.output import emit, say
from mesh.cli.wrong_key import wrong_key

if TYPE_CHECKING:
    from mesh.fleet.file import FleetFile

_ROLES = ("admin", "operator", "viewer")
_SIGNS = {"ok": "ok     ", "found": "FOUND  ", "unknown": "unknown"}


@click.command()
@click.option("--monitor", help="URLs of the servers' monitoring, http://…:8222,…")
@click.option("--file", type=A_PATH, help="The fleet file to compare with; else ./mesh.toml.")
@output_options
@on_the_bus
async def doctor(where: Where, *, monitor: str | None, file: Path | None, as_json: bool) -> None:
    """Look a mesh over and say what is wrong with it.

    Connection, server, streams, documents, durability, limits, guards, agents, rules, dead letters, prices
    and clocks are checked.

    As the admin it compares streams and consumers with what `mesh setup` would make; as an operator or
    a viewer it looks whether they are there. Durability can be told from the server's monitoring only.
    """
    from mesh.ops.health import cannot_look, examine
    from mesh.settings import running_dev

    dev = running_dev(Path.cwd())
    access = where.access(*_ROLES)
    if monitor is None and dev is not None and dev.url == access.url:
        monitor = dev.monitor
    findings = await examine(access, _fleet(file), monitor)
    if as_json:
        emit(findings)
    else:
        for finding in findings:
            say(f"{_SIGNS[finding.state]}  {finding.check}: {finding.text}")
    if cannot_look(findings):
        raise wrong_key(access.name, _ROLES)
    if any(finding.state == "found" for finding in findings):
        raise Leave(Exit.FAILED)


def _fleet(named: Path | None) -> "FleetFile | None":
    """Return the fleet to compare with: of the file that was named, else of the one here, if there is one."""
    from mesh.fleet import FILE_NAME
    from mesh.fleet.file import load_fleet

    if named is None and not Path(FILE_NAME).is_file():
        return None
    return load_fleet(named or Path(FILE_NAME))
