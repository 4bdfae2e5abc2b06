"""`mesh send`: submit a request, wait for its end, print the answer."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.facts import FactOption, parse_facts
from mesh.cli.options import AsJson, Where, on_the_bus
from mesh.cli.outcomes import conclude, leave
from mesh.cli.output import emit, remark

if TYPE_CHECKING:
    from mesh.client import Client, Outcome, Question
    from protocol.ids import RequestId

To = Annotated[str | None, typer.Option("--to", help="The agent to begin with.", show_default=False)]
PolicyOption = Annotated[str, typer.Option("--policy", help="The policy to be judged by.")]
Conversation = Annotated[
    str | None, typer.Option("--conversation", help="What groups it with other requests.", show_default=False)
]
Intent = Annotated[str | None, typer.Option("--intent", help="What kind of work it is.", show_default=False)]


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
    import asyncio
    import sys

    from mesh.client import Client

    access = where.access("client", "operator")
    facts = parse_facts(fact)
    async with await Client.connect(access.url, name=access.name, seed=access.seed) as client:
        request = client.new_id()
        following = asyncio.create_task(_follow(where, client, request)) if follow else None
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
                f"{request} has not ended within {wait_s:g} s; it goes on: mesh request show {request}"
            ) from None
        finally:
            if following is not None:
                await _let_finish(following)
    if not as_json:
        conclude(outcome)
        return
    emit(_as_program_reads(outcome))
    leave(outcome.status)


async def _let_finish(following: Any) -> None:
    """Give the last events a moment to be shown: what ends a request is what its submitter hears of first."""
    import asyncio

    await asyncio.wait({following}, timeout=1.0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


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

    sys.stderr.write(f"{question.question}\n> ")
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


async def _follow(where: Where, client: "Client", request: "RequestId") -> None:
    """Show events as they come, as a viewer if there is a key for one; else say that something happens."""
    from mesh.cli.reading import decoded, story_so_far
    from mesh.cli.story import Teller
    from mesh.errors import MeshError

    try:
        bus = await where._replace(name=None).connect("viewer")
        if bus.name == client.name:
            await bus.close()
            raise MeshError("these credentials are the client's own")
    except MeshError:
        await _follow_notes(client, request)
        return
    async with bus:
        teller = Teller()
        async for bodies in story_so_far(bus, request):
            for line in teller.more(decoded(bodies))[1]:
                remark(line.plain)


async def _follow_notes(client: "Client", request: "RequestId") -> None:
    """Say what a client may know: its own events."""
    import asyncio

    from protocol.events import type_of

    remark("mesh: these credentials cannot read the log; only what is addressed to you is shown")
    seen = ""
    while True:
        event = await client.latest(request)
        if event is not None and event.id != seen:
            seen = event.id
            remark(f"{event.n:>3}  {type_of(event)}")
        await asyncio.sleep(0.2)
