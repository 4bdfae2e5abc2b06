"""The fleet, its policies and prices over time: which revision stood when, and who wrote it.

A verdict names the revision of the fleet that it rests on (`grounds.fleet`). The stream CONF keeps the newest
64 of each document.
"""

from typing import Any

import msgspec

from mesh.bus.connection import Bus
from mesh.bus.reader import last
from mesh.bus.stores import Revision, differences, revisions, write_revision
from mesh.errors import Impossible, NotFound, UsageWrong
from protocol.wire.subjects import (
    CONF,
    FLEET,
    POLICIES,
    PRICES,
    SCHEDULE_ENTRIES,
    SCHEDULE_PAUSES,
    SHADOWS,
)

_NAMED = {
    POLICIES.removesuffix("*"): "policy",
    SHADOWS.removesuffix("*"): "shadow",
    SCHEDULE_ENTRIES.removesuffix("*"): "schedule",
    SCHEDULE_PAUSES.removesuffix("*"): "pause",
}


class ConfEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of a document."""

    rev: int
    what: str
    """`fleet`, `prices`, or `policy`, `shadow`, `schedule` or `pause` and a name."""
    at: int
    """UTC µs."""
    by: str
    """Who wrote it, by their own account."""
    current: bool
    report: str = ""
    """The digest of the report by which a shadow became this policy."""


def _what(subject: str) -> str:
    """Return the document that a subject names; empty if people do not write it."""
    for prefix, kind in _NAMED.items():
        if subject.startswith(prefix):
            return f"{kind} {subject.removeprefix(prefix)}"
    return {FLEET: "fleet", PRICES: "prices"}.get(subject, "")


async def history(bus: Bus, subject: str = CONF) -> list[ConfEntry]:
    """Return the revisions of all documents, or of some, newest first. Raises BusError."""
    found = [each for each in await revisions(bus, subject) if _what(each.subject)]
    newest = {each.subject: each.seq for each in found}
    return [
        ConfEntry(
            rev=each.seq,
            what=_what(each.subject),
            at=each.at,
            by=each.by,
            current=newest[each.subject] == each.seq,
            report=each.report,
        )
        for each in reversed(found)
    ]


class ConfChange(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that replaced another one, and where they differ."""

    entry: ConfEntry
    places: tuple[str, ...]


async def changes(bus: Bus, since_us: int) -> list[ConfChange]:
    """Return the revisions since a time (UTC µs), the oldest first. Raises BusError.

    The first one of a document changed nothing, and is left out.
    """
    found, before = list[ConfChange](), dict[str, Revision]()
    entries = {each.rev: each for each in await history(bus)}
    for kept in await revisions(bus, CONF):
        if kept.seq not in entries:
            continue
        earlier, before[kept.subject] = before.get(kept.subject), kept
        if earlier is not None and kept.at >= since_us:
            try:
                places = tuple(place for place, _, _ in differences(document(earlier), document(kept)))
            except Impossible:  # another check names what cannot be read
                places = ()
            found.append(ConfChange(entry=entries[kept.seq], places=places))
    return found


async def revision(bus: Bus, rev: int) -> Revision:
    """Return one revision of a document. Raises NotFound, BusError."""
    for each in await revisions(bus, CONF):
        if each.seq == rev and _what(each.subject):
            return each
    raise NotFound(f"there is no revision {rev} of the fleet, its policies or prices: see mesh conf log")


def document(kept: Revision) -> Any:
    """Return a revision as JSON. Raises Impossible for one that is none."""
    try:
        return msgspec.json.decode(kept.data)
    except msgspec.DecodeError:
        raise Impossible(f"revision {kept.seq} is no JSON") from None


async def compared(bus: Bus, a: int, b: int) -> list[tuple[str, Any, Any]]:
    """Return where two revisions of one document differ. Raises NotFound, UsageWrong, BusError."""
    first, second = await revision(bus, a), await revision(bus, b)
    if first.subject != second.subject:
        raise UsageWrong(f"{a} is of {_what(first.subject)}, {b} of {_what(second.subject)}")
    return list(differences(document(first), document(second)))


async def roll_back(bus: Bus, rev: int, *, by: str) -> ConfEntry:
    """Write an earlier revision anew, as the newest; return that. It takes the admin's credentials.

    Raises NotFound, Impossible if it is set already, SequenceConflict if somebody else writes, BusError.
    """
    kept = await revision(bus, rev)
    stands = await last(bus, "CONF", kept.subject, leader=True)
    if stands is not None and stands.data == kept.data:
        raise Impossible(f"{_what(kept.subject)} stands as in revision {rev} already")
    after = 0 if stands is None else stands.seq
    seq = await write_revision(bus, kept.subject, kept.data, by=by, after=after)
    return ConfEntry(rev=seq, what=_what(kept.subject), at=0, by=by, current=True)
