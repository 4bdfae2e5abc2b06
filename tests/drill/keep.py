"""Keeping evidence: one file a kind, so that a drill can be looked at, and checked again, later."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from protocol.wire.config import Fleet
from tests.drill.evidence import Asked, Deed, Evidence, Fault, Ordered, StepName, Submitted, Undone

SUBMITTED, EVENTS, STEPS = "submitted.jsonl", "events.jsonl", "steps.jsonl"
DEEDS, FAULTS, ORDERS = "deeds.jsonl", "faults.jsonl", "orders.jsonl"
DEAD, UNDONE, ASKED, DRILL = "dead.jsonl", "undone.jsonl", "asked.jsonl", "drill.json"
T = TypeVar("T")


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
    """What is said once."""

    lease_s: float
    guard_lease_s: float
    ended_at: int
    with_ledger: bool
    unasked: tuple[str, ...]
    silent: tuple[str, ...]
    unfinished: tuple[str, ...]
    unreached: tuple[str, ...]
    fleet: Fleet | None


class _Line(msgspec.Struct, frozen=True):
    request: str


def save(evidence: Evidence, directory: Path) -> None:
    """Write everything into a directory; `events.jsonl` is an export like `mesh log export`'s."""
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / SUBMITTED, evidence.submitted)
    (directory / EVENTS).write_bytes(
        b"".join(body + b"\n" for bodies in evidence.bodies.values() for body in bodies)
    )
    _write(directory / STEPS, (_as_line(name, body) for name, body in evidence.steps.items()))
    _write(directory / DEEDS, evidence.deeds)
    _write(directory / FAULTS, evidence.faults)
    _write(directory / ORDERS, evidence.orders)
    _write(directory / UNDONE, evidence.undone)
    _write(directory / ASKED, evidence.asked)
    (directory / DEAD).write_bytes(b"".join(body + b"\n" for body in evidence.dead))
    said = _Drill(
        lease_s=evidence.lease_s,
        guard_lease_s=evidence.guard_lease_s,
        ended_at=evidence.ended_at,
        with_ledger=evidence.with_ledger,
        unasked=tuple(evidence.unasked),
        silent=tuple(sorted(evidence.silent)),
        unfinished=tuple(evidence.unfinished),
        unreached=tuple(evidence.unreached),
        fleet=evidence.fleet,
    )
    (directory / DRILL).write_bytes(msgspec.json.format(msgspec.json.encode(said)) + b"\n")


def load(directory: Path) -> Evidence:
    """Return what was saved. Raises OSError and msgspec.MsgspecError."""
    said = msgspec.json.decode((directory / DRILL).read_bytes(), type=_Drill)
    bodies: dict[str, list[bytes]] = {}
    for line in (directory / EVENTS).read_bytes().splitlines():
        bodies.setdefault(msgspec.json.decode(line, type=_Line).request, []).append(line)
    return Evidence(
        submitted=_read(directory / SUBMITTED, Submitted),
        bodies=bodies,
        steps=dict(_from_line(line) for line in _read(directory / STEPS, _Step)),
        deeds=_read(directory / DEEDS, Deed),
        faults=_read(directory / FAULTS, Fault),
        orders=_read(directory / ORDERS, Ordered),
        undone=_read(directory / UNDONE, Undone),
        asked=_read(directory / ASKED, Asked),
        dead=(directory / DEAD).read_bytes().splitlines(),
        lease_s=said.lease_s,
        guard_lease_s=said.guard_lease_s,
        ended_at=said.ended_at,
        with_ledger=said.with_ledger,
        unasked=said.unasked,
        silent=frozenset(said.silent),
        unfinished=said.unfinished,
        unreached=said.unreached,
        fleet=said.fleet,
    )


def _write(path: Path, values: Iterable[Any]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in values))


def _read(path: Path, kind: type[T]) -> list[T]:
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


def _as_line(name: StepName, body: bytes) -> _Step:
    try:
        return _Step(*name, body=body.decode())
    except UnicodeDecodeError:
        return _Step(*name, body=base64.b64encode(body).decode(), encoded=True)


def _from_line(line: _Step) -> tuple[StepName, bytes]:
    name = StepName(line.agent, line.request, line.turn, line.step)
    return name, base64.b64decode(line.body) if line.encoded else line.body.encode()
