"""Which models drive a fleet's agents and have no price, as far as the agents' cards tell."""

import contextlib
from collections.abc import AsyncIterator, Mapping

from mesh.bus.connection import Bus
from mesh.bus.reader import every, get
from mesh.ops.findings import Finding, found, ok, unknown
from mesh.ops.roster import fleet_of
from protocol.wire import codec, subjects
from protocol.wire.documents import DocumentInvalid, read_policy, read_prices
from protocol.wire.notices import Card
from protocol.wire.prices import price_list, price_of
from protocol.wire.subjects import PRICES

_NO_ID = frozenset({"", "scripted", "claude"})
"""What a card says of a model whose id it does not know, or which costs nothing."""


async def unpriced(bus: Bus) -> Mapping[str, list[str]]:
    """Return whom each model without a price drives. Raises NotFound, DocumentInvalid, BusError."""
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


def in_words(missing: Mapping[str, list[str]]) -> str:
    """Return which models of which agents have no price, and what to do."""
    named = "; ".join(f"{model} of {', '.join(sorted(names))}" for model, names in missing.items())
    return f"no price is known of {named}: say [prices] in the fleet file and run `mesh setup`"


async def prices(bus: Bus) -> AsyncIterator[Finding]:
    """Say which models have no price: that is wrong where a policy gives budgets in dollars."""
    missing = await unpriced(bus)
    if not missing:
        yield ok("prices", "every model that a card names has one")
    elif limits := [name async for name in _in_dollars(bus)]:
        yield found("prices", f"{in_words(missing)}; policy {', '.join(limits)} limits dollars")
    else:
        yield unknown("prices", in_words(missing))


async def _in_dollars(bus: Bus) -> AsyncIterator[str]:
    """Yield the policies whose budget is one of dollars, too."""
    async for kept in every(bus, "CONF", subjects.POLICIES):
        name = kept.subject.rpartition(".")[2]
        with contextlib.suppress(DocumentInvalid):  # another check tells of it
            policy = read_policy(kept.data, name)
            if policy.budget is not None and policy.budget.nano_dollars is not None:
                yield name
