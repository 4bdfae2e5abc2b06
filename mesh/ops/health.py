"""`mesh doctor`: checks of bus, durability, limits, guards, dead letters, clocks, fleet and what waits.

A check never guesses: what these credentials or this server cannot tell is `unknown`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.credentials import NO_FILES, TlsFiles
from mesh.bus.event_log import check_form
from mesh.bus.reader import listing, stream_info
from mesh.bus.roles import ADMIN
from mesh.bus.sizes import left_for_log
from mesh.bus.streams import CONTROLS, LOG, TIMERS, is_journal_stream, kind_of, queue_consumers, stream_table
from mesh.errors import ApiError, BusError, Denied, MeshError, NotFound, ProtocolError
from mesh.fleet.file import FleetFile
from mesh.fleet.scaling import may_be_at_zero
from mesh.fleet.setup import apply
from mesh.ops import fleet_checks
from mesh.ops.archive import losses
from mesh.ops.checks import Results, State, changed, clocks, lane, some, who_fills_it
from mesh.ops.dead_letters import letters
from mesh.ops.requeue import requeue
from mesh.ops.roster import fleet_of
from mesh.ops.schedules import ticking
from mesh.ops.servers import (
    Jsz,
    KeyFile,
    SignedAccounts,
    Varz,
    config_of,
    durability,
    jsz_of,
    name_of,
    reloaded,
    varz_of,
)
from mesh.ops.shadows import judging
from mesh.service.printable import counted, when
from mesh.settings import Access

OLDEST_SERVER = (2, 12)
MOST_LETTERS = 1_000
"""Most dead letters that are read to count those of one message once; each may have 350 KB."""
MOST_EVENTS = 100_000
"""Of a log that is folded whole, to find open turns without a message: a second or two."""
FULL = 0.8
"""Share of a limit from which on it is worth a word."""
MOST_TIMER_BYTES = 256 << 20
"""Most schedules: about half a million open requests. The server takes no limit for a stream of schedules."""
EXPIRES_DAYS = 14
"""From when on a certificate's end is worth a word."""
_MOST_CHANGES = 10
"""Changes of one kind that are told one by one: a new mesh needs thousands."""
_BETWEEN_PULLS_S = 1.0
"""How long a queue is watched before it counts as not pulled from: a guard may be between two pulls."""
_AGAIN_S = 0.1
_FOR_EVERYBODY = {"streams", "guards", "dead letters"}
"""Checks that every viewer can make."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check."""

    check: str
    state: State
    text: str


class Look(NamedTuple):
    """What the checks inspect."""

    bus: Bus
    varz: Sequence[Varz] = ()
    """The servers whose monitoring answered."""
    file: FleetFile | None = None
    """To compare the server with; the admin's alone."""
    archive: str = ""
    """URL of the archive that the fleet file names."""
    keys: KeyFile | SignedAccounts | None = None
    """What each server should have read, or been handed; None if it is elsewhere."""
    tls: TlsFiles = NO_FILES
    """Certificates of whoever looks."""
    may_sleep: Collection[str] = ()
    """Agents that may have no process while nothing waits for them."""
    stores: Sequence[Jsz] = ()
    """What the servers have of every stream."""


async def examine(
    access: Access,
    file: FleetFile | None,
    monitor: str | None,
    keys: KeyFile | SignedAccounts | None = None,
) -> list[Finding]:
    """Return the results of all checks, in order.

    Args:
        file: the fleet file to compare the server with, as the admin.
        monitor: the known URLs of the servers' monitoring, separated by commas.
        keys: what each server should have read, or been handed; None if it is elsewhere.

    Raises Unreachable, AuthenticationFailed, NoCredentials.
    """
    async with await access.connect() as bus:
        connected = Finding(check="connection", state="ok", text=f"{access.url} as {access.name}")
        compared = file if access.name == ADMIN else None
        archive = "" if file is None else file.log.archive
        may_sleep = () if file is None else may_be_at_zero(file.scales)
        seen, stores = await asyncio.gather(varz_of(monitor), jsz_of(monitor))
        look = Look(bus, seen, compared, archive, keys, access.tls, may_sleep, stores)
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
    """Return True if nothing essential could be read: then a report without findings means nothing."""
    states = {finding.check: finding.state for finding in findings if finding.check in _FOR_EVERYBODY}
    return set(states) == _FOR_EVERYBODY and set(states.values()) == {"unknown"}


