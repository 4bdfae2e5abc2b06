"""What `mesh doctor` looks at. Each check says `ok`, `found` (something is wrong) or `unknown`, and why.

A check never guesses: what these credentials or this server cannot tell is `unknown`, and the word
*durable* is used only of a server that was seen to fsync each message.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from mesh.bus.connection import Bus
from mesh.bus.reader import get, microseconds
from mesh.bus.roles import ADMIN
from mesh.bus.streams import CONTROLS, QUEUE_CONSUMERS, TIMERS, is_journal_stream, kind_of, stream_names
from mesh.cli import durability
from mesh.errors import ApiError, BusError, Denied, MeshError, ProtocolError
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import apply
from mesh.ops import documents, fleet_health, unpriced
from mesh.ops.errors import NotFound
from mesh.ops.findings import Finding, found, ok, unknown
from mesh.ops.roster import fleet_of
from mesh.settings import Access
from protocol.wire import codec
from protocol.wire.notices import Card
from protocol.wire.subjects import card

OLDEST_SERVER = (2, 12)
FULL = 0.8
"""Share of a limit from which on it is worth a word."""
MOST_TIMER_BYTES = 256 << 20
"""Of schedules: about half a million open requests. The server takes no limit for a stream of schedules."""
LEAST_FOR_LOG = 1 << 30
"""Bytes of a store that no other stream's limit should claim: the log has what the others leave."""
SKEW_S = 1.0
_TIMEOUT_S = 5.0
_TELLING = {"streams", "guards", "dead letters"}
"""Checks that every viewer can make."""
_BY_RULES = "scripted"


async def examine(access: Access, fleet: FleetFile | None, monitor: str | None) -> list[Finding]:
    """Return the results of all checks, in order; fewer when there is no way on the bus.

    Args:
        fleet: the fleet file to compare the server with, as the admin.
        monitor: URLs of the servers' monitoring, separated by commas, as far as they are known.

    Raises Unreachable, AuthenticationFailed, NoCredentials.
    """
    findings = [await _server(access.url)]
    async with await access.connect() as bus:
        findings.append(ok("connection", f"{access.url} as {access.name}"))
        varz = await durability.seen(monitor)
        looks: tuple[tuple[str, Callable[[], AsyncIterator[Finding]]], ...] = (
            ("streams", lambda: _streams(bus, access.name, fleet)),
            ("documents", lambda: documents.readable(bus)),
            ("durability", lambda: _durability(bus, varz)),
            ("limits", lambda: _limits(bus, varz)),
            ("guards", lambda: _guards(bus)),
            ("agents", lambda: fleet_health.agents(bus)),
            ("rules", lambda: _rules(bus)),
            ("breakers", lambda: fleet_health.breakers(bus)),
            ("freeze", lambda: fleet_health.frozen(bus)),
            ("dead letters", lambda: _dead(bus)),
            ("prices", lambda: unpriced.prices(bus)),
            ("clock", lambda: _clock(bus)),
        )
        for check, look in looks:
            try:
                findings += [finding async for finding in look()]
            except Denied as denied:
                findings.append(unknown(check, f"{access.name} may not ask: {denied}"))
            except ApiError as error:
                findings.append(found(check, f"{error.description} ({error.err_code}); run `mesh setup`"))
            except (NotFound, BusError, ProtocolError) as error:
                findings.append(found(check, str(error)))
    return findings


def cannot_look(findings: Iterable[Finding]) -> bool:
    """Say whether nothing was told of what makes a mesh work: that nothing is found then means nothing."""
    states = {finding.check: finding.state for finding in findings if finding.check in _TELLING}
    return set(states) == _TELLING and set(states.values()) == {"unknown"}


async def _server(url: str) -> Finding:
    """Read the greeting that a server sends before it asks who one is."""
    address = urlsplit(url.partition(",")[0] if "://" in url else f"nats://{url.partition(',')[0]}")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                address.hostname, address.port or 4222, limit=1 << 20
            )
            greeting = await reader.readline()
            writer.close()
            await writer.wait_closed()
        said = json.loads(greeting.partition(b" ")[2])
        version = str(said["version"])
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    except (OSError, TimeoutError, ValueError, LookupError, TypeError):
        return unknown("server", f"{url} did not greet as a NATS server does")
    if numbers < OLDEST_SERVER:
        return found(
            "server", f"nats-server {version}; this needs {'.'.join(map(str, OLDEST_SERVER))} or newer"
        )
    if not said.get("jetstream"):
        return found("server", f"nats-server {version} runs without JetStream")
    return ok("server", f"nats-server {version} with JetStream")


async def _streams(bus: Bus, name: str, fleet: FleetFile | None) -> AsyncIterator[Finding]:
    if name == ADMIN and fleet is not None:
        try:
            changes = await apply(bus, fleet, dry_run=True)
        except BusError:
            raise
        except MeshError as unsafe:
            yield found("streams", f"{unsafe} [{unsafe.code}]")
            return
        for change in changes:
            yield found("streams", f"`mesh setup` would {change.action} {change.what}")
        if not changes:
            yield ok("streams", "streams, consumers, fleet and policies are as the fleet file wants them")
        return
    fleet_there = await fleet_of(bus)
    missing = [stream for stream in stream_names(fleet_there) if await _info(bus, stream) is None]
    if missing:
        yield found("streams", f"missing: {', '.join(missing)}; run `mesh setup`")
    else:
        yield ok("streams", "all there; whether they are right only the admin can tell, with the fleet file")


