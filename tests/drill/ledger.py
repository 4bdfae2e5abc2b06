"""The ledger: a file outside of the mesh into which tools write what they really did.

A drill holds it against the log. A tool calls `note` in the very moment in which it changes the world, and
not before or after; outside of a drill that does nothing. Each line is one JSON object.
"""

import os
import time
from pathlib import Path

import msgspec

from tests.drill.evidence import Deed, Kind

VARIABLE = "MESH_DRILL_LEDGER"
"""Names the file. Without it nothing is written."""
_DEEDS = msgspec.json.Decoder(Deed)


def note(kind: Kind, tool: str, *, key: str = "", request: str = "", call: str = "") -> None:
    """Write down one deed, if this process is part of a drill.

    Args:
        key: the idempotency key that the tool was given.
        request: the request's id, where the tool knows it.
        call: what tells this call from every other one of the request.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    deed = Deed(
        at=time.time_ns() // 1000,
        kind=kind,
        tool=tool,
        key=key,
        request=request,
        call=call,
        pid=os.getpid(),
    )
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, msgspec.json.encode(deed) + b"\n")  # one write: no other process comes between
    finally:
        os.close(ledger)


def deeds(path: Path) -> list[Deed]:
    """Return every deed in a ledger, in the order in which they were written.

    Raises msgspec.MsgspecError for a line that is none.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [_DEEDS.decode(line) for line in lines if line]
