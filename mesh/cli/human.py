"""`mesh human …`: list what waits for people, and decide it."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from mesh import ops
from mesh.bus.connection import Bus
from mesh.cli.arguments import budget_option, facts_option, read_json, server_time, since_option
from mesh.cli.bulk import Many, Words, do_to_many, one_or_many
from mesh.cli.exits import ended_by_signals
from mesh.cli.options import (
    A_PATH,
    PEOPLE,
    Where,
    decided,
    framed,
    maybe_request_argument,
    remark_unreadable,
    request_argument,
)
from mesh.cli.output import At, Id, as_json_text, emit, listing, note, paged, read_lines, report, row, say
from mesh.errors import UsageWrong
from mesh.ops.words import story
from mesh.service.printable import one_line, short
from mesh.settings import NoCredentials
from protocol.wire.events import RequestCompleted

app = click.Group(
    help="Work that waits for people: list, show, resolve, reply, approve, deny, assign, watch."
)


@app.command("ls")
@framed
async def ls(where: Where, *, tier: str | None, as_json: bool) -> None:
    """List what waits for people, the most urgent first: escalations, questions, effects in doubt."""
    async with await where.connect(*PEOPLE) as bus:
        await ops.queue.require_tier(bus, tier)
        found = await ops.queue.queue(bus)
    remark_unreadable(found.unreadable)
    listing(
        [each for each in found.waiting if tier in (None, each.tier_name)],
        {
            "request": lambda each: Id(each.request),
            "since": lambda each: At(each.since),
            "due": lambda each: At(each.due),
            "urgent": lambda each: "urgent" if each.urgent else "",
            "from": lambda each: each.from_agent,
            "what": lambda each: each.what,
            "event": lambda each: each.n,
            "tier": lambda each: each.tier_name or each.tier or "",
            "person": lambda each: each.person,
            "summary": lambda each: short(each.summary, 100),
            "reason": lambda each: each.reason,
        },
        as_json=as_json,
        spare=("event", "tier", "from", "person", "since", "what"),
    )


@app.command("show")
@request_argument
@framed
async def show(where: Where, *, request: str, at_event: int | None, as_json: bool) -> None:
    """Show the decision that a request waits for, with everything that led to it."""
    async with await where.connect(*PEOPLE) as bus:
        found = await ops.queue.waiting_at(bus, request, at_event)
    if as_json:
        emit(found)
        return
    with paged():
        read_lines(*story(found.timeline, fold=True), "", *_wanted(found), "", "decide with one of")
        for line in _choices(found.waiting, found.waiting.n if found.others else None):
            say(f"  {line}")  # whole, to be copied
        if found.others:
            read_lines("", "also waiting")
        for each in found.others:
            words = f"{each.what} from {each.from_agent}: {short(each.summary, 100)}"
            read_lines(f"  event {each.n}, {words}")


def _wanted(found: "ops.queue.WaitingAt") -> Iterator[str]:
    if found.waiting.error:
        yield f"went wrong: {one_line(found.waiting.error)}"
    yield f"wanted: {one_line(found.handoff.summary)}"
    if found.waiting.what == "doubt":
        yield f"called: {found.waiting.called}"
    for fact in found.handoff.facts:
        labels = f"  [{', '.join(fact.labels)}]" if fact.labels else ""
        yield f"  {one_line(f'{fact.key}: {fact.value}{labels}')}"


def _choices(waiting: "ops.queue.Waiting", n: int | None) -> list[str]:
    """Return the commands that decide this, with the event's number unless it is None."""
    request, event = waiting.request, ops.queue.event_option(n)
    if waiting.what == "ask":
        schema = waiting.schema
        wanted = "" if schema is None else f"a reply that follows {as_json_text(schema)}: "
        command = ops.queue.reply_command(request, schema, n=n)
        hint = "" if "--json-value" in command else "  (--json-value for what is not text)"
        commands = [f"{wanted}{command}{hint}"]
        if isinstance(schema, dict) and schema.get("type") == "boolean":
            commands = [f"mesh human approve {request}{event}", f"mesh human deny {request}{event}"]
        return commands
    if waiting.what == "doubt":
        return [
            f"mesh doubt settle {request}{event} --done --result '…'     it happened: go on with its result",
            f"mesh doubt settle {request}{event} --not-done              it did not: do it now",
        ]
    return [
        f"mesh human resolve {request}{event} --to AGENT --note '…'         give it to an agent",
        f"mesh human resolve {request}{event} --again                       let the same agent go on",
        f"mesh human resolve {request}{event} --again --budget tokens=N     … and grant it more",
        f"mesh human resolve {request}{event} --complete --answer '…'       answer it yourself",
    ]


