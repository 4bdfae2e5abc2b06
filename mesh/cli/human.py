"""`mesh human …`: what waits for people, and what they decide."""

import contextlib
from typing import TYPE_CHECKING, Any

import click

from mesh.cli.arguments import fact_option, parse_budget, parse_facts
from mesh.cli.exits import ended_by_signals
from mesh.cli.options import (
    Where,
    by_option,
    json_option,
    on_the_bus,
    output_options,
    person,
    remark_unreadable,
    request_argument,
    tier_option,
)
from mesh.cli.output import emit, remark, report, say, table
from mesh.cli.output import show as show_text
from mesh.errors import UsageWrong
from mesh.service.printable import short, when

if TYPE_CHECKING:
    from mesh.bus.connection import Bus
    from mesh.ops.queue import Waiting
    from mesh.ops.watch import Alarm
    from protocol.wire.handoff import Handoff

app = click.Group(help="What waits for people: list, show, resolve, reply, assign, watch.")

_READERS = ("operator", "viewer", "admin")


@app.command("ls")
@tier_option
@output_options
@on_the_bus
async def ls(where: Where, *, tier: str | None, as_json: bool) -> None:
    """List what waits for people, the oldest first: escalations, questions, effects in doubt."""
    from mesh.ops.queue import people_of, queue, require_tier

    async with await where.connect(*_READERS) as bus:
        if tier is not None:
            require_tier(tier, await people_of(bus))
        found = await queue(bus)
    remark_unreadable(found.unreadable)
    waiting = [each for each in found.waiting if tier in (None, each.tier_name)]
    if as_json:
        emit(waiting)
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
            for each in waiting
        ],
        whole=("request", "since"),
    )


@app.command("show")
@request_argument
@output_options
@on_the_bus
async def show(where: Where, *, request: str, as_json: bool) -> None:
    """Show what waits in a request, with everything that led to it."""
    from mesh.cli.story import story
    from mesh.ops.queue import waiting_at

    async with await where.connect(*_READERS) as bus:
        found = await waiting_at(bus, request)
    if as_json:
        emit(found)
        return
    show_text(*story(found.timeline))
    _say_what_is_known(found.handoff)
    say("")
    say("decide with one of")
    for line in _choices(found.waiting):
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
@request_argument
@click.option("--to", help="Give it to this agent.")
@click.option("--again", is_flag=True, help="Let the agent whose turn it ended go on.")
@click.option("--complete", is_flag=True, help="Answer the request.")
@click.option("--answer", help="The answer.")
@click.option("--note", default="", help="What whoever gets it should know.")
@fact_option
@click.option(
    "--budget",
    multiple=True,
    metavar="KIND=N",
    help="What it may spend from here on: dollars=0.50, tokens=20000 or model_calls=10. What is not "
    "named stays at what is left.",
)
@by_option
@json_option
@on_the_bus
async def resolve(
    where: Where,
    *,
    request: str,
    to: str | None,
    again: bool,
    complete: bool,
    answer: str | None,
    note: str,
    fact: tuple[str, ...],
    budget: tuple[str, ...],
    by: str,
    as_json: bool,
) -> None:
    """Decide an escalation: to an agent, again, or complete; by default back to whose turn it ended."""
    from mesh.ops import queue
    from mesh.ops.control import obeyed
    from protocol.wire.events import RequestCompleted
    from protocol.wire.handoff import Fact

    complete = complete or answer is not None
    if (to is not None) + again + complete > 1:
        raise UsageWrong("one of --to, --again and --complete")
    if complete and answer is None:
        raise UsageWrong("--complete needs an --answer")
    granted = parse_budget(budget)
    if complete and granted is not None:
        raise UsageWrong("an answer needs no --budget")
    facts = [Fact(key=key, value=value) for key, value in parse_facts(fact).items()]
    async with await where.connect("operator") as bus:
        event = await queue.resolve(
            bus,
            request,
            by=person(by),
            to=to,
            again=again,
            answer=answer,
            note=note,
            facts=facts,
            budget=granted,
        )
    done = "is completed" if isinstance(event, RequestCompleted) else f"went to {event.to}"
    report(obeyed(event), f"{request} {done} (event {event.n})", as_json=as_json)


@app.command("reply")
@request_argument
@click.argument("value", metavar="VALUE", help="The reply: text, unless --json-value.")
@click.option("--json-value", is_flag=True, help="VALUE is JSON.")
@by_option
@json_option
@on_the_bus
async def reply(where: Where, *, request: str, value: str, json_value: bool, by: str, as_json: bool) -> None:
    """Reply to a question that an agent put to people, or to you as its client; the turn goes on with it.

    What was asked of a client takes the client's own key. A question may have a JSON Schema. What does not
    follow it is not sent.
    """
    from mesh.ops import queue
    from mesh.ops.control import Obeyed
    from mesh.settings import NoCredentials

    said = _read_json(value) if json_value else value

    def check(schema: Any, said: Any) -> None:
        _check_reply(schema, said, value, json_value)

    async def connect_as(client: str) -> "Bus | None":
        own = where.default_name(client)
        if own == where:
            return None  # something says already who is asking
        try:
            return await own.connect()
        except NoCredentials:
            return None

    async with await where.connect("operator", "client") as bus:
        done = await queue.reply(bus, request, said, by=person(by), check=check, connect_as=connect_as)
    if isinstance(done, Obeyed):
        text = f"{done.to} goes on with the reply (event {done.event})"
        report(done, f"{request}: {text}", as_json=as_json)
    else:
        ended = "" if done.ended is None else f"; it has ended since: {done.ended}"
        report(done, f"{request} goes on with the reply{ended}", as_json=as_json)


