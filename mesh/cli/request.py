"""`mesh request …`: submit, list, show, watch; cancel, freeze, thaw, rerun."""

from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.followed import Shown
from mesh.cli.options import AsJson, By, Output, RequestArgument, SourceArgument, Where, on_the_bus, person
from mesh.cli.outcomes import leave
from mesh.cli.output import Format, chosen, emit, emit_bytes, remark, report, say, short, table, when
from mesh.cli.output import show as show_text
from mesh.cli.rerun import rerun
from mesh.cli.submitting import with_submit

if TYPE_CHECKING:
    from mesh.client.journals import Step
    from protocol.wire.commands import Cancel, Freeze, Submit, Thaw
    from protocol.wire.events import AnyEvent

app = typer.Typer(
    help="Requests: submit, list, show, watch, cancel, freeze, thaw, rerun.", no_args_is_help=True
)

_READERS = ("viewer", "operator", "admin")
_STEP_CHARS = 400


@app.command("submit")
@on_the_bus
@with_submit
async def submit(
    where: Where,
    wanted: "Submit",
    request: Annotated[
        str | None,
        typer.Option(
            "--id", help="An id made earlier: the same again is the same request.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a request and print its id.

    Once it is printed, the request will be decided, whatever dies from here on.
    """
    from mesh.client import Client
    from mesh.ops.requests import checked_id

    access = where.access("client", "operator")
    chosen_id = None if request is None else checked_id(request)
    async with await Client.connect(access.url, name=access.name, seed=access.seed, tls=access.tls) as client:
        submitted = await client.submit_whole(wanted, request=chosen_id)
    report({"request": submitted}, submitted, as_json=as_json)


@app.command("ls")
@on_the_bus
async def ls(
    where: Where,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            help="Only open, human (people have to act), frozen, completed, refused, failed …",
            show_default=False,
        ),
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option("--conversation", help="Only requests of this conversation.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many at most.", min=1)] = 20,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """List requests, those in which something happened last first."""
    from mesh.ops.freezing import mesh_freeze
    from mesh.ops.live import remark_if_frozen
    from mesh.ops.recent import STATUSES, recent

    if status is not None and status not in STATUSES:
        from mesh.ops.errors import UsageWrong

        raise UsageWrong(f"no such status: {status!r}; one of {', '.join(STATUSES)}")
    async with await where.connect(*_READERS) as bus:
        found, looked_at_all = await recent(bus, limit=limit, status=status, conversation=conversation)
        remark_if_frozen(await mesh_freeze(bus))
    if chosen(output, as_json) is Format.JSON:
        emit(found)
    else:
        table(
            ("request", "status", "with", "last", "at", "events", "conversation", "frozen"),
            [
                (
                    each.request,
                    each.status,
                    each.holder,
                    each.type,
                    when(each.at),
                    each.events,
                    each.conversation or "",
                    "" if each.frozen is None else each.frozen.in_words,
                )
                for each in found
            ],
            whole=("request", "at"),
        )
    if not looked_at_all and len(found) < limit:
        remark("mesh: only the newest part of the log was looked through")


@app.command("show")
@on_the_bus
async def show(
    where: Where,
    source: SourceArgument,
    at: Annotated[
        int | None, typer.Option("--at", help="As it was after this event.", min=0, show_default=False)
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show what each turn's journal holds, too. The bus alone has it.")
    ] = False,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Show who held a request, what was handed over, and every verdict.

    With --steps also what each turn did, as it was journaled: place, time, how long after the step before,
    what it came to and what a model's reply cost; no arguments and no results. As JSON they are always there.
    """
    from mesh.cli.story import as_json as as_program_reads
    from mesh.cli.story import story
    from mesh.ops.errors import NotFound
    from mesh.ops.live import looked_at
    from mesh.ops.requests import decoded, is_file, one_of, steps_of
    from protocol.views.timeline import timeline

    bodies = await one_of(where, source)
    if at is not None:
        if at >= len(bodies):
            raise NotFound(f"there is no event {at}; the last one is {len(bodies) - 1}")
        bodies = bodies[: at + 1]
    happened, program = decoded(bodies), chosen(output, as_json) is Format.JSON
    journals = {}
    if steps or program:
        journals = await steps_of(where, source, happened, None if at is None else happened[-1].at)
        if steps and not journals and is_file(source):
            remark("mesh: this file holds no steps; export with --with-steps to have them")
    told = timeline(happened, journals)
    if told.status == "open" and at is None and not is_file(source):
        told = await looked_at(where, told)
    if program:
        emit(as_program_reads(told, bodies))
    else:
        show_text(*story(told, steps=steps))


class _Drawn(Shown):
    """Draws journaled steps among the events, on standard output."""

    def draw(self, step: "Step") -> None:
        if step.record.kind == "intent":
            self._say(step.agent, f"[{step.record.name} …]")
        else:
            self._step(step.agent, step.record)

    def _say(self, agent: str, words: str) -> None:
        say(f"       {agent}: {short(words, _STEP_CHARS)}")


@app.command("watch")
@on_the_bus
async def watch(
    where: Where,
    request: RequestArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show also what turns do, as it is journaled.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what happens in a request until it ends.

    The exit status says how it ended. A bus that goes away meanwhile is waited for.

    With --follow also each turn's steps as they are journaled: tools by name (an effect first with … when
    it begins) and what models said, a reply at a time. What a model says while it still speaks is for the
    request's own client alone: mesh send --follow.
    """
    from mesh.cli.story import Teller, ending
    from mesh.ops.errors import UsageWrong
    from mesh.ops.growing import Steps, story_so_far
    from mesh.ops.requests import checked_id, decoded, remark_if_held_up, remark_passed_over

    checked_id(request)
    if follow and as_json:
        raise UsageWrong("one of --follow and --json: mesh request show --json has the steps, too")
    teller, shown, told = Teller(), 0, None
    async with await where.connect(*_READERS) as bus:
        missing_told = await remark_if_held_up(bus, request)
        steps = Steps(bus, request, _Drawn(told=True).draw) if follow else None
        async for bodies in story_so_far(bus, request, missing_told=missing_told, steps=steps):
            if as_json:
                for body in bodies[shown:]:
                    emit_bytes(body)
                shown = len(bodies)
            told, lines = teller.more(decoded(bodies))
            if not as_json:
                show_text(*lines)
    assert told is not None
    if not as_json:
        show_text(*ending(told))
    if steps is not None:
        remark_passed_over(steps.passed_over)
    leave(told.status)


async def _order(
    kind: "type[Cancel | Freeze | Thaw]", where: Where, request: str, by: str, reason: str, *roles: str
) -> "AnyEvent":
    """Send a control message about a request; return the event that obeyed it."""
    import secrets

    from mesh.ops.control import carry_out
    from mesh.ops.requests import checked_id

    checked_id(request)
    async with await where.connect(*roles) as bus:
        order = kind(id=secrets.token_hex(8), by=person(by), reason=reason)
        return await carry_out(bus, bus.name, request, order)


def _report(event: "AnyEvent", words: str, as_json: bool) -> None:
    from mesh.ops.control import obeyed

    report(obeyed(event), f"{event.request} {words} (event {event.n})", as_json=as_json)


@app.command("cancel")
@on_the_bus
async def cancel(
    where: Where,
    request: RequestArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """End a request: your own, or any as an operator."""
    from protocol.wire import commands

    event = await _order(commands.Cancel, where, request, by, reason, "operator", "client")
    _report(event, "is cancelled", as_json)


@app.command("freeze")
@on_the_bus
async def freeze(
    where: Where,
    request: RequestArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Freeze a request: no agent has to agree, and nothing is lost.

    What runs finishes, and what it asks for waits in the log. Control messages are obeyed meanwhile, and
    only the request's deadline goes on.
    """
    from protocol.wire import commands

    event = await _order(commands.Freeze, where, request, by, reason, "operator")
    _report(event, "is frozen", as_json)


@app.command("thaw")
@on_the_bus
async def thaw(
    where: Where,
    request: RequestArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Let a frozen request go on: what waited is judged by every rule, as if it came now."""
    from protocol.wire import commands

    event = await _order(commands.Thaw, where, request, by, reason, "operator")
    _report(event, "goes on", as_json)


app.command("rerun")(rerun)
