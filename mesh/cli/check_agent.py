"""`mesh check-agent`: an agent in any language, checked against the protocol."""

import tempfile
from contextlib import aclosing
from pathlib import Path

import click

from mesh.cli.exits import Exit, Leave, ended_by_signals
from mesh.cli.options import (
    framed,
)
from mesh.cli.output import emit, remark, say
from mesh.conformance import checks
from mesh.conformance.checks import Check, CheckResult
from mesh.errors import UsageWrong
from protocol.wire.ids import is_name


@click.command()
@click.argument("name", metavar="NAME", help="The agent's name.")
@click.option("--run", required=True, metavar="CMD", help="A shell command that runs the agent.")
@click.option("--kill", help="A command that ends it as a crash would, where SIGKILL to CMD does not.")
@framed
async def check_agent(*, name: str, run: str, kill: str | None, as_json: bool) -> None:
    """Check that an agent, in any language, keeps to the protocol.

    It starts a scratch mesh with a real guard, and runs CMD with NATS_URL, MESH_NAME and MESH_CREDENTIALS
    (a seed file). The agent's code follows the fact `do` of a request: docs/wire/agent.md. The agent
    is refused, killed, frozen, cancelled and sent unknown messages, and all that it says on the bus is
    read. What is tried now is shown on standard error. Exit status 1 if something is wrong.
    """

    if not is_name(name):
        raise UsageWrong(f"not a name: {name!r}")
    found: list[CheckResult] = []

    def begin(check: Check) -> None:
        remark(f"{len(found) + 1} of {len(checks.CHECKS) + 1}: {check.name} …")

    with tempfile.TemporaryDirectory(prefix="mesh-check-") as directory:
        findings = checks.check_agent(name, run, Path(directory), kill=kill, on_begin=begin)
        async with ended_by_signals(), aclosing(findings):
            async for finding in findings:
                found.append(finding)
                if not as_json:
                    say(_verdict(finding))
    if as_json:
        emit([finding._asdict() for finding in found])
    if not all(finding.ok for finding in found):
        raise Leave(Exit.FAILED)


def _verdict(finding: CheckResult) -> str:
    if finding.ok:
        return f"ok     {finding.check}"
    return f"WRONG  {finding.check}: {finding.wrong} (docs/wire/agent.md, {finding.section})"
