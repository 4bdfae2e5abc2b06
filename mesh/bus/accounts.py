"""The server's configuration: accounts, users, exports and imports, generated from the roles' table.

Streams, guards and the admin are in one account, and every other member has its own. What goes over from
one to the other is a service or a stream with the member's own name in it.

Nothing here is secret: users are known by public keys. Nothing here decides who may do what either;
that is `mesh.bus.roles`, and this file only writes it in the server's language.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from mesh.bus.credentials import is_public_key
from mesh.bus.roles import ANSWERS, API, CALLS, CORE, HEARS, ME, OUTSIDE_API, Grants, Service, grants, members
from protocol.wire.config import Fleet

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_HOST = re.compile(r"[A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]")
_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIZE = re.compile(r"[0-9]{1,18}[KMGTkmgt]?[Bb]?")


def accounts_config(fleet: Fleet, nkeys: Mapping[str, str], *, anonymous: str | None = None) -> str:
    """Return the accounts part of a server's configuration.

    Args:
        fleet: who exists.
        nkeys: public key of every member (`mesh.bus.roles.names`); others are ignored.
        anonymous: the client that connections without credentials are. Its inbox is then `_INBOX.>`,
            for any NATS tool to work. Only for a server that listens on the loopback interface.

    Raises ValueError when a key is missing, or `anonymous` is no client.
    """
    if anonymous is not None and anonymous not in fleet.clients:
        raise ValueError(f"anonymous connections must be a client of the fleet, not {anonymous!r}")
    core = _Core()
    others = []
    for role, name in members(fleet):
        if name not in nkeys:
            raise ValueError(f"no public key for {name!r}")
        granted = grants(role, name, anonymous=name == anonymous)
        entry = user(nkeys[name], granted)
        if granted.account == CORE:
            core.users.append(entry)
            continue
        imports = [
            *(core.called_by(name, service) for service in CALLS[role]),
            *(core.heard_by(name, subject) for subject in HEARS[role]),
        ]
        exports = [core.asks(name, service) for service in ANSWERS[role]]
        others.append(_account(name, (entry,), exports, imports))
    blocks = (
        "accounts {",
        _account(CORE, core.users, core.exports, core.imports, "jetstream: enabled"),
        *others,
        "  SYS {}",
        "}",
        "system_account: SYS",
        *([f"no_auth_user: {nkeys[anonymous]}"] if anonymous is not None else []),
    )
    return "\n".join(blocks) + "\n"


class _Core:
    """The account of streams and guards, as it grows with every member that is described.

    Each export is the very subject that is imported, for the accounts that import it and no other: of
    several exports that match an import, the server takes any.
    """

    def __init__(self) -> None:
        self.users: list[str] = []
        self.imports: list[str] = []
        self._exported: defaultdict[str, list[str]] = defaultdict(list)

    @property
    def exports(self) -> list[str]:
        return [_entry(what, accounts) for what, accounts in self._exported.items()]

    def called_by(self, name: str, service: Service) -> str:
        """Let `name` call a service of this account; return its import."""
        subject = service.subject.replace(ME, name)
        here = subject.replace(OUTSIDE_API, API)
        self._exported[_service(here, service)].append(name)
        return _import("service", CORE, here, "" if here == subject else subject)

    def heard_by(self, name: str, pattern: str) -> str:
        """Let `name` hear messages published in this account; return its import."""
        subject = pattern.replace(ME, name)
        self._exported[f"stream: {json.dumps(subject)}"].append(name)
        return _import("stream", CORE, subject)

    def asks(self, name: str, service: Service) -> str:
        """Call a service in the account of `name`; return its export."""
        subject = service.subject.replace(ME, name)
        self.imports.append(_import("service", name, subject))
        return _entry(_service(subject, service), (CORE,))


def server_config(
    fleet: Fleet,
    nkeys: Mapping[str, str],
    *,
    store: Path,
    listen: str = "127.0.0.1:-1",
    http: str = "127.0.0.1:-1",
    sync_always: bool = True,
    anonymous: str | None = None,
    server_name: str = "mesh",
    ports_dir: Path | None = None,
    max_store: str | None = None,
    extra: str = "",
) -> str:
    """Return the whole configuration of a server that runs by itself.

    Args:
        listen, http: `host:port` of clients and of monitoring; port -1 lets the system choose.
        store: where JetStream keeps its data.
        sync_always: fsync each message before it is acknowledged.
        max_store: largest size of the store as the server writes sizes, for instance "200G".
        extra: lines added as they are (TLS, cluster, encryption).

    Raises ValueError as `accounts_config` and `server_head` do, and when `anonymous` is asked for on another
    interface than loopback: `no_auth_user` knows no addresses.
    """
    if anonymous is not None and listen.rpartition(":")[0] not in LOOPBACK:
        raise ValueError(f"anonymous connections need a loopback address to listen on, not {listen!r}")
    head = server_head(
        store=store,
        listen=listen,
        http=http,
        sync_always=sync_always,
        server_name=server_name,
        ports_dir=ports_dir,
        max_store=max_store,
    )
    return "\n".join((head, accounts_config(fleet, nkeys, anonymous=anonymous), extra, ""))


def server_head(
    *,
    store: Path,
    listen: str,
    http: str,
    sync_always: bool,
    server_name: str,
    ports_dir: Path | None,
    max_store: str | None = None,
) -> str:
    """Return the configuration before the accounts. Raises ValueError for an impossible value."""
    for address in (listen, http):
        if not _is_address(address):
            raise ValueError(f"not HOST:PORT: {address!r}")
    if not _SERVER_NAME.fullmatch(server_name):
        raise ValueError(f"a server's name has letters, digits, - and _: {server_name!r}")
    if max_store is not None and not _SIZE.fullmatch(max_store):
        raise ValueError(f'not a size as the server writes it, "200G" for instance: {max_store!r}')
    lines = (
        f"server_name: {quoted(server_name)}",
        f"listen: {quoted(listen)}",
        f"http: {quoted(http)}",
        *([f"ports_file_dir: {quoted(str(ports_dir))}"] if ports_dir is not None else []),
        "lame_duck_duration: 30s",
        "jetstream {",
        f"  store_dir: {quoted(str(store))}",
        *(["  sync_interval: always"] if sync_always else []),
        *([f"  max_file_store: {max_store}"] if max_store is not None else []),
        "}",
    )
    return "\n".join(lines)


def quoted(text: str) -> str:
    """Return a string quoted for a server's configuration. Raises ValueError if it is not printable."""
    if not text.isprintable():
        raise ValueError(f"a server's configuration cannot hold {text!r}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return _HOST.fullmatch(host) is not None and (
        port == "-1" or (port.isdecimal() and port.isascii() and int(port) <= 65_535)
    )


