"""`mesh doctor`: checks of bus, durability, limits, guards, dead letters, clocks, fleet and what waits.

A check never guesses: what these credentials or this server cannot tell is `unknown`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from mesh.artifacts import ArtifactStore
from mesh.bus.connection import Bus
from mesh.bus.event_log import check_form
from mesh.bus.reader import every, get, listing, newest, stream_info, up_to
from mesh.bus.roles import ADMIN
from mesh.bus.streams import CONTROLS, LOG, TIMERS, is_journal_stream, kind_of, queue_consumers, stream_table
from mesh.errors import (
    ApiError,
    ArtifactDenied,
    ArtifactError,
    BusError,
    Denied,
    MeshError,
    NotFound,
    ProtocolError,
    StoreExtraMissing,
)
from mesh.fleet.file import FleetFile
from mesh.fleet.setup import apply
from mesh.ops.archive import losses
from mesh.ops.checks import (
    KeyFile,
    Results,
    State,
    Varz,
    changed,
    clocks,
    config_of,
    durability,
    lane,
    name_of,
    reloaded,
    some,
    varz_of,
    who_fills_it,
)
from mesh.ops.dead_letters import letters
from mesh.ops.log import read_each
from mesh.ops.queue import Waiting, queue
from mesh.ops.requeue import requeue
from mesh.ops.roster import breakers, card_of, fleet_of, inbox_state, instances, mesh_freeze
from mesh.ops.schedules import ticking
from mesh.ops.shadows import judging
from mesh.service.printable import counted, when
from mesh.settings import ARTIFACTS, Access, load_settings
from protocol.domain.ledger import fold
from protocol.wire import codec, subjects
from protocol.wire.config import DocumentInvalid, Fleet, read_fleet, read_policy, read_prices
from protocol.wire.prices import price_list, price_of
from protocol.wire.records import Card
from protocol.wire.schedule import read_schedule
from protocol.wire.shadow import read_shadow

OLDEST_SERVER = (2, 12)
MOST_LETTERS = 1_000
"""Most dead letters that are read to count those of one message once; each may have 350 KB."""
MOST_EVENTS = 100_000
"""Of a log that is folded whole, to find open turns without a message: a second or two."""
FULL = 0.8
"""Share of a limit from which on it is worth a word."""
MOST_TIMER_BYTES = 256 << 20
"""Most schedules: about half a million open requests. The server takes no limit for a stream of schedules."""
LEAST_FOR_LOG = 1 << 30
"""Bytes of a store that no other stream's limit should claim: the log has what the others leave."""
_MOST_CHANGES = 10
"""Changes of one kind that are told one by one: a new mesh needs thousands."""
_MOST_WAITING = 200
"""How many events of an inbox are read."""
_SHOWN = 3
_FEW_AWAY = 8
"""Agents that nobody serves and that have a line each; of more, those for which work waits."""
_BETWEEN_PULLS_S = 1.0
"""How long a queue is watched before it counts as not pulled from: a guard may be between two pulls."""
_AGAIN_S = 0.1
_STORE_S = 10.0
"""How long a store of artifacts may take to answer."""
_BY_RULES = "scripted"
_NO_ID = frozenset({"", _BY_RULES})
"""What a card says of a model whose id it does not know, or which costs nothing."""
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
    keys: KeyFile | None = None
    """What each server should have read; None if it is elsewhere."""


async def examine(
    access: Access, file: FleetFile | None, monitor: str | None, keys: KeyFile | None = None
) -> list[Finding]:
    """Return the results of all checks, in order.

    Args:
        file: the fleet file to compare the server with, as the admin.
        monitor: the known URLs of the servers' monitoring, separated by commas.
        keys: what each server should have read; None if it is elsewhere.

    Raises Unreachable, AuthenticationFailed, NoCredentials.
    """
    async with await access.connect() as bus:
        connected = Finding(check="connection", state="ok", text=f"{access.url} as {access.name}")
        compared = file if access.name == ADMIN else None
        archive = "" if file is None else file.log.archive
        look = Look(bus, await varz_of(monitor), compared, archive, keys)
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
        if most > 0 and not is_log_limited and most - promised < LEAST_FOR_LOG:
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
    until = time.monotonic() + _BETWEEN_PULLS_S
    while True:
        asked = [each for each in asked if not (await look.bus.api(each[1]))["num_waiting"]]
        if not asked or time.monotonic() > until:
            break
        await asyncio.sleep(_AGAIN_S)
    if asked:
        idle = dict.fromkeys(queue for queue, _ in asked)
        yield "found", f"no guard takes from {', '.join(idle)}; run `mesh guard run`"


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


