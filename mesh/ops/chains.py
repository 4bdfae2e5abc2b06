"""Hash chains checked as events come by, in whatever order of requests: little is kept of each."""

import msgspec

from protocol.domain import hash_chain
from protocol.domain.hash_chain import GENESIS, Break
from protocol.wire import codec


class _Link(msgspec.Struct, frozen=True):
    request: str
    n: int
    prev: str


class Chains:
    """Takes events; each request's own must come in order."""

    def __init__(self) -> None:
        self.breaks: list[tuple[str, Break]] = []
        self.events = 0
        self._expected: dict[str, tuple[int, str]] = {}
        """By request: the number and `prev` of its next event."""

    @property
    def requests(self) -> int:
        return len(self._expected)

    def take(self, body: bytes) -> None:
        self.events += 1
        link = codec.readable(body, _Link)
        if link is None:
            self.breaks.append(("?", Break(-1, "cannot be read")))
            return
        n, prev = self._expected.get(link.request, (0, GENESIS))
        if link.n != n:
            self.breaks.append((link.request, Break(n, f"is numbered {link.n}")))
        if link.prev != prev:
            self.breaks.append((link.request, Break(link.n, "does not name the event before it")))
        self._expected[link.request] = (link.n + 1, hash_chain.digest(body))
