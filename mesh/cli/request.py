"""`mesh request …`: submit, list, show, watch; cancel, freeze, thaw, rerun."""

from typing import TYPE_CHECKING

import click

from mesh.cli.arguments import with_submit
from mesh.cli.exits import Exit, Leave, leave
from mesh.cli.options import (
    READERS,
    Where,
    by_option,
    is_file,
    json_option,
    on_the_bus,
    one_of,
    output_options,
    person,
    reason_option,
    remark_passed_over,
    request_argument,
    source_argument,
    steps_of,
)
from mesh.cli.output import emit, emit_bytes, remark, report, say, table
from mesh.cli.output import show as show_text
from mesh.errors import MeshError, NotFound, UsageWrong
from mesh.service.printable import counted, one_line, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.client.journals import Step
    from mesh.ops.rerun import Effect
    from protocol.views.entries import Timeline
    from protocol.wire.commands import Submit
    from protocol.wire.events import AnyEvent

app = click.Group(help="Requests: submit, list, show, watch, cancel, freeze, thaw, rerun.")


@app.command("submit")
@with_submit
@click.option("--id", "request", help="An id made earlier: the same again is the same request.")
@json_option
@on_the_bus
async def submit(where: Where, *, wanted: "Submit", request: str | None, as_json: bool) -> None:
    """Submit a request and print its id.

    Once it is printed, the request will be decided, whatever dies from here on.
    """
    from mesh.client import Client
    from mesh.ops.log import checked_id

    access = where.access("client", "operator")
    chosen = None if request is None else checked_id(request)
    async with await Client.connect(access.url, name=access.name, seed=access.seed, tls=access.tls) as client:
        submitted = await client.submit_whole(wanted, request=chosen)
    report({"request": submitted}, submitted, as_json=as_json)


@app.command("ls")
@click.option("--status", help="Only open, human (people have to act), frozen, completed, refused, failed …")
@click.option("--conversation", help="Only requests of this conversation.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many at most.",
)
@output_options
@on_the_bus
async def ls(
    where: Where, *, status: str | None, conversation: str | None, limit: int, as_json: bool
) -> None:
    """List requests, those in which something happened last first."""
    from mesh.ops.requests import STATUSES, recent
    from mesh.ops.roster import mesh_freeze

    if status is not None and status not in STATUSES:
        raise UsageWrong(f"no such status: {status!r}; one of {', '.join(STATUSES)}")
    async with await where.connect(*READERS) as bus:
        found, looked_at_all = await recent(bus, limit=limit, status=status, conversation=conversation)
        stands = await mesh_freeze(bus)
    if stands.frozen:
        remark(f"mesh: {stands.notice}")
    if as_json:
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
@source_argument
@click.option("--at", type=click.IntRange(min=0), help="As it was after this event.")
@click.option("--steps", is_flag=True, help="Show what each turn's journal holds, too. The bus alone has it.")
@output_options
@on_the_bus
async def show(where: Where, *, source: str, at: int | None, steps: bool, as_json: bool) -> None:
    """Show who held a request, what was handed over, and every verdict.

    With --steps also what each turn did, as it was journaled: place, time, how long after the step before,
    what it came to and what a model's reply cost; no arguments and no results. As JSON they are always there.
    """
    from mesh.cli.story import story
    from mesh.ops.log import decoded, documented
    from protocol.views.timeline import timeline

    bodies = await one_of(where, source)
    if at is not None:
        if at >= len(bodies):
            raise NotFound(f"there is no event {at}; the last one is {len(bodies) - 1}")
        bodies = bodies[: at + 1]
    happened, journals = decoded(bodies), {}
    if steps or as_json:
        journals = await steps_of(where, source, happened, None if at is None else happened[-1].at)
        if steps and not journals and is_file(source):
            remark("mesh: this file holds no steps; export with --with-steps to have them")
    told = timeline(happened, journals)
    if told.status == "open" and at is None and not is_file(source):
        told = await _looked_at(where, told)
    if as_json:
        emit(documented(told, bodies))
    else:
        show_text(*story(told, steps=steps))


async def _looked_at(where: Where, told: "Timeline") -> "Timeline":
    """Return an open request's story with what only a look around can tell, as far as anybody may look."""
    from mesh.ops.roster import mesh_freeze, with_served

    try:
        async with await where.connect("operator", "admin", "viewer") as bus:
            stands = await mesh_freeze(bus)
            if stands.frozen:
                remark(f"mesh: {stands.notice}")
            return await with_served(bus, told)
    except MeshError:
        return told