# --- the fleet ------------------------------------------------------------------------------------


_IN_THE_FILE = "say it in the fleet file, and run `mesh setup`"
_DOCUMENTS: Mapping[str, tuple[Callable[[bytes, str], object], str]] = {
    subjects.FLEET: (lambda body, _: read_fleet(body), f"guards refuse new requests: {_IN_THE_FILE}"),
    subjects.PRICES: (lambda body, _: read_prices(body), f"guards refuse new requests: {_IN_THE_FILE}"),
    subjects.POLICIES: (read_policy, f"guards refuse requests under it: {_IN_THE_FILE}"),
    subjects.SHADOWS: (read_shadow, "it judges nothing: mesh policy shadow"),
    subjects.SCHEDULE_ENTRIES: (read_schedule, f"it does not tick: {_IN_THE_FILE}"),
}
"""By subject: what reads a document, given its name, and what it means that it cannot."""


async def _documents(look: Look) -> Results:
    for subject, (read, so) in _DOCUMENTS.items():
        for kept in await newest(look.bus, "CONF", subject):
            try:
                read(kept.data, kept.subject.rpartition(".")[2])
            except DocumentInvalid as invalid:
                yield "found", f"{kept.subject} cannot be read: {invalid}; {so}"


async def _freeze(look: Look) -> Results:
    stands = await mesh_freeze(look.bus)
    if stands.frozen:
        yield "found", stands.notice


async def _breakers(look: Look) -> Results:
    for each in await breakers(look.bus):
        if each.unreadable:
            so = f"the entry of {each.agent} cannot be read ({each.unreadable})"
            yield "found", f"{so}: taken for open, until a trial"
        elif each.state != "closed":
            work = "no work" if each.state == "open" else "one piece of work, to see how that goes"
            so = f"{each.state} since {when(each.since)}"
            yield "found", f"the breaker of {each.agent} is {so}: it failed too often, it is given {work}"


async def _agents(look: Look) -> Results:
    fleet = await fleet_of(look.bus)
    alive = await instances(look.bus, fleet.agents)
    if alive is None:
        yield "unknown", f"{look.bus.name} may not ask which agents are served"
        return
    away = [name for name in fleet.agents if not alive[name]]
    shown = away if len(away) <= _FEW_AWAY else []
    if not shown and away:
        waiting = [name for name in away if (await inbox_state(look.bus, name))[0]]
        shown = waiting[:_SHOWN]
        so = f"nobody serves {len(away)} of {len(fleet.agents)} agents ({some(away)})"
        yield "found", f"{so}; work waits for {len(waiting)} of them" if waiting else f"{so}; no work waits"
    for name in shown:
        yield "found", f"nobody serves {name}; {await _what_waits(look.bus, name)}"
    if not away:
        yield "ok", "all are served: " + ", ".join(f"{name} ({len(alive[name])})" for name in fleet.agents)


async def _permissions(look: Look) -> Results:
    """Name agents that may do everything: that may be meant, so it is no fault."""
    if words := unlimited_in_words(await fleet_of(look.bus)):
        yield "ok", words


def unlimited_in_words(fleet: Fleet) -> str:
    """Return which agents may give work to everyone and call every tool; empty if each has a limit."""
    names = [name for name, each in fleet.agents.items() if each.to is None and each.actions is None]
    if not names:
        return ""
    return (
        f"{', '.join(names)} may give work to every agent and call every tool: "
        "`to` and `actions` in the fleet file set limits"
    )


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


async def _people(look: Look) -> Results:
    """Tell what waits for people, which is no fault of the mesh, and find effects in doubt, which are one."""
    found = await queue(look.bus)
    doubts = [each for each in found.waiting if each.what == "doubt"]
    others = [each for each in found.waiting if each.what != "doubt"]
    yield "ok", _waiting(others, "decision", "", "mesh human ls") or "no decision waits for a person"
    in_doubt = _waiting(doubts, "effect in doubt", "effects in doubt", "mesh doubt ls")
    yield ("found", in_doubt) if in_doubt else ("ok", "no effect is in doubt")
    if found.unreadable:
        yield "unknown", f"cannot be read: {', '.join(found.unreadable[:_SHOWN])}; look with mesh log verify"


