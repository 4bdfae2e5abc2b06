"""`mesh send`: submit a request, wait for its end, print the answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import click

from mesh import ops
from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.cli.arguments import with_submit
from mesh.cli.exits import leave
from mesh.cli.options import Where, framed
from mesh.cli.output import as_text, emit, note, say
from mesh.cli.waiting import QuestionPrompts, Shown, asked_in_a_line, tell_trouble
from mesh.client import Client, Outcome
from mesh.errors import MeshError
from mesh.service.printable import one_line, short
from protocol.wire.commands import Submit
from protocol.wire.ids import RequestId

_SUMMARY_CHARS = 160
_LAST_LINES_S = 6.0
"""How long the last lines may take (s): a submitter learns of a request's end first."""


@click.command()
@with_submit
@click.option(
    "--timeout",
    "wait_s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Seconds to wait for the end.",
)
@click.option("--follow", is_flag=True, help="Show each event on standard error as it happens.")
@framed
async def send(where: Where, *, wanted: Submit, wait_s: float, follow: bool, as_json: bool) -> None:
    """Submit a request, wait for its end, print the answer.

    It asks you an agent's questions at this terminal. Without one, it prints the command that replies.
    """
    questions, stored, outcome = QuestionPrompts(where), False, None
    async with await where.client() as client:
        request = client.new_id()
        if follow:
            note(request)
        try:
            async with _followed(where, client, request, follow):
                await client.submit_whole(wanted, request=request)
                stored = True
                try:
                    outcome = await client.wait(request, timeout_s=wait_s, on_question=questions.put)
                except TimeoutError:
                    what_now = await _what_now(where, client, request)
                    raise TimeoutError(f"{request} has not ended within {wait_s:g} s; {what_now}") from None
        except asyncio.CancelledError:
            if outcome is None:
                note(_left_alone(request, stored))
            raise
    if as_json:
        error = None if outcome.status == "completed" else outcome.reason
        told = {"usage": outcome.usage, "path": outcome.path}  # as far as the policy allows
        emit(
            {"request": request, "status": outcome.status, "answer": outcome.answer, "error": error}
            | {name: value for name, value in told.items() if value}
        )
        leave(outcome.status)
    else:
        conclude(outcome)


def _left_alone(request: str, stored: bool) -> str:
    """Return what becomes of a request whose submitter was interrupted."""
    if not stored:
        return f"{request} may have been submitted; mesh request show {request} says so"
    return f"{request} goes on; mesh request watch {request} shows it, mesh request cancel {request} stops it"


@asynccontextmanager
async def _followed(where: Where, client: Client, request: RequestId, wanted: bool) -> AsyncIterator[None]:
    """Show what happens while the block runs: everything if `wanted`, else only what delays the request.

    A viewer's key, if there is one, shows the log too.
    """
    if not wanted:
        reporting = asyncio.create_task(tell_trouble(client, request, lambda: _viewer(where, client)))
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
        return
    async with AsyncExitStack() as stack:
        viewer = await _viewer(where, client)
        if viewer is not None:
            await stack.enter_async_context(viewer)
        else:
            note("these credentials cannot read the log; you see what is addressed to you or said")
        feed = await stack.enter_async_context(client.follow(request, viewer=viewer))
        showing = asyncio.create_task(Shown(told=viewer is not None).until_the_end(feed))
        try:
            yield
            await asyncio.wait({showing}, timeout=_LAST_LINES_S)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)


async def _what_now(where: Where, client: Client, request: RequestId) -> str:
    """Return what a request waits for, according to these credentials, or a viewer's beside them.

    A client gets no event of an escalation, nor of a reply that was given elsewhere: only the log has it.
    """
    waits = ""
    with contextlib.suppress(MeshError, TimeoutError):
        if asked := await client.questions(request):
            n = asked[0].n if len(asked) > 1 else None
            waits = asked_in_a_line(where, request, asked[0].question, asked[0].schema, n)
    with contextlib.suppress(MeshError, TimeoutError):
        viewer = await _viewer(where, client)
        if viewer is not None:
            async with viewer:
                waits = await _waits_for(viewer, request, where, client.name)
    return waits or f"it goes on: mesh request show {request}"


async def _waits_for(viewer: Bus, request: str, where: Where, own: str) -> str:
    """Return what people, or `own` as the client, have to do; empty if nothing. Raises BusError."""

    stored = await JetStreamLog(viewer, leader=False).read(request)
    happened = ops.log.decoded(each.data for each in stored)
    waiting = ops.queue.waiting_in(happened, own) if happened else []
    for waits in waiting:
        if waits.asked == own:
            n = waits.n if len(waiting) > 1 else None
            return asked_in_a_line(where, request, waits.summary, waits.schema, n)
        who = {"escalation": "a person has it", "ask": "a person was asked"}.get(
            waits.what, "a person has to say what became of an effect"
        )
        wanted = short(f"{waits.person or waits.reason}: {waits.summary}", _SUMMARY_CHARS)
        why = f" ({wanted})" if waits.what == "escalation" else ""
        return f"{who}{why}; it goes on when they have decided: mesh request show {request}"
    return ""


async def _viewer(where: Where, client: Client) -> Bus | None:
    """Return a viewer's connection; None without other credentials than the client's."""
    try:
        bus = await where.named(None).connect("viewer")
    except MeshError:
        return None
    if bus.name != client.name:
        return bus
    await bus.close()
    return None


# --- how it ended ---------------------------------------------------------------------------------


def conclude(outcome: Outcome) -> None:
    """Print how a request ended, and end the command with its status."""
    if outcome.status == "completed":
        say(as_text(outcome.answer), lines=True)
    else:
        note(f"{outcome.request} {one_line(_ended(outcome.status, outcome.reason))}")
    leave(outcome.status)


def _ended(status: str, reason: str) -> str:
    """Return how and why a request ended; without a reason only the status."""
    word = status if status in ("failed", "expired") else f"was {status}"
    if reason.startswith(f"{status} "):
        return f"was {reason}"  # cancelled by …
    why = "" if reason == status else reason.removeprefix(f"{status}: ")
    return f"{word}: {why}" if why else word
