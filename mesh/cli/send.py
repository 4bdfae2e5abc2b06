"""`mesh send`: submit a request, wait for its end, print the answer."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.facts import FactOption, parse_facts
from mesh.cli.options import AsJson, Where, on_the_bus
from mesh.cli.outcomes import conclude, leave
from mesh.cli.output import emit, remark, short

if TYPE_CHECKING:
    from mesh.bus.connection import Bus
    from mesh.client import Client, Outcome, Question
    from protocol.ids import RequestId

To = Annotated[str | None, typer.Option("--to", help="The agent to begin with.", show_default=False)]
PolicyOption = Annotated[str, typer.Option("--policy", help="The policy to be judged by.")]
Conversation = Annotated[
    str | None, typer.Option("--conversation", help="What groups it with other requests.", show_default=False)
]
Intent = Annotated[str | None, typer.Option("--intent", help="What kind of work it is.", show_default=False)]

_SUMMARY_CHARS = 160
_LAST_LINES_S = 6.0
"""How long the last lines may take: what ends a request is what its submitter hears of first."""


@on_the_bus
async def send(
    where: Where,
    text: Annotated[str, typer.Argument(help="What is wanted.")],
    to: To = None,
    fact: FactOption = None,
    intent: Intent = None,
    policy: PolicyOption = "default",
    conversation: Conversation = None,
    wait_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the end.", min=0)] = 120.0,
    follow: Annotated[bool, typer.Option("--follow", help="Show on standard error what happens.")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a request, wait for its end, print the answer."""
    import sys

    from mesh.client import Client

    access = where.access("client", "operator")
    facts = parse_facts(fact)
    async with await Client.connect(access.url, name=access.name, seed=access.seed) as client:
        request = client.new_id()
        async with _followed(where, client, request, follow):
            await client.submit(
                text,
                to=to,
                intent=intent,
                facts=facts,
                policy=policy,
                conversation=conversation,
                request=request,
            )
            try:
                outcome = await client.wait(
                    request, timeout_s=wait_s, on_question=_ask if sys.stdin.isatty() else None
                )
            except TimeoutError:
                raise TimeoutError(
                    f"{request} has not ended within {wait_s:g} s; {await _what_now(where, client, request)}"
                ) from None
    if not as_json:
        conclude(outcome)
        return
    emit(_as_program_reads(outcome))
    leave(outcome.status)


def _as_program_reads(outcome: "Outcome") -> dict[str, Any]:
    return {
        "request": outcome.request,
        "status": outcome.status,
        "answer": outcome.answer,
        "error": None if outcome.status == "completed" else outcome.reason,
    }


async def _ask(question: "Question") -> Any:
    """Put an agent's question to whoever sits at the terminal, until the reply is what it asks for."""
    import asyncio
    import contextlib
    import sys

    import msgspec

    from mesh.replies import ReplyInvalid, SchemaUnusable, check_reply

    sys.stderr.write(f"{_lines_of(question.question)}\n> ")
    while True:
        sys.stderr.flush()
        said = await asyncio.to_thread(sys.stdin.readline)
        value: Any = said.rstrip("\n")
        if question.schema is not None:
            with contextlib.suppress(msgspec.DecodeError):
                value = msgspec.json.decode(value)
        try:
            check_reply(question.schema, value)
        except ReplyInvalid as wrong:
            if not said:
                raise  # the terminal is gone; nobody will say anything else
            sys.stderr.write(f"not what was asked for: {wrong}\n> ")
        except SchemaUnusable:
            return value
        else:
            return value


def _lines_of(text: str) -> str:
    """Return what an agent wrote as its lines, without what would steer a terminal."""
    return "\n".join(short(line, len(line)) for line in text.split("\n"))


@asynccontextmanager
async def _followed(
    where: Where, client: "Client", request: "RequestId", wanted: bool
) -> AsyncIterator[None]:
    """Show what happens for as long as the block runs, with a viewer's eyes if there is a key for one."""
    import asyncio

    from mesh.cli.followed import Shown

    if not wanted:
        yield
        return
    async with AsyncExitStack() as stack:
        viewer = await _viewer(where, client)
        if viewer is not None:
            await stack.enter_async_context(viewer)
        else:
            remark("mesh: these credentials cannot read the log; you see what is addressed to you or said")
        feed = await stack.enter_async_context(client.follow(request, viewer=viewer))
        showing = asyncio.create_task(Shown(told=viewer is not None).until_the_end(feed))
        try:
            yield
            await asyncio.wait({showing}, timeout=_LAST_LINES_S)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)


async def _what_now(where: Where, client: "Client", request: "RequestId") -> str:
    """Return what a request waits for, as far as these credentials, or a viewer's beside them, can see it.

    Of an escalation a client hears nothing: only the log has it.
    """
    import contextlib

    from mesh.errors import MeshError

    goes_on = f"it goes on: mesh request show {request}"
    with contextlib.suppress(MeshError, TimeoutError):
        viewer = await _viewer(where, client)
        if viewer is not None:
            async with viewer:
                return await _a_person(viewer, request) or goes_on
    return goes_on


async def _a_person(viewer: "Bus", request: str) -> str:
    """Return what a person has to decide in a request; empty if nothing. Raises BusError."""
    from mesh.bus.log import JetStreamLog
    from mesh.cli.reading import decoded
    from mesh.cli.waiting import waiting_in

    stored = await JetStreamLog(viewer, leader=False).read(request)
    for waits in waiting_in(decoded(each.body for each in stored)) if stored else ():
        told = {"escalation": "a person has it", "ask": "a person was asked"}.get(
            waits.what, "a person has to say what became of an effect"
        )
        wanted = short(f"{waits.person or waits.reason}: {waits.summary}", _SUMMARY_CHARS)
        why = f" ({wanted})" if waits.what == "escalation" else ""
        return f"{told}{why}; it goes on when they have decided: mesh request show {request}"
    return ""


async def _viewer(where: Where, client: "Client") -> "Bus | None":
    """Return a viewer's connection; None where there are no other credentials than the client's."""
    from mesh.errors import MeshError

    try:
        bus = await where._replace(name=None).connect("viewer")
    except MeshError:
        return None
    if bus.name != client.name:
        return bus
    await bus.close()
    return None
