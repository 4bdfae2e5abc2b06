"""Claims: signed statements about operators, accounts and users, as a server in operator mode reads them.

A claim is a JSON Web Token: who signs it, whom it is about, since when, and what it says. The operator signs
the claims of accounts, which hold all permissions. A signing key of an account signs the claim of a user,
which only says whose permissions apply. So permissions change without a new claim for the user.

A user's claim lies beside its seed, in one file of the form that NATS calls *credentials*. So both are
replaced at once, and other tools of NATS read the file, too.
"""

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import msgspec

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_VERSION = 2
_ISSUED, _ID = "iat", "jti"
_CLAIM = re.compile(r"-----BEGIN NATS USER JWT-----\s*(\S+)\s*------END NATS USER JWT------")
_SEED = re.compile(r"-----BEGIN USER NKEY SEED-----\s*(\S+)\s*------END USER NKEY SEED------")
_FILE = """\
-----BEGIN NATS USER JWT-----
{claim}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


class ClaimKind(Enum):
    """What a claim is about."""

    OPERATOR = "operator"
    ACCOUNT = "account"
    USER = "user"


class Issuer(NamedTuple):
    """A key that signs claims. `repr` hides the seed."""

    seed: str
    public: str

    def __repr__(self) -> str:
        return f"Issuer(public={self.public!r})"


class Claim(NamedTuple):
    """The content of a claim."""

    name: str
    issuer: str
    """Public key that signed it."""
    subject: str
    """Public key that it is about."""
    issued_at_s: int
    """UTC s. A server keeps the newest claim of an account."""
    content: Mapping[str, Any]
    """What it says, in the fields of NATS."""


class _Told(msgspec.Struct):
    """The fields of a claim that are read."""

    name: str
    iss: str
    sub: str
    iat: int
    nats: dict[str, Any]


def new_issuer(kind: ClaimKind) -> Issuer:
    """Return a new key of an operator or an account."""
    import nkeys  # imported only when a key is used, since it loads a cryptography library

    prefix = nkeys.PREFIX_BYTE_OPERATOR if kind is ClaimKind.OPERATOR else nkeys.PREFIX_BYTE_ACCOUNT
    return read_issuer(bytes(nkeys.encode_seed(os.urandom(32), prefix)).decode(), kind)


def read_issuer(seed: str, kind: ClaimKind) -> Issuer:
    """Return the key of a seed. Raises ValueError unless it is of this kind."""
    import nkeys

    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        public = pair.public_key.decode()
        pair.wipe()
    except Exception as broken:
        raise ValueError("no nkey seed") from broken
    if public[:1] != ("O" if kind is ClaimKind.OPERATOR else "A"):
        raise ValueError(f"a seed that is not an {kind.value}'s")
    return Issuer(seed, public)


def issue(
    issuer: Issuer,
    kind: ClaimKind,
    subject: str,
    name: str,
    content: Mapping[str, Any],
    *,
    now_s: int,
    before: str | None = None,
) -> str:
    """Return a signed claim; `before` itself if it says the same already.

    Args:
        subject: the public key that the claim is about.
        now_s: UTC s. The claim is dated later if `before` is not older, since the newer claim wins.
        before: the previous claim about the subject.

    Raises ValueError if `before` is no claim.
    """
    body = dict(content) | {"type": kind.value, "version": _VERSION}
    told = _plain({"iss": issuer.public, "name": name, "sub": subject, "nats": body})
    if before is not None:
        earlier = _decode(before)
        issued_at = earlier.pop(_ISSUED, 0)
        earlier.pop(_ID, None)
        if earlier == told:
            return before
        now_s = max(now_s, issued_at + 1)
    told[_ISSUED] = now_s
    digest = hashlib.sha256(msgspec.json.encode(told, order="deterministic")).digest()
    told[_ID] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_text(_HEADER)}.{_text(told)}"
    return f"{signed}.{_unpadded(_sign(issuer.seed, signed.encode()))}"


def read_claim(claim: str) -> Claim:
    """Return what a claim says, without checking its signature. Raises ValueError if it is none."""
    try:
        told = msgspec.convert(_decode(claim), _Told)
    except msgspec.ValidationError as wrong:
        raise ValueError(f"no claim: {wrong}") from wrong
    return Claim(told.name, told.iss, told.sub, told.iat, told.nats)


def with_seed(claim: str, seed: str) -> str:
    """Return the text of a user's credentials: its claim and its seed."""
    return _FILE.format(claim=claim, seed=seed)


def claim_and_seed(text: str) -> tuple[str, str]:
    """Return claim and seed in a user's credentials; the claim is empty if `text` is a seed alone."""
    claim, seed = _CLAIM.search(text), _SEED.search(text)
    if seed is None:
        return "", text.strip()
    return ("" if claim is None else claim[1]), seed[1]


def _sign(seed: str, body: bytes) -> bytes:
    import nkeys

    pair = nkeys.from_seed(bytearray(seed.encode()))
    try:
        return bytes(pair.sign(body))
    finally:
        pair.wipe()


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value as it is after it was written and read, where a tuple is a list."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])


def _text(value: Mapping[str, Any]) -> str:
    return _unpadded(msgspec.json.encode(value))


def _unpadded(body: bytes) -> str:
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _decode(claim: str) -> dict[str, Any]:
    _, _, rest = claim.strip().partition(".")
    body, _, _ = rest.partition(".")
    try:
        return msgspec.json.decode(
            base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=dict[str, Any]
        )
    except (ValueError, msgspec.MsgspecError) as broken:
        raise ValueError("no claim") from broken
