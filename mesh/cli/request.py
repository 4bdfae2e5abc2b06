"""`mesh request …`: submit, list, show, calls, watch; cancel, freeze, thaw, rerun."""

import getpass
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mesh import ops
from mesh.bus.stores import JournaledStep
from mesh.cli.arguments import at_option, with_submit
from mesh.cli.bulk import Many, Words, do_to_many, one_or_many
from mesh.cli.exits import Exit, Leave, leave
from mesh.cli.filters import index_options, remark_indexing, with_filters
from mesh.cli.options import (
    PEOPLE,
    READERS,
    Where,
    agreed,
    decided,
    framed,
    maybe_request_argument,
    one_of,
    remark_freeze,
    remark_passed_over,
    request_argument,
    source_argument,
)
from mesh.cli.output import (
    At,
    Id,
    emit,
    emit_built,
    emit_bytes,
    emit_raw,
    listing,
    note,
    paged,
    read_lines,
    remark,
    report,
    say,
    show_lines,
)
from mesh.errors import MeshError, NotFound, UsageWrong
from mesh.ops.words import INDENT, Teller, ending, step_in_lines, story
from mesh.service.printable import counted, one_line, short, when
from mesh.settings import index_folder
from mesh.ui import require_installed
from protocol.views.timeline import timeline
from protocol.wire.commands import Submit

if TYPE_CHECKING:  # SQLite, which no other command of this noun needs
    from mesh.ops.index import RequestIndex
    from mesh.ops.rows import Listed
    from mesh.ops.where import Filter

app = click.Group(help="Requests: submit, list, show, calls, watch, cancel, freeze, thaw, rerun.")


_NEW_KEYS = "effects get new keys: no tool can tell that they belong to the same work"


@app.command("submit")
@with_submit
@click.option("--id", "request", help="An id that you made; the same id again is the same request.")
@at_option("When a guard shall submit it, in the name that --as gives")
@framed
async def submit(
    where: Where, *, wanted: Submit, request: str | None, at_us: int | None, as_json: bool
) -> None:
    """Submit a request and print its id.

    Once the id is printed, the request will be decided, even if this machine dies.

    With --at, it takes the admin's credentials beside the client's name, and a guard submits at that time.
    `mesh schedule ls` lists it until then, and `mesh schedule cancel` cancels it.
    """
    if at_us is not None:
        if request is not None:
            raise UsageWrong("--at and --id do not go together: the id follows from the time")
        name = where.flags.name or where.access("client", "operator").name
        async with await where.named(None).connect("admin") as bus:
            by = getpass.getuser()
            later = await ops.schedules.submit_at(bus, wanted, at_us, client=name, by=by)
        report(later, later.request, as_json=as_json)
        note(f"it is submitted at {when(at_us)}; mesh schedule cancel {later.schedule} cancels it")
        return
    chosen = None if request is None else ops.log.checked_id(request)
    async with await where.client() as client:
        submitted = await client.submit_whole(wanted, request=chosen)
    report({"request": submitted}, submitted, as_json=as_json)


@app.command("ls")
@with_filters
@index_options("How many at most.")
@framed
async def ls(where: Where, *, wanted: "Filter", limit: int, whole: bool, as_json: bool) -> None:
    """List requests, newest event first.

    The list comes from an index of the log that is kept between runs.
    """

    def read(index: "RequestIndex") -> "tuple[list[Listed], bool]":
        return index.page(wanted, limit=limit, by_change=True), index.is_whole

    async with await where.connect(*READERS) as bus:
        found, is_whole = await ops.requests.from_index(
            bus, read, folder=index_folder(Path.cwd()), whole=whole, on_work=remark_indexing
        )
        await remark_freeze(bus)
    listing(
        found,
        {
            "request": lambda each: Id(each.request),
            "status": lambda each: each.status,
            "with": lambda each: each.holder,
            "text": lambda each: short(each.text, 100),
            "last": lambda each: each.type,
            "at": lambda each: At(each.at),
            "events": lambda each: each.events,
            "conversation": lambda each: each.conversation,
            "frozen": lambda each: each.frozen and each.frozen.in_words,
        },
        as_json=as_json,
        spare=("events", "conversation", "last", "text"),
    )
    if not is_whole and len(found) < limit:
        note("only the newest part of the log is indexed; --all indexes the rest, once")


