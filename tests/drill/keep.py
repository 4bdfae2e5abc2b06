"""Keeping evidence: one file a kind, so that a drill can be looked at, and checked again, later."""

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from protocol.wire.config import Fleet
from tests.drill.evidence import (
    Asked,
    Claimed,
    Deed,
    Evidence,
    Fault,
    Held,
    Ordered,
    StepName,
    Submitted,
    Undone,
)

KINDS: Mapping[str, type] = {
    "submitted": Submitted,
    "deeds": Deed,
    "faults": Fault,
    "stalls": Fault,
    "orders": Ordered,
    "undone": Undone,
    "asked": Asked,
    "claims": Claimed,
    "held": Held,
}
"""What lies in a file of its own, one object a line, by the field of the evidence."""
EVENTS, STEPS, DEAD, DRILL = "events.jsonl", "steps.jsonl", "dead.jsonl", "drill.json"


class _Step(msgspec.Struct, frozen=True):
    """A line of `steps.jsonl`."""

    agent: str
    request: str
    turn: str
    step: str
    body: str
    """The stored bytes; base64 unless they are JSON."""
    encoded: bool = False


class _Drill(msgspec.Struct, frozen=True):
    """The fields of the evidence that are no list of objects."""

    lease_s: float
    guard_lease_s: float
    ended_at: int
    with_ledger: bool
    unasked: tuple[str, ...]
    silent: frozenset[str]
    unfinished: tuple[str, ...]
    unreached: tuple[str, ...]
    fleet: Fleet | None
    ends: frozenset[tuple[str, str, str]] | None = None


class _Line(msgspec.Struct, frozen=True):
    request: str


def save(evidence: Evidence, directory: Path) -> None:
    """Write everything into a directory; `events.jsonl` is an export like `mesh log export`'s."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in KINDS:
        _write(_file(directory, name), map(msgspec.json.encode, getattr(evidence, name)))
    _write(directory / EVENTS, (body for bodies in evidence.bodies.values() for body in bodies))
    steps = (_as_line(name, body) for name, body in evidence.steps.items())
    _write(directory / STEPS, map(msgspec.json.encode, steps))
    _write(directory / DEAD, evidence.dead)
    said = {name: getattr(evidence, name) for name in _Drill.__struct_fields__}
    _write(directory / DRILL, [msgspec.json.format(msgspec.json.encode(said, order="sorted"))])


def load(directory: Path) -> Evidence:
    """Return what was saved. Raises OSError and msgspec.MsgspecError."""
    said = msgspec.json.decode((directory / DRILL).read_bytes(), type=_Drill)
    bodies: dict[str, list[bytes]] = {}
    for line in (directory / EVENTS).read_bytes().splitlines():
        bodies.setdefault(msgspec.json.decode(line, type=_Line).request, []).append(line)
    read: dict[str, Any] = {name: _read(_file(directory, name), kind) for name, kind in KINDS.items()}
    return Evidence(
        **read,
        **msgspec.structs.asdict(said),
        bodies=bodies,
        steps=dict(_from_line(line) for line in _read(directory / STEPS, _Step)),
        dead=(directory / DEAD).read_bytes().splitlines(),
    )


def _file(directory: Path, name: str) -> Path:
    return directory / f"{name}.jsonl"


def _write(path: Path, lines: Iterable[bytes]) -> None:
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _read(path: Path, kind: type) -> list[Any]:
    decoder = msgspec.json.Decoder[Any](kind)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


def _as_line(name: StepName, body: bytes) -> _Step:
    try:
        return _Step(*name, body=body.decode())
    except UnicodeDecodeError:
        return _Step(*name, body=base64.b64encode(body).decode(), encoded=True)


def _from_line(line: _Step) -> tuple[StepName, bytes]:
    name = StepName(line.agent, line.request, line.turn, line.step)
    return name, base64.b64decode(line.body) if line.encoded else line.body.encode()
