"""Subjects, which are built and parsed only here.

Every subject begins with `mesh.`. Tokens are checked on the way in, so a name with a dot, a space or a
wildcard cannot widen what a message addresses.
"""

from typing import Literal, NamedTuple

from protocol.wire.ids import ANYBODY, NOBODY, derive, is_token


class Delivered(NamedTuple):
    """An event's addressee and request, as its subject has them."""

    to: str
    request: str


class Addressed(NamedTuple):
    """A message's sender and request, as its subject has them; the broker vouches for both."""

    sender: str
    request: str


def _token(text: str) -> str:
    if not is_token(text):
        raise ValueError(f"not a subject token: {text!r}")
    return text


def evt(to: str, request: str) -> str:
    """An event in the inbox of `to`; `_` for an event in no inbox."""
    return f"mesh.evt.{_token(to)}.{_token(request)}"


def evt_of(request: str) -> str:
    """All events of one request. Every compare-and-set append uses exactly this filter."""
    return f"mesh.evt.*.{_token(request)}"


def inbox(name: str) -> str:
    """All events that `name` must act on."""
    return f"mesh.evt.{_token(name)}.*"


def intent_inbox(intent: str) -> str:
    """Return the name of the inbox for offers of an intent.

    It is `any-<intent>`, or a derived name if that is not a valid token.
    """
    name = f"{ANYBODY}{intent}"
    return name if is_token(name) else f"{ANYBODY}{derive('intent', intent)}"


def prop(sender: str, request: str) -> str:
    """A submit, or any proposal, from `sender`."""
    return f"mesh.prop.{_token(sender)}.{_token(request)}"


def ctl(sender: str, request: str) -> str:
    """A control message from `sender`; `_` as the request means the whole mesh."""
    return f"mesh.ctl.{_token(sender)}.{_token(request)}"


def step(agent: str, request: str, turn: str, name: str) -> str:
    """One step of a turn's journal, written by its agent; `name` is `<round>-<n>`."""
    return f"mesh.step.{_token(agent)}.{_token(request)}.{_token(turn)}.{_token(name)}"


LOST = "lost"
"""Stands for the step in the subject of a lost time; `_` stands for its request and its turn."""


def lost_time(agent: str) -> str:
    """The time whose steps are missing from an agent's journals. A restore writes it."""
    return step(agent, NOBODY, NOBODY, LOST)


KNOWN = "known"
"""Stands for the step in the subject that says that a backup had this turn. A restore writes it."""


def end(agent: str, request: str, turn: str) -> str:
    """The end of a turn that a guard ended. Agents have no permission to write here."""
    return f"mesh.end.{_token(agent)}.{_token(request)}.{_token(turn)}"


def questions(reader: str, request: str) -> str:
    """The open questions of a request to a reader. Only guards write here."""
    return f"mesh.ask.{_token(reader)}.{_token(request)}"


def lane(sender: str, request: str) -> str:
    """Where a sender asks a guard for a verdict. The sender's account inserts the request's partition."""
    return f"mesh.lane.{_token(sender)}.{_token(request)}"


def lane_of(sender: str, partition: int) -> str:
    """All messages of a sender on the lane of one partition."""
    return f"mesh.lane.{partition}.{_token(sender)}.*"


def timer_at(request: str) -> str:
    """Where a request's only schedule is stored."""
    return f"mesh.timer.at.{_token(request)}"


SCHEDULES = "mesh.timer.at.*"
"""The schedules of all requests."""
FIRED = "mesh.timer.fire.*.*"
"""The fired schedules of all requests."""


def timer_fire(request: str, partitions: int) -> str:
    """Where a request's schedule is delivered when it is due, in the request's own partition.

    Args:
        partitions: how many the mesh has (`Fleet.partitions`).
    """
    return f"mesh.timer.fire.{partition(request, partitions)}.{_token(request)}"


def card(agent: str) -> str:
    return f"mesh.card.{_token(agent)}"


def prompt(agent: str, digest: str) -> str:
    """The fixed part of an agent's prompts, by digest."""
    return f"mesh.prompt.{_token(agent)}.{_token(digest)}"


def dead(name: str) -> str:
    return f"mesh.dead.{_token(name)}"


def dead_from(sender: str) -> str:
    """A guard's dead letters for one sender's messages; `_` for messages without a sender."""
    return f"{dead(GUARDS)}.{_token(sender)}"


def note(to: str, request: str) -> str:
    """A note (no body) or a notice (typed) for `to`. The request is `_` if its id is not a valid token."""
    return f"mesh.note.{_token(to)}.{request if is_token(request) else NOBODY}"


def live(client: str, request: str, agent: str, turn: str) -> str:
    """Live notes of a running turn: for display only."""
    return f"mesh.live.{_token(client)}.{_token(request)}.{_token(agent)}.{_token(turn)}"


def notes_to(name: str) -> str:
    """All notes and notices for `name`."""
    return f"mesh.note.{_token(name)}.*"


def journals(request: str | None, agent: str | None = None, turn: str | None = None) -> str:
    """All steps of a request, agent and turn; None matches any."""
    parts = ("*" if each is None else _token(each) for each in (agent, request, turn))
    return f"mesh.step.{'.'.join(parts)}.*"


def live_to(client: str, request: str) -> str:
    """Live notes of all turns of a client's request."""
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


def schedule(name: str) -> str:
    """What a schedule submits, and when."""
    return f"mesh.conf.schedule.{_token(name)}"


def pause(name: str) -> str:
    """Whether a schedule is paused."""
    return f"mesh.conf.pause.{_token(name)}"