@app.command("show")
@source_argument
@click.option("--at", type=click.IntRange(min=0), help="Show the request as it stood after this event.")
@click.option(
    "--steps", is_flag=True, help="Show the steps in each turn's journal, too. Only the bus has them."
)
@click.option("--unfold", is_flag=True, help="Show each event, also where the same comes again and again.")
@framed
async def show(
    where: Where, *, source: str | Path, at: int | None, steps: bool, unfold: bool, form: str
) -> None:
    """Show who held a request, what was handed over, and every verdict.

    What comes three times or more is one line: 1-40 front ⇄ billing ×20.

    With --steps it also shows each turn's steps as they were journaled: place, time, how long after the
    step before, outcome, and the cost of a model's reply; no arguments and no results. JSON and HTML always
    have them.
    """

    if form == "html":
        require_installed("jinja2")
    bodies = await one_of(where, source)
    if at is not None:
        if at >= len(bodies):
            raise NotFound(f"there is no event {at}; the last one is {len(bodies) - 1}")
        bodies = bodies[: at + 1]
    happened, journals = ops.log.decoded(bodies), {}
    if steps or form in ("json", "html"):
        until = None if at is None else happened[-1].at
        if isinstance(source, Path):
            found = ops.journals.journals_in_file(source, happened, until)
        else:
            async with await where.connect(*READERS) as bus:
                found = await ops.journals.journals_of(bus, happened, until)
        journals = found.steps
        remark_passed_over(found.passed_over)
        if steps and not journals and isinstance(source, Path):
            note("this file holds no steps; export with --with-steps to have them")
    view = timeline(happened, journals)
    if not isinstance(source, Path):
        with suppress(MeshError):  # the rest is shown without it
            async with await where.connect(*READERS) as bus:
                view = await ops.requests.with_forks(bus, view, index_folder(Path.cwd()))
    is_now = view.status == "open" and at is None and not isinstance(source, Path)
    if is_now:
        with suppress(MeshError):  # the rest is shown without it
            async with await where.connect(*PEOPLE) as bus:
                await remark_freeze(bus)
                view = await ops.roster.with_served(bus, view)
    match form:
        case "json":
            emit_built(ops.log.documented(view, bodies))
        case "html":
            from mesh.ui.story import as_html

            emit_raw(as_html(view, happened, bodies).encode())
        case "mermaid":
            from mesh.ui.drawing.scene import mermaid, scene

            emit_raw(mermaid(scene(view)).encode())
        case _:
            with paged():
                now = time.time_ns() // 1000 if is_now else 0
                read_lines(*story(view, steps=steps, now=now, fold=not (unfold or steps)))


@app.command("calls")
@request_argument
@framed
async def calls(where: Where, *, request: str, as_json: bool) -> None:
    """Show what each round called, whole: prompts, replies, arguments, results, times and failures.

    Arguments that a tool keeps secret were never recorded. Where a round failed, it says when it is tried
    again.
    """
    async with await where.connect(*READERS) as bus:
        happened = ops.log.decoded(await ops.log.request_bodies(bus, request))
        rounds = await ops.calls.calls_of(bus, happened)
    if as_json:
        emit(rounds)
        return
    with paged():
        read_lines(*ops.calls.in_words(request, rounds))


@app.command("watch")
@request_argument
@click.option("--follow", is_flag=True, help="Also show the steps of turns, as they are journaled.")
@framed
async def watch(where: Where, *, request: str, follow: bool, as_json: bool) -> None:
    """Show what happens in a request until it ends.

    The exit status says how it ended. If the bus goes away, the command waits for it.

    With --follow it also shows each turn's steps as they are journaled: tools by name (an effect appears
    with … when it begins), models that were asked, and their replies. Only the request's own client hears a
    model while it speaks: mesh send --follow.
    """

    if follow and as_json:
        raise UsageWrong("one of --follow and --json: mesh request show --json has the steps, too")
    teller, shown, view = Teller(), 0, None

    def draw(step: JournaledStep) -> None:
        for words in step_in_lines(step.record):
            say(f"{INDENT}{step.agent}: {words}")

    async with await where.connect(*READERS) as bus:
        steps = ops.requests.Steps(bus, request, draw) if follow else None
        async for bodies in ops.requests.story_so_far(bus, request, steps=steps, on_held_up=note):
            if as_json:
                for body in bodies[shown:]:
                    emit_bytes(body)
                shown = len(bodies)
            view, lines = teller.more(ops.log.decoded(bodies))
            if not as_json:
                show_lines(*lines)
    assert view is not None
    if not as_json:
        show_lines(*ending(view))
    if steps is not None:
        remark_passed_over(steps.passed_over)
    leave(view.status)


