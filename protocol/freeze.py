"""The freeze of the whole mesh, as guards keep it for each other."""

import msgspec


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
