"""Whether a fleet can work: its documents, agents, breakers, rules and prices, and a freeze that stands.

Each check says `ok`, `found` (something is wrong) or `unknown`, and why. Nothing here is broken machinery: an
agent that nobody serves, or a document that cannot be read, stops work all the same.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.event_log import JetStreamLog
from mesh.bus.reader import StoredMessage, every, get, up_to
from mesh.errors import LogUnreadable, ProtocolError
from mesh.ops.log import decoded
from mesh.ops.roster import fleet_of, inbox_state, instances, mesh_freeze
from mesh.service.printable import when
from protocol.domain.ledger import fold
from protocol.wire import codec, config, subjects
from protocol.wire.config import DocumentInvalid, read_fleet, read_policy, read_prices
from protocol.wire.notices import Card
from protocol.wire.prices import price_list, price_of
from protocol.wire.subjects import FLEET, PRICES, card, inbox

_MOST = 200
"""Events of an inbox that are looked into."""
_SHOWN = 3
_AT_ONCE = 16
_POLICIES = subjects.POLICIES.removesuffix("*")
_BY_RULES = "scripted"
_NO_ID = frozenset({"", _BY_RULES, "claude"})
"""What a card says of a model whose id it does not know, or which costs nothing."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    state: Literal["ok", "found", "unknown"]
    text: str


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, state="ok", text=text)


def found(check: str, text: str) -> Finding:
    """Something is wrong."""
    return Finding(check=check, state="found", text=text)


def unknown(check: str, text: str) -> Finding:
    """These credentials or this server cannot tell."""
    return Finding(check=check, state="unknown", text=text)


async def frozen(bus: Bus) -> AsyncIterator[Finding]:
    """Find a freeze of the whole mesh: by whom, and since when."""
    stands = await mesh_freeze(bus)
    if stands.frozen:
        yield found("freeze", stands.notice)
    else:
        yield ok("freeze", "the mesh is not frozen")


# --- breakers -------------------------------------------------------------------------------------


async def breakers(bus: Bus) -> AsyncIterator[Finding]:
    """Name every agent whose breaker is not closed."""
    closed = True
    async for kept in every(bus, "CONF", subjects.BREAKERS):
        said = _breaker(kept)
        if said is not None:
            closed = False
            yield found("breakers", said)
    if closed:
        yield ok("breakers", "none is open")


def _breaker(kept: StoredMessage) -> str | None:
    """Return what is to be said of a breaker's entry, None if it is closed."""
    agent = kept.subject.rpartition(".")[2]
    try:
        entry = config.read_breaker(kept.data)
    except config.DocumentInvalid as invalid:
        return f"the entry of {agent} cannot be read ({invalid}): it is taken for open, until a trial"
    if entry.state == "closed":
        return None
    so = "is given no work" if entry.state == "open" else "is given one piece of work, to see how that goes"
    since = when(entry.opened_at or kept.at)
    return f"the breaker of {agent} is {entry.state} since {since}: it failed too often, it {so}"


# --- agents ---------------------------------------------------------------------------------------


async def agents(bus: Bus) -> AsyncIterator[Finding]:
    """Name every agent that nobody serves, and what waits for it since when."""
    fleet = await fleet_of(bus)
    alive = await instances(bus, fleet.agents)
    if alive is None:
        yield unknown("agents", f"{bus.name} may not ask who is there")
        return
    away = [name for name in fleet.agents if not alive[name]]
    for name in away:
        yield found("agents", f"nobody serves {name}; {await _what_waits(bus, name)}")
    if not away:
        counts = ", ".join(f"{name} ({len(alive[name])})" for name in fleet.agents)
        yield ok("agents", f"all are served: {counts}")


class Held(NamedTuple):
    """An open turn that its agent does not work on."""

    since: int
    """UTC µs."""
    request: str


async def _what_waits(bus: Bus, agent: str) -> str:
    pending, from_seq = await inbox_state(bus, agent)
    if not pending:
        return "nothing waits for it"
    held = await turns_waiting(bus, agent, from_seq)
    more = "" if pending <= _MOST else "at least "
    if not held:
        return "nothing that is still open waits for it"
    many = "1 handoff waits" if len(held) == 1 else f"{len(held)} handoffs wait"
    shown = ", ".join(f"{when(each.since)} ({each.request})" for each in held[:_SHOWN])
    rest = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return f"{more}{many} for it, the oldest since {shown}{rest}"