async def _info(bus: Bus, stream: str) -> dict[str, Any] | None:
    try:
        return await bus.api(f"STREAM.INFO.{stream}")
    except ApiError:
        return None


async def _durability(bus: Bus, varz: Sequence[durability.Varz]) -> AsyncIterator[Finding]:
    async for finding in durability.durability(bus, stream_names(await fleet_of(bus)), varz):
        yield finding


async def _limits(bus: Bus, varz: Sequence[durability.Varz]) -> AsyncIterator[Finding]:
    near = []
    is_log_limited = False
    for stream in stream_names(await fleet_of(bus)):
        info = await bus.api(f"STREAM.INFO.{stream}")
        config, state = info["config"], info["state"]
        for limit, used in (("max_bytes", state["bytes"]), ("max_msgs", state["messages"])):
            most = int(config.get(limit, -1))
            if most > 0 and used >= FULL * most:
                room = ": mesh log trim-steps" if is_journal_stream(stream) else ""
                near.append(f"{stream} has {used} of {limit} {most} ({used / most:.0%}){room}")
        if stream == "LOG":
            is_log_limited = int(config.get("max_bytes", -1)) > 0
        if stream == TIMERS and state["bytes"] > MOST_TIMER_BYTES:
            near.append(f"{TIMERS}, which can have no limit, has {state['bytes']} bytes")
    for server in varz:
        jetstream = server.get("jetstream") or {}
        most = int((jetstream.get("config") or {}).get("max_storage", 0))
        stats = jetstream.get("stats") or {}
        used, promised = int(stats.get("storage", 0)), int(stats.get("reserved_storage", 0))
        store = f"the store of {durability.name_of(server)}"
        if most > 0 and used >= FULL * most:
            near.append(f"{store} has {used} of {most} bytes ({used / most:.0%})")
        if most > 0 and not is_log_limited and most - promised < LEAST_FOR_LOG:
            near.append(
                f"{store} has {most} bytes, and {promised} are promised to others than LOG: give it a larger "
                "store (max_file_store), or LOG room of its own (max_bytes under [log] in the fleet file)"
            )
    for line in near:
        yield found("limits", line)
    if not near:
        yield ok("limits", f"every stream is below {FULL:.0%} of its limits")


async def _guards(bus: Bus) -> AsyncIterator[Finding]:
    # While the mesh is frozen, control messages alone are taken.
    queues = [name for name in stream_names(await fleet_of(bus)) if kind_of(name) == CONTROLS]
    without = [name for name in queues if not await _is_served(bus, name)]
    if without:
        yield found("guards", f"no guard takes from {', '.join(without)}; run `mesh guard run`")
    else:
        yield ok("guards", "every queue is served")


async def _is_served(bus: Bus, queue: str) -> bool:
    asked = [f"CONSUMER.INFO.{queue}.{consumer}" for consumer in QUEUE_CONSUMERS]
    return all([int((await bus.api(verb))["num_waiting"]) for verb in asked])


async def _rules(bus: Bus) -> AsyncIterator[Finding]:
    fleet = await fleet_of(bus)
    without = await without_rules(bus, fleet.agents)
    if without:
        yield found("rules", rules_wanted(without, human=fleet.human))
    else:
        yield ok("rules", "no agent goes by rules and has none")


async def without_rules(bus: Bus, agents: Iterable[str]) -> list[str]:
    """Return those agents that go by rules in the place of a model and, by their own cards, have none."""
    without: list[str] = []
    for name in agents:
        kept = await get(bus, "CARDS", card(name))
        if kept is None:
            continue
        said = codec.readable(kept.data, Card)  # an agent writes its own card, and may write anything
        if said is not None and said.no_rules and said.model == _BY_RULES:
            without.append(name)
    return without


def rules_wanted(agents: Sequence[str], *, human: bool) -> str:
    """Return what comes of agents without rules, and what to do about it."""
    have, them = ("has", "it") if len(agents) == 1 else ("have", "them")
    fate = "goes to a person" if human else "fails"
    return (
        f"{', '.join(agents)} {have} no rules to go by in the place of a model, so that what is given to "
        f"{them} {fate}: give {them} some (script=), or ask the real model (--model claude, with a key)"
    )


async def _dead(bus: Bus) -> AsyncIterator[Finding]:
    count = int((await bus.api("STREAM.INFO.DEAD"))["state"]["messages"])
    if count:
        letters = "is 1 dead letter" if count == 1 else f"are {count} dead letters"
        yield found("dead letters", f"there {letters}: mesh dead ls")
    else:
        yield ok("dead letters", "none")


async def _clock(bus: Bus) -> AsyncIterator[Finding]:
    before = time.time()
    said = (await bus.api("STREAM.INFO.LOG")).get("ts")
    after = time.time()
    if not said:
        yield unknown("clock", "the server does not say what time it has")
        return
    theirs = microseconds(said) / 1e6
    skew = max(before - theirs, theirs - after, 0.0)
    if skew > SKEW_S:
        yield found("clock", f"the server's clock and this machine's are {skew:.1f} s apart")
    else:
        yield ok("clock", f"the server's clock and this machine's agree within {SKEW_S:g} s")
