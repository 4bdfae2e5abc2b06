"""Roles: who may publish and subscribe where. The server's configuration is generated from one table.

Three rules keep it safe. First, every member except guards and the admin is alone in its account. The server
checks the subject of a message but never its *reply* subject. However, it delivers the answer to a service
import only within the asker's own account. So a reply subject reaches only the member that named it. Second,
no one has `allow_responses`, which would let an answer go anywhere that a question names. Third, the
account's imports fix the position of the sender's name in a subject, so the broker vouches for it.

Nothing here is secret: users are identified by public keys.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from mesh.bus.credentials import is_public_key
from mesh.bus.streams import offers_to, queue_consumers
from protocol.wire.config import PARTITIONS, Fleet
from protocol.wire.ids import NAME_RULE, is_name
from protocol.wire.subjects import ANCHOR, CONF_CHANGED, GUARD_BEATS, intent_inbox

CORE = "CORE"
"""The account of the streams, the guards and the admin. Every other member's account has its own name."""


class Role(StrEnum):
    ADMIN = "admin"
    GUARD = "guard"
    AGENT = "agent"
    CLIENT = "client"
    VIEWER = "viewer"
    OPERATOR = "operator"


class Grants(NamedTuple):
    """One user's account and permissions. If `publish` and `subscribe` are None, everything is allowed."""

    account: str
    publish: tuple[str, ...] | None
    subscribe: tuple[str, ...] | None


ME = "{me}"
"""Placeholder in a subject for the member's own name."""


class Service(NamedTuple):
    """A subject called in one account and answered in another."""

    subject: str
    many: bool = False
    """True if one call may have several answers. Otherwise the server passes on only the first."""
    within_s: int | None = None
    """How long the server waits for an answer before it drops it. None: two minutes."""


API = "$JS.API."
NEXT = f"{API}CONSUMER.MSG.NEXT."
GET = f"{API}DIRECT.GET."
LEADER_GET = f"{API}STREAM.MSG.GET."

OUTSIDE_API = "mesh.api."
"""Viewers and operators call this instead of `$JS.API.`. There, their own account's JetStream would answer,
too: "not enabled for this account", and usually first."""

ADMIN = "admin"
GUARD = "guard"
RESERVED = frozenset({ADMIN, GUARD})
"""Names that have a key in every mesh, besides those of its fleet."""
INBOX = "_I"
ANONYMOUS_INBOX = "_INBOX"

AGENT_WAKE_UPS = tuple(f"{CONF_CHANGED}.{what}" for what in ("fleet", "card.*"))
"""The wake-ups that agents get, too."""

LANE_S = 5
"""The server drops later answers of guards on the lane. By then the sender has stored the message anyway."""

_SUBMIT = Service("mesh.prop.{me}.*")
_CONTROL = Service("mesh.ctl.{me}.*")
_LANE = Service("mesh.lane.*.{me}.*", within_s=LANE_S)

_AGENT = (
    _SUBMIT,
    _LANE,
    Service("mesh.step.{me}.*.*.*"),
    Service("mesh.card.{me}"),
    Service("mesh.prompt.{me}.*"),
    Service("mesh.dead.{me}"),
    Service(NEXT + "LOG.in-{me}", many=True),
    Service("$JS.ACK.LOG.in-{me}.>"),
    Service(GET + "STEPS-{me}.mesh.step.{me}.*.*.*"),
    Service(GET + "ENDS.mesh.end.{me}.*.*"),
    Service(GET + "PROMPTS.mesh.prompt.{me}.*"),
    Service(GET + "CARDS.mesh.card.*"),
    Service(GET + "CONF.mesh.conf.fleet"),
    Service("mesh.live.*.*.{me}.*"),
)
OFFERS = (
    Service(NEXT + "LOG.in-{inbox}", many=True),
    Service("$JS.ACK.LOG.in-{inbox}.>"),
)
"""The same for each intent whose offers an agent reads (`offers_to`), in the intent's inbox, `{inbox}`.

All agents that list the intent share it. Any of them may keep an offer from the others, just as it may ignore
its own inbox; then the offer expires unclaimed and goes to each of them separately.
"""
_VIEWER = (
    Service(f"{GET}*", many=True),  # streams that allow direct gets, so neither queues nor TIMER
    Service(f"{GET}*.>"),
    Service(f"{OUTSIDE_API}STREAM.MSG.GET.LOG"),
    Service(f"{OUTSIDE_API}STREAM.LIST"),  # `STREAM.INFO` lists subjects, too, at the server's cost
    Service(f"{OUTSIDE_API}CONSUMER.INFO.*.*"),
)
CALLS: dict[Role, tuple[Service, ...]] = {
    Role.AGENT: _AGENT,
    Role.CLIENT: (
        _SUBMIT,
        _LANE,
        _CONTROL,
        Service(GET + "LOG.mesh.evt.{me}.*"),
        Service(GET + "ASKS.mesh.ask.{me}.*"),
        Service(GET + "MEM-{me}", many=True),
    ),
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: (*_VIEWER, _SUBMIT, _LANE, _CONTROL, Service("$SRV.>", many=True)),
}
"""Services in CORE that each role outside it may call. Agents also call those of `OFFERS`."""