@app.command("resolve")
@maybe_request_argument
@click.option("--to", help="Give it to this agent.")
@click.option("--again", is_flag=True, help="Let the agent that had the turn go on.")
@click.option("--complete", is_flag=True, help="Answer the request.")
@click.option("--answer", help="The answer.")
@click.option("--note", default="", help="A note to the agent that gets it.")
@facts_option
@budget_option("The most it may spend from here on: {}. A kind that is not named keeps what is left.")
@one_or_many("request")
@framed
async def resolve(
    where: Where,
    *,
    request: str,
    many: Many | None,
    complete: bool,
    at_event: int | None,
    by: str,
    as_json: bool,
    **decision: Any,
) -> None:
    """Resolve an escalation: hand it to an agent, let the same agent go on (the default), or answer it."""
    complete = complete or decision["answer"] is not None
    if (decision["to"] is not None) + decision["again"] + complete > 1:
        raise UsageWrong("one of --to, --again and --complete")
    if complete and decision["answer"] is None:
        raise UsageWrong("--complete needs an --answer")
    if complete and decision["budget"] is not None:
        raise UsageWrong("an answer needs no --budget")
    if many is not None:
        if at_event is not None:
            raise UsageWrong("--event goes with an ID: --where is for every escalation of each request")
        deed = ops.bulk.resolving({"by": by, **decision})
        await do_to_many(where, Words("resolve", "resolved"), many, deed, as_json=as_json)
        return
    async with await where.connect("operator") as bus:
        event = await ops.decisions.resolve(bus, request, by=by, n=at_event, **decision)
    words = "is completed" if isinstance(event, RequestCompleted) else f"went to {event.to}"
    decided(event, words, as_json=as_json)


@app.command("reply")
@request_argument
@click.argument("value", metavar="VALUE", help="The reply: text, unless --json-value.")
@click.option("--json-value", is_flag=True, help="VALUE is JSON.")
@framed
async def reply(
    where: Where, *, request: str, value: str, json_value: bool, at_event: int | None, by: str, as_json: bool
) -> None:
    """Answer an agent's question to people, or to you as its client; its turn goes on.

    A question to a client takes the client's own key. If the question has a JSON Schema, a reply that does
    not follow it is not sent.
    """
    given = read_json(value) if json_value else value
    await _reply(
        where,
        request,
        given,
        at_event,
        by,
        as_json,
        functools.partial(_check_reply, None if json_value else value),
    )


@app.command("approve")
@request_argument
@framed
async def approve(where: Where, *, request: str, at_event: int | None, by: str, as_json: bool) -> None:
    """Approve an action that needs approval, or answer yes to a yes/no question."""
    await _reply(where, request, True, at_event, by, as_json, _check_verdict)


@app.command("deny")
@request_argument
@framed
async def deny(
    where: Where, *, request: str, reason: str, at_event: int | None, by: str, as_json: bool
) -> None:
    """Deny an action that needs approval, or answer no to a yes/no question. The agent is told."""
    await _reply(where, request, False, at_event, by, as_json, _check_verdict, reason)


async def _reply(
    where: Where,
    request: str,
    given: Any,
    at_event: int | None,
    by: str,
    as_json: bool,
    check: Callable[[Any, Any], None],
    reason: str = "",
) -> None:
    """Send a reply once `check` accepts it, and print the result."""

    async def connect_as(client: str) -> Bus | None:
        own = where.default_name(client)
        if own is where:
            return None  # another setting already names the credentials
        try:
            return await own.connect()
        except NoCredentials:
            return None

    async with await where.connect("operator", "client") as bus:
        done = await ops.decisions.reply(
            bus, request, given, by=by, check=check, connect_as=connect_as, n=at_event, reason=reason
        )
    if isinstance(done, ops.control.Obeyed):
        report(done, f"{request}: {done.to} goes on with the reply (event {done.event})", as_json=as_json)
    else:
        ended = "" if done.ended is None else f"; it has ended since: {done.ended}"
        report(done, f"{request} goes on with the reply{ended}", as_json=as_json)


def _check_verdict(schema: Any, given: Any) -> None:
    """Raise ReplyInvalid unless a question wants yes or no."""
    from mesh.agent._reply_schema import ReplyInvalid

    if not (isinstance(schema, dict) and schema.get("type") == "boolean"):
        asked = "text" if schema is None else as_json_text(schema)
        raise ReplyInvalid(f"the question wants {asked}, not yes or no: reply with mesh human reply")
    _check_reply(None, schema, given)


def _check_reply(text: str | None, schema: Any, given: Any) -> None:
    """Raise ReplyInvalid for a reply that the question does not allow.

    Args:
        text: the reply as typed, if it was not read as JSON: the error then tells if JSON would be allowed.
    """
    from mesh.agent._reply_schema import ReplyInvalid, SchemaUnusable, check_reply

    try:
        check_reply(schema, given)
    except SchemaUnusable as unusable:
        note(f"the question's schema cannot be used, so the reply is sent unchecked: {unusable}")
    except ReplyInvalid as wrong:
        hint = ""
        if text is not None:
            with contextlib.suppress(UsageWrong, ReplyInvalid):
                check_reply(schema, read_json(text))
                hint = "; as JSON it would be allowed: add --json-value"
        asked = as_json_text(schema)
        raise ReplyInvalid(f"not what {asked} asks for: {wrong}{hint}") from None


