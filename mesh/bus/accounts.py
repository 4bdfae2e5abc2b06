"""The server's configuration: accounts, users, exports and imports, generated from the roles' table.

Nothing here is secret: users are known by public keys. Nothing here decides who may do what either;
that is `mesh.bus.roles`, and this file only writes it in the server's language.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from mesh.bus.roles import ACCOUNT, SERVICES, TOLD_AGENTS, Account, Grants, Service, grants, members
from protocol.fleet import Fleet

LOOPBACK = ("127.0.0.1", "[::1]", "localhost")
_NOTES = f'{{ stream: {{ account: {Account.CORE}, subject: "mesh.note.>" }} }}'
_CHANGES = tuple(
    f"{{ stream: {{ account: {Account.CORE}, subject: {json.dumps(subject)} }} }}" for subject in TOLD_AGENTS
)
_LIVE = f'{{ stream: {{ account: {Account.EDGE}, subject: "mesh.live.>" }} }}'
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

    Raises ValueError as `accounts_config` does, and when `anonymous` is asked for on another interface
    than loopback: `no_auth_user` knows no addresses.
    """
    if anonymous is not None and listen.rpartition(":")[0] not in LOOPBACK:
        raise ValueError(f"anonymous connections need a loopback address to listen on, not {listen!r}")
    head = (
        f"server_name: {json.dumps(server_name)}",
        f"listen: {json.dumps(listen)}",
        f"http: {json.dumps(http)}",
        *([f"ports_file_dir: {json.dumps(str(ports_dir))}"] if ports_dir is not None else []),
        "lame_duck_duration: 30s",
        "jetstream {",
        f"  store_dir: {json.dumps(str(store))}",
        *(["  sync_interval: always"] if sync_always else []),
        *([f"  max_file_store: {max_store}"] if max_store is not None else []),
        "}",
    )
    return "\n".join((*head, accounts_config(fleet, nkeys, anonymous=anonymous), extra, ""))


def user(public_key: str, granted: Grants) -> str:
    """Return one user's entry."""
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
