"""Roles: who may publish and subscribe where. One table; accounts and permissions are read from it.

Three rules keep it safe. Nobody outside `CORE` is in the account that owns the streams: the server checks
the subject of a message, never its *reply* subject, so inside `CORE` a reply subject could write a log
entry; answers to a service import are delivered in the asker's own account, where no stream listens.
Nobody has `allow_responses`, which would let an answer go anywhere a question names. And whatever
carries a sender's name carries the one that the broker knows, at a place fixed by the permission.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from protocol.fleet import Fleet
from protocol.ids import is_name


class Account(StrEnum):
    CORE = "CORE"
    """Streams, guards and admin."""
    EDGE = "EDGE"
    """Agents alone."""
    USERS = "USERS"
    """Clients, viewers and operators."""


class Role(StrEnum):
    ADMIN = "admin"
    GUARD = "guard"
    AGENT = "agent"
    CLIENT = "client"
    VIEWER = "viewer"
    OPERATOR = "operator"


class Grants(NamedTuple):
    """What one user may do, and where. `None` for publish and subscribe together: everything."""

    account: Account
    publish: tuple[str, ...] | None
    subscribe: tuple[str, ...] | None


class Service(NamedTuple):
    """Something in CORE that another account may call."""

    grant: str
    """The subject that the caller may publish to; `{me}` stands for its own name."""
    export: str
    """The subject under which CORE exports it: as narrow as wildcards allow."""
    many: bool = False
    """Whether one call has several answers."""
    local: str = ""
    """The name of `export` in the caller's account, if it is another one."""


API = "$JS.API."
NEXT = f"{API}CONSUMER.MSG.NEXT."
GET = f"{API}DIRECT.GET."
LEADER_GET = f"{API}STREAM.MSG.GET."

OUTSIDE_API = "mesh.api."
"""What viewers and operators call instead of `$JS.API.`. Under that name the server's own JetStream answers
too, "not enabled for this account", and mostly first."""

ADMIN = "admin"
GUARD = "guard"
RESERVED = frozenset({ADMIN, GUARD})
"""Names with a key in every mesh, beside those of its fleet."""
INBOX = "_I"
ANONYMOUS_INBOX = "_INBOX"

CONF_CHANGED = "mesh.changed"
"""Prefix of the wake-ups that follow each write to CONF, `mesh.changed.<what was after mesh.conf.>`, and to
CARDS, `mesh.changed.card.<agent>`."""

TOLD_AGENTS = tuple(f"{CONF_CHANGED}.{what}" for what in ("fleet", "card.*"))
"""Of these wake-ups, those that agents hear, too."""

_SUBMIT = Service("mesh.prop.{me}.*", "mesh.prop.*.*")
_CONTROL = Service("mesh.ctl.{me}.*", "mesh.ctl.*.*")
_ANSWERS = Service(GET + "LOG.mesh.evt.{me}.*", GET + "LOG.>")

_AGENT = (
    _SUBMIT,
    Service("mesh.step.{me}.*.*.*", "mesh.step.*.*.*.*"),
    Service("mesh.card.{me}", "mesh.card.*"),
    Service("mesh.dead.{me}", "mesh.dead.*"),
    Service(NEXT + "LOG.in-{me}", NEXT + "LOG.*", many=True),
    Service("$JS.ACK.LOG.in-{me}.>", "$JS.ACK.LOG.>"),
    Service(GET + "STEPS.mesh.step.{me}.*.*.*", GET + "STEPS.mesh.step.*.*.*.*"),
    Service(GET + "STEPS.mesh.end.{me}.*.*", GET + "STEPS.mesh.end.*.*.*"),
    Service(GET + "CARDS.mesh.card.*", GET + "CARDS.mesh.card.*"),
    Service(GET + "CONF.mesh.conf.fleet", GET + "CONF.mesh.conf.fleet"),
)


def _api(verb: str, grant: str = "") -> Service:
    return Service(OUTSIDE_API + (grant or verb), API + verb, local=OUTSIDE_API + verb)


_READABLE = ("LOG", "STEPS", "CARDS", "CONF", "DEAD")
_VIEWER = (
    *(Service(f"{GET}{stream}", f"{GET}{stream}", many=True) for stream in _READABLE),
    *(Service(f"{GET}{stream}.>", f"{GET}{stream}.>") for stream in _READABLE),
    _api("STREAM.MSG.GET.LOG"),
    _api("STREAM.INFO.*"),
    _api("CONSUMER.INFO.*.*"),
)
SERVICES: dict[Role, tuple[Service, ...]] = {
    Role.AGENT: _AGENT,
    Role.CLIENT: (_SUBMIT, _CONTROL, _ANSWERS),
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: (*_VIEWER, _SUBMIT, _CONTROL),
}
"""What the roles outside CORE call in it."""

