"""`mesh export-test`: a recorded request as a file of tests."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import click

from mesh.cli.attach import recorded_request
from mesh.cli.log import whole_file
from mesh.cli.options import A_PATH, Where, framed, source_argument
from mesh.cli.output import emit, note
from mesh.cli.replay_code import pairs_of
from mesh.errors import MeshError, UsageWrong
from mesh.replay.cases import as_pytest, cases_of
from mesh.service.printable import counted
from protocol.wire.ids import is_name


@click.command("export-test")
@source_argument
@click.option("--pair", metavar="GIVER:TAKER", help="Only the hand-over between these two agents.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME=MODULE:AGENT",
    help="The code of an agent; by default what mesh.toml here names. May be repeated.",
)
@click.option("--out", type=A_PATH, help="A file; else standard output.")
@framed
async def export_test(
    where: Where,
    *,
    source: str | Path,
    pair: str | None,
    agents: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Write a recorded request as a file for pytest.

    Each turn becomes a test that runs the agent's own code, on what was handed to it. Tools and models
    answer what they answered then; none is called. The test fails at the first call or move that is another
    one. Values under labels become stand-ins of the same type and shape, never the value: code that computes
    with one may come to something else.

    A request of an older form is refused, and so is one with trimmed journals or an effect that was in doubt.
    A file has to be exported with --with-steps.
    """
    if as_json and out is None:
        raise UsageWrong("--json says what was written: name a file with --out")
    code = {**_code_here(), **pairs_of("code", agents)}
    giver, taker = (None, None) if pair is None else _pair(pair)
    recording, bodies = await recorded_request(where, source)
    wanted = None if giver is None or taker is None else (giver, taker)
    found = cases_of(bodies, recording, code, wanted)
    with whole_file(out) as file:
        file.write(as_pytest(found, code).encode())
    _remark(found.left_out, found.fakes)
    if as_json:
        tests = [{"agent": case.agent, "event": case.n, "rounds": len(case.rounds)} for case in found.cases]
        emit({"file": str(out), "request": found.request, "tests": tests, "fakes": found.fakes})
    elif out is not None:
        note(f"{counted(len(found.cases), 'test')} in {out}: run pytest {out}")


def _remark(left_out: Iterable[str], fakes: int) -> None:
    for agent in left_out:
        note(f"{agent} is left out: no code of it is named (--agent {agent}=MODULE:AGENT)")
    if fakes:
        note(f"{counted(fakes, 'value')} under labels are stand-ins; code that computes with one may differ")


def _pair(pair: str) -> tuple[str, str]:
    giver, _, taker = pair.partition(":")
    if not is_name(giver) or not is_name(taker):
        raise UsageWrong(f"not a pair of agents: {pair!r}; write front:billing")
    return giver, taker


def _code_here() -> dict[str, str]:
    """Return the code of each agent that the fleet file here names; nothing where there is no such file."""
    from mesh.fleet.file import load_fleet

    with contextlib.suppress(MeshError):
        return {name: each.module for name, each in load_fleet(Path.cwd()).agents.items() if each.module}
    return {}