@app.command("watch")
@request_argument
@click.option("--follow", is_flag=True, help="Show also what turns do, as it is journaled.")
@json_option
@on_the_bus
async def watch(where: Where, *, request: str, follow: bool, as_json: bool) -> None:
    """Show what happens in a request until it ends.

    The exit status says how it ended. A bus that goes away meanwhile is waited for.

    With --follow also each turn's steps as they are journaled: tools by name (an effect first with … when
    it begins) and what models said, a reply at a time. What a model says while it still speaks is for the
    request's own client alone: mesh send --follow.
    """
    from mesh.cli.story import INDENT, Teller, ending, step_in_words
    from mesh.ops.log import checked_id, decoded, held_up
    from mesh.ops.requests import Steps, story_so_far

    checked_id(request)
    if follow and as_json:
        raise UsageWrong("one of --follow and --json: mesh request show --json has the steps, too")
    teller, shown, told = Teller(), 0, None

    def on_missing(line: str) -> None:
        remark(f"mesh: {line}")

    def draw(step: "Step") -> None:
        if words := step_in_words(step.record):
            say(f"{INDENT}{step.agent}: {words}")

    async with await where.connect(*READERS) as bus:
        held = await held_up(bus, request)
        if held is not None:
            remark(f"mesh: {held.why}")
        missing_told = held is not None and held.missing
        steps = Steps(bus, request, draw) if follow else None
        story = story_so_far(bus, request, steps=steps, on_missing=None if missing_told else on_missing)
        async for bodies in story:
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


def _report(event: "AnyEvent", words: str, as_json: bool) -> None:
    from mesh.ops.control import obeyed

    report(obeyed(event), f"{event.request} {words} (event {event.n})", as_json=as_json)


@app.command("cancel")
@request_argument
@reason_option
@by_option
@json_option
@on_the_bus
async def cancel(where: Where, *, request: str, reason: str, by: str, as_json: bool) -> None:
    """End a request: your own, or any as an operator."""
    from mesh.ops import control
    from mesh.ops.log import checked_id

    checked_id(request)
    async with await where.connect("operator", "client") as bus:
        event = await control.cancel(bus, request, by=person(by), reason=reason)
    _report(event, "is cancelled", as_json)


@app.command("freeze")
@request_argument
@reason_option
@by_option
@json_option
@on_the_bus
async def freeze(where: Where, *, request: str, reason: str, by: str, as_json: bool) -> None:
    """Freeze a request: no agent has to agree, and nothing is lost.

    What runs finishes, and what it asks for waits in the log. Control messages are obeyed meanwhile, and
    only the request's deadline goes on.
    """
    from mesh.ops import control
    from mesh.ops.log import checked_id

    checked_id(request)
    async with await where.connect("operator") as bus:
        event = await control.freeze(bus, request, by=person(by), reason=reason)
    _report(event, "is frozen", as_json)


@app.command("thaw")
@request_argument
@reason_option
@by_option
@json_option
@on_the_bus
async def thaw(where: Where, *, request: str, reason: str, by: str, as_json: bool) -> None:
    """Let a frozen request go on: what waited is judged by every rule, as if it came now."""
    from mesh.ops import control
    from mesh.ops.log import checked_id

    checked_id(request)
    async with await where.connect("operator") as bus:
        event = await control.thaw(bus, request, by=person(by), reason=reason)
    _report(event, "goes on", as_json)


@app.command("rerun")
@request_argument
@click.option("--to", help="Another agent than the one it failed at.")
@click.option("--text", help="What is wanted, instead of the old text.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@on_the_bus
async def rerun(
    where: Where, *, request: str, to: str | None, text: str | None, yes: bool, as_json: bool
) -> None:
    """Do a request again, from the handoff at which it failed; prints the new request's id.

    The new request is yours, and linked to the old one. It begins at the agent whose turn was the last,
    with all that had been handed to it. Its effects get new keys: what the old request did to the world is
    done again, so that is listed first.
    """
    from mesh.client import Client
    from mesh.ops.log import decoded, request_bodies
    from mesh.ops.rerun import effects_of, rerun_of

    async with await where.connect("operator") as bus:
        happened = decoded(await request_bodies(bus, request))
        again = rerun_of(happened, to=to, text=text)
        for line in again.remarks:
            remark(f"mesh: {line}")
        effects = await effects_of(bus, happened)
        _warn(request, effects)
        remark(
            f"mesh: the new request begins at {again.agent or 'the entry agent'}, under policy "
            f"{again.submit.policy}; its answer goes to {bus.name}"
        )
        if not yes and not await _agreed():
            remark("mesh: nothing was submitted")
            raise Leave(Exit.FAILED)
        new = await Client(bus, bus.name).submit_whole(again.submit)
    report({"request": new, "rerun_of": request, "effects": effects}, new, as_json=as_json)


def _warn(request: str, effects: "Sequence[Effect]") -> None:
    """List what a rerun does to the world a second time."""
    remark("mesh: effects get new keys: no tool can tell that they belong to the same work")
    if not effects:
        remark(f"mesh: the journals of {request} have no effect")
        return
    remark(f"mesh: {counted(len(effects), 'effect')} of {request} can happen again:")
    for effect in effects:
        state = "done" if effect.state == "done" else "begun, and nobody knows whether it was done"
        action, key = one_line(effect.action), one_line(effect.key)
        remark(f"  {when(effect.at)}  {effect.agent}  {action}  step {effect.step}  {state}  {key}")


async def _agreed() -> bool:
    """Ask at the terminal. Raises UsageWrong where there is none."""
    import asyncio
    import sys

    if not sys.stdin.isatty():
        raise UsageWrong("nobody can be asked here: say --yes to submit it all the same")
    remark("submit it? [y/N] ", end="")
    said = await asyncio.to_thread(sys.stdin.readline)
    return said.strip().lower() in ("y", "yes")