@app.command("cancel")
@maybe_request_argument
@one_or_many("request")
@framed
async def cancel(
    where: Where, *, request: str, many: Many | None, reason: str, by: str, as_json: bool
) -> None:
    """End a request: your own, or any as an operator."""
    if many is not None:
        deed = ops.bulk.cancelling(by=by, reason=reason)
        await do_to_many(where, Words("cancel", "cancelled"), many, deed, as_json=as_json)
        return
    async with await where.connect("operator", "client") as bus:
        event = await ops.control.cancel(bus, request, by=by, reason=reason)
    decided(event, "is cancelled", as_json=as_json)


@app.command("freeze")
@maybe_request_argument
@one_or_many("request")
@framed
async def freeze(
    where: Where, *, request: str, many: Many | None, reason: str, by: str, as_json: bool
) -> None:
    """Freeze a request: no agent has to agree, and nothing is lost.

    Running turns finish, and their proposals wait in the log. Control messages are still obeyed, and only
    the request's deadline goes on.
    """
    if many is not None:
        deed = ops.bulk.freezing(by=by, reason=reason)
        await do_to_many(where, Words("freeze", "frozen"), many, deed, as_json=as_json)
        return
    async with await where.connect("operator") as bus:
        event = await ops.control.freeze(bus, request, by=by, reason=reason)
    decided(event, "is frozen", as_json=as_json)


@app.command("thaw")
@maybe_request_argument
@one_or_many("request")
@framed
async def thaw(where: Where, *, request: str, many: Many | None, reason: str, by: str, as_json: bool) -> None:
    """Thaw a request: every rule judges the proposals that waited, as if they had just come."""
    if many is not None:
        deed = ops.bulk.thawing(by=by, reason=reason)
        await do_to_many(where, Words("thaw", "thawed"), many, deed, as_json=as_json)
        return
    async with await where.connect("operator") as bus:
        event = await ops.control.thaw(bus, request, by=by, reason=reason)
    decided(event, "goes on", as_json=as_json)


@app.command("rerun")
@maybe_request_argument
@click.option("--to", help="Begin at this agent, not at the one that failed.")
@click.option("--text", help="A new text, instead of the old one.")
@one_or_many("request", asks=True)
@framed
async def rerun(
    where: Where,
    *,
    request: str,
    many: Many | None,
    to: str | None,
    text: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Run a request again from the handoff at which it failed; print the new request's id.

    The new request is yours and linked to the old one. It begins at the agent that had the last turn, with
    everything that was handed to it. Its effects get new keys, so they happen again: the old request's
    effects are listed first.

    With --where it is for requests that failed, expired, were cancelled or refused, and were not rerun
    before. What they reported of effects is counted first.
    """
    if many is not None:
        note(_NEW_KEYS)
        words = Words("rerun", "rerun")
        await do_to_many(where, words, many, ops.bulk.Rerunning(to, text), as_json=as_json)
        return
    async with await where.connect("operator") as bus:
        happened = ops.log.decoded(await ops.log.request_bodies(bus, request))
        again = ops.rerun.rerun_of(happened, to=to, text=text)
        for line in again.remarks:
            note(f"{line}")
        effects = await ops.rerun.effects_of(bus, happened)
        _warn(request, effects)
        note(
            f"the new request begins at {again.agent or 'the entry agent'}, under policy "
            f"{again.submit.policy}; its answer goes to {bus.name}"
        )
        if not yes and not await agreed("submit it", "to submit it all the same"):
            note("nothing was submitted")
            raise Leave(Exit.FAILED)
        new = await ops.rerun.submit(bus, again)
    report({"request": new, "rerun_of": request, "effects": effects}, new, as_json=as_json)


def _warn(request: str, effects: "Sequence[ops.rerun.Effect]") -> None:
    """List the effects that a rerun may repeat."""
    note(_NEW_KEYS)
    if not effects:
        note(f"the journals of {request} have no effect")
        return
    note(f"{counted(len(effects), 'effect')} of {request} can happen again:")
    for effect in effects:
        state = "done" if effect.state == "done" else "begun, and nobody knows whether it was done"
        action, key = one_line(effect.action), one_line(effect.key)
        remark(f"  {when(effect.at)}  {effect.agent}  {action}  step {effect.step}  {state}  {key}")
