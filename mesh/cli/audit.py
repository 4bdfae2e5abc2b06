"""Looking back at a log: `mesh why` a verdict, `mesh replay` it, and `mesh cost`."""

import functools
import tomllib
from pathlib import Path
from typing import Any

import click

from mesh import ops
from mesh.cli.arguments import microseconds_at, since_option
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import (
    A_PATH,
    PEOPLE,
    READERS,
    Where,
    file_at,
    framed,
    of_each,
    one_of,
    remark_passed_over,
    source_argument,
    source_argument_for,
)
from mesh.cli.output import as_json_text, emit, note, paged, read_lines, say, table
from mesh.errors import UsageWrong
from mesh.ops.words import ending, heading
from mesh.replay.rejudge import Rejudged, rejudge
from mesh.service.printable import counted, one_line
from mesh.settings import index_folder
from protocol.wire.config import DocumentInvalid, Policy, policy_of

# --- why ------------------------------------------------------------------------------------------


@click.command()
@source_argument_for(
    "A request, or a file of exported events; else the newest that is stuck.", required=False
)
@click.argument(
    "n",
    type=int,
    required=False,
    metavar="[N]",
    help="The event's number; by default the last refusal or failed task, else the last verdict.",
)
@framed
async def why(where: Where, *, source: str | Path | None, n: int | None, as_json: bool) -> None:
    """Explain a verdict, and name what would be allowed.

    Without an id it explains the newest request that is stuck: it waits for a person, its client, a thaw, or
    an agent that nobody serves. If none is, it explains the newest one that was refused or that failed.
    """
    stuck = None
    if source is None:
        async with await where.connect(*PEOPLE) as bus:
            if (stands := await ops.roster.mesh_freeze(bus)).frozen:
                note(stands.notice)
            stuck = await ops.requests.newest_stuck(bus, index_folder(Path.cwd()))
        if stuck is None:
            if as_json:
                emit(None)
            note("nothing is stuck, and nothing was refused or failed lately")
            return
        source = stuck.request
    found = ops.explain.explain(ops.log.decoded(await one_of(where, source)), n)
    if as_json:
        emit(found)
        return
    with paged():
        if stuck is not None:
            read_lines(heading(stuck), *ending(stuck))
        read_lines(*ops.explain.sentences(found))


# --- replay ---------------------------------------------------------------------------------------


@click.command()
@source_argument
@click.option(
    "--policy",
    type=A_PATH,
    help="Judge by this policy (TOML) instead.",
)
@framed
async def replay(where: Where, *, source: str | Path, policy: Path | None, as_json: bool) -> None:
    """Judge a log again and compare the verdicts.

    With --policy, list the verdicts that would differ. Exit status 1 on any difference.
    """
    judged_by = None if policy is None else read_policy(policy)
    results = await of_each(where, source, functools.partial(rejudge, policy=judged_by))
    if as_json:
        emit([_as_program_reads(result) for result in results])
    else:
        for result in results:
            _tell(result, changed=judged_by is not None)
        events = sum(result.events for result in results)
        differing = sum(not result.same for result in results)
        judged = f"{counted(len(results), 'request')}, {counted(events, 'event')} judged again"
        say(f"{judged}; {differing} {'differs' if differing == 1 else 'differ'}")
    if not all(result.same for result in results):
        raise Leave(Exit.FAILED)


def read_policy(path: Path) -> Policy:
    """Return the policy in a TOML file: its numbers, or a fleet file's default one. Raises UsageWrong."""
    try:
        fields: dict[str, Any] = tomllib.loads(path.read_text())
        numbers = fields["policies"]["default"] if "policies" in fields else fields
        name = numbers.get("name", "default") if isinstance(numbers, dict) else "default"
        return policy_of(numbers, name)
    except OSError as missing:
        raise UsageWrong(f"{path}: {missing.strerror}") from missing
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, DocumentInvalid, KeyError, TypeError) as wrong:
        raise UsageWrong(f"{path} holds no policy: {wrong}") from wrong