OWN_PUBLISH: dict[Role, tuple[str, ...]] = {
    Role.GUARD: (
        "mesh.evt.*.*",
        "mesh.timer.at.*",
        "mesh.note.*.*",
        "mesh.dead.guard.*",
        "mesh.end.*.*.*",
        "mesh.conf.freeze",
        "mesh.conf.breaker.*",
        *(f"{NEXT}{stream}.*" for stream in ("PROP", "CTL", "TIMER")),
        *(f"$JS.ACK.{stream}.>" for stream in ("PROP", "CTL", "TIMER")),
        LEADER_GET + "LOG",
        LEADER_GET + "TIMER",
        f"{API}CONSUMER.INFO.LOG.*",
        GET + "LOG",
        GET + "LOG.>",
        GET + "CONF.>",
        GET + "STEPS.mesh.step.*.*.*.*",
        "$SRV.PING.*",
    ),
    Role.AGENT: ("mesh.live.*.*.{me}.*", "_R_.>"),  # `_R_.` leads back to whoever asked, and only there
    Role.CLIENT: (),
    Role.VIEWER: (),
    Role.OPERATOR: ("$SRV.>",),
}
"""What a role publishes in its own account (agents' live output and answers are carried on from there)."""

SUBSCRIBE: dict[Role, tuple[str, ...]] = {
    Role.GUARD: ("mesh.note._.>", CONF_CHANGED + ".>"),
    Role.AGENT: (
        "mesh.note.{me}.*",
        *TOLD_AGENTS,
        *(f"$SRV.{verb}" for verb in ("PING", "INFO", "STATS")),
        *(f"$SRV.{verb}.{{me}}{tail}" for verb in ("PING", "INFO", "STATS") for tail in ("", ".*")),
    ),
    Role.CLIENT: ("mesh.note.{me}.*", "mesh.live.{me}.>"),
    Role.VIEWER: (),
    Role.OPERATOR: ("mesh.note.{me}.*", "mesh.live.{me}.>"),
}
"""What a role listens to, beside its own inbox."""

ACCOUNT: dict[Role, Account] = {
    Role.ADMIN: Account.CORE,
    Role.GUARD: Account.CORE,
    Role.AGENT: Account.EDGE,
    Role.CLIENT: Account.USERS,
    Role.VIEWER: Account.USERS,
    Role.OPERATOR: Account.USERS,
}


def inbox_prefix(name: str, *, anonymous: bool = False) -> str:
    """Return where answers to `name` go. Nobody else may listen there."""
    return ANONYMOUS_INBOX if anonymous else f"{INBOX}.{name}"


def grants(role: Role, name: str, *, anonymous: bool = False) -> Grants:
    """Return what `name` in `role` may do. Raises ValueError for a name that is none.

    With `anonymous`, `name` is also who connects without credentials, with any tool's default inbox.
    """
    if not is_name(name):
        raise ValueError(f"not a name: {name!r}")
    account = ACCOUNT[role]
    if role is Role.ADMIN:
        return Grants(account, None, None)
    called = (service.grant for service in SERVICES.get(role, ()))
    publish = (*called, *OWN_PUBLISH[role])
    inboxes = (f"{INBOX}.{name}.>", *([f"{ANONYMOUS_INBOX}.>"] if anonymous else []))
    subscribe = (*inboxes, *SUBSCRIBE[role])
    return Grants(account, _named(publish, name), _named(subscribe, name))


def _named(subjects: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(subject.replace("{me}", name) for subject in subjects)


def members(fleet: Fleet) -> Iterator[tuple[Role, str]]:
    """Yield everybody who has credentials in `fleet`, admin and guard first.

    Raises ValueError when a name is none or is used twice: permissions go by name.
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
            raise ValueError(f"not a name: {name!r}")
        if name in seen:
            raise ValueError(f"two members of the fleet are named {name!r}")
        seen.add(name)
        yield role, name


def names(fleet: Fleet) -> tuple[str, ...]:
    """Return every name that needs a key."""
    return tuple(name for _, name in members(fleet))


def role_of(fleet: Fleet, name: str) -> Role | None:
    """Return the role of `name`, None when the fleet does not know it."""
    return next((role for role, member in members(fleet) if member == name), None)
