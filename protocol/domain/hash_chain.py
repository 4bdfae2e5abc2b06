"""The hash chain: `prev` of each event is the SHA-256 (hex) of the stored bytes of the event before it.

Each event vouches for the previous one. Nothing in the log vouches for a request's last event, or proves that
none came after it. That needs the digest outside the log: guards sign it (`mesh.guard.anchors`).

From `prev`, readers of an event learn the digest of an event that they may not read. Each event's random
`salt` keeps them from guessing its content.

An exported event may be *redacted*: only its envelope is left, plus `redacted`, the digest of the whole
event. So every other event still verifies. The `salt` is removed, too, since it would allow guessing what is
missing.
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
"""Fields that a redacted event keeps: its envelope without the salt."""


class ChainLink(msgspec.Struct, frozen=True, gc=False):
    """An event's place in a chain, as the event states it."""

    request: str
    n: int
    prev: str
    v: int = 0
    type: str = ""
    redacted: str = ""
    """Redacted events: the digest of the whole event; otherwise empty."""


class Break(NamedTuple):
    """A place where a chain is broken."""

    n: int
    what: str


_links = msgspec.json.Decoder(ChainLink)


class Chain:
    """Checks the chain of one request's events, which are passed in order.

    Args:
        n: the number of the first event that will be passed.
        prev: the `prev` that it must have.
    """

    __slots__ = ("breaks", "n", "prev", "redacted")

    def __init__(self, n: int = 0, prev: str = GENESIS) -> None:
        self.breaks: list[Break] = []
        self.redacted: list[int] = []
        """Numbers of redacted events."""
        self.n, self.prev = n, prev
        """Expected in the next event."""

    def take(self, body: bytes, link: ChainLink) -> None:
        """Check the next event. `link` is read from `body`."""
        if link.n != self.n:
            self.breaks.append(Break(self.n, f"is numbered {link.n}"))
        if link.prev != self.prev:
            self.breaks.append(Break(self.n, "does not name the event before it"))
        if link.redacted:
            self.redacted.append(self.n)
        self.n, self.prev = self.n + 1, link.redacted or body_digest(body)

    def take_unreadable(self) -> None:
        """Record bytes that are not an event."""
        self.breaks.append(Break(self.n, "cannot be read"))
        self.n, self.prev = self.n + 1, ""


def link_of(body: bytes) -> ChainLink:
    """Return an event's place in its chain. Raises OldForm, or Malformed for bytes that are not an event."""
    try:
        link: ChainLink = _links.decode(body)
    except READ_ERRORS as error:
        raise Malformed("not an event") from error
    check_form(link.type, link.v)
    return link


def breaks(bodies: Iterable[bytes]) -> list[Break]:
    """Return the places where the chain of one request's events is broken. Raises OldForm.

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
    """Return an event reduced to its envelope. Raises Malformed for bytes that are not an event.

    An event that is already redacted is returned unchanged.
    """
    if link_of(body).redacted:
        return body
    event: dict[str, object] = msgspec.json.decode(body)
    left = {name: value for name, value in event.items() if name in LEFT}
    return msgspec.json.encode(left | {"redacted": body_digest(body)})