async def _certificates(look: Look) -> Results:
    """Find certificates that expire soon: the server's, and those of whoever looks."""
    ends = look.tls.expire()
    until = {
        f"the authority {look.tls.ca}": ends.get("authority"),
        f"the certificate {look.tls.cert}": ends.get("own"),
        "the certificate of the bus's server": look.bus.certificate_until,
    }
    for what, at in until.items():
        if at is not None and at - time.time() < EXPIRES_DAYS * 86_400:
            yield "found", f"{what} expires at {when(int(at * 1e6))}: put a new one in its place"


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
        for action in dict.fromkeys(change.action for change in changes):
            whats = [change.what for change in changes if change.action == action]
            if len(whats) > _MOST_CHANGES:
                whats = [f"{some(whats)}: see mesh setup --dry-run"]
            for what in whats:
                yield "found", f"`mesh setup` would {action} {what}"
        return
    there = await listing(look.bus)
    known = there.streams.keys() | there.leaderless
    if missing := [stream for stream in stream_table(await fleet_of(look.bus)) if stream not in known]:
        names = some(missing) if len(missing) > _MOST_CHANGES else ", ".join(missing)
        yield "found", f"missing: {names}; run `mesh setup`"
    else:
        yield "ok", "all there; whether they are right only the admin can tell, with the fleet file"


async def _log_use(look: Look) -> Results:
    await check_form(look.bus)
    async for each in who_fills_it(look.bus):
        yield each


async def _limits(look: Look) -> Results:
    is_log_limited, there = False, await listing(look.bus)
    for stream in stream_table(await fleet_of(look.bus)):
        for each in there.used(stream):
            if stream == LOG and each.limit == "max_bytes":
                is_log_limited = True
            if each.share >= FULL:
                room = ": mesh log trim-steps" if is_journal_stream(stream) else ""
                full = f"{each.used} of {each.limit} {each.most} ({each.share:.0%})"
                yield "found", f"{stream} has {full}{room}"
        if stream == TIMERS and (held := there.info(stream)["state"]["bytes"]) > MOST_TIMER_BYTES:
            yield "found", f"{TIMERS}, which can have no limit, has {held} bytes"
    for server in look.varz:
        stats = (server.get("jetstream") or {}).get("stats") or {}
        most = int(config_of(server).get("max_storage", 0))
        used, promised = int(stats.get("storage", 0)), int(stats.get("reserved_storage", 0))
        store = f"the store of {name_of(server)}"
        if most > 0 and used >= FULL * most:
            yield "found", f"{store} has {used} of {most} bytes ({used / most:.0%})"
        if most > 0 and not is_log_limited and most - promised < left_for_log(promised):
            yield (
                "found",
                f"{store} has {most} bytes, and {promised} are promised to others than LOG: give it a larger "
                "store (max_file_store), or LOG room of its own (max_bytes under [log] in the fleet file)",
            )


async def _guards(look: Look) -> Results:
    # While the mesh is frozen, control messages alone are taken.
    fleet = await fleet_of(look.bus)
    queues = [name for name in stream_table(fleet) if kind_of(name) == CONTROLS]
    consumers = queue_consumers(fleet.partitions)
    asked = [(queue, f"CONSUMER.INFO.{queue}.{consumer}") for queue in queues for consumer in consumers]
    until, first = time.monotonic() + _BETWEEN_PULLS_S, dict[str, int]()
    while True:
        asked = [each for each in asked if not await _is_taken_from(look.bus, each[1], first)]
        if not asked or time.monotonic() > until:
            break
        await asyncio.sleep(_AGAIN_S)
    if asked:
        idle = dict.fromkeys(queue for queue, _ in asked)
        yield "found", f"no guard takes from {', '.join(idle)}; run `mesh guard run`"


