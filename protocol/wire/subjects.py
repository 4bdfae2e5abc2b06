"""Subjects: the only place where one is built or taken apart.

Every subject begins with `mesh.`. Tokens are checked on the way in. A name with a dot, a space or a wildcard
can never widen what a message addresses.
"""

from typing import Literal, NamedTuple

from protocol.wire.ids import ANYBODY, NOBODY, derive, is_token


class Delivered(NamedTuple):
    """In whose inbox an event lies and of which request it is."""

    to: str
    request: str


class Addressed(NamedTuple):
    """The sender and the request of a message, as the subject (hence the broker) has them."""

    sender: str
    request: str


def _token(text: str) -> str:
    if not is_token(text):
        raise ValueError(f"not a subject token: {text!r}")
    return text


def evt(to: str, request: str) -> str:
    """An event, in the inbox of `to` (`_`: in nobody's)."""
    return f"mesh.evt.{_token(to)}.{_token(request)}"


def evt_of(request: str) -> str:
    """Every event of one request: the filter of each compare-and-set append, always this string."""
    return f"mesh.evt.*.{_token(request)}"


def inbox(name: str) -> str:
    """Every event that `name` must act on."""
    return f"mesh.evt.{_token(name)}.*"


def intent_inbox(intent: str) -> str:
    """Return the name of the inbox in which offers of an intent lie.

    It is `any-<intent>`; an intent that cannot stand in a subject so gives a derived one.
    """
    name = f"{ANYBODY}{intent}"
    return name if is_token(name) else f"{ANYBODY}{derive('intent', intent)}"


def prop(sender: str, request: str) -> str:
    """A submit, a move or a turn's failure, from `sender`."""
    return f"mesh.prop.{_token(sender)}.{_token(request)}"


def ctl(sender: str, request: str) -> str:
    """A control message from `sender`; `_` as the request means the whole mesh."""
    return f"mesh.ctl.{_token(sender)}.{_token(request)}"


def step(agent: str, request: str, turn: str, name: str) -> str:
    """One step of a turn's journal, written by its agent; `name` is `<round>-<n>`."""
    return f"mesh.step.{_token(agent)}.{_token(request)}.{_token(turn)}.{_token(name)}"


def end(agent: str, request: str, turn: str) -> str:
    """The end of a turn that a guard ended. No permission of an agent lets it write here."""
    return f"mesh.end.{_token(agent)}.{_token(request)}.{_token(turn)}"


def questions(reader: str, request: str) -> str:
    """What a request asks its reader and has no reply yet. Guards alone write here."""
    return f"mesh.ask.{_token(reader)}.{_token(request)}"


def lane(sender: str, request: str) -> str:
    """Where a sender asks a guard for a verdict. Its account puts the request's partition in."""
    return f"mesh.lane.{_token(sender)}.{_token(request)}"


def lane_of(sender: str, partition: int) -> str:
    """What a sender asks of the guard that has a partition."""
    return f"mesh.lane.{partition}.{_token(sender)}.*"


def timer_at(request: str) -> str:
    """Where the one schedule of a request stands."""
    return f"mesh.timer.at.{_token(request)}"


SCHEDULES = "mesh.timer.at.*"
FIRED = "mesh.timer.fire.*.*"
"""The schedules of all requests."""


def timer_fire(request: str, partitions: int) -> str:
    """Where that schedule is delivered when it is due, in the request's own partition.

    Args:
        partitions: how many the mesh has (`Fleet.partitions`).
    """
    return f"mesh.timer.fire.{partition(request, partitions)}.{_token(request)}"


def card(agent: str) -> str:
    return f"mesh.card.{_token(agent)}"


def prompt(agent: str, digest: str) -> str:
    """A fixed part of an agent's prompts, by its digest."""
    return f"mesh.prompt.{_token(agent)}.{_token(digest)}"


def dead(name: str) -> str:
    return f"mesh.dead.{_token(name)}"


def dead_from(sender: str) -> str:
    """A dead letter that a guard keeps, in a list of its sender's own; `_` where nobody sent it."""
    return f"{dead(GUARDS)}.{_token(sender)}"


def note(to: str, request: str) -> str:
    """A wake-up (no body) or a notice (a typed error) for `to`; about `_` if no subject can hold the id."""
    return f"mesh.note.{_token(to)}.{request if is_token(request) else NOBODY}"


def live(client: str, request: str, agent: str, turn: str) -> str:
    """What a running turn shows while it works: a hint for display, never a truth."""
    return f"mesh.live.{_token(client)}.{_token(request)}.{_token(agent)}.{_token(turn)}"


def notes_to(name: str) -> str:
    """Every note and notice for `name`."""
    return f"mesh.note.{_token(name)}.*"


def journals(request: str | None, agent: str | None = None, turn: str | None = None) -> str:
    """Every step of one request, agent and turn; None stands for all of them."""
    parts = ("*" if each is None else _token(each) for each in (agent, request, turn))
    return f"mesh.step.{'.'.join(parts)}.*"


def live_to(client: str, request: str) -> str:
    """What all turns of a client's request show."""
    return f"mesh.live.{_token(client)}.{_token(request)}.>"


def policy(name: str) -> str:
    return f"mesh.conf.policy.{_token(name)}"


def shadow(policy: str) -> str:
    """Where the shadow of a policy stands."""
    return f"mesh.conf.shadow.{_token(policy)}"


def shadow_differs(policy: str, request: str, n: int) -> str:
    """Where guards store that a policy's shadow would have decided a command otherwise."""
    return f"mesh.shadow.{_token(policy)}.differs.{_token(request)}.{n}"