PRESENCE_S = 2
"""Lifetime of an answer in seconds. It limits how many answers an agent could save up and send at once."""

_LIVE = Service("mesh.live.{me}.>")
ANSWERS: dict[Role, tuple[Service, ...]] = {
    Role.AGENT: (
        Service("$SRV.*", within_s=PRESENCE_S),
        Service("$SRV.PING.{me}", within_s=PRESENCE_S),
        Service("$SRV.INFO.{me}", within_s=PRESENCE_S),
        Service(
            "$SRV.STATS.{me}", many=True, within_s=PRESENCE_S
        ),  # one from each instance; only operators ask
        Service("$SRV.*.{me}.*", within_s=PRESENCE_S),
    ),
    Role.CLIENT: (_LIVE,),
    Role.VIEWER: (),
    Role.OPERATOR: (_LIVE,),
}
"""Services outside CORE that CORE calls. None overlaps another: each would answer."""

HEARS: dict[Role, tuple[str, ...]] = {
    Role.AGENT: ("mesh.note.{me}.*", *AGENT_WAKE_UPS),
    Role.CLIENT: ("mesh.note.{me}.*",),
    Role.VIEWER: (),
    Role.OPERATOR: ("mesh.note.{me}.*",),
}
"""Subjects published in CORE that each role outside it may hear."""

ANSWER = "_R_.>"
"""Subjects of answers to other accounts. The server leads each one back to its caller, and only there."""

GUARD_PUBLISHES: tuple[str, ...] = (
    "mesh.evt.*.*",
    "mesh.timer.at.*",
    "mesh.note.*.*",
    "mesh.dead.guard.*",
    "mesh.end.*.*.*",
    "mesh.ask.*.*",
    ANCHOR,
    "mesh.shadow.*.*.*.*",
    "mesh.conf.freeze",
    "mesh.conf.breaker.*",
    "mesh.conf.tick.*",
    "mesh.mem.*.*.*",
    f"{API}STREAM.NAMES",
    f"{API}STREAM.LIST",  # how full they are, for the gauges
    f"{API}STREAM.INFO.TIMER",  # which requests have a schedule
    LEADER_GET + "*",  # of the log, timers, questions, memory, and of what waits in the queues
    f"{API}CONSUMER.INFO.LOG.*",
    f"{API}CONSUMER.INFO.TIMER.*",
    GET + "*",  # of the log, and of what each client's conversations remember
    GET + "LOG.>",
    GET + "*.mesh.mem.*.*.*",
    GET + "CONF.>",
    GET + "*.mesh.step.*.*.*.*",
    "$SRV.PING.*",
    "$SRV.STATS.*",  # which instances serve an agent, for the gauges
    GUARD_BEATS,
    ANSWER,
    f"{INBOX}.{ADMIN}.>",  # the admin is in the same account: what it asks a guard is answered directly
)
"""Subjects to which a guard may publish, besides those of each partition's queues (`_guard_publishes`)."""
GUARD_ANSWERS = tuple(f"$SRV.{verb}.{GUARD}" for verb in ("PING", "STATS"))
"""Subjects on which a guard answers operators and the admin. No member may have that name."""
GUARD_HEARS = ("mesh.lane.>", "mesh.note._.>", CONF_CHANGED + ".>", GUARD_BEATS, *GUARD_ANSWERS)


