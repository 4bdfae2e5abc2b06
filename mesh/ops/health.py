"""A mesh looked over: bus, durability, limits, guards, dead letters and clocks; its fleet, and what waits.

A check never guesses: what these credentials or this server cannot tell is `unknown`, and the word
*durable* is used only of a server that was seen to fsync each message. A stream keeps a message on so many
servers (`num_replicas`), and a majority of them acknowledges it. Each server's own `sync_interval` says when
it puts a message on its disk; only its monitoring shows that.
"""

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import every, get, microseconds, up_to
from mesh.bus.roles import ADMIN
from mesh.bus.streams import CONTROLS, QUEUE_CONSUMERS, TIMERS, is_journal_stream, kind_of, stream_names
from mesh.errors import ApiError, BusError, Denied, MeshError, NotFound, ProtocolError, TimedOut
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import apply
from mesh.ops.log import read_each
from mesh.ops.roster import card_of, fleet_of, inbox_state, instances, mesh_freeze
from mesh.service.printable import counted, when
from mesh.settings import Access
from protocol.domain.ledger import fold
from protocol.wire import codec, subjects
from protocol.wire.config import DocumentInvalid, read_breaker, read_fleet, read_policy, read_prices
from protocol.wire.notices import Card
from protocol.wire.prices import price_list, price_of

OLDEST_SERVER = (2, 12)
FULL = 0.8
"""Share of a limit from which on it is worth a word."""
MOST_TIMER_BYTES = 256 << 20
"""Of schedules: about half a million open requests. The server takes no limit for a stream of schedules."""
LEAST_FOR_LOG = 1 << 30
"""Bytes of a store that no other stream's limit should claim: the log has what the others leave."""
SKEW_S = 1.0
_TIMEOUT_S = 5.0
_MOST_WAITING = 200
"""Events of an inbox that are looked into."""
_SHOWN = 3
_BY_RULES = "scripted"
_NO_ID = frozenset({"", _BY_RULES, "claude"})
"""What a card says of a model whose id it does not know, or which costs nothing."""
_FOR_EVERYBODY = {"streams", "guards", "dead letters"}
"""Checks that every viewer can make."""

State = Literal["ok", "found", "unknown"]
Results = AsyncIterator[tuple[State, str]]
"""What a check yields: `found` for each thing that is wrong, or one `ok` or `unknown`, and why."""
Varz = Mapping[str, Any]
"""What a server's monitoring says of it under `/varz`."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check."""

    check: str
    state: State
    """`found`: something is wrong. `unknown`: these credentials or this server cannot tell."""
    text: str


class Look(NamedTuple):
    """What the checks look at."""

    bus: Bus
    varz: Sequence[Varz] = ()
    """Of the servers whose monitoring answered."""
    file: FleetFile | None = None
    """To compare the server with; the admin's alone."""


async def examine(access: Access, file: FleetFile | None, monitor: str | None) -> list[Finding]:
    """Return the results of all checks, in order.

    Args:
        file: the fleet file to compare the server with, as the admin.
        monitor: the known URLs of the servers' monitoring, separated by commas.

    Raises Unreachable, AuthenticationFailed, NoCredentials.
    """
    async with await access.connect() as bus:
        connected = Finding(check="connection", state="ok", text=f"{access.url} as {access.name}")
        look = Look(bus, await varz_of(monitor), file if access.name == ADMIN else None)
        return [connected, *[finding for check in CHECKS for finding in await run(check, look)]]


async def run(check: str, look: Look) -> list[Finding]:
    """Return the results of one of `CHECKS`. If it finds nothing, the one result says so."""
    make, well = CHECKS[check]
    found: list[tuple[State, str]] = []
    try:
        found = [each async for each in make(look)] or [("ok", well)]
    except Denied as denied:
        found = [("unknown", f"{look.bus.name} may not ask: {denied}")]
    except ApiError as error:
        found = [("found", f"{error.description} ({error.err_code}); run `mesh setup`")]
    except (NotFound, BusError, ProtocolError) as error:
        found = [("found", str(error))]
    return [Finding(check=check, state=state, text=text) for state, text in found]


def cannot_look(findings: Iterable[Finding]) -> bool:
    """Return True if nothing was told of what makes a mesh work: that nothing is found then means nothing."""
    states = {finding.check: finding.state for finding in findings if finding.check in _FOR_EVERYBODY}
    return set(states) == _FOR_EVERYBODY and set(states.values()) == {"unknown"}


# --- the bus --------------------------------------------------------------------------------------


async def _server(look: Look) -> Results:
    greeting = look.bus.greeting
    version = str(greeting.get("version", "?"))
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdecimal()) < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        yield "found", f"nats-server {version}; this needs {oldest} or newer"
    elif not greeting.get("jetstream"):
        yield "found", f"nats-server {version} runs without JetStream"
    else:
        yield "ok", f"nats-server {version} with JetStream"


