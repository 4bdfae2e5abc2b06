"""`mesh human …`: what waits for people, and what they decide."""

from typing import TYPE_CHECKING, Annotated

import typer

from mesh.cli.facts import FactOption, parse_facts
from mesh.cli.human_watch import watch
from mesh.cli.options import AsJson, By, Output, RequestArgument, Tier, Where, on_the_bus, person
from mesh.cli.output import Format, chosen, emit, report, say, short, table, when
from mesh.cli.output import show as show_text

if TYPE_CHECKING:
    from mesh.bus.connection import Bus
    from mesh.ops.queue import Waiting
    from protocol.wire.handoff import Handoff

app = typer.Typer(
    help="What waits for people: list, show, resolve, reply, assign, watch.", no_args_is_help=True
)

_READERS = ("operator", "viewer", "admin")


@app.command("ls")
@on_the_bus
async def ls(where: Where, tier: Tier = None, output: Output = Format.TABLE, as_json: AsJson = False) -> None:
    """List what waits for people, the oldest first: escalations, questions, effects in doubt."""
    from mesh.ops.queue import people_of, queue, require_tier

    async with await where.connect(*_READERS) as bus:
        if tier is not None:
            require_tier(tier, await people_of(bus))
        found = [each for each in await queue(bus) if tier in (None, each.tier_name)]
    if chosen(output, as_json) is Format.JSON:
        emit(found)
        return
    table(
        ("request", "since", "from", "what", "tier", "person", "summary"),
        [
            (
                each.request,
                when(each.since),
                each.from_agent,
                each.what,
                each.tier_name or each.tier or "",
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
    from mesh.cli.story import story
    from mesh.ops.queue import escalation_in, waiting_in
    from mesh.ops.requests import decoded, request_bodies
    from protocol.ledger import fold
    from protocol.views.timeline import timeline

    async with await where.connect(*_READERS) as bus:
        bodies = await request_bodies(bus, request)
    happened = decoded(bodies)
    ledger = fold(happened)
    waits = waiting_in(happened, bus.name)
    if not waits:
        escalation_in(ledger)  # says why there is nothing to show
    waiting = waits[0]
    handoff = ledger.turns[waiting.turn].work.handoff  # type: ignore[index]
    if chosen(output, as_json) is Format.JSON:
        emit({"waiting": waiting, "handoff": handoff, "timeline": timeline(happened)})
        return
    show_text(*story(timeline(happened)))
    _say_what_is_known(handoff)
    say("")
    say("decide with one of")
    for line in _choices(waiting):
        say(f"  {line}")


def _say_what_is_known(handoff: "Handoff") -> None:
    say("")
    say(f"wanted: {handoff.summary}")
    for fact in handoff.facts:
        say(f"  {fact.key}: {fact.value}" + (f"  [{', '.join(fact.labels)}]" if fact.labels else ""))


def _choices(waiting: "Waiting") -> list[str]:
    """Return the commands by which a person can decide this."""
    import msgspec

    from mesh.ops.queue import reply_command

    request = waiting.request
    if waiting.what == "ask":
        schema = waiting.schema
        wanted = "" if schema is None else f"a reply that follows {msgspec.json.encode(schema).decode()}: "
        command = reply_command(request, schema)
        hint = "" if command.endswith("--json-value") else "  (--json-value for what is not text)"
        return [f"{wanted}{command}{hint}"]
    if waiting.what == "doubt":
        return [
            f"mesh doubt settle {request} --done --result '…'        it happened: go on with its result",
            f"mesh doubt settle {request} --not-done                 it did not: do it now",
        ]
    return [
        f"mesh human resolve {request} --to AGENT --note '…'         give it to an agent",
        f"mesh human resolve {request} --again                       let the same agent go on",
        f"mesh human resolve {request} --again --budget tokens=N     … and grant it more",
        f"mesh human resolve {request} --complete --answer '…'       answer it yourself",
    ]


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
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="KIND=N",
            help="What it may spend from here on: dollars=0.50, tokens=20000 or model_calls=10. What is not "
            "named stays at what is left.",
            show_default=False,
        ),
    ] = None,
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Decide an escalation: to an agent, again, or complete; by default back to whose turn it ended."""
    import secrets

    from mesh.cli.submitting import parse_budget
    from mesh.ops.control import carry_out, obeyed
    from mesh.ops.errors import UsageWrong
    from mesh.ops.queue import escalation_in
    from mesh.ops.requests import decoded, request_bodies
    from protocol.ledger import fold
    from protocol.wire.commands import Resolve
    from protocol.wire.events import RequestCompleted
    from protocol.wire.handoff import Fact
    from protocol.wire.ids import AgentName

    complete = complete or answer is not None
    if (to is not None) + again + complete > 1:
        raise UsageWrong("one of --to, --again and --complete")
    if complete and answer is None:
        raise UsageWrong("--complete needs an --answer")
    granted = parse_budget(budget)
    if complete and granted is not None:
        raise UsageWrong("an answer needs no --budget")
    facts = tuple(Fact(key=key, value=value) for key, value in parse_facts(fact).items())
    async with await where.connect("operator") as bus:
        turn = escalation_in(fold(decoded(await request_bodies(bus, request))))
        if to is not None:
            await _require_agent(bus, to)
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
            budget=granted,
        )
        event = await carry_out(bus, bus.name, request, order)
    done = "is completed" if isinstance(event, RequestCompleted) else f"went to {event.to}"
    report(obeyed(event), f"{request} {done} (event {event.n})", as_json=as_json)


async def _require_agent(bus: "Bus", name: str) -> None:
    """Raise UsageWrong for what is no agent: a guard would refuse it too, and keep it as a dead letter."""
    from mesh.ops.errors import UsageWrong
    from mesh.ops.roster import fleet_of

    agents = (await fleet_of(bus)).agents
    if name not in agents:
        raise UsageWrong(f"{name!r} is no agent of this fleet; there are {', '.join(sorted(agents))}")


@app.command("reply")
@on_the_bus
async def reply(
    where: Where,
    request: RequestArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The reply: text, unless --json-value.")],
    json_value: Annotated[bool, typer.Option("--json-value", help="VALUE is JSON.")] = False,
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Reply to a question that an agent put to people, or to you as its client; the turn goes on with it.

    What was asked of a client takes the client's own key. A question may have a JSON Schema. What does not
    follow it is not sent.
    """
    import secrets

    from mesh.errors import Denied
    from mesh.ops.control import carry_out, obeyed
    from mesh.ops.queue import ask_in, client_asked
    from mesh.ops.replying import as_client, check_value, read_json, reply_as_client
    from mesh.ops.requests import decoded, request_bodies
    from protocol.ledger import fold
    from protocol.wire.commands import Reply
    from protocol.wire.events import TurnSuspended

    said = read_json(value) if json_value else value

    def order_for(asked: TurnSuspended) -> Reply:
        check_value(asked.ask.schema, said, value, json_value)
        return Reply(id=secrets.token_hex(8), by=person(by), turn=asked.turn, round=asked.round, value=said)

    async with await where.connect("operator", "client") as bus:
        try:
            happened = decoded(await request_bodies(bus, request))
        except Denied:  # a client may read what is addressed to it, and nothing else
            return await reply_as_client(bus, request, order_for, as_json=as_json)
        ledger = fold(happened)
        client = client_asked(ledger)
        if client not in ("", bus.name) and (own := await as_client(where, client)) is not None:
            async with own:
                return await reply_as_client(own, request, order_for, as_json=as_json)
        asked = happened[ask_in(ledger, bus.name).since_n]
        assert isinstance(asked, TurnSuspended)
        event = await carry_out(bus, bus.name, request, order_for(asked))
    text = f"{request}: {event.to} goes on with the reply (event {event.n})"
    report(obeyed(event), text, as_json=as_json)


@app.command("assign")
@on_the_bus
async def assign(
    where: Where,
    request: RequestArgument,
    to: Annotated[str, typer.Argument(metavar="PERSON", help="Who looks at it.")],
    by: By = "",
    as_json: AsJson = False,
) -> None:
    """Say which person looks at an escalation. It is for people to see; anybody may still resolve it."""
    import secrets

    from mesh.ops.control import carry_out, obeyed
    from mesh.ops.errors import UsageWrong
    from mesh.ops.queue import escalation_in
    from mesh.ops.requests import decoded, request_bodies
    from protocol.ledger import fold
    from protocol.wire.commands import Assign

    if not to.strip():
        raise UsageWrong("PERSON is empty")
    async with await where.connect("operator") as bus:
        turn = escalation_in(fold(decoded(await request_bodies(bus, request))))
        order = Assign(id=secrets.token_hex(8), by=person(by), turn=turn.id, to=to)
        event = await carry_out(bus, bus.name, request, order)
    report(obeyed(event), f"{request} is {to}'s to look at (event {event.n})", as_json=as_json)


app.command("watch")(watch)