async def turns_waiting(bus: Bus, agent: str, from_seq: int) -> list[Held]:
    """Return the open turns of an agent in its inbox from `from_seq` on, the oldest first.

    The first `_MOST` events are looked into. What was ended meanwhile is not listed.
    """
    events = await up_to(bus, "LOG", inbox(agent), from_seq, _MOST)
    requests = dict.fromkeys(kept.subject.rpartition(".")[2] for kept in events)
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(request: str) -> list[Held]:
        async with room:
            try:
                stored = await JetStreamLog(bus, leader=False).read(request)
                ledger = fold(decoded(each.body for each in stored))
            except (LogUnreadable, ProtocolError):
                return []
        waits = (turn for turn in ledger.open.values() if turn.agent == agent and turn.state == "working")
        return [Held(turn.clock, request) for turn in waits]

    found = await asyncio.gather(*(look(request) for request in requests))
    return sorted(each for part in found for each in part)


# --- the admin's documents ------------------------------------------------------------------------


async def readable(bus: Bus) -> AsyncIterator[Finding]:
    """Name each document that guards cannot read, with every mistake in it."""
    good = True
    async for kept in every(bus, "CONF", None):
        mistake = _mistake(kept.subject, kept.data)
        if mistake is not None:
            good = False
            yield found("documents", f"{kept.subject} cannot be read: {mistake}")
    if good:
        yield ok("documents", "fleet, policies and prices can be read")


def _mistake(subject: str, body: bytes) -> str | None:
    refused = "new requests"
    try:
        if subject == FLEET:
            read_fleet(body)
        elif subject == PRICES:
            read_prices(body)
        elif subject.startswith(_POLICIES):
            refused = "requests under it"
            read_policy(body, subject.removeprefix(_POLICIES))
    except DocumentInvalid as invalid:
        return f"{invalid}; guards refuse {refused}: say it in the fleet file, and run `mesh setup`"
    return None


# --- what drives the agents -----------------------------------------------------------------------


async def rules(bus: Bus) -> AsyncIterator[Finding]:
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


async def unpriced(bus: Bus) -> Mapping[str, list[str]]:
    """Return the agents that each unpriced model drives. Raises NotFound, DocumentInvalid, BusError."""
    kept = await get(bus, "CONF", PRICES)
    prices = price_list({} if kept is None else read_prices(kept.data))
    agents = (await fleet_of(bus)).agents
    missing: dict[str, list[str]] = {}
    async for each in every(bus, "CARDS", subjects.CARDS):
        name, said = each.subject.rpartition(".")[2], codec.readable(each.data, Card)
        model = "" if said is None else said.model
        if name in agents and model not in _NO_ID and price_of(model, prices) is None:
            missing.setdefault(model, []).append(name)
    return dict(sorted(missing.items()))


def unpriced_in_words(missing: Mapping[str, list[str]]) -> str:
    """Return which models of which agents have no price, and what to do."""
    named = "; ".join(f"{model} of {', '.join(sorted(names))}" for model, names in missing.items())
    return f"no price is known of {named}: say [prices] in the fleet file and run `mesh setup`"


async def prices(bus: Bus) -> AsyncIterator[Finding]:
    """Find models without a price: that is wrong where a policy gives budgets in dollars."""
    missing = await unpriced(bus)
    if not missing:
        yield ok("prices", "every model that a card names has one")
    elif limits := [name async for name in _in_dollars(bus)]:
        yield found("prices", f"{unpriced_in_words(missing)}; policy {', '.join(limits)} limits dollars")
    else:
        yield unknown("prices", unpriced_in_words(missing))


async def _in_dollars(bus: Bus) -> AsyncIterator[str]:
    """Yield the policies whose budget is one of dollars, too."""
    async for kept in every(bus, "CONF", subjects.POLICIES):
        name = kept.subject.rpartition(".")[2]
        with contextlib.suppress(DocumentInvalid):  # another check tells of it
            policy = read_policy(kept.data, name)
            if policy.budget is not None and policy.budget.nano_dollars is not None:
                yield name
