"""What a conversation remembers, one fact a record, and how much that may be.

Guards alone write a record, at `mesh.mem.<client>.<conversation>.<key>`. The newest one of a key counts.
"""

from typing import Final, Literal

import msgspec

from protocol.wire.handoff import Fact
from protocol.wire.prices import Moment

MOST_KEYS: Final = 64
"""Facts that a conversation remembers at most."""
MOST_BYTES: Final = 128 << 10
"""Bytes of them as JSON, at most. A record has to fit into a message."""


def memory_limit(max_handoff_bytes: int) -> int:
    """Return how many bytes a conversation may remember: half a handoff, so that a request has the rest."""
    return min(max_handoff_bytes // 2, MOST_BYTES)


class MemoryRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One fact of a conversation, or that it is forgotten."""

    v: Literal[1] = 1
    conversation: str
    key: str = ""
    """Empty in the record that all earlier facts of the conversation are forgotten."""
    fact: Fact | None = None
    """None: it is forgotten."""
    at: Moment
    """UTC µs of the answer that it came with, or at which the order to forget it was stored."""
    request: str = ""
    """The request that ended with it; empty where it was forgotten."""
    by: str = ""
    """Who had it forgotten: the person's name, else the sender."""
    control: str = ""
    """The id of the order to forget it."""
