"""`mesh replay`: what live code makes of a log."""

import functools
import tomllib
from pathlib import Path
from typing import Any

import click

from mesh.cli.exits import Exit, Leave
from mesh.cli.options import A_PATH, Where, framed, of_each, source_argument
from mesh.cli.output import as_json_text, emit, say
from mesh.errors import UsageWrong
from mesh.replay.rejudge import Rejudged, rejudge
from mesh.service.printable import counted
from protocol.wire.config import DocumentInvalid, Policy, policy_of


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