def user(public_key: str, granted: Grants) -> str:
    """Return one user's entry. Raises ValueError if the key is not a user's public key."""
    if not is_public_key(public_key):
        raise ValueError(f"not a user's public key: {public_key!r}")
    if granted.publish is None or granted.subscribe is None:
        return f"{{ nkey: {public_key} }}"
    allowed = f"publish: {json.dumps(granted.publish)}, subscribe: {json.dumps(granted.subscribe)}"
    return f"{{ nkey: {public_key}, permissions: {{ {allowed} }} }}"


def _service(subject: str, service: Service) -> str:
    many = ", response_type: stream" if service.many else ""
    within = "" if service.within_s is None else f', threshold: "{service.within_s}s"'
    return f"service: {json.dumps(subject)}{many}{within}"


def _import(kind: str, account: str, subject: str, to: str = "") -> str:
    source = f"{{ account: {json.dumps(account)}, subject: {json.dumps(subject)} }}"
    return f"{{ {kind}: {source}{f', to: {json.dumps(to)}' if to else ''} }}"


def _entry(what: str, accounts: Iterable[str]) -> str:
    return f"{{ {what}, accounts: {json.dumps(list(accounts))} }}"


def _account(
    name: str, users: Iterable[str], exports: Iterable[str], imports: Iterable[str], *settings: str
) -> str:
    lines = [f"  {json.dumps(name)} {{", *(f"    {setting}" for setting in settings)]
    for key, entries in (("users", users), ("exports", exports), ("imports", imports)):
        listed = [f"      {entry}" for entry in entries]
        if listed:
            lines += [f"    {key}: [", *listed, "    ]"]
    return "\n".join((*lines, "  }"))
