"""The hash chain: `prev` of each event is the SHA-256 (hex) of the stored bytes of the event before it.

An event vouches for the one before it. Nothing in the log vouches for a request's last event, or shows that
none came after it. That takes its digest outside the log: guards sign it (`mesh.guard.anchors`).

The readers of an event learn from `prev` the digest of an event that they may not read. Each event's random
`salt` keeps them from guessing what is in there.

An event of an export may be *redacted*. What is left of it stands beside `redacted`, the digest of the whole.
So every other event still verifies. Its `salt` is taken out, too: whoever has it can guess what is missing.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from protocol.wire.codec import body_digest, check_form
from protocol.wire.errors import Malformed
from protocol.wire.prices import READ_ERRORS

GENESIS = "0" * 64
"""`prev` of a request's first event."""

LEFT = frozenset({"type", "v", "id", "request", "n", "at", "cause", "prev", "to"})
"""What is left of a redacted event: its envelope without its salt."""


class ChainLink(msgspec.Struct, frozen=True, gc=False):
    """What an event says of its place in a chain."""

    request: str
    n: int
    prev: str
    v: int = 0
    type: str = ""
    redacted: str = ""
    """The digest of the whole event; empty for one that is whole."""


class Break(NamedTuple):
    """Where a chain does not hold."""

    n: int
    what: str


_links = msgspec.json.Decoder(ChainLink)


class Chain:
    """Checks one request's events as they come, in order from its first.

    Args:
        n: the number of the first that comes.
        prev: what that has to name as the one before it.
    """

    __slots__ = ("breaks", "n", "prev", "redacted")

    def __init__(self, n: int = 0, prev: str = GENESIS) -> None:
        self.breaks: list[Break] = []
        self.redacted: list[int] = []
        """Numbers of the events that are redacted."""
        self.n, self.prev = n, prev
        """Of the next event."""

    def take(self, body: bytes, link: ChainLink) -> None:
        """Take in the next event. `link` is what `body` says of it."""
        if link.n != self.n:
            self.breaks.append(Break(self.n, f"is numbered {link.n}"))
        if link.prev != self.prev:
            self.breaks.append(Break(self.n, "does not name the event before it"))
        if link.redacted:
            self.redacted.append(self.n)
        self.n, self.prev = self.n + 1, link.redacted or body_digest(body)

    def take_unreadable(self) -> None:
        """Take in bytes that are no event."""
        self.breaks.append(Break(self.n, "cannot be read"))
        self.n, self.prev = self.n + 1, ""


def link_of(body: bytes) -> ChainLink:
    """Return what an event says of its place. Raises OldForm, and Malformed for what is no event."""
    try:
        link: ChainLink = _links.decode(body)
    except READ_ERRORS as error:
        raise Malformed("not an event") from error
    check_form(link.type, link.v)
    return link


def breaks(bodies: Iterable[bytes]) -> list[Break]:
    """Return where the chain of one request's events does not hold. Raises OldForm.

    Args:
        bodies: the events, in order from the first.
    """
    chain = Chain()
    for body in bodies:
        try:
            link = link_of(body)
        except Malformed:
            chain.take_unreadable()
        else:
            chain.take(body, link)
    return chain.breaks


def redacted(body: bytes) -> bytes:
    """Return an event of which only the envelope is left. Raises Malformed for what is no event.

    One that is redacted already stays as it is.
    """
    if link_of(body).redacted:
        return body
    event: dict[str, object] = msgspec.json.decode(body)
    left = {name: value for name, value in event.items() if name in LEFT}
    return msgspec.json.encode(left | {"redacted": body_digest(body)})
