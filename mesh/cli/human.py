"""`mesh human …`: what waits for people, and what they decide."""

from typing import Annotated

import typer

from mesh.cli.facts import FactOption, parse_facts
from mesh.cli.options import AsJson, By, Output, RequestArgument, Where, on_the_bus, person
from mesh.cli.output import Format, chosen, emit, say, short, table, when
from mesh.cli.output import show as show_text

app = typer.Typer(help="The human queue: list, show, resolve.", no_args_is_help=True)

_READERS = ("operator", "viewer", "admin")


@app.command("ls")
@on_the_bus
async def ls(where: Where, output: Output = Format.TABLE, as_json: AsJson = False) -> None:
    """List what waits for people, the oldest first."""
    from mesh.cli.waiting import queue

    async with await where.connect(*_READERS) as bus:
        found = await queue(bus)
    if chosen(output, as_json) is Format.JSON:
        emit(found)
        return
    table(
        ("request", "since", "from", "what", "person", "summary"),
        [
            (
                each.request,
                when(each.since),
                each.from_agent,
                each.what,
                each.person,
                short(each.summary, 100),
            )
            for each in found
        ],
        whole=("request", "since"),
    )


@app.command("show")
@on_the_bus
async def show(
    where: Where, request: RequestArgument, output: Output = Format.TABLE, as_json: AsJson = False
) -> None:
    """Show what waits in a request, with everything that led to it."""
    from mesh.cli.reading import decoded, request_bodies
    from mesh.cli.story import story
    from mesh.cli.waiting import escalation_in, waiting_in
    from protocol.ledger import fold
    from protocol.timeline import timeline

    async with await where.connect(*_READERS) as bus:
        bodies = await request_bodies(bus, request)
    happened = decoded(bodies)
    ledger = fold(happened)
    handoff = escalation_in(ledger).work.handoff
    if chosen(output, as_json) is Format.JSON:
        waiting = waiting_in(ledger)[0]
        emit({"waiting": waiting, "handoff": handoff, "timeline": timeline(happened)})
        return
    show_text(*story(timeline(happened)))
    say(f"\nwanted: {handoff.summary}")
    for fact in handoff.facts:
        say(f"  {fact.key}: {fact.value}" + (f"  [{', '.join(fact.labels)}]" if fact.labels else ""))
    say("\ndecide with one of")
    say(f"  mesh human resolve {request} --to AGENT --note '…'         give it to an agent")
    say(f"  mesh human resolve {request} --again                       let the same agent go on")
    say(f"  mesh human resolve {request} --complete --answer '…'       answer it yourself")


@app.command("resolve")
@on_the_bus
async def resolve(
    where: Where,
    request: RequestArgument,
    to: Annotated[str | None, typer.Option("--to", help="Give it to this agent.", show_default=False)] = None,
    again: Annotated[bool, typer.Option("--again", help="Let the agent whose turn it ended go on.")] = False,
    complete: Annotated[bool, typer.Option("--complete", help="Answer the request.")] = False,
    answer: Annotated[str | None, typer.Option("--answer", help="The answer.", show_default=False)] = None,
    note: Annotated[str, typer.Option("--note", help="What whoever gets it should know.")] = "",
    fact: FactOption = None,
    by: By = "",
) -> None:
    """Decide an escalation: to an agent, again, or complete; by default back to whose turn it ended."""
    import secrets

    from mesh.cli.controlling import carry_out
    from mesh.cli.errors import UsageWrong
    from mesh.cli.reading import decoded, request_bodies
    from mesh.cli.waiting import escalation_in
    from protocol.events import RequestCompleted
    from protocol.handoff import Fact
    from protocol.ids import AgentName
    from protocol.ledger import fold
    from protocol.messages import Resolve

    complete = complete or answer is not None
    if (to is not None) + again + complete > 1:
        raise UsageWrong("one of --to, --again and --complete")
    if complete and answer is None:
        raise UsageWrong("--complete needs an --answer")
    facts = tuple(Fact(key=key, value=value) for key, value in parse_facts(fact).items())
    async with await where.connect("operator") as bus:
        turn = escalation_in(fold(decoded(await request_bodies(bus, request))))
        order = Resolve(
            id=secrets.token_hex(8),
            by=person(by),
            turn=turn.id,
            to=None if to is None else AgentName(to),
            again=again,
            complete=complete,
            answer=answer,
            summary=note,
            facts=facts,
        )
        event = await carry_out(bus, bus.name, request, order)
    if isinstance(event, RequestCompleted):
        say(f"{request} is completed (event {event.n})")
    else:
        say(f"{request} went to {event.to} (event {event.n})")
