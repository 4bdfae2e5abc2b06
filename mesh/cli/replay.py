"""`mesh replay`: a log judged again by the code that is installed; exit status 1 on any difference."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mesh.cli.exits import Exit, Leave
from mesh.cli.options import Where, bodies_of, json_option, on_the_bus, source_argument
from mesh.cli.output import emit, say
from mesh.errors import UsageWrong
from mesh.service.printable import counted

if TYPE_CHECKING:
    from mesh.replay.rejudge import Rejudged
    from protocol.wire.config import Policy


@click.command()
@source_argument
@click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Judge by this policy (TOML) instead, and compare verdicts.",
)
@json_option
@on_the_bus
async def replay(where: Where, *, source: str, policy: Path | None, as_json: bool) -> None:
    """Judge a log again and compare.

    With --policy, list the verdicts that would have been others. Exit status 1 on any difference.
    """
    from mesh.replay.rejudge import rejudge

    judged_by = None if policy is None else read_policy(policy)
    found = await bodies_of(where, source)
    results = [rejudge(bodies, judged_by) for bodies in found.values()]
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


def read_policy(path: Path) -> "Policy":
    """Return the policy in a TOML file: its numbers, or a fleet file's default one. Raises UsageWrong."""
    import tomllib

    from protocol.wire.documents import DocumentInvalid, policy_of

    try:
        said: dict[str, Any] = tomllib.loads(path.read_text())
        numbers = said["policies"]["default"] if "policies" in said else said
        name = numbers.get("name", "default") if isinstance(numbers, dict) else "default"
        return policy_of(numbers, name)
    except OSError as missing:
        raise UsageWrong(f"{path}: {missing.strerror}") from missing
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, DocumentInvalid, KeyError, TypeError) as wrong:
        raise UsageWrong(f"{path} holds no policy: {wrong}") from wrong


def _tell(result: "Rejudged", *, changed: bool) -> None:
    for difference in result.differences:
        if changed:
            was, would = _verdict(difference.recorded), _verdict(difference.rederived)
            say(f"{result.request} event {difference.n}: was {was}, would be {would}")
        else:
            say(f"{result.request} event {difference.n} ({difference.type}) does not come out as recorded:")
            say(f"  recorded:  {_compact(difference.recorded)}")
            say(f"  judged now: {_compact(difference.rederived)}")
    for broken in result.breaks:
        say(f"{result.request} event {broken.n}: the hash chain is broken: {broken.what}")
    if result.unreadable:
        say(f"{result.request or 'a request'} cannot be read: {result.unreadable}")


def _verdict(verdict: dict[str, Any]) -> str:
    extra = ", ".join(f"{key} {value}" for key, value in verdict.items() if key != "type")
    return f"{verdict.get('type')} ({extra})" if extra else str(verdict.get("type"))


def _compact(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _as_program_reads(result: "Rejudged") -> dict[str, Any]:
    return {
        "request": result.request,
        "events": result.events,
        "same": result.same,
        "differences": [each._asdict() for each in result.differences],
        "breaks": [each._asdict() for each in result.breaks],
        "unreadable": result.unreadable or None,
    }
