"""What guards' anchors vouch for, compared with the log: are its events, including the last ones, all there?

A guard signs the newest event of each request that it appended to (`mesh.guard.anchors`). An attacker who can
alter the log's files, or the stream of anchors, cannot sign. A removed anchor is missed by the next one, and
the newest ones can be kept elsewhere (`mesh log anchors`).
"""

from collections.abc import AsyncIterator, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from mesh.bus.connection import Bus
from mesh.bus.credentials import Signature, is_signed
from mesh.bus.reader import every
from mesh.bus.streams import ANCHORS
from mesh.errors import UsageWrong
from mesh.ops.log import Chains
from mesh.service.printable import when
from protocol.domain.hash_chain import Break
from protocol.wire import codec
from protocol.wire.records import Anchor, Head, SignedAnchor


class Anchored(NamedTuple):
    """The newest event of each request that anchors vouch for."""

    heads: dict[str, Head]
    at: dict[str, int]
    """When each was anchored (UTC µs)."""
    keys: tuple[str, ...]
    """The public keys that signed."""
    faults: tuple[str, ...]
    """Faults of the anchors themselves."""

    @property
    def newest_at(self) -> int | None:
        """When the newest anchor was made (UTC µs)."""
        return max(self.at.values(), default=None)

    @property
    def watched(self) -> dict[str, int]:
        return {request: head.n for request, head in self.heads.items()}

    def only(self, request: str) -> "Anchored":
        """Return what is vouched for in one request."""
        heads = {request: self.heads[request]} if request in self.heads else {}
        return self._replace(heads=heads, at={request: self.at[request] for request in heads})


class AnchorCheck(NamedTuple):
    """The result of comparing a log with its anchors."""

    breaks: list[tuple[str, Break]]
    vouched: int
    """Requests whose anchored event is the one in the log."""
    gone: int
    """Anchored requests that are missing: older than the log, or not in this file."""


async def stored_anchors(bus: Bus) -> AsyncIterator[bytes]:
    """Yield the anchors as they are stored. Raises BusError."""
    async for stored in every(bus, ANCHORS, None):
        yield stored.data


async def on_the_bus(bus: Bus, keys: Collection[str] = ()) -> Anchored:
    """Return what the anchors on the bus vouch for. Raises BusError."""
    return anchored([body async for body in stored_anchors(bus)], keys)


def anchors_in(path: Path) -> list[bytes]:
    """Return the anchors in a file. Raises UsageWrong if it cannot be read."""
    try:
        return path.read_bytes().splitlines()
    except OSError as wrong:
        raise UsageWrong(f"{path} cannot be read: {wrong.strerror}") from wrong


def anchored(bodies: Iterable[bytes], keys: Collection[str] = ()) -> Anchored:
    """Return what anchors vouch for. An unsigned anchor vouches for nothing, and is a fault.

    Args:
        bodies: the anchors, in order.
        keys: public keys of the accepted signers; without any, every key is accepted.
    """
    heads, at, signers, faults = dict[str, Head](), dict[str, int](), dict[str, None](), list[str]()
    before = ""
    for number, body in enumerate(bodies, 1):
        signed = codec.readable(body, SignedAnchor)
        anchor = None if signed is None else codec.readable(bytes(signed.anchor), Anchor)
        if signed is None or anchor is None:
            faults.append(f"anchor {number} cannot be read")
            before = ""
            continue
        if not is_signed(bytes(signed.anchor), Signature(signed.key, signed.signature)):
            faults.append(f"anchor {number}, of {when(anchor.at)}, is not what {signed.key} signed")
        elif keys and signed.key not in keys:
            faults.append(f"anchor {number}, of {when(anchor.at)}, is signed by {signed.key}")
        else:
            signers[signed.key] = None
            for request, head in anchor.heads.items():
                if request not in heads or heads[request].n <= head.n:
                    heads[request], at[request] = head, anchor.at
        if before and anchor.prev != before:
            faults.append(f"an anchor is missing or altered before anchor {number}, of {when(anchor.at)}")
        before = codec.body_digest(body)
    return Anchored(heads, at, tuple(signers), tuple(faults))


def compared(found: Anchored, chains: Chains, first_seq: int | None) -> AnchorCheck:
    """Compare a log with what is vouched for.

    Args:
        chains: of the log, having watched `found.watched`.
        first_seq: the first sequence in the log; None for a file, which may hold only some requests.
    """
    breaks: list[tuple[str, Break]] = []
    vouched = gone = 0
    for request, head in found.heads.items():
        if not chains.length(request) and (first_seq is None or head.seq < first_seq):
            gone += 1
            continue
        digest = chains.digests.get(request)
        if digest == head.digest:
            vouched += 1
            continue
        what = "is missing" if digest is None else "is another one"
        breaks.append((request, Break(head.n, f"{what}: a guard anchored it at {when(found.at[request])}")))
    return AnchorCheck(breaks, vouched, gone)