def _read_json(value: str) -> Any:
    """Return a reply that was given as JSON. Raises UsageWrong."""
    import msgspec

    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as wrong:
        raise UsageWrong(f"not JSON: {value!r}") from wrong


def _check_reply(schema: Any, said: Any, value: str, is_json: bool) -> None:
    """Raise ReplyInvalid for a reply that the question does not allow."""
    import msgspec

    from mesh.agent._reply_schema import ReplyInvalid, SchemaUnusable, check_reply

    try:
        check_reply(schema, said)
    except SchemaUnusable as unusable:
        remark(f"mesh: the question's schema cannot be used, so the reply is sent unchecked: {unusable}")
    except ReplyInvalid as wrong:
        hint = ""
        if not is_json:
            with contextlib.suppress(msgspec.DecodeError, ReplyInvalid):
                check_reply(schema, msgspec.json.decode(value))
                hint = "; as JSON it would be allowed: add --json-value"
        asked = msgspec.json.encode(schema).decode()
        raise ReplyInvalid(f"not what {asked} asks for: {wrong}{hint}") from None


@app.command("assign")
@request_argument
@click.argument("to", metavar="PERSON", help="Who looks at it.")
@by_option
@json_option
@on_the_bus
async def assign(where: Where, *, request: str, to: str, by: str, as_json: bool) -> None:
    """Say which person looks at an escalation. It is for people to see; anybody may still resolve it."""
    from mesh.ops import queue
    from mesh.ops.control import obeyed

    if not to.strip():
        raise UsageWrong("PERSON is empty")
    async with await where.connect("operator") as bus:
        event = await queue.assign(bus, request, to, by=person(by))
    report(obeyed(event), f"{request} is {to}'s to look at (event {event.n})", as_json=as_json)


@app.command("watch")
@click.option("--exec", "command", metavar="CMD", help="Run this in the shell for each.")
@click.option("--once", is_flag=True, help="Tell what there is now, and end.")
@click.option(
    "--since", help="Begin with all that was raised since: a time (ISO-8601), or 90s, 10m, 2h, 1d ago."
)
@click.option("--new", is_flag=True, help="Leave out what waits already.")
@click.option(
    "--exec-timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Seconds that CMD may take.",
)
@tier_option
@json_option
@on_the_bus
async def watch(
    where: Where,
    *,
    command: str | None,
    once: bool,
    since: str | None,
    new: bool,
    exec_timeout: float,
    tier: str | None,
    as_json: bool,
) -> None:
    """Tell of escalations, questions to people, effects in doubt and dead letters, until Ctrl-C.

    It begins with what waits already, dead letters excepted. CMD has the facts in its environment:
    MESH_WHAT (escalation, ask, doubt or dead_letter), MESH_REQUEST, MESH_AGENT, MESH_SUMMARY, MESH_REASON,
    MESH_AT (UTC µs), MESH_TIER, MESH_TIER_NAME, MESH_SEQ, MESH_URL; and all of them as JSON on its standard
    input. A CMD that fails is named on standard error, and the watch goes on.
    """
    from mesh.cli.arguments import server_time
    from mesh.ops.queue import people_of, require_tier
    from mesh.ops.watch import Hooks, Watch

    if new and (once or since is not None):
        raise UsageWrong("--new tells only what comes: it goes with neither --once nor --since")

    def trouble(line: str) -> None:
        remark(f"mesh: {line}")

    begin = None if since is None else server_time(since)
    access = where.access("operator", "viewer")
    hooks = Hooks(command, within_s=exec_timeout, on_trouble=trouble)
    async with ended_by_signals(), await access.connect() as bus:
        if tier is not None:
            require_tier(tier, await people_of(bus))
        if not once:
            remark("mesh: watching; Ctrl-C ends it")
        watching = Watch(bus, access.url, on_unreadable=remark_unreadable)
        try:
            async for alarm in watching.alarms(since=begin, waiting=not new, goes_on=not once):
                if tier in (None, alarm.tier_name):
                    _tell(alarm, as_json)
                    hooks.add(alarm)
            await hooks.finish()
        finally:
            await hooks.close()


def _tell(alarm: "Alarm", as_json: bool) -> None:
    if as_json:
        emit(alarm)
        return
    about = alarm.request or "-"
    number = "" if alarm.seq is None else f" {alarm.seq}"
    said = f"{alarm.reason}: {short(alarm.summary, 160)}"
    say(f"{when(alarm.at)}  {alarm.what}{number}  {about}  {alarm.agent or '-'}  {said}")
