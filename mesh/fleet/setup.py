"""Sets up a mesh: keys, the server's configuration, and the documents that the server must have.

There are two halves, both idempotent. `prepare` needs no bus: it creates missing keys and writes the accounts
for a server's configuration, as a list of keys or as claims (`mesh.fleet.operator`). `apply` needs a server
that runs with it: it creates streams, consumers, the fleet document, the policies and the prices. Vendors'
price lists (extra `prices`) are read here, and never while a request runs.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.credentials import KeyPair, keyring, old_keys, without_claim, write_public
from mesh.bus.event_log import check_form, has_log
from mesh.bus.provision import Change, provision
from mesh.bus.reader import listing
from mesh.bus.roles import accounts_config, names
from mesh.bus.schedules import stored_schedules
from mesh.bus.sizes import small_in_words, usual_sizes
from mesh.errors import ApiCode, ApiError, Impossible, MeshError
from mesh.fleet.alone import alone
from mesh.fleet.file import LISTED, Auth, FleetFile
from mesh.fleet.leavers import held_by_leavers, look_soon
from mesh.fleet.operator import Signed, sign_accounts
from mesh.service.cron import Once
from protocol.wire.prices import Price, assumed_cache_prices
from protocol.wire.schedule import ScheduleEntry
from protocol.wire.subjects import PRICES, policy, schedule

KEYS = "keys"
ACCOUNTS = "accounts.conf"


@dataclass(frozen=True)
class Prepared:
    """The keys and the configuration that `prepare` created or found."""

    directory: Path
    keys: dict[str, KeyPair]
    """Keys of all members that have their seed here."""
    accounts: str
    """Configuration text: accounts, users, exports and imports."""


def prepare(
    file: FleetFile,
    directory: Path,
    *,
    anonymous: str | None = None,
    auth: Auth | None = None,
) -> Prepared:
    """Create missing keys under `directory`/keys, and write `directory`/accounts.conf.

    Each seed has its public key beside it, `<name>.pub`, in the form of the fleet file (`nkey`). Members
    whose public key is in the fleet file keep their seed elsewhere, so no key is created for them. A key that
    is being replaced (`mesh.fleet.keys`) stays valid. Waits while another process works on the folder.

    Args:
        anonymous: the client that connections without credentials act as.
        auth: how servers know members; by default as the fleet file says.

    Raises Impossible for a file that holds no seed, and if claims cannot do what is asked for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with alone(directory):
        return prepare_held(file, directory, anonymous=anonymous, auth=auth)


def prepare_held(
    file: FleetFile, directory: Path, *, anonymous: str | None = None, auth: Auth | None = None
) -> Prepared:
    """Do the same as `prepare`, for a caller that holds the folder already (`mesh.fleet.alone`)."""
    if (auth or file.bus.auth) == "jwt":
        if anonymous is not None:
            raise Impossible('[bus] auth = "jwt" lets nobody in without credentials')
        signed = sign_accounts(file.fleet, directory, directory / KEYS)
        return _written(directory, signed)
    given = file.given_keys
    keys = keyring(directory / KEYS, [name for name in names(file.fleet) if name not in given])
    public = given | {name: key.public for name, key in keys.items()}
    for name, key in keys.items():
        write_public(directory / KEYS, name, key)
        keys[name] = without_claim(directory / KEYS, name, key)
    noted = old_keys(directory / KEYS, keys)
    old = {name: key for name, key in noted.items() if key != public[name]}
    text = accounts_config(file.fleet, public, old=old, anonymous=anonymous)
    return _written(directory, Signed(keys, text))


def _written(directory: Path, signed: Signed) -> Prepared:
    """Write the accounts, unless they are there. The file's age tells which server has not read it."""
    accounts = directory / ACCOUNTS
    if not accounts.exists() or accounts.read_text() != signed.config:
        accounts.write_text(signed.config)
    return Prepared(directory, signed.keys, signed.config)