def inbox_prefix(name: str, *, anonymous: bool = False) -> str:
    """Return the prefix of the inbox of `name`, to which no one else may listen."""
    return ANONYMOUS_INBOX if anonymous else f"{INBOX}.{name}"


def calls(role: Role, name: str, intents: Iterable[str] = ()) -> list[Service]:
    """Return the services in CORE that `name` in `role`, outside it, may call.

    Args:
        intents: the intents whose offers an agent reads (`offers_to`).
    """
    inboxes = dict.fromkeys(map(intent_inbox, intents))
    own = [call._replace(subject=call.subject.replace(ME, name)) for call in CALLS[role]]
    return own + [
        call._replace(subject=call.subject.replace("{inbox}", inbox)) for inbox in inboxes for call in OFFERS
    ]


def grants(
    role: Role,
    name: str,
    intents: Iterable[str] = (),
    *,
    partitions: int = PARTITIONS,
    anonymous: bool = False,
) -> Grants:
    """Return the permissions of `name` in `role`. Raises ValueError for an invalid name.

    Args:
        intents: the intents whose offers an agent reads (`offers_to`).
        partitions: how many there are for guards to take from.
        anonymous: True if connections without credentials act as `name`, with any tool's default inbox.
    """
    if not is_name(name):
        raise ValueError(f"not a name: {name!r}; {NAME_RULE}")
    if role is Role.ADMIN:
        return Grants(CORE, None, None)
    inboxes = (f"{INBOX}.{name}.>", *([f"{ANONYMOUS_INBOX}.>"] if anonymous else []))
    if role is Role.GUARD:
        return Grants(CORE, _guard_publishes(partitions), (*inboxes, *GUARD_HEARS))
    called = (call.subject for call in calls(role, name, intents))
    publish = (*called, *((ANSWER,) if role is Role.AGENT else ()))
    subscribe = (*HEARS[role], *(answer.subject for answer in ANSWERS[role]))
    return Grants(name, publish, (*inboxes, *_named(subscribe, name)))


def _guard_publishes(partitions: int) -> tuple[str, ...]:
    consumers = queue_consumers(partitions)
    pulls = (f"{NEXT}*.{consumer}" for consumer in consumers)
    return (*GUARD_PUBLISHES, *pulls, *(f"$JS.ACK.*.{consumer}.>" for consumer in consumers))


