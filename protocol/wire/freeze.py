"""The freeze of the whole mesh, as guards keep it in CONF."""

from functools import partial

import msgspec

from protocol.wire.config import read


class Span(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A span of time, both ends in UTC µs."""

    since: int
    until: int


MOST_SPANS = 64
"""How many freezes of the mesh its entry keeps, the newest."""


class FreezeEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `mesh.conf.freeze` holds; no entry is a mesh that goes on."""

    frozen: bool = False
    by: str = ""
    """The person's name."""
    sender: str = ""
    reason: str = ""
    since: int = 0
    """UTC µs since when it is as it is."""
    at: int = 0
    """UTC µs at which the message was stored that it is from."""
    seq: int = 0
    """That message's place in CTL."""
    spans: tuple[Span, ...] = ()
    """When it was frozen before, the newest last. No clock of a request ran then."""


read_freeze = partial(read, type_=FreezeEntry)
