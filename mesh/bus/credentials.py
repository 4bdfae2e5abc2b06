"""Credentials: the nkey that identifies a connection, and the files that secure it with TLS.

A seed is secret; configurations contain only its public half. Each seed has its own file,
`<directory>/<name>.nk`, which only its owner can read. Setup writes `<name>.pub` beside it. While a key is
replaced, `<name>.old.pub` is the one before, which is valid, too. A seed never appears in a log line, an
error or a configuration. For servers in operator mode, the file also has a claim (`mesh.bus.claims`).

A connection with TLS files, or with a URL that begins with `tls://`, is secure or fails. It never falls back
to clear text, even if the server offers nothing else.
"""

import base64
import contextlib
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from mesh.bus.claims import claim_and_seed, with_seed
from mesh.errors import MeshError, TlsUnusable

SEED_SUFFIX = ".nk"
PUBLIC_SUFFIX = ".pub"
OLD_SUFFIX = ".old.pub"
_PUBLIC = re.compile(r"[A-Z2-7]{56}")


class KeyPair(NamedTuple):
    """A user's nkey. `repr` hides the seed, so that a traceback with locals does not show it."""

    seed: str
    public: str
    claim: str = ""
    """Claim about the public key, for a server in operator mode; empty for other servers."""

    @property
    def credential(self) -> str:
        """What a connection needs: the seed, with its claim if there is one."""
        return with_seed(self.claim, self.seed) if self.claim else self.seed

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def new_key() -> KeyPair:
    """Return a new user key."""
    import nkeys  # imported only when a key is used, since it loads a cryptography library

    return _pair(bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)).decode())


def _pair(seed: str, claim: str = "") -> KeyPair:
    import nkeys

    pair = nkeys.from_seed(bytearray(seed.encode()))
    try:
        return KeyPair(seed, pair.public_key.decode(), claim)
    finally:
        pair.wipe()


def is_public_key(text: str) -> bool:
    """Return True if `text` is the public key of a user: base32 of prefix, 32 bytes and their CRC-16."""
    if _PUBLIC.fullmatch(text) is None:
        return False
    import nkeys

    raw = base64.b32decode(text)
    checksum: bytes = nkeys.crc16_checksum(raw[:-2])
    return raw[0] == nkeys.PREFIX_BYTE_USER and raw[-2:] == checksum


class Signature(NamedTuple):
    """A public key, and what it signed: Ed25519, base64."""

    key: str
    signature: str


def sign(credential: str, body: bytes) -> Signature:
    """Sign bytes with the key of a seed, which may have its claim beside it."""
    import nkeys

    _, seed = claim_and_seed(credential)
    pair = nkeys.from_seed(bytearray(seed.encode()))
    try:
        return Signature(pair.public_key.decode(), base64.b64encode(pair.sign(body)).decode())
    finally:
        pair.wipe()


def is_signed(body: bytes, signed: Signature) -> bool:
    """Return True if the key that a signature names made it over these bytes."""
    if not is_public_key(signed.key):
        return False
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(base64.b32decode(signed.key)[1:-2]).verify(body, base64.b64decode(signed.signature))
    except (BadSignatureError, ValueError):
        return False
    return True


def seed_file(directory: Path, name: str) -> Path:
    """Return the path of the seed of `name`."""
    return directory / f"{name}{SEED_SUFFIX}"


def write_key(directory: Path, name: str, key: KeyPair) -> Path:
    """Write the seed of `name` with mode 0600. Raises FileExistsError instead of replacing a file."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = seed_file(directory, name)
    _write_private(path, f"{key.seed}\n".encode())
    return path


def write_public(directory: Path, name: str, key: KeyPair) -> None:
    """Write the public key of `name` beside its seed, unless it is already there."""
    path, body = directory / f"{name}{PUBLIC_SUFFIX}", f"{key.public}\n"
    if not path.is_file() or path.read_text() != body:
        replace_private(path, body.encode())


def replace_private(path: Path, body: bytes) -> None:
    """Atomically replace a file by one that only its owner can read."""
    # Its name is its own: `NAME.nk` and `NAME.pub` are beside each other, and two may write at once.
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.new")
    try:
        _write_private(part, body)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # there is one only if something failed; it may hold a seed


def _write_private(path: Path, body: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)


def replace_key(directory: Path, name: str, key: KeyPair) -> None:
    """Write the seed of `name` with its claim, if it has one. The file's age stays that of the seed."""
    path = seed_file(directory, name)
    written_ns = path.stat().st_mtime_ns
    replace_private(path, f"{key.credential.strip()}\n".encode())
    os.utime(path, ns=(written_ns, written_ns))