async def apply(bus: Bus, file: FleetFile, *, by: str = "", dry_run: bool = False) -> list[Change]:
    """Make a running server match the fleet file; return the changes made, or with `dry_run` those needed.

    Args:
        by: who asks for it.

    Guards then check the requests of agents that were removed from the file, and end their rounds.

    Raises OldForm, UnsafeChange, OtherPartitions, NewerSchema, PricesMissing, BusError.
    """
    if await has_log(bus):
        await bus.retry_unavailable(lambda: check_form(bus))
    documents = {policy(name): msgspec.json.encode(rules) for name, rules in file.rules.items()}
    documents[PRICES] = msgspec.json.encode(prices_of(file))
    documents |= await _schedules(bus, file)
    held = [] if dry_run else await held_by_leavers(bus, file.fleet)
    changes = await provision(bus, file.fleet, file.storage, documents, by=by, dry_run=dry_run)
    await look_soon(bus, (each.request for each in held), file.fleet.partitions)
    return changes


async def small_streams(bus: Bus, file: FleetFile) -> str:
    """Return which streams are below their usual size, in words; empty if none is. Raises BusError."""
    return small_in_words(usual_sizes(file.fleet, file.storage), await listing(bus))


async def _schedules(bus: Bus, file: FleetFile) -> dict[str, bytes]:
    """Return the entries of the file's schedules, and empty ones for those that it has no more.

    Requests that were submitted for a time are no part of the file, and stay.
    """
    entries = {name: ScheduleEntry(schedule=each) for name, each in file.planned.items()}
    try:
        await bus.api("STREAM.INFO.CONF")
        there = await stored_schedules(bus)
    except ApiError as error:
        if error.err_code != ApiCode.STREAM_NOT_FOUND:
            raise
        there = []  # the mesh is new
    removed = {each.name: ScheduleEntry() for each in there if not isinstance(each.calendar, Once)}
    return {schedule(name): msgspec.json.encode(each) for name, each in (removed | entries).items()}


def prices_of(file: FleetFile) -> dict[str, Any]:
    """Return the prices by model id. A `listed` price is today's price on the vendor's list.

    A cache price that neither has is filled in by protocol.wire.prices.assumed_cache_prices. Raises
    PricesMissing.
    """
    prices = file.priced
    wanted = [model for model, price in prices.items() if price == LISTED]
    return prices | listed(wanted) if wanted else prices


# --- vendors' price lists -----------------------------------------------------------------------------

_NANO = 1_000_000_000
_FIELDS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
}


class PricesMissing(MeshError, code="prices.missing"):
    """A model's price is unknown. The text tells what to do."""


def listed(models: Iterable[str]) -> dict[str, Price]:
    """Return today's prices of `models` by id. Raises PricesMissing."""
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ImportError as missing:
        raise PricesMissing("install handoff-mesh[prices], or say [prices] in the fleet file") from missing
    from mesh.model.vendors import (
        VENDORS,  # imports everything that agents need, so not for a fleet with fixed prices
    )

    lists = [vendor.price_list for vendor in VENDORS.values()]
    snapshot = get_snapshot()
    found = {}
    for model in models:
        info = next(filter(None, (_listed_by(snapshot, each, model) for each in lists)), None)
        if info is None:
            raise PricesMissing(f"no price of {model!r} is listed; say it under [prices] in the fleet file")
        found[model] = _price(info.get_prices(dt.datetime.now(dt.UTC)))
    return found


def _listed_by(snapshot: Any, vendor: str, model: str) -> Any:
    """Return a model's price on a vendor's list; None if it is not listed."""
    try:
        return snapshot.find_provider_model(model, None, vendor, None)[1]
    except LookupError:
        return None


def _price(prices: Any) -> Price:
    """Return a price without tiers, and the price of long prompts if the list has one."""
    raw = {field: getattr(prices, name, None) for field, name in _FIELDS.items()}
    starts = {tier.start for each in raw.values() for tier in _tiers(each)}
    if len(starts) > 1:
        raise PricesMissing(f"a price with {len(starts)} tiers; only one is known here")
    base = _whole({field: getattr(each, "base", each) for field, each in raw.items()})
    if not starts:
        return base
    beyond = {field: _tiers(each)[0].price if _tiers(each) else each for field, each in raw.items()}
    return msgspec.structs.replace(base, long_from=starts.pop(), long=_whole(beyond))


def _whole(dollars: Mapping[str, Decimal | None]) -> Price:
    """Return a price, given dollars per million tokens. Unlisted cache prices are the highest possible."""
    said = {field: int(each * _NANO) for field, each in dollars.items() if each is not None}
    return msgspec.convert(
        {**assumed_cache_prices(said.get("input", 0)), "input": 0, "output": 0, **said}, Price
    )


def _tiers(price: Any) -> Sequence[Any]:
    return getattr(price, "tiers", None) or ()