def _waiting(waiting: Sequence[Waiting], noun: str, nouns: str, command: str) -> str:
    """Return how many decisions wait, and since when; empty if none do."""
    if not waiting:
        return ""
    wait = "waits" if len(waiting) == 1 else "wait"
    oldest = f"the oldest since {when(waiting[0].since)} ({waiting[0].request})"
    return f"{counted(len(waiting), noun, nouns)} {wait} for a person, {oldest}: {command}"


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
        f"{them} {fate}: give {them} some (script=), or ask the real model (--model pinned, with a key)"
    )


async def unpriced(bus: Bus) -> str:
    """Return which models of which agents have no price; empty if none. Raises NotFound, DocumentInvalid."""
    kept = await get(bus, "CONF", subjects.PRICES)
    prices = price_list({} if kept is None else read_prices(kept.data))
    agents = (await fleet_of(bus)).agents
    missing: dict[str, list[str]] = {}
    async for each in every(bus, "CARDS", subjects.CARDS):
        name, card = each.subject.rpartition(".")[2], codec.readable(each.data, Card)
        model = "" if card is None else card.model
        if name in agents and model not in _NO_ID and price_of(model, prices) is None:
            missing.setdefault(model, []).append(name)
    named = "; ".join(f"{model} of {', '.join(sorted(names))}" for model, names in sorted(missing.items()))
    return named and f"no price is known of {named}: say [prices] in the fleet file and run `mesh setup`"


async def _artifacts(look: Look) -> Results:
    where = load_settings().artifacts or (await fleet_of(look.bus)).artifacts
    if "://" not in where:
        yield "ok", f"a folder, {where or ARTIFACTS}: every process that saves or loads has to share it"
        return
    try:
        async with asyncio.timeout(_STORE_S):
            await ArtifactStore.at(where).objects.probe()
    except TimeoutError:
        yield "found", f"the store {where} does not answer within {_STORE_S:g} s"
    except (ArtifactDenied, StoreExtraMissing) as unknown:
        yield "unknown", f"{unknown}; agents may be better off"
    except ArtifactError as wrong:
        yield "found", str(wrong)


async def _prices(look: Look) -> Results:
    """Find models without a price: that is wrong where a policy gives budgets in dollars."""
    missing, limits = await unpriced(look.bus), []
    if not missing:
        return
    for kept in await newest(look.bus, "CONF", subjects.POLICIES):
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
    "changes": (
        lambda look: changed(look.bus),
        "nobody changed fleet, policies or prices in the last day",
    ),
    "documents": (_documents, "fleet, policies and prices can be read"),
    "shadows": (lambda look: judging(look.bus), "no policy has one"),
    "schedules": (lambda look: ticking(look.bus), "there is none"),
    "durability": (lambda look: durability(look.bus, look.varz), ""),
    "keys": (lambda look: reloaded(look.varz, look.keys), "no server lacks what was written here"),
    "limits": (_limits, f"every stream is below {FULL:.0%} of its limits"),
    "log": (_log_use, "nothing was written in the last day"),
    "archive": (lambda look: losses(look.bus, look.archive), "the log is empty"),
    "guards": (_guards, "every queue is served"),
    "queues": (_queues, "every open turn has a message, or waits for something"),
    "lane": (lambda look: lane(look.bus), ""),
    "agents": (_agents, ""),
    "permissions": (_permissions, "each agent has a limit in the fleet file"),
    "rules": (_rules, "no agent goes by rules and has none"),
    "breakers": (_breakers, "none is open"),
    "freeze": (_freeze, "the mesh is not frozen"),
    "people": (_people, ""),
    "dead letters": (_dead_letters, "none"),
    "prices": (_prices, "every model that a card names has one"),
    "artifacts": (_artifacts, "the store of artifacts answers"),
    "clock": (lambda look: clocks(look.bus), ""),
}
"""Each check, and its text if it finds nothing."""
