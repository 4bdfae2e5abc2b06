"""The hash chain: each event names the digest of the one before it.

The digest is taken over a canonical form in which everything that a person or a model wrote (fact
values, answers, summaries, reasons) stands as a *salted commitment*. Such a value can later be
removed and its commitment left in its place without breaking the chain.

    field salt   = SHA-256(event salt ‖ 0x1f ‖ path)            path like `.work.handoff.summary`
    commitment   = SHA-256(field salt ‖ 0x1f ‖ canonical JSON of the value), hex
    canonical    = JSON with sorted keys, no white space, UTF-8
    digest       = SHA-256(canonical form of the event), hex

In that form the event's salt, too, stands as a hash: as the field salt of the empty path. So a redacted
event needs its salt no longer. It keeps the field salts of the values that it still shows, and a short value
that was removed cannot be guessed from its commitment.

Each event is vouched for by the one after it. Nothing vouches for a request's last event, nor says that none
came after it: that takes the digest of the last event, held outside the log.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

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

_NESTED = frozenset({dict, list})
_sha256 = hashlib.sha256
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Break(NamedTuple):
    """Where a chain does not hold."""

    n: int
    what: str


def digest(body: bytes) -> str:
    """Return the digest (hex) of one event from its stored bytes."""
    return _digest(msgspec.json.decode(body))


def _digest(event: dict[str, Any]) -> str:
    """Return the digest of a decoded event, which is of no other use then: its canonical form is made of it."""
    salt = str(event.get("salt", "")).encode() + b"\x1f"
    _commit(event, salt, "")
    event["salt"] = _sha256(salt).hexdigest()
    return _sha256(_canonical(event)).hexdigest()


def _commit(node: Any, salt: bytes, path: str) -> None:
    """Put commitments in the place of what an object or a list commits to, at whatever depth.

    Args:
        salt: the event's, and 0x1f.
        path: of `node`.
    """
    for key, value in node.items() if type(node) is dict else enumerate(node):
        if key in COMMITTED:
            field_salt = _sha256(salt + f"{path}.{key}".encode()).digest()
            node[key] = _sha256(field_salt + b"\x1f" + _canonical(value)).hexdigest()
        elif type(value) in _NESTED and key not in _PLAIN:
            _commit(value, salt, f"{path}.{key}")


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
        expected = _digest(event)
    return found