async def _streams(look: Look) -> Results:
    if look.file is not None:
        try:
            changes = await apply(look.bus, look.file, dry_run=True)
        except BusError:
            raise
        except MeshError as unsafe:
            yield "found", f"{unsafe} [{unsafe.code}]"
            return
        for change in changes:
            yield "found", f"`mesh setup` would {change.action} {change.what}"
        return
    missing = []
    for stream in stream_names(await fleet_of(look.bus)):
        try:
            await look.bus.api(f"STREAM.INFO.{stream}")
        except ApiError:
            missing.append(stream)
    if missing:
        yield "found", f"missing: {', '.join(missing)}; run `mesh setup`"
    else:
        yield "ok", "all there; whether they are right only the admin can tell, with the fleet file"


async def _limits(look: Look) -> Results:
    is_log_limited = False
    for stream in stream_names(await fleet_of(look.bus)):
        info = await look.bus.api(f"STREAM.INFO.{stream}")
        config, state = info["config"], info["state"]
        for limit, used in (("max_bytes", state["bytes"]), ("max_msgs", state["messages"])):
            most = int(config.get(limit, -1))
            if most > 0 and used >= FULL * most:
                room = ": mesh log trim-steps" if is_journal_stream(stream) else ""
                yield "found", f"{stream} has {used} of {limit} {most} ({used / most:.0%}){room}"
        if stream == "LOG":
            is_log_limited = int(config.get("max_bytes", -1)) > 0
        if stream == TIMERS and state["bytes"] > MOST_TIMER_BYTES:
            yield "found", f"{TIMERS}, which can have no limit, has {state['bytes']} bytes"
    for server in look.varz:
        stats = (server.get("jetstream") or {}).get("stats") or {}
        most = int(_config(server).get("max_storage", 0))
        used, promised = int(stats.get("storage", 0)), int(stats.get("reserved_storage", 0))
        store = f"the store of {_name(server)}"
        if most > 0 and used >= FULL * most:
            yield "found", f"{store} has {used} of {most} bytes ({used / most:.0%})"
        if most > 0 and not is_log_limited and most - promised < LEAST_FOR_LOG:
            yield (
                "found",
                f"{store} has {most} bytes, and {promised} are promised to others than LOG: give it a larger "
                "store (max_file_store), or LOG room of its own (max_bytes under [log] in the fleet file)",
            )


async def _guards(look: Look) -> Results:
    # While the mesh is frozen, control messages alone are taken.
    queues = [name for name in stream_names(await fleet_of(look.bus)) if kind_of(name) == CONTROLS]
    asked = [(queue, f"CONSUMER.INFO.{queue}.{consumer}") for queue in queues for consumer in QUEUE_CONSUMERS]
    idle = {queue: None for queue, verb in asked if not (await look.bus.api(verb))["num_waiting"]}
    if idle:
        yield "found", f"no guard takes from {', '.join(idle)}; run `mesh guard run`"


async def _dead_letters(look: Look) -> Results:
    count = int((await look.bus.api("STREAM.INFO.DEAD"))["state"]["messages"])
    if count:
        yield "found", f"there {'is' if count == 1 else 'are'} {counted(count, 'dead letter')}: mesh dead ls"


async def _clock(look: Look) -> Results:
    before = time.time()
    said = (await look.bus.api("STREAM.INFO.LOG")).get("ts")
    after = time.time()
    if not said:
        yield "unknown", "the server does not say what time it has"
        return
    theirs = microseconds(said) / 1e6
    skew = max(before - theirs, theirs - after, 0.0)
    if skew > SKEW_S:
        yield "found", f"the server's clock and this machine's are {skew:.1f} s apart"


# --- what outlives a crash ------------------------------------------------------------------------


async def varz_of(monitors: str | None) -> list[Varz]:
    """Return what each server says whose monitoring answers, of URLs separated by commas."""
    urls = [url.strip().rstrip("/") for url in (monitors or "").split(",") if url.strip()]
    answers = await asyncio.gather(*(asyncio.to_thread(_varz, url) for url in urls))
    return [answer for answer in answers if answer is not None]


def _varz(url: str) -> Varz | None:
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"{url}/varz", timeout=_TIMEOUT_S) as answer,
    ):
        return dict(json.load(answer))
    return None


