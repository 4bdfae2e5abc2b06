"""The option `--where`, and its short forms: which requests a command is about."""

import functools
from typing import TYPE_CHECKING, Any

import click

from mesh import ops
from mesh.cli.options import Command, Option, together
from mesh.cli.output import note
from mesh.service.printable import counted

if TYPE_CHECKING:
    from mesh.ops.where import Clause

HELP = "Only requests to which all of this applies: 'agent=front rule=depth since=2d'."
_NAMES = " The options below are its names."


def _clauses(context: click.Context, option: click.Parameter, typed: str | None) -> "list[Clause] | None":
    return None if typed is None else ops.where.clauses_in(typed)


def where_option(help: str = HELP) -> Option:
    """Return the option `--where`; its command gets a `Filter` as `wanted`, or None without it."""
    return click.option("--where", "wanted", metavar="WHERE", callback=_filter, help=help)


def _filter(context: click.Context, option: click.Parameter, typed: str | None) -> Any:
    return None if typed is None else ops.where.parse(typed)


def index_options(limit: str) -> Option:
    """Return the options of a command that reads the index: `--all`, and `--limit` with this help."""
    return together(
        click.option(
            "--all", "whole", is_flag=True, help="Index the whole log first, not its newest events alone."
        ),
        click.option("--limit", "-n", type=click.IntRange(min=1), default=20, show_default=True, help=limit),
    )


def with_filters(command: Command) -> Command:
    """Give a command `--where` and an option for each of its names; it gets one `Filter` as `wanted`."""
    names = ops.where.NAMES
    short_forms = (
        click.option(f"--{name}", metavar=each.metavar, help=each.help) for name, each in names.items()
    )

    @together(
        click.option("--where", "clauses", metavar="WHERE", callback=_clauses, help=HELP + _NAMES),
        *short_forms,
    )
    @functools.wraps(command)
    def run(clauses: "list[Clause] | None", **options: Any) -> Any:
        given = {name: options.pop(name) for name in names}
        short = [ops.where.Clause(name, value) for name, value in given.items() if value is not None]
        return command(wanted=ops.where.filter_from([*(clauses or ()), *short]), **options)

    return run


def remark_indexing(events: int) -> None:
    """Remark on how much of the log is still to be indexed."""
    note(f"{counted(events, 'event')} of the log to index; the next time takes up from there")
