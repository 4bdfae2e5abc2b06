"""Certificates of a deployment's own authority, made by the program `openssl`.

They are for a deployment whose nodes and members one person sets up. The authority's key lies beside them:
whoever has it can make certificates that the bus accepts. An nkey is needed all the same.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from mesh.bus.credentials import expires_at
from mesh.bus.provision import Change
from mesh.fleet.deployment import CA, CA_KEY, DeploymentImpossible

_DAY_S = 86_400.0
_AUTHORITY_DAYS, DAYS = 3650, 397
_RENEW_DAYS = 30
_PATIENCE_S = 60.0
_AUTHORITY = """\
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_MEMBER = """\
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def certify(
    directory: Path, hosts: Mapping[str, Sequence[str]], *, days: int = DAYS, dry_run: bool = False
) -> list[Change]:
    """Make missing certificates in a folder, and renew those that expire within 30 days; return the changes.

    Each is `NAME.pem` with its key, `NAME-key.pem`, which only its owner can read. The authority is `ca.pem`.
    If it is renewed, so is everything that it signed.

    Args:
        hosts: by name of a certificate, the DNS names and addresses that it is for.
        days: how long a new certificate is valid; the authority is for ten years.

    Raises DeploymentImpossible without `openssl`, or if it fails.
    """
    authority = directory / CA
    is_new = _due(authority, directory / CA_KEY)
    due = [name for name in hosts if is_new or _due(directory / f"{name}.pem", directory / f"{name}-key.pem")]
    changes = [
        Change("update" if path.exists() else "create", str(path))
        for path in (*([authority] if is_new else []), *(directory / f"{name}.pem" for name in due))
    ]
    if dry_run or not changes:
        return changes
    openssl = shutil.which("openssl")
    if openssl is None:
        raise DeploymentImpossible("--tls dev: `openssl` is not on the PATH; install it, or use --tls files")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as room:
        make = _Maker(openssl, Path(room), Path(room) if is_new else directory)
        if is_new:
            make.authority()
        for name in due:
            make.member(name, hosts[name], days)
        for name in (*due, *(["ca"] if is_new else [])):  # the authority last: until then, all is due again
            for file in (f"{name}-key.pem", f"{name}.pem"):
                (Path(room) / file).replace(directory / file)
    return changes


def _due(certificate: Path, key: Path) -> bool:
    if not certificate.is_file() or not key.is_file():
        return True
    try:
        return expires_at(certificate.read_bytes()) - time.time() < _RENEW_DAYS * _DAY_S
    except ValueError as wrong:
        raise DeploymentImpossible(f"{certificate}: {wrong}; remove it to have it made anew") from wrong


class _Maker:
    """Makes each key and certificate in a folder of its own.

    Args:
        authority: the folder with the authority that signs.
    """

    def __init__(self, openssl: str, room: Path, authority: Path) -> None:
        self._openssl = openssl
        self._room = room
        self._authority = authority

    def authority(self) -> None:
        self._key_and_request("ca", "mesh authority")
        signed = ("-signkey", str(self._room / CA_KEY), "-days", str(_AUTHORITY_DAYS))
        self._sign("ca", _AUTHORITY, *signed)

    def member(self, name: str, hosts: Sequence[str], days: int) -> None:
        self._key_and_request(name, name)
        alternative = ", ".join(f"{'IP' if _is_address(host) else 'DNS'}:{host}" for host in hosts)
        signer = ("-CA", str(self._authority / CA), "-CAkey", str(self._authority / CA_KEY))
        serial = ("-CAcreateserial", "-CAserial", str(self._room / "serial"))
        extensions = _MEMBER + (f"subjectAltName = {alternative}\n" if hosts else "")
        self._sign(name, extensions, *signer, *serial, "-days", str(days))

    def _key_and_request(self, name: str, subject: str) -> None:
        config = self._room / f"{name}.cnf"
        config.write_text(f"[req]\nprompt = no\ndistinguished_name = subject\n[subject]\nCN = {subject}\n")
        key = self._room / f"{name}-key.pem"
        key.touch(0o600)
        self._run("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
        request = str(self._room / f"{name}.csr")
        self._run("req", "-new", "-config", str(config), "-key", str(key), "-out", request)

    def _sign(self, name: str, extensions: str, *options: str) -> None:
        wanted = self._room / f"{name}.ext"
        wanted.write_text(extensions)
        made = self._room / f"{name}.pem"
        request = ("-in", str(self._room / f"{name}.csr"), "-extfile", str(wanted), "-out", str(made))
        self._run("x509", "-req", "-sha256", *request, *options)

    def _run(self, *arguments: str) -> None:
        try:
            done = subprocess.run(
                [self._openssl, *arguments],
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as failed:
            raise DeploymentImpossible(f"--tls dev: openssl: {failed}") from failed
        if done.returncode != 0:
            raise DeploymentImpossible(f"--tls dev: openssl {arguments[0]}: {done.stderr.strip()}")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
