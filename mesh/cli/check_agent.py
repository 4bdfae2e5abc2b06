"""`mesh check-agent NAME --run CMD`: tries an agent in any language against the protocol."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.exits import Exit
from mesh.cli.options import AsJson, Output, run_quietly
from mesh.cli.output import Format, chosen, emit, say

if TYPE_CHECKING:
    from mesh.conformance.checks import Finding


def check_agent(
    name: Annotated[str, typer.Argument(help="The agent's name.", metavar="NAME")],
    run: Annotated[
        str, typer.Option("--run", help="A shell command that runs the agent.", metavar="CMD", prompt=False)
    ],
    kill: Annotated[
        str | None,
        typer.Option(
            "--kill", help="What ends it as a crash would, where SIGKILL to CMD does not.", show_default=False
        ),
    ] = None,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Try an agent in any language: does it keep to the protocol?

    A scratch mesh of its own is started, with a real guard, and CMD is run with NATS_URL, MESH_NAME and
    MESH_CREDENTIALS (a seed file). Its code does what the fact `do` of a request says: docs/protocol.md,
    section 15. It is refused, killed, frozen, cancelled, sent what it cannot know, and everything it says on
    the bus is read along. About a minute. Exit status 1 if something is wrong.
    """
    run_quietly(_check(name, run, kill, as_json=chosen(output, as_json) is Format.JSON))


async def _check(name: str, command: str, kill: str | None, *, as_json: bool) -> None:
    from mesh.conformance.checks import check_agent
    from protocol.wire.ids import is_name

    if not is_name(name):
        raise typer.BadParameter(f"not a name: {name!r}", param_hint="NAME")
    found: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="mesh-check-") as directory:
        async for finding in check_agent(name, command, Path(directory), kill=kill):
            found.append(finding)
            if not as_json:
                say(_told(finding))
    if as_json:
        emit([finding._asdict() for finding in found])
    if not all(finding.ok for finding in found):
        raise typer.Exit(Exit.FAILED)


def _told(finding: "Finding") -> str:
    if finding.ok:
        return f"ok     {finding.check}"
    return f"WRONG  {finding.check}: {finding.wrong} (docs/protocol.md, {finding.section})"
