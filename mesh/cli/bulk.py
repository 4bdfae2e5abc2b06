"""What commands for many requests share: `--where`, what is shown and asked first, and how far it got."""

import functools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mesh import ops
from mesh.bus.connection import Bus
from mesh.cli.exits import Exit, Leave
from mesh.cli.filters import where_option
from mesh.cli.options import Command, Option, Where, agreed, together
from mesh.cli.output import emit, note, remark, row, say
from mesh.errors import UsageWrong
from mesh.service.printable import counted
from mesh.settings import index_folder

if TYPE_CHECKING:
    from mesh.ops.batch import Batch, Came, Outcome
    from mesh.ops.bulk import Chosen, Deed
    from mesh.ops.where import Filter

_QUIET_S = 2.0
"""How long it says nothing of its progress."""


class Many(NamedTuple):
    """The requests that a command is for, if it names none."""

    wanted: "Filter"
    limit: int | None
    batch: str | None
    yes: bool


class Words(NamedTuple):
    """What a command does to many."""

    do: str
    """Such as `cancel`."""
    done: str
    """Such as `cancelled`."""
    what: str = "request"


def one_or_many(one: str, *, batch: bool = True, asks: bool = False) -> Option:
    """Return the options of a command for one thing or, with `--where`, for many.

    The command gets `many`, None unless it is for many; then the argument `one` is None.

    Args:
        one: the name of its argument.
        batch: the messages have a batch.
        asks: the command asks also about one, and gets `yes`.
    """
    options = [
        where_option("In place of ID: all to which this applies, such as 'agent=front since=2d'."),
        click.option("--limit", "-n", type=click.IntRange(min=1), help="With --where: so many at most."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    ]
    if batch:
        options.append(
            click.option(
                "--batch",
                callback=_checked_batch,
                help="With --where: go on with this batch. What it did is not done twice.",
            )
        )

    def add(command: Command) -> Command:
        @together(*options)
        @functools.wraps(command)
        def run(
            wanted: "Filter | None", limit: int | None, yes: bool, batch: str | None = None, **given: Any
        ) -> Any:
            if (given[one] is None) is (wanted is None):
                raise UsageWrong("say which: one, or --where for all to which it applies")
            if wanted is None and (limit is not None or batch is not None):
                raise UsageWrong(f"--{'batch' if limit is None else 'limit'} goes with --where")
            own = {"yes": yes} if asks else {}
            return command(many=None if wanted is None else Many(wanted, limit, batch, yes), **own, **given)

        return run

    return add


def _checked_batch(context: click.Context, option: click.Parameter, typed: str | None) -> str | None:
    return None if typed is None else ops.batch.checked_batch(typed)


async def do_to_many(where: Where, words: Words, many: Many, deed: "Deed", *, as_json: bool) -> None:
    """Show what a deed is for, ask, send it, and print what came of it."""

    def choose(bus: Bus, **at: Any) -> "Awaitable[Chosen]":
        return ops.bulk.choose(bus, deed, many.wanted, batch=many.batch, limit=many.limit, **at)

    await choose_and_send(where, words, many, choose, as_json=as_json)


async def choose_and_send(
    where: Where,
    words: Words,
    many: Many,
    choose: "Callable[..., Awaitable[Chosen]]",
    *,
    role: str = "operator",
    as_json: bool,
) -> None:
    """Do the same for what `choose` returns, which gets the connection and where the index is."""
    async with await where.connect(role) as bus:
        chosen = await choose(bus, folder=index_folder(Path.cwd()), on_work=_remark_indexing)
        _tell(words, chosen)
        batch = ops.batch.Batch(bus, chosen.orders)
        if chosen.orders:
            if not many.yes and not await agreed(
                f"{words.do} {counted(chosen.requests, words.what)}", f"to {words.do} them"
            ):
                note("nothing was sent")
                raise Leave(Exit.FAILED)
            await _send(words, chosen, batch)
    _report(words, chosen, batch, as_json=as_json)


def _remark_indexing(events: int) -> None:
    note(f"{counted(events, 'event')} of the log to index; the next time takes up from there")


def _tell(words: Words, chosen: "Chosen") -> None:
    """Show what is about to happen."""
    for why, count in chosen.passed_over.items():
        note(f"{counted(count, words.what)} passed over: {why}")
    if not chosen.orders:
        note(f"there is no {words.what} to {words.do}")
        return
    note(f"{counted(chosen.requests, words.what)} to {words.do}:")
    for line in chosen.shown:
        remark(f"  {line}")
    if (more := chosen.requests - len(chosen.shown)) > 0:
        remark(f"  and {more} more")
    for effect, count in chosen.effects.items():
        note(
            f"{counted(count, words.what)} reported the effect {effect}: it can happen again, under a new key"
        )


async def _send(words: Words, chosen: "Chosen", batch: "Batch") -> None:
    told = time.monotonic()

    def remark_on(decided: int) -> None:
        nonlocal told
        if time.monotonic() > told + _QUIET_S:
            told = time.monotonic()
            note(f"{decided} of {len(chosen.orders)} {words.done}")

    try:
        await batch.run(remark_on)
    except BaseException:  # Ctrl-C, too
        waits = sum(each.outcome == "waits" for each in batch.came)
        again = f"with --batch {chosen.batch}" if chosen.batch else "again"
        far = f"{batch.sent} of {len(chosen.orders)} sent, {batch.sent - waits} decided"
        note(f"{far}; to go on, say the same {again}")
        raise


def _report(words: Words, chosen: "Chosen", batch: "Batch", *, as_json: bool) -> None:
    came = batch.came
    if as_json:
        emit(
            {
                "batch": chosen.batch,
                "requests": chosen.requests,
                "passed_over": chosen.passed_over,
                "effects": chosen.effects,
                "came": came,
            }
        )
    elif came:
        _list(came)
        counts = Counter(each.outcome for each in came)
        parts = [f"{counts['done']} of {len(came)} {words.done}"]
        parts += [f"{counts[outcome]} {text}" for outcome, text in _OTHERS.items() if counts[outcome]]
        say((f"{chosen.batch}: " if chosen.batch else "") + ", ".join(parts))
    if any(each.outcome == "refused" for each in came):
        raise Leave(Exit.REFUSED)


_OTHERS: "Mapping[Outcome, str]" = {"before": "decided before", "over": "over", "refused": "refused"}


def _list(came: "Sequence[Came]") -> None:
    """Print what was not done, and which requests are new."""
    for each in came:
        if each.outcome != "done":
            row(each.request, each.outcome, each.code, each.detail)
        elif each.decided_in != each.request:
            row(each.request, each.decided_in)