async def _durability(look: Look) -> Results:
    """Find crashes through which messages are lost."""
    replicas, holders, behind, silent = dict[str, int](), dict[str, None](), set[str](), list[str]()
    streams = stream_names(await fleet_of(look.bus))
    infos = await asyncio.gather(*(_info(look, each) for each in streams))
    for stream, info in zip(streams, infos, strict=True):
        if info is None:
            silent.append(stream)
            continue
        replicas[stream] = int(info["config"]["num_replicas"])
        cluster = info.get("cluster", {})
        others = cluster.get("replicas", ())
        holders |= dict.fromkeys(filter(None, (cluster.get("leader"), *(each["name"] for each in others))))
        behind |= {each["name"] for each in others if each.get("offline") or not each["current"]}
    if silent:
        yield "found", f"nobody answers for {', '.join(silent)}: no server of theirs is up, or they elect"
    if not (log := replicas.get("LOG", 0)):
        return
    if fewer := [f"{stream} ({count})" for stream, count in replicas.items() if count < log]:
        yield "found", f"kept by fewer servers than the log ({log}): {', '.join(fewer)}; run `mesh setup`"
    if behind:
        yield "found", f"away, or without everything yet: {', '.join(sorted(behind))}"
    yield _synced(log, holders, {_name(server): server for server in look.varz})


async def _info(look: Look, stream: str) -> dict[str, Any] | None:
    try:
        return await look.bus.api(f"STREAM.INFO.{stream}")
    except TimedOut:  # it has no leader
        return None


def _synced(replicas: int, holders: Iterable[str], seen: Mapping[str, Varz]) -> tuple[State, str]:
    by = f"the log is kept by {'one server' if replicas == 1 else f'{replicas} servers'}"
    if not seen:
        return "unknown", f"{by}; name the monitoring of each (--monitor URL,URL) to see sync_interval"
    holders = tuple(holders) or tuple(seen)
    configs = {name: _config(seen[name]) for name in holders if name in seen}
    hidden = ", ".join(name for name in holders if name not in seen)
    unseen = f"; not seen: {hidden} (--monitor takes several URLs)" if hidden else ""
    lazy = [
        f"{name} ({int(config.get('sync_interval', 0)) / 1e9:g} s)"
        for name, config in configs.items()
        if not config.get("sync_always")
    ]
    if lazy:
        return "found", (
            f"not fsynced before it is acknowledged (sync_interval of {', '.join(lazy)}), {by}: "
            f"what was acknowledged last can be lost when {_loses(replicas)}{unseen}"
        )
    if hidden:
        return "unknown", f"{by}; sync_interval is always on {', '.join(configs) or 'none of them'}{unseen}"
    return "ok", f"durable: sync_interval always, {by}; {_survives(replicas)}"


def _loses(replicas: int) -> str:
    return "a machine stops" if replicas == 1 else "machines stop at once, or one before the others have it"


def _survives(replicas: int) -> str:
    """Return how many disks may be lost: a majority has every acknowledged message."""
    spare = (replicas - 1) // 2
    if not spare:
        return "the loss of a disk is the loss of what is on it" if replicas == 1 else "no disk may be lost"
    return f"{'a disk' if spare == 1 else f'{spare} disks'} may be lost"


def _name(varz: Varz) -> str:
    return str(varz.get("server_name") or varz.get("server_id") or "?")


def _config(varz: Varz) -> Mapping[str, Any]:
    return dict((varz.get("jetstream") or {}).get("config") or {})


# --- the fleet ------------------------------------------------------------------------------------


async def _documents(look: Look) -> Results:
    policies = subjects.POLICIES.removesuffix("*")
    async for kept in every(look.bus, "CONF", None):
        name, refused = kept.subject.removeprefix(policies), "new requests"
        try:
            if kept.subject == subjects.FLEET:
                read_fleet(kept.data)
            elif kept.subject == subjects.PRICES:
                read_prices(kept.data)
            elif name != kept.subject:
                refused = "requests under it"
                read_policy(kept.data, name)
        except DocumentInvalid as invalid:
            so = f"{invalid}; guards refuse {refused}: say it in the fleet file, and run `mesh setup`"
            yield "found", f"{kept.subject} cannot be read: {so}"


async def _freeze(look: Look) -> Results:
    stands = await mesh_freeze(look.bus)
    if stands.frozen:
        yield "found", stands.notice


async def _breakers(look: Look) -> Results:
    async for kept in every(look.bus, "CONF", subjects.BREAKERS):
        agent = kept.subject.rpartition(".")[2]
        try:
            entry = read_breaker(kept.data)
        except DocumentInvalid as invalid:
            yield "found", f"the entry of {agent} cannot be read ({invalid}): taken for open, until a trial"
            continue
        if entry.state != "closed":
            work = "no work" if entry.state == "open" else "one piece of work, to see how that goes"
            so = f"{entry.state} since {when(entry.opened_at or kept.at)}"
            yield "found", f"the breaker of {agent} is {so}: it failed too often, it is given {work}"


