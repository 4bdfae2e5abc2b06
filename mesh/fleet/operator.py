"""The operator of a mesh: its keys, and the claims that it signs.

`[bus] auth = "jwt"` asks for it. `keys/issuers` holds the seeds that sign: the operator's, one for each
account, and one for each member, which signs the claims of its keys. `accounts` has the claim of each account
as it was signed last, with every key that was ever retired. `mesh.fleet.handover` gives running servers the
claims that they lack; `accounts.conf` has all of them for a server that starts for the first time.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mesh.bus.accounts import (
    HANDOVER,
    SYSTEM,
    AccountKeys,
    account_claims,
    account_of,
    closed_account,
    operator_claim,
    operator_config,
    revoked_in,
    user_claim,
    with_revoked,
)
from mesh.bus.claims import ClaimKind, Issuer, issue, new_issuer, read_claim, read_issuer
from mesh.bus.credentials import (
    PUBLIC_SUFFIX,
    KeyPair,
    keyring,
    old_keys,
    replace_key,
    replace_private,
    seed_file,
    write_public,
)
from mesh.bus.roles import CORE, members
from mesh.errors import Impossible
from protocol.wire.config import Fleet

ISSUERS = "issuers"
"""Folder of the seeds that sign, below that of the members' seeds."""
ACCOUNTS_FOLDER = "accounts"
"""Folder of the accounts' claims, beside `accounts.conf`."""
MOST_BYTES = 1_000_000
"""Longest claim that a server takes over the bus: a message, of 1 MiB at most."""
_OPERATOR = "operator"
_CLAIM = ".jwt"


class Signed(NamedTuple):
    """What the operator signed."""

    keys: dict[str, KeyPair]
    """Each member's key, with its claim."""
    config: str
    """The accounts part of a server's configuration."""


def sign_accounts(fleet: Fleet, directory: Path, keys_folder: Path) -> Signed:
    """Sign the claims of all accounts and members, and write those that changed. Idempotent.

    A key that was replaced in another way than by a rotation is retired, too. So is one that a retirement
    noted as `NAME.pub`. The caller keeps others out of the folders: claims build on those before them.

    Args:
        directory: the folder of `accounts`.
        keys_folder: the folder of the members' seeds. Each gets its claim and its public key beside it.

    Raises Impossible if a file holds no seed or no claim, or the mesh is too large for claims.
    """
    try:
        return _Operator(fleet, directory, keys_folder).sign()
    except ValueError as wrong:
        raise Impossible(f"{directory}: {wrong}") from wrong


