"""The ledger: files outside of the mesh into which tools write what they did, and agents what they asked for.

A drill holds them against the log. A tool calls `note` in the very moment in which it changes the world, and
not before or after; outside of a drill that does nothing. Each line is one JSON object.
"""

import os
import time
from pathlib import Path

import msgspec

from protocol.wire.moves import Move
from tests.drill.evidence import Asked, Deed, Fault, Kind

VARIABLE = "MESH_DRILL_LEDGER"
"""Names the file. Without it nothing is written."""
_DEEDS = msgspec.json.Decoder(Deed)
_ASKED = msgspec.json.Decoder(Asked)
_STALLS = msgspec.json.Decoder(Fault)


def note(kind: Kind, tool: str, *, key: str = "", request: str = "", call: str = "", began: int = 0) -> None:
    """Write down one deed, if this process is part of a drill.

    Args:
        key: the idempotency key that the tool was given.
        request: the request's id, where the tool knows it.
        call: what tells this call from every other one of the request.
        began: when the tool was called, UTC µs.
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
        began=began,
    )
    _append(Path(path), deed)


def note_move(request: str, turn: str, round_: int, move: Move) -> None:
    """Write down a move that an agent's code is about to return, if this process is part of a drill."""
    path = os.environ.get(VARIABLE)
    if path:
        _append(_moves(Path(path)), Asked(request, turn, round_, move))


def note_stall(stall: Fault) -> None:
    """Write down that this process stood still, if it is part of a drill."""
    path = os.environ.get(VARIABLE)
    if path:
        _append(_stalls(Path(path)), stall)


def _moves(ledger: Path) -> Path:
    """Return where moves are written down."""
    return ledger.with_name(f"{ledger.name}.asked")


def _stalls(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.stalls")


def _append(path: Path, line: object) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, msgspec.json.encode(line) + b"\n")  # one write: no other process comes between
    finally:
        os.close(file)


def deeds(path: Path) -> list[Deed]:
    """Return every deed in a ledger, in the order in which they were written.

    Raises msgspec.MsgspecError for a line that is none.
    """
    return [_DEEDS.decode(line) for line in _lines(path)]


def moves(path: Path) -> list[Asked]:
    """Return every move that was written down beside a ledger. Raises as `deeds`."""
    return [_ASKED.decode(line) for line in _lines(_moves(path))]


def stalls(path: Path) -> list[Fault]:
    """Return every stall that was written down beside a ledger. Raises as `deeds`."""
    return [_STALLS.decode(line) for line in _lines(_stalls(path))]


def _lines(path: Path) -> list[bytes]:
    """Return a file's whole lines. A reader may see the first half of a line that another process writes."""
    try:
        written = path.read_bytes()
        return [line for line in written[: written.rfind(b"\n") + 1].splitlines() if line]
    except FileNotFoundError:
        return []
