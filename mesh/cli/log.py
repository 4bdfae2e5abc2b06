"""`mesh log …`: follow, export, archive, verify and trim."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from mesh import ops
from mesh.bus.event_log import JetStreamLog, check_form
from mesh.bus.reader import bounds
from mesh.cli.arguments import numbers_in, seconds_in
from mesh.cli.exits import Exit, Leave
from mesh.cli.options import (
    A_PATH,
    READERS,
    Where,
    file_at,
    framed,
    requests_argument,
    source_argument_for,
)
from mesh.cli.output import (
    At,
    Id,
    emit,
    emit_bytes,
    note,
    raw_out,
    report,
    row,
    say,
)
from mesh.errors import NotFound, UsageWrong
from mesh.replay.export import load
from mesh.service.printable import counted, when
from mesh.settings import FILE_NAME
from protocol.wire.subjects import parse_evt

if TYPE_CHECKING:
    from mesh.ops.anchors import AnchorCheck, Anchored

app = click.Group(help="The log: tail, export, archive, verify, anchors, trim-steps.")


@app.command("tail")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), default=10, show_default=True, help="Events to begin with."
)
@click.option(
    "--follow/--no-follow", "-f", "follow", default=True, show_default=True, help="Go on with each new event."
)
@framed
async def tail(where: Where, *, lines: int, follow: bool, as_json: bool) -> None:
    """Show the newest events of all requests, then each new one."""

    async with await where.connect(*READERS) as bus:
        await check_form(bus)
        first, last = await bounds(bus, "LOG")
        async for stored in JetStreamLog(bus).follow(max(first, last - lines + 1), tail=follow):
            if as_json:
                emit_bytes(stored.data)
                continue
            event, to = ops.log.header_of(stored.data), f"→ {parse_evt(stored.subject).to}"
            if event is None:
                row(f"{stored.seq:>6}", "cannot be read", to)
                continue
            what = (Id(event.request), f"{event.n:>3}", event.type, to)
            row(f"{stored.seq:>6}", At(event.at), *what)


@app.command("export")
@requests_argument
@click.option("--all", "everything", is_flag=True, help="The whole log, in its order.")
@click.option("--out", type=A_PATH, help="A file; else standard output.")
@click.option("--with-steps", is_flag=True, help="Also write the steps of their journals.")
@click.option(
    "--redact", metavar="EVENTS", default="", help="Events by number, of each request: 3,5-7; or all of them."
)
@click.option("--parquet", type=A_PATH, help="A Parquet file instead: one row an event (extra `frames`).")
@click.option("--cloudevents", is_flag=True, help="CloudEvents 1.0 instead: JSON, the event as data.")
@framed
async def export(
    where: Where,
    *,
    requests: tuple[str, ...],
    everything: bool,
    out: Path | None,
    parquet: Path | None,
    cloudevents: bool,
    with_steps: bool,
    redact: str,
    as_json: bool,
) -> None:
    """Write events as they are stored, one JSON document a line, so that the hash chain still holds.

    A redacted event keeps only its envelope and the digest of the whole: every other link of the chain
    holds, and `mesh log verify` names the redacted events. A fact's value may also appear in later events.

    With --with-steps each journaled step follows on a line of its own, then what steps and verdicts name: the
    fixed parts of prompts, and the revisions of fleet and policies. Steps hold the arguments and results of
    tools and the replies of models. With --out, only you can read the file (mode 600), and --json prints how
    many events and steps there are.

    With --parquet it is a table for DuckDB, polars or pandas: a row an event, with the event itself as JSON.
    With --cloudevents other systems can route the events: id, source (the fleet), type, subject (the request)
    and time stand around each.
    """
    if bool(requests) == everything:
        raise UsageWrong("either ids of requests, or --all")
    if redact and with_steps:
        raise UsageWrong("steps hold what events do: either --redact or --with-steps")
    if cloudevents and (with_steps or parquet is not None):
        raise UsageWrong("--cloudevents goes without --with-steps and --parquet")
    is_redacted = numbers_in(redact)
    if parquet is not None:
        if out is not None or with_steps:
            raise UsageWrong("--parquet goes without --out and --with-steps")
        count = 0
        with whole_file(parquet) as file, ops.frames.EventFrames(file) as frames:
            async with await where.connect("viewer", "operator") as bus:
                async for body in ops.log.stored_bodies(bus, requests):
                    frames.add(ops.log.redacted_if(is_redacted, body) if redact else body)
                    count += 1
        report(
            {"file": str(parquet), "events": count},
            f"{counted(count, 'event')} in {parquet} (a new file has mode 600)",
            as_json=as_json,
        )
        return
    events = steps = left_out = 0
    agents, prompts = set[str](), set[tuple[str, str]]()
    with whole_file(out) as file:
        async with await where.connect("viewer", "operator") as bus:
            source = ops.cloudevents.source_of((await ops.roster.fleet_of(bus)).name) if cloudevents else ""
            async for body in ops.log.stored_bodies(bus, requests):
                shown: bytes | None = ops.log.redacted_if(is_redacted, body) if redact else body
                if cloudevents and shown is not None:
                    shown = ops.cloudevents.cloud_event(shown, source)
                if shown is None:
                    left_out += 1
                    continue
                file.write(shown + b"\n")
                events += 1
                if with_steps:
                    agents.update(ops.journals.agents_in(body))
            if with_steps:
                async for line in ops.journals.step_lines(bus, requests, agents, prompts):
                    file.write(line + b"\n")
                    steps += 1
                async for line in ops.journals.named_lines(bus, prompts):
                    file.write(line + b"\n")
    if left_out:
        note(f"{counted(left_out, 'event')} left out: no CloudEvent can name what cannot be read")
    if out is not None and as_json:
        emit({"file": str(out), "events": events, "steps": steps})
    elif out is not None:
        steps_too = f" and {counted(steps, 'step')}" if with_steps else ""
        note(f"{counted(events, 'event')}{steps_too} in {out} (a new file has mode 600)")


@contextlib.contextmanager
def whole_file(path: Path | None) -> Iterator[BinaryIO]:
    """Yield a file that in the end is complete or unchanged, or standard output.

    Only its owner can read it (mode 600): it holds what clients wrote. On any error the old file is kept: it
    may be the only copy of a log that has aged out. Devices and pipes are written to in place.

    Raises UsageWrong if nothing can be written.
    """
    if path is None:
        yield from raw_out()
        return
    in_place = path.exists() and not path.is_file()
    at = path if in_place else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with at.open("wb") if in_place else _private(at) as file:
            yield file
        if not in_place:
            at.replace(path)
    except OSError as wrong:
        raise UsageWrong(f"{path} cannot be written: {wrong.strerror}") from wrong
    finally:
        if not in_place:
            at.unlink(missing_ok=True)


def _private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@app.command("archive")
@click.option(
    "--to",
    metavar="URL",
    help="file:///folder, s3://…, gs://… or az://…; else `[log] archive` in ./mesh.toml.",
)
@click.option(
    "--older-than",
    default="20d",
    show_default=True,
    metavar="SPAN",
    help="How long ago a request must have ended.",
)
@framed
async def archive(where: Where, *, to: str | None, older_than: str, as_json: bool) -> None:
    """Add ended requests to an archive, before the log loses them by age. Nothing leaves the log.

    Run it every day, with a span below `[log] max_age_days`: each run adds what is new. Requests are whole,
    in files by the day of their end (zstd, JSON lines), with an index and digests. Open ones wait for their
    end. A run that was killed is repeated with the same command.

    `mesh request show`, `mesh why`, `mesh replay` and `mesh log verify` read a request from the archive as
    URL/ID, and the last two also a day as URL/2026-11-28. It takes the extra `artifacts`, and a viewer's key.
    """
    seconds, to = seconds_in(older_than), to or _named_archive()
    async with await where.connect("viewer", "operator") as bus:
        made = await ops.archive.archive(
            bus,
            to,
            older_than_s=seconds,
            on_file=lambda file: note(f"{file.day}: {counted(file.requests, 'request')} in {file.name}"),
        )
    for request in made.left_out:
        note(f"{request} is left out: the log no longer has all of its events, or they cannot be read")
    if made.gone:
        note(f"{counted(made.gone, 'event')} had left the log since the last run: archive more often")
    until = when(made.index.until) if made.index.until else "never"
    report(
        {
            "url": to,
            "mesh": made.index.mesh,
            "files": made.files,
            "requests": made.requests,
            "events": made.events,
            "left_out": made.left_out,
            "gone": made.gone,
            "through": made.index.through,
            "until": made.index.until,
        },
        f"{counted(made.requests, 'request')} added, {counted(made.events, 'event')}; {to} holds "
        f"{made.index.requests}: all that ended until {until} (event {made.index.through})",
        as_json=as_json,
    )


def _named_archive() -> str:
    """Return the archive that the fleet file here names. Raises UsageWrong, FleetFileError."""
    from mesh.fleet.file import load_fleet

    here = Path(FILE_NAME)
    named = load_fleet(here).log.archive if here.is_file() else ""
    if not named:
        raise UsageWrong("which archive? Write --to URL, or `archive` under [log] in ./mesh.toml")
    return named


@app.command("verify")
@source_argument_for("A request or a file; the whole log if left out.", required=False)
@click.option("--anchors", type=A_PATH, help="A file of anchors (`mesh log anchors`); else those on the bus.")
@click.option("--key", "keys", multiple=True, help="Public key of who may sign anchors; may be repeated.")
@framed
async def verify(
    where: Where, *, source: str | Path | None, anchors: Path | None, keys: tuple[str, ...], as_json: bool
) -> None:
    """Check the hash chains, and what guards signed of them; exit status 1 if anything is not as it was.

    Each event vouches for the one before it. A guard's anchor, made once a minute or after a thousand events,
    vouches for a request's last one. A file is compared with anchors only if --anchors names them.
    """
    of_file = None if anchors is None else ops.anchors.anchored(ops.anchors.anchors_in(anchors), keys)
    if isinstance(source, Path):
        path, found, first = file_at(source), of_file, None
        if found is None:
            chains = await ops.chain_parts.chains_in(path)
        else:
            bodies = (body for events in load(path).values() for body in events)
            chains = ops.log.chains_of(bodies, found.watched)
    else:
        async with await where.connect(*(("viewer", "operator") if source is None else READERS)) as bus:
            found = of_file or await ops.anchors.on_the_bus(bus, keys)
            if source is None:
                first, _ = await bounds(bus, "LOG")
                chains = ops.log.Chains(watched=found.watched)
                async for body in ops.log.stored_bodies(bus):
                    chains.take(body)
            else:
                first, found = None, found.only(source)
                chains = ops.log.chains_of(await ops.log.request_bodies(bus, source), found.watched)
    if not chains.events:
        raise NotFound("the log holds no event: there is nothing to verify")
    checked = None if found is None else ops.anchors.compared(found, chains, first)
    breaks = [*chains.breaks, *(checked.breaks if checked is not None else ())]
    faults = () if found is None else found.faults
    if as_json:
        emit(
            {
                "requests": chains.requests,
                "events": chains.events,
                "breaks": [{"request": name, "n": broken.n, "what": broken.what} for name, broken in breaks],
                "redacted": [{"request": request, "n": n} for request, n in chains.redacted],
                "anchors": None if found is None else _anchors_as_json(found, checked),
            }
        )
    else:
        for request, broken in breaks:
            say(f"{request} event {broken.n}: {broken.what}")
        for fault in faults:
            say(fault)
        looked_at = f"{counted(chains.requests, 'request')}, {counted(chains.events, 'event')}"
        holds = counted(len(breaks), "break") if breaks else "all links hold"
        for request, n in chains.redacted:
            say(f"{request} event {n} is redacted: nothing but its place is vouched for")
        missing = f", {counted(len(chains.redacted), 'event')} redacted" if chains.redacted else ""
        say(f"{looked_at}: {holds}{missing}")
        if found is not None and checked is not None:
            say(_anchors_in_words(found, checked, chains.requests))
    if breaks or faults:
        raise Leave(Exit.FAILED)


def _anchors_as_json(found: "Anchored", checked: "AnchorCheck | None") -> dict[str, Any]:
    assert checked is not None
    counts = {"vouched": checked.vouched, "gone": checked.gone}
    return {**counts, "newest_at": found.newest_at, "keys": found.keys, "faults": found.faults}


def _anchors_in_words(found: "Anchored", checked: "AnchorCheck", requests: int) -> str:
    """Describe for how many requests guards vouch, and who signed."""
    if found.newest_at is None:
        return "no anchor: nothing vouches for the last event of a request"
    left = f"; {counted(checked.gone, 'anchored request')} not in there" if checked.gone else ""
    signed = f"signed by {', '.join(found.keys)}"
    newest = f"the newest at {when(found.newest_at)}"
    return f"anchors vouch for the end of {checked.vouched} of {requests} ({newest}, {signed}){left}"


@app.command("anchors")
@click.option("--out", type=A_PATH, help="A file; else standard output.")
@framed
async def write_anchors(where: Where, *, out: Path | None, as_json: bool) -> None:
    """Write what guards signed of the log, one anchor a line.

    Keep it out of reach of those who run the mesh. Later `mesh log verify --anchors FILE` compares the
    log with it, and names an event that was altered or cut off meanwhile.
    """
    count = 0
    with whole_file(out) as file:
        async with await where.connect("viewer", "operator") as bus:
            async for body in ops.anchors.stored_anchors(bus):
                file.write(body + b"\n")
                count += 1
    if out is not None and as_json:
        emit({"file": str(out), "anchors": count})
    elif out is not None:
        note(f"{counted(count, 'anchor')} in {out} (a new file has mode 600)")


@app.command("trim-steps")
@click.option(
    "--older-than",
    default="7d",
    show_default=True,
    metavar="SPAN",
    help="How long ago a request must have ended.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would go.")
@framed
async def trim_steps(where: Where, *, older_than: str, dry_run: bool, as_json: bool) -> None:
    """Make room: delete the journals of requests that have ended. Their events stay.

    A request without its journals can no longer be replayed with agents' code; its verdicts still can.

    It needs the admin's credentials. Open requests keep their journals.
    """
    seconds, least = seconds_in(older_than), ops.log.LEAST_S
    if seconds < least:
        raise UsageWrong(f"--older-than is at least {least / 3600:g}h: a process that hangs may come back")
    trimmed = []
    async with await where.connect("admin") as bus:
        async for each in ops.log.trim_steps(bus, older_than_s=seconds, dry_run=dry_run):
            trimmed.append(each)
            if not as_json:
                row(Id(each.request), counted(each.steps, "step"), "can then no longer be replayed")
        left = await ops.log.bytes_in_journals(bus)
    steps = sum(each.steps for each in trimmed)
    what, went = (
        f"{counted(steps, 'step')} of {counted(len(trimmed), 'request')}",
        "would go" if dry_run else "went",
    )
    requests = [each._asdict() for each in trimmed]
    report(
        {"dry_run": dry_run, "requests": requests, "steps": steps, "bytes_left": left},
        f"{what} {went}; {left} bytes are in the journals",
        as_json=as_json,
    )