def without_claim(directory: Path, name: str, key: KeyPair) -> KeyPair:
    """Return a key for servers that know keys alone, and write it so."""
    bare = key._replace(claim="")
    if key.claim:
        replace_key(directory, name, bare)
    return bare


def read_key(path: Path) -> KeyPair:
    """Return the key in a seed file. Raises FileNotFoundError, or ValueError if it holds no user seed."""
    claim, seed = claim_and_seed(path.read_text())
    try:
        pair = _pair(seed, claim)
    except Exception as broken:
        raise ValueError(f"{path.name} holds no nkey seed") from broken
    if not pair.public.startswith("U"):
        raise ValueError(f"{path.name} holds a seed that is not a user's")
    return pair


def keyring(directory: Path, names: Iterable[str]) -> dict[str, KeyPair]:
    """Return the key of each name, creating those that are not in `directory` yet. Idempotent."""
    ring = {}
    for name in names:
        path = seed_file(directory, name)
        if not path.exists():
            write_key(directory, name, new_key())
        ring[name] = read_key(path)
    return ring


def old_keys(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the public key that each name had before, of those whose key is being replaced."""
    paths = {name: directory / f"{name}{OLD_SUFFIX}" for name in names}
    return {name: path.read_text().strip() for name, path in paths.items() if path.is_file()}


class RenewableKey:
    """The key of a connection, whose seed is read again before each attempt to connect.

    A server that has not been reloaded yet does not know a new key. So where the bus refuses the seed that is
    there now, the one that it accepted last is tried, too.

    Args:
        read: returns the seed, for instance of a file, with its claim if it has one (`KeyPair.credential`). A
            newer claim counts as another seed. The first call may raise; later ones that do are ignored.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self.seed = read()
        """The seed of the latest attempt."""
        self._accepted = ""
        self._refused: set[str] = set()

    def take(self) -> str:
        """Return the seed for the next attempt: one that was not refused since the last success, if any."""
        known = self._known()
        if self._refused.issuperset(known):
            self._refused.clear()
        self.seed = next(seed for seed in known if seed not in self._refused)
        return self.seed

    def refuse(self) -> bool:
        """Record that the bus refused the seed. Return True if there is another to try."""
        self._refused.add(self.seed)
        return not self._refused.issuperset(self._known())

    def accept(self) -> None:
        """Record that the bus accepted the seed."""
        self._accepted = self.seed
        self._refused.clear()

    def is_replaced(self) -> bool:
        """Return True if there is another seed now than the connection's."""
        return self._known()[0] != self.seed

    def twin(self) -> "RenewableKey":
        """Return the same for another connection."""
        twin = RenewableKey(lambda: self.seed)
        twin._read, twin._accepted = self._read, self._accepted
        return twin

    def sign(self, body: bytes) -> Signature:
        """Sign bytes."""
        return sign(self.seed, body)

    def _known(self) -> list[str]:
        """Return the seeds that may be tried: the current one, then the last that was accepted."""
        try:
            current = self._read()
        except (MeshError, OSError, ValueError):  # it is being replaced, or its folder is away
            current = self.seed
        return [current, *([self._accepted] if self._accepted not in ("", current) else [])]


# --- TLS --------------------------------------------------------------------------------------------

VARIABLES = ("MESH_TLS_CA", "MESH_TLS_CERT", "MESH_TLS_KEY")
"""Environment variables that name the files."""


class TlsFiles(NamedTuple):
    """Files in PEM form."""

    ca: Path | None = None
    """CA certificate that the bus's certificate must be signed by; None for the CAs that this machine
    trusts."""
    cert: Path | None = None
    """Client certificate, for a bus that asks for one."""
    key: Path | None = None
    """Key of the client certificate; None if `cert` contains it."""

    @property
    def are_given(self) -> bool:
        """True if any file is named. Then the connection must be secure."""
        return any(self)

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a connection. Raises TlsUnusable."""
        if self.key is not None and self.cert is None:
            raise TlsUnusable("TLS: a key without a certificate; name both, cert and key")
        context = self._trusting()
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
            except (OSError, ValueError) as wrong:
                named = self.cert if self.key is None else f"{self.cert}, {self.key}"
                raise TlsUnusable(f"TLS certificate and key ({named}): {_reason(wrong)}") from wrong
        return context

    def _trusting(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as wrong:
            raise TlsUnusable(f"TLS CA ({self.ca}): {_reason(wrong)}") from wrong

    def expire(self) -> dict[str, float]:
        """Return when the certificates expire (Unix time): `own` and `authority`, the earliest of each file.

        A file that is missing or has no certificate is left out.
        """
        found = {}
        for whose, path in (("own", self.cert), ("authority", self.ca)):
            with contextlib.suppress(OSError, ValueError):
                if path is not None:
                    found[whose] = expires_at(path.read_bytes())
        return found


NO_FILES = TlsFiles()

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_UTC_TIME, _VERSION = 0x17, 0xA0


def expires_at(pem: bytes) -> float:
    """Return when the first of a file's certificates expires (Unix time). Raises ValueError.

    The standard library only shows this for a peer's certificate. So the field is read from its place
    according to RFC 5280: the fourth field of the signed part, after an optional version.
    """
    ends = []
    for text in _PEM.findall(pem):
        _, certificate, _ = _der(base64.b64decode(text))
        _, rest, _ = _der(certificate)
        tag, value, after = _der(rest)
        if tag == _VERSION:
            _, value, after = _der(after)
        for _ in ("signature", "issuer", "validity"):
            _, value, after = _der(after)
        _, _, until = _der(value)
        tag, value, _ = _der(until)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        ends.append(datetime.strptime(value.decode("ascii"), form).replace(tzinfo=UTC).timestamp())
    if not ends:
        raise ValueError("no certificate")
    return min(ends)


def _der(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first DER value, and the bytes after it. Raises ValueError."""
    if len(data) < 2:
        raise ValueError("cut short")
    size, begin = data[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin])
    if begin + size > len(data):
        raise ValueError("cut short")
    return data[0], data[begin : begin + size], data[begin + size :]