def tick(name: str) -> str:
    """The last tick of a schedule. Only guards write here."""
    return f"mesh.conf.tick.{_token(name)}"


def schedule_timer(name: str) -> str:
    """Return what stands for a request's id in the timer of a schedule; no request has such an id."""
    return f"{NOBODY}{_token(name)}"


def scheduled_by(timer: str) -> str:
    """Return the schedule that a fired timer is of; empty if it is a request's."""
    return timer.removeprefix(NOBODY) if timer.startswith(NOBODY) else ""


def breaker(agent: str) -> str:
    return f"mesh.conf.breaker.{_token(agent)}"


def memory(client: str, conversation: str, key: str) -> str:
    """One fact that a client's conversation remembers."""
    return f"mesh.mem.{_token(client)}.{_part('conversation', conversation)}.{_part('key', key)}"


def forgotten(client: str, conversation: str, sender: str, order: str) -> str:
    """What a client's conversation forgets because of an order from `sender`."""
    mark = f"{NOBODY}{derive('forget', sender, order)}"
    return f"mesh.mem.{_token(client)}.{_part('conversation', conversation)}.{mark}"


def speaker(client: str, conversation: str | None) -> str:
    """The agent that spoke last in a client's conversation; None matches all, and what `folded` returns."""
    token = "*" if conversation is None else _part("conversation", conversation)
    return f"mesh.mem.{_token(client)}.{NOBODY}.{token}"


def folded(client: str) -> str:
    """How far the log has been folded into a client's conversations."""
    return f"mesh.mem.{_token(client)}.{NOBODY}.{NOBODY}"


def memories(client: str, conversation: str | None = None) -> str:
    """All facts that a client's conversation remembers; None matches everything of all its conversations."""
    token = "*" if conversation is None else _part("conversation", conversation)
    return f"mesh.mem.{_token(client)}.{token}.*"


def _part(kind: str, text: str) -> str:
    """Return a text as one token: itself if it is valid and not reserved, otherwise a derived token."""
    return text if is_token(text) and not text.startswith(NOBODY) else derive(kind, text)


ANCHOR = "mesh.anchor.log"
"""Where guards publish signed anchors of the log."""
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
"""Subjects of the streams that exist once in a mesh."""

GUARDS = "guard"
"""The name under which guards keep dead letters."""
GUARD_BEATS = "mesh.guards"
"""Where guards exchange heartbeats and the partitions they hold. Only guards may read or write it."""
CONF = "mesh.conf.>"
FLEET = "mesh.conf.fleet"
PRICES = "mesh.conf.prices"
CONF_CHANGED = "mesh.changed"
"""Prefix of the wake-ups after each write to CONF (`mesh.changed.<subject without mesh.conf.>`) and to CARDS
(`mesh.changed.card.<agent>`)."""
FREEZE = "mesh.conf.freeze"
EVENTS = "mesh.evt.>"
STEPS = "mesh.step.*.*.*.*"
CARDS = "mesh.card.*"
DEAD_LETTERS = "mesh.dead.>"
POLICIES = "mesh.conf.policy.*"
SHADOWS = "mesh.conf.shadow.*"
BREAKERS = "mesh.conf.breaker.*"
SCHEDULE_ENTRIES = "mesh.conf.schedule.*"
SCHEDULE_PAUSES = "mesh.conf.pause.*"
SCHEDULE_TICKS = "mesh.conf.tick.*"


def parse_evt(subject: str) -> Delivered:
    """Return an event's addressee and request. Raises ValueError for any other subject."""
    match subject.split("."):
        case ["mesh", "evt", to, request]:
            return Delivered(to, request)
    raise ValueError(f"not an event's subject: {subject!r}")


def parse_dead(subject: str) -> str:
    """Return who keeps a dead letter. Raises ValueError for any other subject."""
    match subject.split("."):
        case ["mesh", "dead", name] | ["mesh", "dead", name, _]:
            return name
    raise ValueError(f"not a dead letter's subject: {subject!r}")


def parse_queued(subject: str) -> Addressed:
    """Return sender and request of a message for guards, `mesh.prop.<p>.<from>.<request>`.

    The broker checked the sender against the publisher's permissions. So the subject is the only trustworthy
    statement about a message's origin. Raises ValueError for any other subject.
    """
    match subject.split("."):
        case ["mesh", "prop" | "ctl" | "lane", _, sender, request]:
            return Addressed(sender, request)
    raise ValueError(f"not a queued proposal's or control's subject: {subject!r}")


def queued(kind: Literal["prop", "ctl"], sender: str | None, request: str, partitions: int) -> str:
    """Return where messages about a request are stored, from one sender or from all (None).

    Args:
        partitions: how many the mesh has (`Fleet.partitions`).
    """
    name = "*" if sender is None else _token(sender)
    return f"mesh.{kind}.{partition(request, partitions)}.{name}.{_token(request)}"


def parse_fire(subject: str) -> str:
    """Return the request that a timer fired for. Raises ValueError for any other subject."""
    match subject.split("."):
        case ["mesh", "timer", "fire", _, request]:
            return request
    raise ValueError(f"not a fired timer's subject: {subject!r}")


def partition(request: str, partitions: int) -> int:
    """Return the partition of a request, from 0: FNV-1a (32 bits) over its id, modulo `partitions`.

    This is the function behind nats-server's `{{partition(n,token)}}` transform. So a timer armed here fires
    in the partition where the server queues the request's proposals.
    """
    value = 2166136261
    for byte in request.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value % partitions


MESH_WIDE = str(NOBODY)
"""The request token of a control message about the whole mesh."""