async def _is_taken_from(bus: Bus, info: str, first: dict[str, int]) -> bool:
    """Return True if a guard asks for messages, or took some: one with a backlog hardly ever waits for any.

    Args:
        first: by consumer: how many it had delivered at the first look, which is added.
    """
    found = await bus.api(info)
    delivered = int(found["delivered"]["consumer_seq"])
    return bool(found["num_waiting"]) or delivered != first.setdefault(info, delivered)


async def _queues(look: Look) -> Results:
    """Find open turns that nobody will be given, as in a store that was copied while its server ran."""
    if look.bus.name != ADMIN:
        yield "unknown", "only the admin can look into every queue: mesh requeue --dry-run"
        return
    if (events := int((await stream_info(look.bus, "LOG"))["state"]["messages"])) > MOST_EVENTS:
        yield "unknown", f"the log has {events} events; to look at all of them: mesh requeue --dry-run"
        return
    found = await requeue(look.bus, dry_run=True, leases=0)
    if found.turns:
        have = "has" if len(found.turns) == 1 else "have"
        yield "found", f"{counted(len(found.turns), 'open turn')} {have} no message: mesh requeue"
    if found.queues:
        yield "found", f"guards are not given what waits in {', '.join(found.queues)}: mesh requeue"


async def _dead_letters(look: Look) -> Results:
    count = int((await stream_info(look.bus, "DEAD"))["state"]["messages"])
    if count <= MOST_LETTERS:  # of more, a few that are about one message make no difference
        count = len([seq async for seq, _ in letters(look.bus)])
    if count:
        yield "found", f"there {'is' if count == 1 else 'are'} {counted(count, 'dead letter')}: mesh dead ls"


CHECKS: Mapping[str, tuple[Callable[[Look], Results], str]] = {
    "server": (_server, ""),
    "streams": (_streams, "streams, consumers, fleet and policies are as the fleet file wants them"),
    "changes": (
        lambda look: changed(look.bus),
        "nobody changed fleet, policies or prices in the last day",
    ),
    "documents": (lambda look: fleet_checks.documents(look.bus), "fleet, policies and prices can be read"),
    "shadows": (lambda look: judging(look.bus), "no policy has one"),
    "schedules": (lambda look: ticking(look.bus), "there is none"),
    "durability": (lambda look: durability(look.bus, look.varz, look.stores), ""),
    "keys": (lambda look: reloaded(look.varz, look.keys), "no server lacks what was written here"),
    "certificates": (_certificates, f"none that is seen from here expires within {EXPIRES_DAYS} days"),
    "limits": (_limits, f"every stream is below {FULL:.0%} of its limits"),
    "log": (_log_use, "nothing was written in the last day"),
    "archive": (lambda look: losses(look.bus, look.archive), "the log is empty"),
    "guards": (_guards, "every queue is served"),
    "queues": (_queues, "every open turn has a message, or waits for something"),
    "lane": (lambda look: lane(look.bus), ""),
    "agents": (lambda look: fleet_checks.agents(look.bus, look.may_sleep), ""),
    "permissions": (
        lambda look: fleet_checks.permissions(look.bus),
        "each agent has a limit in the fleet file",
    ),
    "rules": (lambda look: fleet_checks.rules(look.bus), "no agent goes by rules and has none"),
    "breakers": (lambda look: fleet_checks.open_breakers(look.bus), "none is open"),
    "freeze": (lambda look: fleet_checks.freeze(look.bus), "the mesh is not frozen"),
    "people": (lambda look: fleet_checks.people(look.bus), ""),
    "dead letters": (_dead_letters, "none"),
    "prices": (lambda look: fleet_checks.prices(look.bus), "every model that a card names has one"),
    "artifacts": (lambda look: fleet_checks.artifacts(look.bus), "the store of artifacts answers"),
    "clock": (lambda look: clocks(look.bus), ""),
}
"""Each check, and its text if it finds nothing."""
