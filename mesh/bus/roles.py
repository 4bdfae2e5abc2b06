"""Roles: who may publish and subscribe where. One table; accounts and permissions are read from it.

Three rules keep it safe. Everybody but guards and the admin is alone in an account: the server checks the
subject of a message, never its *reply* subject, but the answer to a service import is delivered in the
asker's own account, and from there nowhere else. So a reply subject reaches nobody but who named it.
Nobody has `allow_responses`, which would let an answer go anywhere a question names. And what carries a
sender's name carries the one that the broker knows, at a place fixed by the account's imports.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from mesh.bus.streams import QUEUE_CONSUMERS
from protocol.wire.config import Fleet
from protocol.wire.ids import is_name
from protocol.wire.subjects import CONF_CHANGED

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
    """One user's account and permissions. None for publish and subscribe: everything is allowed."""

    account: str
    publish: tuple[str, ...] | None
    subscribe: tuple[str, ...] | None


ME = "{me}"
"""Stands in a subject for the name of the member that it is for."""


class Service(NamedTuple):
    """A subject called in one account and answered in another."""

    subject: str
    many: bool = False
    """True if one call may have several answers. Else the server passes on only the first."""
    within_s: int | None = None
    """How long the server waits for an answer; a later one is dropped. None: two minutes."""


API = "$JS.API."
NEXT = f"{API}CONSUMER.MSG.NEXT."
GET = f"{API}DIRECT.GET."
LEADER_GET = f"{API}STREAM.MSG.GET."

OUTSIDE_API = "mesh.api."
"""Viewers and operators call this instead of `$JS.API.`. There the server's own JetStream would answer, too:
"not enabled for this account", and mostly first."""

ADMIN = "admin"
GUARD = "guard"
RESERVED = frozenset({ADMIN, GUARD})
"""Names with a key in every mesh, beside those of its fleet."""
INBOX = "_I"
ANONYMOUS_INBOX = "_INBOX"

TOLD_AGENTS = tuple(f"{CONF_CHANGED}.{what}" for what in ("fleet", "card.*"))
"""Of these wake-ups, those that agents hear, too."""

_SUBMIT = Service("mesh.prop.{me}.*")
_CONTROL = Service("mesh.ctl.{me}.*")

_AGENT = (
    _SUBMIT,
    Service("mesh.step.{me}.*.*.*"),
    Service("mesh.card.{me}"),
    Service("mesh.dead.{me}"),
    Service(NEXT + "LOG.in-{me}", many=True),
    Service("$JS.ACK.LOG.in-{me}.>"),
    Service(GET + "STEPS-{me}.mesh.step.{me}.*.*.*"),
    Service(GET + "ENDS.mesh.end.{me}.*.*"),
    Service(GET + "CARDS.mesh.card.*"),
    Service(GET + "CONF.mesh.conf.fleet"),
    Service("mesh.rate.*"),
    Service(GET + "RATES.mesh.rate.*"),
    Service("mesh.live.*.*.{me}.*"),
)
_VIEWER = (
    Service(f"{GET}*", many=True),  # of each stream that allows direct gets: no queue, nor TIMER
    Service(f"{GET}*.>"),
    Service(f"{OUTSIDE_API}STREAM.MSG.GET.LOG"),
    Service(f"{OUTSIDE_API}STREAM.INFO.*"),
    Service(f"{OUTSIDE_API}CONSUMER.INFO.*.*"),
)
CALLS: dict[Role, tuple[Service, ...]] = {
    Role.AGENT: _AGENT,
    Role.CLIENT: (_SUBMIT, _CONTROL, Service(GET + "LOG.mesh.evt.{me}.*")),
    Role.VIEWER: _VIEWER,
    Role.OPERATOR: (*_VIEWER, _SUBMIT, _CONTROL, Service("$SRV.>", many=True)),
}
"""Services in CORE that each role outside it may call."""

PRESENCE_S = 2
"""An agent that kept its answers could send many at once: it can keep those of so many seconds."""

_LIVE = Service("mesh.live.{me}.>")
ANSWERS: dict[Role, tuple[Service, ...]] = {
    Role.AGENT: (
        Service("$SRV.*", within_s=PRESENCE_S),
        Service("$SRV.PING.{me}", within_s=PRESENCE_S),
        Service("$SRV.INFO.{me}", within_s=PRESENCE_S),
        Service("$SRV.STATS.{me}", many=True, within_s=PRESENCE_S),  # of each instance; operators alone ask
        Service("$SRV.*.{me}.*", within_s=PRESENCE_S),
    ),
    Role.CLIENT: (_LIVE,),
    Role.VIEWER: (),
    Role.OPERATOR: (_LIVE,),
}
"""What CORE calls in the accounts of the roles outside it. None overlaps another: each would be answered."""

HEARS: dict[Role, tuple[str, ...]] = {
    Role.AGENT: ("mesh.note.{me}.*", *TOLD_AGENTS),
    Role.CLIENT: ("mesh.note.{me}.*",),
    Role.VIEWER: (),
    Role.OPERATOR: ("mesh.note.{me}.*",),
}
"""Subjects published in CORE that each role outside it may hear."""

GUARD_PUBLISHES: tuple[str, ...] = (
    "mesh.evt.*.*",
    "mesh.timer.at.*",
    "mesh.note.*.*",
    "mesh.dead.guard.*",
    "mesh.end.*.*.*",
    "mesh.conf.freeze",
    "mesh.conf.breaker.*",
    f"{API}STREAM.NAMES",
    *(f"{NEXT}*.{consumer}" for consumer in QUEUE_CONSUMERS),
    *(f"$JS.ACK.*.{consumer}.>" for consumer in QUEUE_CONSUMERS),
    LEADER_GET + "LOG",
    LEADER_GET + "TIMER",
    f"{API}CONSUMER.INFO.LOG.*",
    GET + "LOG",
    GET + "LOG.>",
    GET + "CONF.>",
    GET + "*.mesh.step.*.*.*.*",
    "$SRV.PING.*",
)
GUARD_HEARS = ("mesh.note._.>", CONF_CHANGED + ".>")

ANSWER = "_R_.>"
"""Where an agent answers. The server leads each answer back to its caller, and only there."""


def inbox_prefix(name: str, *, anonymous: bool = False) -> str:
    """Return where answers to `name` go. Nobody else may listen there."""
    return ANONYMOUS_INBOX if anonymous else f"{INBOX}.{name}"


def grants(role: Role, name: str, *, anonymous: bool = False) -> Grants:
    """Return what `name` in `role` may do. Raises ValueError for a name that is none.

    With `anonymous`, `name` is also who connects without credentials, with any tool's default inbox.
    """
    if not is_name(name):
        raise ValueError(f"not a name: {name!r}")
    if role is Role.ADMIN:
        return Grants(CORE, None, None)
    inboxes = (f"{INBOX}.{name}.>", *([f"{ANONYMOUS_INBOX}.>"] if anonymous else []))
    if role is Role.GUARD:
        return Grants(CORE, GUARD_PUBLISHES, (*inboxes, *GUARD_HEARS))
    publish = (*(call.subject for call in CALLS[role]), *((ANSWER,) if role is Role.AGENT else ()))
    subscribe = (*HEARS[role], *(answer.subject for answer in ANSWERS[role]))
    return Grants(name, _named(publish, name), (*inboxes, *_named(subscribe, name)))


def _named(subjects: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(subject.replace(ME, name) for subject in subjects)


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
