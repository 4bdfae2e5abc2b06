"""What `mesh doctor` checks of the fleet: its documents, who serves it, its people, models and prices.

A check yields `found` for each fault, or a single `ok` or `unknown`; see `mesh.ops.checks`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from mesh.artifacts import ArtifactStore
from mesh.bus.connection import Bus
from mesh.bus.reader import every, get, newest, up_to
from mesh.bus.streams import offers_to
from mesh.errors import ArtifactDenied, ArtifactError, StoreExtraMissing
from mesh.ops.checks import Results, some
from mesh.ops.log import read_each
from mesh.ops.queue import Waiting, queue
from mesh.ops.roster import breakers, card_of, fleet_of, inbox_state, instances, mesh_freeze
from mesh.service.printable import counted, when
from mesh.settings import ARTIFACTS, load_settings
from protocol.domain.ledger import Ledger, fold
from protocol.wire import codec, subjects
from protocol.wire.config import Fleet
from protocol.wire.documents import DocumentInvalid, read_fleet, read_policy, read_prices
from protocol.wire.prices import price_list, price_of
from protocol.wire.records import Card
from protocol.wire.schedule import read_schedule
from protocol.wire.shadow import read_shadow

_MOST_WAITING = 200
"""How many events of an inbox are read."""
_SHOWN = 3
_FEW_AWAY = 8
"""Agents that nobody serves and that have a line each; of more, those for which work waits."""
_STORE_S = 10.0
"""How long a store of artifacts may take to answer."""
_BY_RULES = "scripted"
_NO_ID = frozenset({"", _BY_RULES})
"""What a card says of a model whose id it does not know, or which costs nothing."""
_IN_THE_FILE = "say it in the fleet file, and run `mesh setup`"
_DOCUMENTS: Mapping[str, tuple[Callable[[bytes, str], object], str]] = {
    subjects.FLEET: (lambda body, _: read_fleet(body), f"guards refuse new requests: {_IN_THE_FILE}"),
    subjects.PRICES: (lambda body, _: read_prices(body), f"guards refuse new requests: {_IN_THE_FILE}"),
    subjects.POLICIES: (read_policy, f"guards refuse requests under it: {_IN_THE_FILE}"),
    subjects.SHADOWS: (read_shadow, "it judges nothing: mesh policy shadow"),
    subjects.SCHEDULE_ENTRIES: (read_schedule, f"it does not tick: {_IN_THE_FILE}"),
}
"""By subject: what reads a document, given its name, and what it means that it cannot."""


async def documents(bus: Bus) -> Results:
    for subject, (read, so) in _DOCUMENTS.items():
        for kept in await newest(bus, "CONF", subject):
            try:
                read(kept.data, kept.subject.rpartition(".")[2])
            except DocumentInvalid as invalid:
                yield "found", f"{kept.subject} cannot be read: {invalid}; {so}"


async def freeze(bus: Bus) -> Results:
    stands = await mesh_freeze(bus)
    if stands.frozen:
        yield "found", stands.notice


async def open_breakers(bus: Bus) -> Results:
    for each in await breakers(bus):
        if each.unreadable:
            so = f"the entry of {each.agent} cannot be read ({each.unreadable})"
            yield "found", f"{so}: taken for open, until a trial"
        elif each.state != "closed":
            work = "no work" if each.state == "open" else "one piece of work, to see how that goes"
            so = f"{each.state} since {when(each.since)}"
            yield "found", f"the breaker of {each.agent} is {so}: it failed too often, it is given {work}"


async def agents(bus: Bus, may_sleep: Collection[str] = ()) -> Results:
    """Find agents that nobody serves, but for those that may have no process while nothing waits for them."""
    fleet = await fleet_of(bus)
    alive = await instances(bus, fleet.agents)
    if alive is None:
        yield "unknown", f"{bus.name} may not ask which agents are served"
        return
    away = [name for name in fleet.agents if not alive[name]]
    away = [each for each in away if each not in may_sleep or (await inbox_state(bus, each))[0]]
    shown = away if len(away) <= _FEW_AWAY else []
    if not shown and away:
        waiting = [name for name in away if (await inbox_state(bus, name))[0]]
        shown = waiting[:_SHOWN]
        so = f"nobody serves {len(away)} of {len(fleet.agents)} agents ({some(away)})"
        yield "found", f"{so}; work waits for {len(waiting)} of them" if waiting else f"{so}; no work waits"
    for name in shown:
        yield "found", f"nobody serves {name}; {await _what_waits(bus, name)}"
    for intent, readers in _readers(fleet).items():
        if not any(alive[name] for name in readers) and (offers := await _offers(bus, intent)):
            yield "found", f"nobody serves an agent that takes offers of {intent} ({some(readers)}); {offers}"
    if not away:
        yield "ok", "all are served: " + ", ".join(f"{name} ({len(alive[name])})" for name in fleet.agents)


def _readers(fleet: Fleet) -> dict[str, list[str]]:
    """Return by intent the agents that take its offers."""
    found: dict[str, list[str]] = {}
    for name in fleet.agents:
        for intent in offers_to(fleet, name):
            found.setdefault(intent, []).append(name)
    return found


async def permissions(bus: Bus) -> Results:
    """Name agents that may do everything: that may be meant, so it is no fault."""
    if words := unlimited_in_words(await fleet_of(bus)):
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

    def turns(ledger: Ledger) -> list[int]:
        return [
            turn.clock for turn in ledger.open.values() if turn.agent == agent and turn.state == "working"
        ]

    return await _held(bus, agent, "handoff", turns) or "nothing that is still open waits for it"


async def _offers(bus: Bus, intent: str) -> str:
    """Return how many offers of an intent wait, and since when; empty if none does."""

    def offers(ledger: Ledger) -> list[int]:
        offered = (task for task in ledger.offers.values() if task.state == "offered")
        return [task.offered_at for task in offered if task.planned.task.intent == intent]

    return await _held(bus, subjects.intent_inbox(intent), "offer", offers)


async def _held(bus: Bus, inbox: str, what: str, since_of: Callable[[Ledger], Iterable[int]]) -> str:
    """Return how much of what an inbox has not given away is still open, and since when; empty if none is.

    Args:
        since_of: returns since when each wait of a request stands (UTC µs).
    """
    pending, from_seq = await inbox_state(bus, inbox)
    if not pending:
        return ""
    stored = await up_to(bus, "LOG", subjects.inbox(inbox), from_seq, _MOST_WAITING)
    read = await read_each(bus, (each.subject.rpartition(".")[2] for each in stored), skip_ended=True)
    held = sorted(
        (since, request)
        for request, happened in read.items()
        for since in (since_of(fold(happened)) if happened else ())
    )
    if not held:
        return ""
    many = f"{counted(len(held), what)} wait{'s' if len(held) == 1 else ''}"
    shown = ", ".join(f"{when(since)} ({request})" for since, request in held[:_SHOWN])
    rest = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return f"{'at least ' if pending > _MOST_WAITING else ''}{many} for it, the oldest since {shown}{rest}"


async def people(bus: Bus) -> Results:
    """Tell what waits for people, which is no fault of the mesh, and find effects in doubt, which are one."""
    found = await queue(bus)
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


async def rules(bus: Bus) -> Results:
    fleet = await fleet_of(bus)
    if without := await without_rules(bus, fleet.agents, human=fleet.human):
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


async def artifacts(bus: Bus) -> Results:
    where = load_settings().artifacts or (await fleet_of(bus)).artifacts
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


async def prices(bus: Bus) -> Results:
    """Find models without a price: that is wrong where a policy gives budgets in dollars."""
    missing, limits = await unpriced(bus), []
    if not missing:
        return
    for kept in await newest(bus, "CONF", subjects.POLICIES):
        with contextlib.suppress(DocumentInvalid):  # another check tells of it
            policy = read_policy(kept.data, kept.subject.rpartition(".")[2])
            if policy.budget is not None and policy.budget.nano_dollars is not None:
                limits.append(policy.name)
    if limits:
        yield "found", f"{missing}; policy {', '.join(limits)} limits dollars"
    else:
        yield "unknown", missing
