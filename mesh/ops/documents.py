"""Whether the admin's documents in CONF can be read, and what guards do about one that cannot."""

from collections.abc import AsyncIterator

from mesh.bus.connection import Bus
from mesh.bus.reader import every
from mesh.ops.findings import Finding, found, ok
from protocol.wire.documents import DocumentInvalid, read_fleet, read_policy, read_prices
from protocol.wire.subjects import FLEET, PRICES

_POLICIES = "mesh.conf.policy."


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
