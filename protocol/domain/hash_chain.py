"""The hash chain: each event names the digest of the one before it.

The digest is taken over a canonical form. In it a *salted commitment* replaces everything that a person or a
model wrote (fact values, answers, summaries, reasons). Such a value can later be removed and its commitment
left in its place, and the chain holds.

    field salt   = SHA-256(event salt ‖ 0x1f ‖ path)            path like `.work.handoff.summary`
    commitment   = SHA-256(field salt ‖ 0x1f ‖ canonical JSON of the value), hex
    canonical    = JSON with sorted keys, no white space, UTF-8
    digest       = SHA-256(canonical form of the event), hex

In that form the event's salt is a hash, too: the field salt of the empty path. So a redacted event no longer
needs its salt. It keeps the field salts of the values that it still shows. Nobody can guess a short removed
value from its commitment.

Each event vouches for the one before it. Nothing in the log vouches for a request's last event, or shows that
none came after it. That takes the digest of the last event, kept outside the log.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from protocol.wire.codec import canonical
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Fact

GENESIS = "0" * 64
"""`prev` of a request's first event."""

COMMITTED = frozenset(
    {
        "answer",
        "detail",
        "message",
        "question",
        "reason",
        "reply",
        "result",
        "summary",
        "text",
        "uri",
        "value",
    }
)
"""Names of fields whose content is committed to, wherever in an event they stand."""


_PLAIN = frozenset({"grounds", "policy", "prices"})
"""Parts of an event that hold no such field: documents of the admin's, taken as they are."""

_NESTED = frozenset({dict, list, tuple})
_sha256 = hashlib.sha256


class Break(NamedTuple):
    """Where a chain does not hold."""

    n: int
    what: str


def digest(body: bytes) -> str:
    """Return the digest (hex) of one event from its stored bytes."""
    return digest_of_document(msgspec.json.decode(body))


def digest_of(event: AnyEvent) -> str:
    """Return the same of an event whose bytes were made from this very object.

    Of an event that was read it may be another: a newer guard's has fields that this build does not know.
    Facts are most of a usual event. Their values are committed to as they are, not looked through.
    """
    work = event.work
    facts = () if work is None else work.handoff.facts
    if work is not None and facts:
        event = replace(event, work=replace(work, handoff=replace(work.handoff, facts=())))
    return digest_of_document(msgspec.to_builtins(event), facts)


def digest_of_document(event: dict[str, Any], facts: tuple[Fact, ...] = ()) -> str:
    """Return the digest (hex) of a decoded event, which becomes its canonical form by that.

    Args:
        facts: of the handoff that it gives, where they are not in `event`.
    """
    salt = str(event.get("salt", "")).encode() + b"\x1f"
    _commit(event, salt, "")
    event["salt"] = _sha256(salt).hexdigest()
    if facts:
        shown = event["work"]["handoff"]["facts"] = msgspec.to_builtins(facts)
        for index, fact in enumerate(shown):
            fact["value"] = _commitment(fact["value"], salt, b".work.handoff.facts.%d.value" % index)
    return _sha256(canonical(event)).hexdigest()


def _commit(node: Any, salt: bytes, path: str) -> None:
    """Replace what an object or a list commits to by commitments, at any depth.

    Args:
        salt: the event's, and 0x1f.
        path: of `node`.
    """
    for key, value in node.items() if type(node) is dict else enumerate(node):
        if key in COMMITTED:
            node[key] = _commitment(value, salt, f"{path}.{key}".encode())
        elif type(value) in _NESTED and key not in _PLAIN:
            _commit(value, salt, f"{path}.{key}")


def _commitment(value: Any, salt: bytes, path: bytes) -> str:
    field_salt = _sha256(salt + path).digest()
    return _sha256(field_salt + b"\x1f" + canonical(value)).hexdigest()


def breaks(bodies: Iterable[bytes]) -> list[Break]:
    """Return where the chain of one request's events, in order from its first, does not hold."""
    found: list[Break] = []
    expected = GENESIS
    for index, body in enumerate(bodies):
        try:
            event = msgspec.json.decode(body)
            n, prev = event["n"], event["prev"]
        except (msgspec.DecodeError, KeyError, TypeError):
            found.append(Break(index, "cannot be read"))
            expected = ""
            continue
        if n != index:
            found.append(Break(index, f"is numbered {n}"))
        if prev != expected:
            found.append(Break(index, "does not name the event before it"))
        expected = digest_of_document(event)
    return found
