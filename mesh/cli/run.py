"""`mesh run`: one request through the agents of a file, in this process, without a server."""

import os
import sys
import traceback
from pathlib import Path

import click

from mesh.cli.arguments import with_submit
from mesh.cli.dev import model_option
from mesh.cli.exits import Exit, Leave, ended_by_signals, leave
from mesh.cli.options import framed
from mesh.cli.output import emit, note, remark
from mesh.cli.send import conclude
from mesh.cli.waiting import Typed, ask_at_terminal
from mesh.client import Outcome, Question
from mesh.errors import MeshError
from mesh.local.project import model_environment
from mesh.local.run import OnQuestion, agents_in, run_whole
from mesh.ops.words import Teller
from protocol.wire.commands import Submit
from protocol.wire.events import AnyEvent


@click.command()
@click.argument("reference", metavar="FILE:AGENT", help="A Python file, and its agent that begins.")
@with_submit
@model_option
@click.option("--follow", is_flag=True, help="Show each event on standard error as it happens.")
@framed
async def run(*, reference: str, wanted: Submit, model: str, follow: bool, as_json: bool) -> None:
    """Run one request through the agents of a file, with the guard's rules and no server.

    All agents of the file may hand work to each other. Questions and approvals are put at this terminal.
    Nothing is kept: `mesh dev` runs the same file as services.
    """
    for name, value in model_environment(model).items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    file = Path(reference.partition(":")[0])
    happened: list[AnyEvent] = []
    teller = Teller()

    def show(event: AnyEvent) -> None:
        happened.append(event)
        for line in teller.more(happened)[1]:
            remark(line.plain)

    try:
        async with ended_by_signals():
            outcome = await run_whole(
                agents_in(reference),
                wanted,
                on_question=_at_terminal(),
                on_event=show if follow else lambda event: None,
            )
    except (MeshError, Leave):
        raise
    except Exception as bug:
        _show_bug(bug, file)
        raise Leave(Exit.FAILED) from None
    _conclude(outcome, as_json=as_json)


def _conclude(outcome: Outcome, *, as_json: bool) -> None:
    if not as_json:
        conclude(outcome)
        return
    error = None if outcome.status == "completed" else outcome.reason
    emit({"request": outcome.request, "status": outcome.status, "answer": outcome.answer, "error": error})
    leave(outcome.status)


def _at_terminal() -> OnQuestion | None:
    """Return a function that asks questions at the terminal; None if there is none."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    typed = Typed(sys.stdin.fileno())

    async def ask(question: Question) -> object:
        try:
            return await ask_at_terminal(question, typed)
        except EOFError:
            note("the input ended, and the question has no reply")
            raise Leave(Exit.FAILED) from None

    return ask


def _show_bug(error: Exception, file: Path) -> None:
    """Print a traceback from the reader's own file on: the frames above it are ours."""
    home = str(file.resolve().parent) + os.sep
    own, trace = error.__traceback__, error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(home):
        trace = trace.tb_next
    remark("".join(traceback.format_exception(type(error), error, trace or own)).rstrip(), lines=True)
