"""`mesh log …`: the log itself: follow it, export it, verify its chain; and make room beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.counts import counted
from mesh.cli.exits import Exit
from mesh.cli.options import AsJson, Where, on_the_bus
from mesh.cli.output import emit, emit_bytes, remark, report, say, when

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

app = typer.Typer(help="The log: tail, export, verify, trim-steps.", no_args_is_help=True)

_READERS = ("viewer", "operator", "admin")


@app.command("tail")
@on_the_bus
async def tail(
    where: Where,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Events to begin with.", min=0)] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Go on as they come.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show the newest events of all requests, and go on as they come."""
    from mesh.bus.event_log import JetStreamLog
    from mesh.bus.reader import bounds
    from mesh.ops.requests import glance

    async with await where.connect(*_READERS) as bus:
        first, last = await bounds(bus, "LOG")
        async for stored in JetStreamLog(bus).follow(max(first, last - lines + 1), tail=follow):
            if as_json:
                emit_bytes(stored.body)
                continue
            event = glance(stored.body)
            if event is None:
                say(f"{stored.seq:>6}  cannot be read  → {stored.to}")
                continue
            what = f"{event.request}  {event.n:>3}  {event.type}  → {stored.to}"
            say(f"{stored.seq:>6}  {when(event.at)}  {what}")


@app.command("export")
@on_the_bus
async def export(
    where: Where,
    requests: Annotated[
        list[str] | None, typer.Argument(metavar="ID…", help="Requests.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole log, in its order.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="A file; else standard output.", show_default=False)
    ] = None,
    with_steps: Annotated[
        bool, typer.Option("--with-steps", help="Write the steps of their journals, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write events as they are stored, one a line: each line stands alone, and the chain still holds.

    With --with-steps each journaled step follows on a line of its own. Steps hold what tools and models said.
    The lines are JSON as they are; with --out, --json tells how many there are.
    """
    from mesh.cli.whole_file import whole_file
    from mesh.client.journals import agents_in
    from mesh.ops.errors import UsageWrong

    if bool(requests) == everything:
        raise UsageWrong("either ids of requests, or --all")
    events = steps = 0
    agents = set[str]()
    with whole_file(out) as file:
        async for body in _bodies(where, requests):
            file.write(body + b"\n")
            events += 1
            if with_steps:
                agents.update(agents_in(body))
        if with_steps:
            async for line in _step_lines(where, requests, agents):
                file.write(line + b"\n")
                steps += 1
    if out is not None and as_json:
        emit({"file": str(out), "events": events, "steps": steps})
    elif out is not None:
        told = f" and {counted(steps, 'step')}" if with_steps else ""
        remark(f"mesh: {counted(events, 'event')}{told} in {out}")


async def _bodies(where: Where, requests: list[str] | None) -> "AsyncIterator[bytes]":
    """Yield the stored events of the requests; of all of them when none is named."""
    from mesh.bus.event_log import JetStreamLog
    from mesh.bus.reader import bounds
    from mesh.ops.requests import request_bodies

    async with await where.connect("viewer", "operator") as bus:
        for request in requests or ():
            for body in await request_bodies(bus, request):
                yield body
        if not requests and (await bounds(bus, "LOG"))[1]:
            async for stored in JetStreamLog(bus).follow(tail=False):
                yield stored.body


async def _step_lines(where: Where, requests: list[str] | None, agents: set[str]) -> "AsyncIterator[bytes]":
    """Yield the steps that agents journaled for the requests, as lines; for all where none is named."""
    from mesh.client.journals import stored_steps
    from mesh.ops.roster import fleet_of
    from mesh.replay.load import StoredStep, step_line

    async with await where.connect("viewer", "operator") as bus:
        if not requests:
            agents = agents | set(
                (await fleet_of(bus)).agents
            )  # a journal may outlast the event that opened it
        for request in requests or ("*",):
            async for stored in stored_steps(bus, request, agents):
                yield step_line(StoredStep(stored.subject, stored.data))


@app.command("verify")
@on_the_bus
async def verify(
    where: Where,
    source: Annotated[
        str | None,
        typer.Argument(metavar="ID|FILE", help="A request or a file; the whole log if left out."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the hash chains; exit status 1 where one is broken.

    An event is vouched for by the one after it. Nothing vouches for a request's last event, nor says
    that there was none after it: for these, compare with the log on the bus.
    """
    from mesh.ops.chains import Chains
    from mesh.ops.errors import NotFound
    from mesh.ops.requests import bodies_of

    chains = Chains()
    if source is None:
        async for body in _bodies(where, None):
            chains.take(body)
    else:
        for bodies in (await bodies_of(where, source)).values():
            for body in bodies:
                chains.take(body)
    if not chains.events:
        raise NotFound("the log holds no event: there is nothing to verify")
    if as_json:
        breaks = [
            {"request": request, "n": broken.n, "what": broken.what} for request, broken in chains.breaks
        ]
        emit({"requests": chains.requests, "events": chains.events, "breaks": breaks})
    else:
        for request, broken in chains.breaks:
            say(f"{request} event {broken.n}: {broken.what}")
        looked_at = f"{counted(chains.requests, 'request')}, {counted(chains.events, 'event')}"
        say(f"{looked_at}: {counted(len(chains.breaks), 'break')}")
    if chains.breaks:
        raise typer.Exit(Exit.FAILED)


@app.command("trim-steps")
@on_the_bus
async def trim_steps(
    where: Where,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="SPAN", help="For how long a request must be over.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and leave it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make room in the journals: take out those of requests that are over. Their events stay.

    Needs the admin's credentials. A journal is what a turn goes on from, so that no open request loses one.
    """
    from mesh.cli.times import seconds_in
    from mesh.ops.errors import UsageWrong
    from mesh.ops.trim import LEAST_S, bytes_in_journals
    from mesh.ops.trim import trim_steps as trim

    seconds = seconds_in(older_than)
    if seconds < LEAST_S:
        raise UsageWrong(f"--older-than is at least {LEAST_S / 3600:g}h: a process that hangs may come back")
    trimmed = []
    async with await where.connect("admin") as bus:
        async for each in trim(bus, older_than_s=seconds, dry_run=dry_run):
            trimmed.append(each)
            if not as_json:
                say(f"{each.request}  {counted(each.steps, 'step')}")
        left = await bytes_in_journals(bus)
    steps = sum(each.steps for each in trimmed)
    text = (
        f"{counted(steps, 'step')} of {counted(len(trimmed), 'request')} "
        f"{'would go' if dry_run else 'went'}; {left} bytes are in the journals"
    )
    told = {
        "dry_run": dry_run,
        "requests": [each._asdict() for each in trimmed],
        "steps": steps,
        "bytes_left": left,
    }
    report(told, text, as_json=as_json)