class _Operator:
    """The operator's keys, those of the accounts, and what was signed before."""

    def __init__(self, fleet: Fleet, directory: Path, keys_folder: Path) -> None:
        self._fleet = fleet
        self._keys_folder = keys_folder
        self._issuers = keys_folder / ISSUERS
        self._claims = directory / ACCOUNTS_FOLDER
        self._account_of = {name: account_of(role, name) for role, name in members(fleet)}
        self._account_of[HANDOVER] = SYSTEM
        self._own = self._issuer(_OPERATOR, ClaimKind.OPERATOR)
        self._signers = {name: self._issuer(f"{name}.signer") for name in self._account_of}
        accounts = dict.fromkeys(self._account_of.values())
        self._public = AccountKeys(
            {account: self._issuer(f"{_label(account)}.account").public for account in accounts},
            {name: key.public for name, key in self._signers.items()},
        )
        self._now_s = int(time.time())

    def sign(self) -> Signed:
        keys = keyring(self._keys_folder, self._account_of)
        ended = self._replaced(keys)
        claims = {}
        for account, content in account_claims(self._fleet, self._public).items():
            before = self._before(_label(account))
            revoked = {} if before is None else revoked_in(read_claim(before).content)
            whole = with_revoked(content, revoked, *ended[account])
            claims[account] = self._account_claim(account, self._public.accounts[account], whole, before)
        for name, before in self._left():
            claim = read_claim(before)
            closed = closed_account(revoked_in(claim.content))
            claims[name] = self._account_claim(name, claim.subject, closed, before)
        operator = issue(
            self._own,
            ClaimKind.OPERATOR,
            self._own.public,
            self._fleet.name,
            operator_claim(self._public),
            now_s=self._now_s,
            before=self._before(f"_{_OPERATOR}"),
        )
        self._write(f"_{_OPERATOR}", operator)
        by_key = {read_claim(claim).subject: claim for claim in claims.values()}
        return Signed(self._users(keys), operator_config(operator, self._public, by_key))

    def _account_claim(self, name: str, key: str, content: Mapping[str, object], before: str | None) -> str:
        claim = issue(self._own, ClaimKind.ACCOUNT, key, name, content, now_s=self._now_s, before=before)
        if len(claim) > MOST_BYTES:
            raise Impossible(
                f"the claim of the account {name} has {len(claim)} bytes, and servers take {MOST_BYTES}: "
                'the fleet has too many members for [bus] auth = "jwt"; use auth = "nkeys"'
            )
        self._write(_label(name), claim)
        return claim

    def _replaced(self, keys: Mapping[str, KeyPair]) -> dict[str, list[str]]:
        """Return the keys that members had before, by account, but for those of rotations under way."""
        old = old_keys(self._keys_folder, keys)
        found: dict[str, list[str]] = {account: [] for account in self._public.accounts}
        for name, key in keys.items():
            noted = self._keys_folder / f"{name}{PUBLIC_SUFFIX}"
            before = noted.read_text().strip() if noted.is_file() else key.public
            if before not in (key.public, old.get(name)):
                found[self._account_of[name]].append(before)
        return found

    def _users(self, before: Mapping[str, KeyPair]) -> dict[str, KeyPair]:
        """Write each member's claim beside its seed. The file's age stays that of the seed."""
        keys = {}
        for name, key in before.items():
            account = self._account_of[name]
            claim = issue(
                self._signers[name],
                ClaimKind.USER,
                key.public,
                name,
                user_claim(self._public, account),
                now_s=self._now_s,
                before=key.claim or None,
            )
            keys[name] = key._replace(claim=claim)
            if claim != key.claim:
                replace_key(self._keys_folder, name, keys[name])
            write_public(self._keys_folder, name, key)
        del keys[HANDOVER]
        return keys

    def _issuer(self, name: str, kind: ClaimKind = ClaimKind.ACCOUNT) -> Issuer:
        """Return a key that signs; make it if it is not there yet."""
        path = seed_file(self._issuers, name)
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private(path, f"{new_issuer(kind).seed}\n".encode())
        try:
            return read_issuer(path.read_text().strip(), kind)
        except ValueError as wrong:
            raise ValueError(f"{path} holds {wrong}") from wrong

    def _left(self) -> Iterator[tuple[str, str]]:
        """Yield the claims of members that are not in the fleet any more."""
        known = {*map(_label, self._public.accounts), f"_{_OPERATOR}"}
        for path in sorted(self._claims.glob(f"*{_CLAIM}")):
            if path.stem not in known:
                yield path.stem, path.read_text().strip()

    def _before(self, label: str) -> str | None:
        path = self._claims / f"{label}{_CLAIM}"
        return path.read_text().strip() if path.exists() else None

    def _write(self, label: str, claim: str) -> None:
        if claim != self._before(label):
            self._claims.mkdir(parents=True, exist_ok=True)
            replace_private(self._claims / f"{label}{_CLAIM}", f"{claim}\n".encode())


def _label(account: str) -> str:
    """Return an account's name in file names: no member's name begins with `_`."""
    return f"_{account.lower()}" if account in (CORE, SYSTEM) else account


def signed_in(directory: Path) -> list[str]:
    """Return the claims of all accounts that were signed in a folder, those of members first."""
    paths = sorted((directory / ACCOUNTS_FOLDER).glob(f"*{_CLAIM}"), key=lambda path: path.stem[0] == "_")
    return [path.read_text().strip() for path in paths if path.stem != f"_{_OPERATOR}"]
