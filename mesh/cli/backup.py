"""`mesh backup`, `mesh restore` and `mesh requeue`: a copy of the whole mesh, and what brings it back."""

import math
import time
from pathlib import Path

import click

from mesh import ops
from mesh.bus.stores import rfc3339
from mesh.cli.arguments import microseconds_at, since_option
from mesh.cli.options import A_PATH, Where, framed
from mesh.cli.output import Id, note, report, row, say
from mesh.errors import UsageWrong
from mesh.service.printable import counted
from protocol.wire.records import LostTime

_folder = click.argument("folder", type=A_PATH, metavar="FOLDER", help="The folder of the backup.")
_EACH_S = 2.0
"""How often progress is reported (s)."""


@click.command()
@_folder
@framed
async def backup(where: Where, *, folder: Path, as_json: bool) -> None:
    """Copy the mesh into a folder; into the same folder again, only what is new.

    Services go on meanwhile. The log is copied up to the event that is its last one now, and everything else
    after it. What waits in queues is not copied: submits and proposals that no guard has decided yet.

    It takes the admin's credentials. The files have mode 600: they hold what clients wrote.
    """
    async with await where.connect("admin") as bus:
        made = await ops.backup.backup(bus, folder, _Progress().tell)
    copied = f"{counted(made.messages, 'message')}, {_size(made.bytes)}: the log up to event {made.through}"
    report(
        {
            "folder": str(folder),
            "mesh": made.mesh,
            "through": made.through,
            "at": made.at,
            "messages": made.messages,
            "bytes": made.bytes,
        },
        f"{folder} holds {copied}, stored {made.at or 'never'}",
        as_json=as_json,
    )


@click.command()
@_folder
@since_option(microseconds_at, "When the lost time began; by default with the backup's last event")
@click.option("--nothing-lost", is_flag=True, help="No agent has worked since the backup began.")
@click.option(
    "--replicas", type=click.IntRange(1, 5), help="Of every stream; by default as many as they had."
)
@framed
async def restore(
    where: Where,
    *,
    folder: Path,
    since: int | None,
    nothing_lost: bool,
    replicas: int | None,
    as_json: bool,
) -> None:
    """Make the mesh of a backup on a server with an empty store.

    Start the server with the accounts that it had, run this, and start the services: guards and agents wait
    for the fleet, which is written last. Open turns are delivered again, and go on where their journals end.

    What agents did after the backup is lost. An effect of an older request that is `once`, and has no record,
    may have been begun in that time: it is in doubt until a person settles it (`mesh doubt ls`).

    It takes the admin's credentials. A restore that was interrupted is repeated with the same command.
    """
    if nothing_lost and since is not None:
        raise UsageWrong("one of --since and --nothing-lost")
    if since is not None and since > time.time() * 1e6:
        raise UsageWrong("--since is in the future")
    begin = math.inf if nothing_lost else since
    async with await where.connect("admin") as bus:
        made = await ops.restore.restore(
            bus, folder, since=begin, replicas=replicas, progress=_Progress().tell
        )
    for request, why in made.unreadable.items() if not as_json else ():
        say(f"{request} cannot be read: {why}")
    for stream, count in made.left_out.items() if not as_json else ():
        say(f"{stream} had no room for {counted(count, 'step')} of requests that are over")
    turns = f"{counted(made.turns, 'turn')} delivered again"
    summary = f"{counted(made.open, 'open request')}, {turns}{_in_doubt(made.lost)}"
    report(
        made,
        f"{made.mesh} is as it was at event {made.through} ({made.at or 'empty'}): {summary}",
        as_json=as_json,
    )


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list what is in no queue.")
@framed
async def requeue(where: Where, *, dry_run: bool, as_json: bool) -> None:
    """Deliver open turns again that are in no queue, and arm missing timers.

    This happens if a store was copied while its server ran: the queues may then be ahead of the log. It reads
    the whole log. Services may run meanwhile. It takes the admin's credentials.
    """
    async with await where.connect("admin") as bus:
        done = await ops.requeue.requeue(bus, dry_run=dry_run)
    for turn in done.turns if not as_json else ():
        row(Id(turn.request), f"{turn.inbox}, event {turn.seq}")
    for queue in done.queues if not as_json else ():
        row(queue, "its messages are given to guards again")
    will = "would be" if dry_run else "are"
    summary = f"{counted(len(done.turns), 'open turn')} {will} delivered again"
    timers = f"{counted(done.timers, 'timer')} {will} armed"
    report(done, f"{summary}, {timers}; {counted(done.open, 'request')} open", as_json=as_json)


def _in_doubt(lost: LostTime | None) -> str:
    if lost is None:
        return ""
    return f"; `once` effects may have been begun since {rfc3339(lost.since)[:19]}Z (mesh doubt ls)"


class _Progress:
    """Reports how far each stream is: now and then, and never if it is done at once."""

    def __init__(self) -> None:
        self._reported_s = time.monotonic()

    def tell(self, stream: str, done: int, most: int) -> None:
        now = time.monotonic()
        if now - self._reported_s >= _EACH_S:
            self._reported_s = now
            note(f"{stream}: {done} of {most}")


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