def shadow_counts(policy: str, guard: str, at_us: int) -> str:
    """Where a guard stores what it has counted of a policy's shadow, in the minute of `at_us` (UTC µs)."""
    return f"mesh.shadow.{_token(policy)}.counts.{_token(guard)}.{at_us // 60_000_000}"


def shadow_stored(policy: str, what: Literal["differs", "counts"]) -> str:
    """All that guards store of a policy's shadows."""
    return f"mesh.shadow.{_token(policy)}.{what}.*.*"


def breaker(agent: str) -> str:
    return f"mesh.conf.breaker.{_token(agent)}"


def memory(client: str, conversation: str, key: str) -> str:
    """One fact that a client's conversation remembers."""
    return f"mesh.mem.{_token(client)}.{_part('conversation', conversation)}.{_part('key', key)}"


def forgotten(client: str, conversation: str, sender: str, order: str) -> str:
    """What an order of `sender` has a client's conversation forget."""
    mark = f"{NOBODY}{derive('forget', sender, order)}"
    return f"mesh.mem.{_token(client)}.{_part('conversation', conversation)}.{mark}"


def folded(client: str) -> str:
    """How far in the log a client's conversations have been read."""
    return f"mesh.mem.{_token(client)}.{NOBODY}.{NOBODY}"


def memories(client: str, conversation: str | None = None) -> str:
    """All that a client's conversation remembers; None stands for all of its conversations."""
    of = "*" if conversation is None else _part("conversation", conversation)
    return f"mesh.mem.{_token(client)}.{of}.*"


def _part(kind: str, text: str) -> str:
    """Return a text as one token. One that is none, or looks like one of ours, gives a derived one."""
    return text if is_token(text) and not text.startswith(NOBODY) else derive(kind, text)


ANCHOR = "mesh.anchor.log"
"""Where guards sign what the log holds."""
STORED_IN: dict[str, tuple[str, ...]] = {
    "LOG": ("mesh.evt.*.*",),
    "ENDS": ("mesh.end.*.*.*",),
    "ASKS": ("mesh.ask.*.*",),
    "TIMER": (SCHEDULES, FIRED),
    "CONF": ("mesh.conf.>",),
    "CARDS": ("mesh.card.*",),
    "PROMPTS": ("mesh.prompt.*.*",),
    "ANCHORS": (ANCHOR,),
    "SHADOW": ("mesh.shadow.*.*.*.*",),
    "DEAD": ("mesh.dead.*", "mesh.dead.guard.*"),
}
"""Subjects of each stream that a mesh has once."""

GUARDS = "guard"
"""Under which name guards keep dead letters."""
GUARD_BEATS = "mesh.guards"
"""Where guards tell each other that they are there and what they hold. Nobody else may hear or say it."""
CONF = "mesh.conf.>"
FLEET = "mesh.conf.fleet"
PRICES = "mesh.conf.prices"
CONF_CHANGED = "mesh.changed"
"""Prefix of the wake-ups that follow each write to CONF, `mesh.changed.<what was after mesh.conf.>`, and to
CARDS, `mesh.changed.card.<agent>`."""
FREEZE = "mesh.conf.freeze"
EVENTS = "mesh.evt.>"
STEPS = "mesh.step.*.*.*.*"
CARDS = "mesh.card.*"
DEAD_LETTERS = "mesh.dead.>"
POLICIES = "mesh.conf.policy.*"
SHADOWS = "mesh.conf.shadow.*"
BREAKERS = "mesh.conf.breaker.*"


def parse_evt(subject: str) -> Delivered:
    """Return whose inbox an event lies in and its request. Raises ValueError for another subject."""
    match subject.split("."):
        case ["mesh", "evt", to, request]:
            return Delivered(to, request)
    raise ValueError(f"not an event's subject: {subject!r}")


def parse_dead(subject: str) -> str:
    """Return who keeps a dead letter. Raises ValueError for another subject."""
    match subject.split("."):
        case ["mesh", "dead", name] | ["mesh", "dead", name, _]:
            return name
    raise ValueError(f"not a dead letter's subject: {subject!r}")


def parse_queued(subject: str) -> Addressed:
    """Return sender and request of a message for guards, `mesh.prop.<p>.<from>.<request>`.

    The broker checked the sender against the publisher's permissions. So it is the one statement about a
    message's origin that can be believed.
    """
    match subject.split("."):
        case ["mesh", "prop" | "ctl" | "lane", _, sender, request]:
            return Addressed(sender, request)
    raise ValueError(f"not a queued proposal's or control's subject: {subject!r}")


def queued(kind: Literal["prop", "ctl"], sender: str | None, request: str, partitions: int) -> str:
    """Return where messages about a request are stored, those of one sender or of all (None).

    Args:
        partitions: how many the mesh has (`Fleet.partitions`).
    """
    name = "*" if sender is None else _token(sender)
    return f"mesh.{kind}.{partition(request, partitions)}.{name}.{_token(request)}"


def parse_fire(subject: str) -> str:
    """Return the request that a timer fired for."""
    match subject.split("."):
        case ["mesh", "timer", "fire", _, request]:
            return request
    raise ValueError(f"not a fired timer's subject: {subject!r}")


def partition(request: str, partitions: int) -> int:
    """Return the partition of a request, from 0: FNV-1a (32 bits) over its id, modulo `partitions`.

    The function of nats-server's `{{partition(n,token)}}` transform, so that a timer armed here
    fires in the partition in which the server queues the request's proposals.
    """
    value = 2166136261
    for byte in request.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value % partitions


MESH_WIDE = str(NOBODY)
"""The request token of a control message that means the whole mesh."""