async def _agents(look: Look) -> Results:
    fleet = await fleet_of(look.bus)
    alive = await instances(look.bus, fleet.agents)
    if alive is None:
        yield "unknown", f"{look.bus.name} may not ask which agents are served"
        return
    away = [name for name in fleet.agents if not alive[name]]
    for name in away:
        yield "found", f"nobody serves {name}; {await _what_waits(look.bus, name)}"
    if not away:
        yield "ok", "all are served: " + ", ".join(f"{name} ({len(alive[name])})" for name in fleet.agents)


async def _what_waits(bus: Bus, agent: str) -> str:
    """Return how many open turns wait for an agent, and since when."""
    pending, from_seq = await inbox_state(bus, agent)
    if not pending:
        return "nothing waits for it"
    stored = await up_to(bus, "LOG", subjects.inbox(agent), from_seq, _MOST_WAITING)
    read = await read_each(bus, (each.subject.rpartition(".")[2] for each in stored), skip_ended=True)
    held = sorted(
        (turn.clock, request)
        for request, happened in read.items()
        for turn in (fold(happened).open.values() if happened else ())
        if turn.agent == agent and turn.state == "working"
    )
    if not held:
        return "nothing that is still open waits for it"
    many = f"{counted(len(held), 'handoff')} wait{'s' if len(held) == 1 else ''}"
    shown = ", ".join(f"{when(since)} ({request})" for since, request in held[:_SHOWN])
    rest = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return f"{'at least ' if pending > _MOST_WAITING else ''}{many} for it, the oldest since {shown}{rest}"


async def _rules(look: Look) -> Results:
    fleet = await fleet_of(look.bus)
    if without := await without_rules(look.bus, fleet.agents, human=fleet.human):
        yield "found", without


async def without_rules(bus: Bus, agents: Iterable[str], *, human: bool) -> str:
    """Return which agents, by their own cards, go by rules and have none; empty if none do.

    Args:
        human: whether people can be asked.
    """
    cards = {name: await card_of(bus, name) for name in agents}
    without = [name for name, card in cards.items() if card and card.no_rules and card.model == _BY_RULES]
    if not without:
        return ""
    have, them = ("has", "it") if len(without) == 1 else ("have", "them")
    fate = "goes to a person" if human else "fails"
    return (
        f"{', '.join(without)} {have} no rules to go by in the place of a model, so that what is given to "
        f"{them} {fate}: give {them} some (script=), or ask the real model (--model claude, with a key)"
    )


async def unpriced(bus: Bus) -> str:
    """Return which models of which agents have no price; empty if none. Raises NotFound, DocumentInvalid."""
    kept = await get(bus, "CONF", subjects.PRICES)
    prices = price_list({} if kept is None else read_prices(kept.data))
    agents = (await fleet_of(bus)).agents
    missing: dict[str, list[str]] = {}
    async for each in every(bus, "CARDS", subjects.CARDS):
        name, said = each.subject.rpartition(".")[2], codec.readable(each.data, Card)
        model = "" if said is None else said.model
        if name in agents and model not in _NO_ID and price_of(model, prices) is None:
            missing.setdefault(model, []).append(name)
    named = "; ".join(f"{model} of {', '.join(sorted(names))}" for model, names in sorted(missing.items()))
    return named and f"no price is known of {named}: say [prices] in the fleet file and run `mesh setup`"


async def _prices(look: Look) -> Results:
    """Find models without a price: that is wrong where a policy gives budgets in dollars."""
    missing, limits = await unpriced(look.bus), []
    if not missing:
        return
    async for kept in every(look.bus, "CONF", subjects.POLICIES):
        with contextlib.suppress(DocumentInvalid):  # another check tells of it
            policy = read_policy(kept.data, kept.subject.rpartition(".")[2])
            if policy.budget is not None and policy.budget.nano_dollars is not None:
                limits.append(policy.name)
    if limits:
        yield "found", f"{missing}; policy {', '.join(limits)} limits dollars"
    else:
        yield "unknown", missing


CHECKS: Mapping[str, tuple[Callable[[Look], Results], str]] = {
    "server": (_server, ""),
    "streams": (_streams, "streams, consumers, fleet and policies are as the fleet file wants them"),
    "documents": (_documents, "fleet, policies and prices can be read"),
    "durability": (_durability, ""),
    "limits": (_limits, f"every stream is below {FULL:.0%} of its limits"),
    "guards": (_guards, "every queue is served"),
    "agents": (_agents, ""),
    "rules": (_rules, "no agent goes by rules and has none"),
    "breakers": (_breakers, "none is open"),
    "freeze": (_freeze, "the mesh is not frozen"),
    "dead letters": (_dead_letters, "none"),
    "prices": (_prices, "every model that a card names has one"),
    "clock": (_clock, f"the server's clock and this machine's agree within {SKEW_S:g} s"),
}
"""Each check, and its text if it finds nothing."""
