"""Setting a mesh up: keys, the server's configuration, and what the server must hold.

Two halves, each idempotent. `prepare` needs no bus: it makes what keys lack and writes the accounts
that go into a server's configuration. `apply` needs a server that runs with it: it creates streams,
consumers, the fleet document and the policies.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mesh.bus.accounts import accounts_config
from mesh.bus.connection import Bus
from mesh.bus.credentials import KeyPair, keyring
from mesh.bus.provision import Change, provision
from mesh.bus.roles import names
from mesh.fleet.file import LISTED, FleetFile
from protocol.wire.subjects import PRICES, policy

KEYS = "keys"
ACCOUNTS = "accounts.conf"


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made or found."""

    directory: Path
    keys: dict[str, KeyPair]
    """Of every member whose seed lies here."""
    accounts: str
    """Configuration text: accounts, users, exports and imports."""


def prepare(file: FleetFile, directory: Path, *, anonymous: str | None = None) -> Prepared:
    """Make the keys that lack under `directory`/keys and write `directory`/accounts.conf.

    Members whose public key the fleet file names keep their seed elsewhere; nothing is made for them.
    """
    given = file.given_keys
    keys = keyring(directory / KEYS, [name for name in names(file.fleet) if name not in given])
    public = given | {name: key.public for name, key in keys.items()}
    text = accounts_config(file.fleet, public, anonymous=anonymous)
    (directory / ACCOUNTS).write_text(text)
    return Prepared(directory, keys, text)


async def apply(bus: Bus, file: FleetFile, *, dry_run: bool = False) -> list[Change]:
    """Bring a running server to the fleet file; return what was done, or with `dry_run` would be.

    Raises UnsafeChange, NewerSchema, PricesMissing, BusError.
    """
    documents = {policy(name): msgspec.json.encode(rules) for name, rules in file.rules.items()}
    documents[PRICES] = msgspec.json.encode(prices_of(file))
    return await provision(bus, file.fleet, file.storage, documents, dry_run=dry_run)


def prices_of(file: FleetFile) -> dict[str, Any]:
    """Return what models cost, by id; those whose price is `listed` get today's of the vendor's list.

    What neither says of the cache is what protocol.wire.prices.unsaid says. Raises PricesMissing.
    """
    prices = file.priced
    wanted = [model for model, price in prices.items() if price == LISTED]
    if wanted:
        from mesh.fleet.prices import listed

        prices |= listed(wanted)
    return prices
