"""The hash chains of an export, checked in parts: one per process, joined afterwards.

A part has a section of each request's chain, which may begin anywhere. It must continue where the part before
it ended. If it does not, the file is not as the log wrote it: then its requests are sorted, and each is
checked as a whole.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mesh.errors import Malformed
from mesh.ops.log import Chains, chains_of
from mesh.replay import export
from protocol.domain.hash_chain import GENESIS, Chain, link_of


class ChainPart(NamedTuple):
    """A part's section of one request's chain."""

    begin: tuple[int, str]
    """Number and `prev` of its first event."""
    chain: Chain


async def chains_in(path: Path) -> Chains:
    """Check the hash chains of an export. Raises OldForm, and Malformed with the line's number."""
    parts = await export.of_parts(path, parts_of)
    found = None if parts is None else joined(parts)
    if found is None:
        found = Chains()
        for checked in await export.of_each(path, chains_of):
            found.add(checked)
    return found


def parts_of(bodies: Iterable[bytes]) -> dict[str, ChainPart]:
    """Return the chains of some events by request. Raises Malformed if one does not hold, and OldForm."""
    parts: dict[str, ChainPart] = {}
    for body in bodies:
        link = link_of(body)
        part = parts.get(link.request)
        if part is None:
            part = parts[link.request] = ChainPart((link.n, link.prev), Chain(link.n, link.prev))
        part.chain.take(body, link)
        if part.chain.breaks:
            raise Malformed(part.chain.breaks[0].what)
    return parts


def joined(parts: Iterable[dict[str, ChainPart]]) -> Chains | None:
    """Join the chains of all parts of a file; None if they do not hold, or there are none."""
    whole: dict[str, Chain] = {}
    for part in parts:
        for request, (begin, chain) in part.items():
            before = whole.get(request)
            if begin != ((0, GENESIS) if before is None else (before.n, before.prev)):
                return None
            if before is not None:
                chain.redacted[:0] = before.redacted
            whole[request] = chain
    return Chains(whole) if whole else None