def _named(subjects: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(subject.replace(ME, name) for subject in subjects)


def members(fleet: Fleet) -> Iterator[tuple[Role, str]]:
    """Yield every member with credentials in `fleet`, admin and guard first.

    Raises ValueError if a name is invalid or used twice, since permissions go by name.
    """
    everybody = [
        (Role.ADMIN, ADMIN),
        (Role.GUARD, GUARD),
        *((Role.AGENT, name) for name in fleet.agents),
        *((Role.CLIENT, name) for name in fleet.clients),
        *((Role.OPERATOR, name) for name in fleet.operators),
        *((Role.VIEWER, name) for name in fleet.viewers),
    ]
    seen: set[str] = set()
    for role, name in everybody:
        if not is_name(name):
            raise ValueError(f"not a name: {name!r}; {NAME_RULE}")
        if name in seen:
            raise ValueError(f"two members of the fleet are named {name!r}")
        seen.add(name)
        yield role, name


def names(fleet: Fleet) -> tuple[str, ...]:
    """Return every name that needs a key."""
    return tuple(name for _, name in members(fleet))


# --- the server's configuration ----------------------------------------------------------------------


_NONE: Mapping[str, str] = MappingProxyType({})


def accounts_config(
    fleet: Fleet, nkeys: Mapping[str, str], *, old: Mapping[str, str] = _NONE, anonymous: str | None = None
) -> str:
    """Return the accounts part of a server's configuration.

    Args:
        fleet: its members get accounts.
        nkeys: public key of every member (`names`); others are ignored.
        old: a second key, of members whose key is being replaced: both are valid.
        anonymous: the client that connections without credentials act as. Its inbox is then `_INBOX.>`, so
            that any NATS tool works. Only for a server that listens on the loopback interface.

    Raises ValueError if a key is missing, or `anonymous` is not a client.
    """
    if anonymous is not None and anonymous not in fleet.clients:
        raise ValueError(f"anonymous connections must be a client of the fleet, not {anonymous!r}")
    core = _Core()
    others = []
    for role, name in members(fleet):
        if name not in nkeys:
            raise ValueError(f"no public key for {name!r}")
        intents = offers_to(fleet, name)
        granted = grants(role, name, intents, partitions=fleet.partitions, anonymous=name == anonymous)
        entries = [user(key, granted) for key in (nkeys[name], old.get(name)) if key is not None]
        if granted.account == CORE:
            core.users += entries
            continue
        imports = [
            *(core.called_by(name, service) for service in calls(role, name, intents)),
            *(core.heard_by(name, subject) for subject in HEARS[role]),
        ]
        exports = [core.asks(name, service) for service in ANSWERS[role]]
        mapped = [
            f"mappings: {{ {json.dumps(asked)}: {json.dumps(heard)} }}"
            for asked, heard in lane_mapping(role, name, fleet.partitions).items()
        ]
        others.append(_account(name, entries, exports, imports, *mapped))
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
    """The account of streams and guards, which is built up with each member that is added.

    Each export is exactly the subject that is imported, and only for the accounts that import it. If several
    exports matched an import, the server would take any of them.
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
        subject = service.subject
        here = subject.replace(OUTSIDE_API, API)
        self._exported[_service(here, service)].append(name)
        return _import("service", CORE, here, "" if here == subject else subject)

    def heard_by(self, name: str, pattern: str) -> str:
        """Let `name` receive messages published in this account; return its import."""
        subject = pattern.replace(ME, name)
        self._exported[f"stream: {json.dumps(subject)}"].append(name)
        return _import("stream", CORE, subject)

    def asks(self, name: str, service: Service) -> str:
        """Let this account call a service of `name`; return its export."""
        subject = service.subject.replace(ME, name)
        self.imports.append(_import("service", name, subject))
        return _entry(_service(subject, service), (CORE,))


def server_config(
    accounts: str,
    *,
    store: Path,
    listen: str = "127.0.0.1:-1",
    http: str = "127.0.0.1:-1",
    sync_always: bool = True,
    server_name: str = "mesh",
    ports_dir: Path | None = None,
    extra: str = "",
) -> str:
    """Return the whole configuration of a server that runs by itself.

    Args:
        accounts: the accounts part (`accounts_config`).
        listen, http: `host:port` of clients and of monitoring; port -1 lets the system choose.
        store: where JetStream keeps its data.
        sync_always: fsync each message before it is acknowledged.
        extra: lines added as they are (TLS, cluster, encryption).
    """
    lines = (
        f"server_name: {quoted(server_name)}",
        f"listen: {quoted(listen)}",
        f"http: {quoted(http)}",
        *([f"ports_file_dir: {quoted(str(ports_dir))}"] if ports_dir is not None else []),
        "lame_duck_duration: 30s",
        "jetstream {",
        f"  store_dir: {quoted(str(store))}",
        *(["  sync_interval: always"] if sync_always else []),
        "}",
        accounts,
        extra,
        "",
    )
    return "\n".join(lines)


def quoted(text: str) -> str:
    """Return a string quoted for a server's configuration. Raises ValueError if it is not printable."""
    if not text.isprintable():
        raise ValueError(f"a server's configuration cannot hold {text!r}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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


def lane_mapping(role: Role, name: str, partitions: int) -> dict[str, str]:
    """Return what the server makes of the lane subjects of `name`: it inserts the request's partition.

    Empty for roles that may not ask on the lane. The server checks permissions on the mapped subject.
    """
    if _LANE not in CALLS[role]:
        return {}
    return {f"mesh.lane.{name}.*": f"mesh.lane.{{{{partition({partitions},1)}}}}.{name}.{{{{wildcard(1)}}}}"}


def _account(
    name: str, users: Iterable[str], exports: Iterable[str], imports: Iterable[str], *settings: str
) -> str:
    lines = [f"  {json.dumps(name)} {{", *(f"    {setting}" for setting in settings)]
    for key, entries in (("users", users), ("exports", exports), ("imports", imports)):
        listed = [f"      {entry}" for entry in entries]
        if listed:
            lines += [f"    {key}: [", *listed, "    ]"]
    return "\n".join((*lines, "  }"))