class NotSecured(ssl.SSLError):
    """The server's greeting does not match the TLS settings of this side."""

    def __init__(self, reason: str) -> None:
        super().__init__(1, reason)
        self.text = reason


def agree(files: TlsFiles, scheme: str, greeting: Mapping[str, Any]) -> bool:
    """Return True if TLS follows the server's greeting. Raises NotSecured if it must but cannot."""
    wanted = files.are_given or scheme == "tls"
    offered = bool(greeting.get("tls_required") or greeting.get("tls_available"))
    if wanted and not offered:
        raise NotSecured("TLS is asked for, and the bus offers none: it would be clear text")
    if greeting.get("tls_required") and greeting.get("tls_verify") and files.cert is None:
        raise NotSecured(
            "the bus wants a client's certificate: "
            "name one and its key (MESH_TLS_CERT, MESH_TLS_KEY, or [bus.tls])"
        )
    return bool(greeting.get("tls_required")) or wanted


def in_words(failed: ssl.SSLError, files: TlsFiles) -> str:
    """Return why a connection could not be secured, and what to check."""
    if isinstance(failed, NotSecured):
        return failed.text
    if isinstance(failed, ssl.SSLCertVerificationError):
        trusted = "the CAs of this machine" if files.ca is None else str(files.ca)
        return (
            f"the bus's certificate is not accepted: {failed.verify_message} (trusted: {trusted}; "
            "name another CA by MESH_TLS_CA, or in [bus.tls])"
        )
    shown = "without a client's certificate" if files.cert is None else f"with the certificate {files.cert}"
    return f"the bus and this side do not agree on TLS, {shown}: {_reason(failed)}"


def not_accepted(files: TlsFiles) -> str:
    """Return the explanation for a bus that hangs up after seeing our certificate."""
    return (
        f"the bus hangs up after the TLS handshake: it does not accept the certificate {files.cert} "
        "(is it of an authority that the bus trusts, and still valid?)"
    )


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, ssl.SSLError):
        return (wrong.reason or str(wrong)).replace("_", " ").lower()
    return getattr(wrong, "strerror", None) or str(wrong)


def _no_password() -> str:
    """Replace OpenSSL's prompt at the terminal. Raises ValueError."""
    raise ValueError("the key is encrypted; a service cannot be asked for its password")
