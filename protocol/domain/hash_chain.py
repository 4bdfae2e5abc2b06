"""The hash chain: each event names the digest of the one before it.

The digest is taken over a canonical form in which everything that a person or a model wrote (fact
values, answers, summaries, reasons) stands as a *salted commitment*. Such a value can later be
removed and its commitment left in its place without breaking the chain.

    field salt   = SHA-256(event salt ‖ 0x1f ‖ path)            path like `.work.handoff.summary`
    commitment   = SHA-256(field salt ‖ 0x1f ‖ canonical JSON of the value), hex
    canonical    = JSON with sorted keys, no white space, UTF-8
    digest       = SHA-256(canonical form of the event), hex

A field's own salt, not the event's, is what a redacted event would keep for the values it still
shows: with the event's salt, a short value could be guessed from its commitment.

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


_NESTED = (dict, list)  # not `dict | list`, which would be made anew for every value


class Break(NamedTuple):
    """Where a chain does not hold."""

    n: int
    what: str


def digest(body: bytes) -> str:
    """Return the digest (hex) of one event from its stored bytes."""
    event = msgspec.json.decode(body)
    salt = str(event.get("salt", "")).encode()
    form = _committed(event, salt, "")
    return hashlib.sha256(msgspec.json.encode(form, order="deterministic")).hexdigest()


def _committed(node: Any, salt: bytes, path: str) -> Any:
    """Return the canonical form of a dictionary or list."""
    if isinstance(node, list):
        return [
            _committed(item, salt, f"{path}.{index}") if isinstance(item, _NESTED) else item
            for index, item in enumerate(node)
        ]
    form = {}
    for key, value in node.items():
        if key in COMMITTED:
            form[key] = _commitment(value, salt, f"{path}.{key}")
        elif isinstance(value, _NESTED) and value and key not in _PLAIN:
            form[key] = _committed(value, salt, f"{path}.{key}")
        else:
            form[key] = value
    return form


def _commitment(value: Any, salt: bytes, path: str) -> str:
    field_salt = hashlib.sha256(salt + b"\x1f" + path.encode()).digest()
    return hashlib.sha256(
        field_salt + b"\x1f" + msgspec.json.encode(value, order="deterministic")
    ).hexdigest()


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
        expected = digest(body)
    return found