@app.command("assign")
@request_argument
@click.argument("to", metavar="PERSON", help="The person who looks at it.")
@framed
async def assign(
    where: Where, *, request: str, to: str, at_event: int | None, by: str, as_json: bool
) -> None:
    """Name the person who looks at an escalation. It is shown to people; any of them may still resolve it."""
    if not to.strip():
        raise UsageWrong("PERSON is empty")
    async with await where.connect("operator") as bus:
        event = await ops.decisions.assign(bus, request, to, by=by, n=at_event)
    decided(event, f"is {to}'s to look at", as_json=as_json)


@app.command("watch")
@click.option("--exec", "command", metavar="CMD", help="Run this command in the shell for each.")
@click.option("--post", metavar="URL", help="Post each to this URL, signed with MESH_WEBHOOK_SECRET.")
@click.option(
    "--state",
    type=A_PATH,
    help="With --post: the file that records progress; by default one for this URL in .mesh.",
)
@click.option(
    "--post-timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="With --once: seconds that URL has to accept everything.",
)
@click.option("--once", is_flag=True, help="Report the present state, and end.")
@since_option(server_time, "Begin with everything raised since")
@click.option("--new", is_flag=True, help="Leave out work that already waits.")
@click.option(
    "--exec-timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Seconds that CMD may take.",
)
@framed
async def watch(
    where: Where,
    *,
    command: str | None,
    post: str | None,
    state: Path | None,
    post_timeout: float,
    once: bool,
    since: str | None,
    new: bool,
    exec_timeout: float,
    tier: str | None,
    as_json: bool,
) -> None:
    """Report escalations, questions to people, effects in doubt and dead letters, until Ctrl-C.

    It begins with work that already waits, without dead letters. CMD gets the details in its environment:
    MESH_WHAT (escalation, ask, doubt or dead_letter), MESH_REQUEST, MESH_AGENT, MESH_SUMMARY, MESH_REASON,
    MESH_AT (UTC µs), MESH_TIER, MESH_TIER_NAME, MESH_SEQ, MESH_URL. They are also JSON on its standard
    input. If CMD fails, standard error names it, and the watch goes on.

    With --post each is posted as JSON until the URL accepts it, in the form of Standard Webhooks. A file
    records what was accepted, so nothing is lost across a restart; the same id may come twice. With --once
    it ends with status 5 if the URL has not accepted everything in time; the next run begins there. An
    answer of 410 ends the watch with status 1; Retry-After of a 429 or 503 is followed, up to an hour.
    """
    if new and (once or since is not None):
        raise UsageWrong("--new reports only what comes later: it goes with neither --once nor --since")
    if post is None and state is not None:
        raise UsageWrong("--state goes with --post: the file records how far the URL got")
    after, outboxes = None, list[ops.delivery.Outbox]()
    if command is not None:
        outboxes.append(ops.delivery.Hook(command, within_s=exec_timeout, on_trouble=note))
    if post is not None:
        kept = ops.delivery.State(state or ops.delivery.state_of(post))
        after = kept.read()
        key = ops.delivery.key_of(os.environ.get(ops.delivery.SECRET, ""))
        outboxes.append(ops.delivery.Webhook(post, key, kept, within_s=post_timeout, on_trouble=note))
    access = where.access("operator", "viewer")
    async with ended_by_signals(), await access.connect() as bus:
        await ops.queue.require_tier(bus, tier)
        if not once:
            note("watching; Ctrl-C ends it")
        watching = ops.watch.Watch(bus, access.url, on_unreadable=remark_unreadable)

        def tell(alarm: "ops.watch.Alarm | None" = None) -> None:
            for outbox in outboxes:
                outbox.add(alarm, watching.place)

        async with ops.delivery.delivering(outboxes):
            async for alarm in watching.alarms(
                since=since, after=after, waiting=not new, goes_on=not once, on_begun=tell
            ):
                if tier not in (None, alarm.tier_name):
                    tell()
                    continue
                if as_json:
                    emit(alarm)
                else:
                    row(*_in_words(alarm))
                tell(alarm)


def _in_words(alarm: "ops.watch.Alarm") -> tuple[object, ...]:
    what = alarm.what if alarm.seq is None else f"{alarm.what} {alarm.seq}"
    reason = f"{alarm.reason}: {short(alarm.summary, 160)}"
    return At(alarm.at), what, Id(alarm.request or "-"), alarm.agent or "-", reason


# --- effects in doubt -----------------------------------------------------------------------------