def _tell(result: Rejudged, *, changed: bool) -> None:
    for difference in result.differences:
        if changed:
            was, would = _differing(difference.recorded), _differing(difference.rederived)
            say(f"{result.request} event {difference.n}: was {was}, would be {would}")
        else:
            say(f"{result.request} event {difference.n} ({difference.type}) does not come out as recorded:")
            say(f"  recorded:  {as_json_text(difference.recorded)}")
            say(f"  judged now: {as_json_text(difference.rederived)}")
    for broken in result.breaks:
        say(f"{result.request} event {broken.n}: the hash chain is broken: {broken.what}")
    if result.unreadable:
        say(f"{result.request or 'a request'} cannot be read: {result.unreadable}")


def _differing(verdict: dict[str, Any]) -> str:
    extra = ", ".join(f"{key} {value}" for key, value in verdict.items() if key != "type")
    return f"{verdict.get('type')} ({extra})" if extra else str(verdict.get("type"))


def _as_program_reads(result: Rejudged) -> dict[str, Any]:
    return {
        "request": result.request,
        "events": result.events,
        "same": result.same,
        "differences": [each._asdict() for each in result.differences],
        "breaks": [each._asdict() for each in result.breaks],
        "unreadable": result.unreadable or None,
    }


# --- cost -----------------------------------------------------------------------------------------


@click.command()
@source_argument_for("A request, or a file of exported events; else the whole log.", required=False)
@click.option(
    "--by",
    "kind",
    type=click.Choice(["agent", "edge", "model", "client", "request", "turn", "lead", "worker"]),
    default="agent",
    show_default=True,
    help="The kind of row to sum up by.",
)
@since_option(microseconds_at, "Only turns whose newest report came since")
@framed
async def cost(
    where: Where, *, source: str | Path | None, kind: "ops.spending.By", since: int | None, as_json: bool
) -> None:
    """Sum up the cost of models: dollars, tokens, and the share of prompts that the vendor had cached.

    It counts the reports of turns. For turns without a report (they run, or a cancel, a deadline or a
    timeout ended them) it counts their journals, which only the bus has; for a file it names how many turns
    are missing.

    `--by lead` counts what each lead's turn and all tasks below it cost: a task below two leads counts
    for both; `--by worker` what each agent's tasks cost by themselves.

    Dollars with a `?` are too few: a model without a price was called. If an event of a request cannot be
    read, the request counts up to that event and is named, and the exit status is 1.
    """
    if isinstance(source, Path):
        found = ops.spending.spent_in_file(file_at(source), by=kind, since=since or 0)
    else:
        async with await where.connect(*READERS) as bus:
            found = await ops.spending.spent_on_bus(bus, source, by=kind, since=since or 0)
    remark_passed_over(found.passed_over)
    if found.missing:
        note(f"the cost of {counted(found.missing, 'turn')} is missing or not whole: no report has it")
    whole = found.report.total
    if as_json:
        emit(found.report)
    else:
        kinds = "calls", "tokens", "input", "cache read", "cache write", "output", "thinking", "cached"
        rows = [_cells(row) for row in (*found.report.rows, whole)]
        table((kind, "dollars", *kinds), rows, spare=_SPARE_KINDS)
    if found.unpriced:
        calls, models = counted(whole.unpriced_calls, "call"), ", ".join(map(one_line, found.unpriced))
        note(
            f"{calls} at no known price: say [prices] of {models} in the fleet file and run "
            "`mesh setup`, for requests that begin from then on"
        )
    for request, why in found.unreadable.items():
        note(f"{request} is not counted whole: {why}; look with mesh log verify {request}")
    if found.unreadable:
        raise Leave(Exit.FAILED)


_SPARE_KINDS = ("thinking", "cache write", "cache read", "output", "input")


def _cells(row: "ops.spending.Row") -> tuple[object, ...]:
    return (
        row.name,
        f"{row.nano_dollars / 1e9:.6f}" + ("?" if row.unpriced_calls else ""),
        row.model_calls,
        row.tokens,
        row.input_tokens,
        row.cache_read_tokens,
        row.cache_write_tokens,
        row.output_tokens,
        row.thinking_tokens,
        "" if row.cached_share is None else f"{row.cached_share:.0%}",
    )
