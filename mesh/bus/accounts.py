"""The server's configuration: accounts, users, exports and imports, generated from the roles' table.

Nothing here is secret: users are known by public keys. Nothing here decides who may do what either;
that is `mesh.bus.roles`, and this file only writes it in the server's language.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mesh.bus.keys import is_public_key
from mesh.bus.roles import ACCOUNT, SERVICES, TOLD_AGENTS, Account, Grants, Service, grants, members
from protocol.fleet import Fleet

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_NOTES = f'{{ stream: {{ account: {Account.CORE}, subject: "mesh.note.>" }} }}'
_CHANGES = tuple(
    f"{{ stream: {{ account: {Account.CORE}, subject: {json.dumps(subject)} }} }}" for subject in TOLD_AGENTS
)
_LIVE = f'{{ stream: {{ account: {Account.EDGE}, subject: "mesh.live.>" }} }}'
_HOST = re.compile(r"[A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]")
_SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIZE = re.compile(r"[0-9]{1,18}[KMGTkmgt]?[Bb]?")
_DISCOVERY = f'{{ service: {{ account: {Account.EDGE}, subject: "$SRV.>" }} }}'


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
    users: dict[Account, list[str]] = {account: [] for account in Account}
    for role, name in members(fleet):
        if name not in nkeys:
            raise ValueError(f"no public key for {name!r}")
        granted = grants(role, name, anonymous=name == anonymous)
        users[granted.account].append(user(nkeys[name], granted))
    exports = (
        *_exports(),
        _entry('stream: "mesh.note.>"', (Account.EDGE, Account.USERS)),
        *(_entry(f"stream: {json.dumps(subject)}", (Account.EDGE,)) for subject in TOLD_AGENTS),
    )
    answered = 'service: "$SRV.>", response_type: stream'
    edge_exports = (
        _entry('stream: "mesh.live.>"', (Account.USERS,)),
        _entry(answered, (Account.USERS, Account.CORE)),
    )
    edge_imports = (*_imports(Account.EDGE), _NOTES, *_CHANGES)
    users_imports = (*_imports(Account.USERS), _NOTES, _LIVE, _DISCOVERY)
    blocks = (
        "accounts {",
        _account(Account.CORE, users[Account.CORE], exports, (_DISCOVERY,), "jetstream: enabled"),
        _account(Account.EDGE, users[Account.EDGE], edge_exports, edge_imports),
        _account(Account.USERS, users[Account.USERS], (), users_imports),
        "  SYS {}",
        "}",
        "system_account: SYS",
        *([f"no_auth_user: {nkeys[anonymous]}"] if anonymous is not None else []),
    )
    return "\n".join(blocks) + "\n"


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
    """Return what stands before the accounts. Raises ValueError for what is no value of its setting."""
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
    """Return a string as a server's configuration has it. Raises ValueError for what no line can hold."""
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
    """Return one user's entry. Raises ValueError for what is no public key of a user."""
    if not is_public_key(public_key):
        raise ValueError(f"not a user's public key: {public_key!r}")
    if granted.publish is None or granted.subscribe is None:
        return f"{{ nkey: {public_key} }}"
    allowed = f"publish: {json.dumps(granted.publish)}, subscribe: {json.dumps(granted.subscribe)}"
    return f"{{ nkey: {public_key}, permissions: {{ {allowed} }} }}"


def _called_from(account: Account) -> list[Service]:
    """Return what `account` imports from CORE, each export once."""
    found: dict[str, Service] = {}
    for role, services in SERVICES.items():
        if ACCOUNT[role] is account:
            found |= {service.export: service for service in services}
    return list(found.values())


def _exports() -> list[str]:
    callers: dict[tuple[str, bool], list[Account]] = {}
    for account in (Account.EDGE, Account.USERS):
        for service in _called_from(account):
            callers.setdefault((service.export, service.many), []).append(account)
    return [
        _entry(f"service: {json.dumps(subject)}{', response_type: stream' if many else ''}", accounts)
        for (subject, many), accounts in callers.items()
    ]


def _imports(account: Account) -> list[str]:
    entries = []
    for service in _called_from(account):
        source = f"service: {{ account: {Account.CORE}, subject: {json.dumps(service.export)} }}"
        renamed = f", to: {json.dumps(service.local)}" if service.local else ""
        entries.append(f"{{ {source}{renamed} }}")
    return entries


def _entry(what: str, accounts: Iterable[Account]) -> str:
    return f"{{ {what}, accounts: [{', '.join(accounts)}] }}"


def _account(
    name: Account, users: Iterable[str], exports: Iterable[str], imports: Iterable[str], *settings: str
) -> str:
    lines = [f"  {name} {{", *(f"    {setting}" for setting in settings)]
    for key, entries in (("users", users), ("exports", exports), ("imports", imports)):
        listed = [f"      {entry}" for entry in entries]
        if listed:
            lines += [f"    {key}: [", *listed, "    ]"]
    return "\n".join((*lines, "  }"))
