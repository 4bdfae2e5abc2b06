"""How large streams are for which nobody gives a size: their usual size, halved until all fit the store.

The server promises each stream its limit. So a fleet of many agents may need more than a small store has. The
sizes that the fleet file gives stay as they are. LOG has no limit by default, and gets what the others leave.

A stream never shrinks: setup only lets it grow, when the store has become larger.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mesh.bus.reader import Listing
from mesh.bus.streams import LOG, MIB, Storage, stream_table
from protocol.wire.config import Fleet

HALVINGS = 5
"""How often sizes are halved at most."""
LEAST_BYTES = 8 * MIB
"""No stream is made smaller than this, unless that is its usual size."""
LEAST_FOR_LOG = 1 << 30
"""What LOG is left (bytes), or else as much as all other streams have together."""

Table = Mapping[str, Mapping[str, Any]]


def usual_sizes(fleet: Fleet, storage: Storage) -> dict[str, int]:
    """Return the usual size (bytes) of each stream for which the fleet file gives none."""
    usual = stream_table(fleet)
    sizes = {name: _limit(config) for name, config in stream_table(fleet, storage).items()}
    return {
        name: size
        for name, size in sizes.items()
        if size and size == _limit(usual[name]) and name not in storage.given
    }


def left_for_log(others: int) -> int:
    """Return what LOG has to be left in a store in which the other streams have so many bytes."""
    return min(LEAST_FOR_LOG, others)


def with_stored_sizes(table: Table, usual: Mapping[str, int], there: Listing) -> dict[str, dict[str, Any]]:
    """Return the table with the sizes that streams have on the server, where these are not usual."""
    return _with_sizes(table, {**usual, **_smaller(usual, there)})


async def fitted(
    table: Table, usual: Mapping[str, int], there: Listing, fits: Callable[[int], Awaitable[bool]]
) -> dict[str, dict[str, Any]]:
    """Return the table with the largest sizes that fit the store; with the least if none do.

    Args:
        there: the streams on the server.
        fits: returns True if the server can promise so many bytes more.
    """
    stored = _stored(there)
    kept = {name: stored[name] for name in usual.keys() & stored.keys() if stored[name] <= usual[name]}
    made: dict[str, dict[str, Any]] = {}
    for halvings in range(HALVINGS + 1):
        sizes = {
            name: max(kept.get(name, 0), min(size, max(LEAST_BYTES, size >> halvings)))
            for name, size in usual.items()
        }
        made = _with_sizes(table, sizes)
        added = sum(max(0, _limit(config) - stored.get(name, 0)) for name, config in made.items())
        if sizes == kept or await fits(added + _log_needs(made, there)):
            break
    return made


def small_in_words(usual: Mapping[str, int], there: Listing) -> str:
    """Return which streams have less than their usual size; empty if none has."""
    smaller = _smaller(usual, there)
    if not smaller:
        return ""
    worst = min(smaller, key=lambda name: (smaller[name] / usual[name], name))
    return (
        f"the store is small: {len(smaller)} of {len(usual)} streams are below their usual size, the most "
        f"{worst} with {smaller[worst] // MIB} of {usual[worst] // MIB} MiB; give the server a larger store "
        "(max_file_store) and run `mesh setup` again, or say sizes in the fleet file"
    )


def _smaller(usual: Mapping[str, int], there: Listing) -> dict[str, int]:
    """Return the sizes of the streams on the server that are below their usual size."""
    stored = _stored(there)
    return {name: stored[name] for name, size in usual.items() if 0 < stored.get(name, 0) < size}


def _stored(there: Listing) -> dict[str, int]:
    """Return the bytes that each stream on the server is promised."""
    return {name: _limit(info["config"]) for name, info in there.streams.items()}


def _log_needs(table: Table, there: Listing) -> int:
    """Return what LOG takes beside the other streams: what it holds, and room for more."""
    if _limit(table[LOG]):
        return 0  # it has a limit of its own, which is promised as the others' are
    held = int(there.streams[LOG]["state"]["bytes"]) if LOG in there.streams else 0
    return held + left_for_log(sum(map(_limit, table.values())))


def _limit(config: Mapping[str, Any]) -> int:
    """Return the bytes that the server promises a stream; 0 without a limit."""
    return max(0, int(config.get("max_bytes") or 0))


def _with_sizes(table: Table, sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    return {
        name: {**config, "max_bytes": sizes[name]} if name in sizes else dict(config)
        for name, config in table.items()
    }
