"""Which requests are wanted: `agent=front rule=depth since=2d`, for the command line and the page alike.

    where  = [ clause *( space clause ) ]
    clause = name "=" value
    value  = what has no space and no quote | a text in double quotes, with `\\"` for a quote in it

A request is wanted if every clause applies to it. `agent`, `rule` and `version` may be given several times.
`Filter` is what the index of requests searches for, and `matches` tests a single request without an index.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any, NamedTuple

import msgspec

from mesh.errors import MeshError, UsageWrong
from mesh.ops.batch import checked_batch
from mesh.ops.log import decoded
from mesh.ops.rows import COSTS, STATUSES, IndexRow, folded_from, version_tag, words_of
from mesh.service.printable import moment
from protocol.wire.ids import is_name

MOST_TEXT = 200
"""The longest text to search for, in characters."""
TAGGED = ("agent", "client", "rule")
PREFIX = 3
"""The fewest letters that find words by their beginning. Shorter beginnings are in most texts."""
_AN_ID = re.compile(r"[a-z][a-z0-9-]*_[0-9A-Z]{3,26}")
_CLAUSE = re.compile(r'(?P<name>[^\s="]*)(?P<equals>=?)(?P<value>"(?:[^"\\]|\\.)*"|[^\s"]*)(?=\s|$)')
_QUOTED = re.compile(r"\\(.)")
_SHOWN = 40
"""Characters of a mistake that an error shows."""


class WhereWrong(UsageWrong):
    """A clause that cannot be read. `at` is its place: the first character is 1."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are wanted: those to which all of it applies."""

    tags: tuple[str, ...] = ()
    conversation: str = ""
    text: str = ""
    """Words that the client wrote (their beginnings will do), or the beginning of an id."""
    nano_dollars: int = 0
    """At least."""
    since: int | None = None
    """Opened at this time (UTC µs) or later."""
    until: int | None = None

    @property
    def is_id(self) -> bool:
        """Return True if the text is the beginning of an id."""
        return _AN_ID.fullmatch(self.text) is not None

    @property
    def words(self) -> list[str]:
        """Return the words to search for."""
        return [] if self.is_id else words_of(self.text).split()

    @property
    def is_prefix(self) -> bool:
        """Return True if the last word is the beginning of one."""
        return bool(self.words) and len(self.words[-1]) >= PREFIX

    @property
    def all_tags(self) -> list[str]:
        """Return the tags that a request must have, that of its cost among them."""
        if not self.nano_dollars:
            return list(self.tags)
        return [*self.tags, f"cost:{max(power for power in COSTS if 10**power <= self.nano_dollars)}"]


def matches(wanted: Filter, row: IndexRow) -> bool:
    """Return True if a request is wanted, exactly as the index would find it."""
    listed = row.listed
    if not row.tags.issuperset(wanted.tags) or listed.nano_dollars < wanted.nano_dollars:
        return False
    if wanted.conversation and listed.conversation != wanted.conversation:
        return False
    if wanted.since is not None and listed.opened < wanted.since:
        return False
    if wanted.until is not None and listed.opened > wanted.until:
        return False
    if wanted.is_id:
        return listed.request.startswith(wanted.text)
    words, text = wanted.words, f" {row.words} "
    if wanted.text and not words:
        return False  # it has no word that could be found
    last = len(words) - 1 if wanted.is_prefix else -1
    return all((f" {word}" if at == last else f" {word} ") in text for at, word in enumerate(words))


def is_wanted(wanted: Filter, bodies: Sequence[bytes]) -> bool:
    """Return True for a request that is wanted, given its stored events; for one that cannot be read, too."""
    try:
        folded = folded_from(decoded(bodies))
    except MeshError:
        return True
    return folded is None or matches(wanted, folded.row(0))


# --- the grammar ----------------------------------------------------------------------------------


class Clause(NamedTuple):
    """One condition, and its place in the text; 0 if it is an option or a field of its own."""

    name: str
    value: str
    at: int = 0


def parse(text: str) -> Filter:
    """Return the filter that a text describes. Raises WhereWrong with the place of the first mistake."""
    return filter_from(clauses_in(text))


def clauses_in(text: str) -> list[Clause]:
    """Return the clauses of a text. Raises WhereWrong if it has none, or for an unknown name."""
    found, at = list[Clause](), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        read = _CLAUSE.match(text, at)
        if read is None:
            raise WhereWrong(_placed(text[at:], at + 1, "a quote has no end, or no space follows it"), at + 1)
        name, value = read["name"], read["value"]
        if not read["equals"] or not name:
            raise WhereWrong(_placed(read[0], at + 1, "write NAME=VALUE"), at + 1)
        if value.startswith('"'):
            value = _QUOTED.sub(r"\1", value[1:-1])
        found.append(Clause(name, value, at + 1))
        at = read.end()
    return found


def filter_from(clauses: Iterable[Clause]) -> Filter:
    """Return the filter of these clauses, checked one after the other. Raises WhereWrong."""
    fields, tags, given = dict[str, Any](), list[str](), set[str]()
    for clause in clauses:
        if clause.name not in NAMES:
            near = get_close_matches(clause.name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(NAMES)}"
            raise _wrong(clause, f"there is no such name; {hint}")
        if clause.name in given and clause.name not in _SEVERAL:
            raise _wrong(clause, f"{clause.name} is there twice")
        given.add(clause.name)
        try:
            field, value = NAMES[clause.name].read(clause.name, clause.value.strip())
        except UsageWrong as wrong:
            raise _wrong(clause, str(wrong)) from None
        if field == "tags":
            tags.append(value)
        else:
            fields[field] = value
    return Filter(tags=tuple(dict.fromkeys(tags)), **fields)


def text_of(clauses: Iterable[Clause]) -> str:
    """Return clauses as one text, which `parse` reads back as the same."""
    return " ".join(f"{name}={_as_value(value)}" for name, value, _ in clauses)


def _as_value(value: str) -> str:
    if value and not re.search(r'[\s"]', value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _wrong(clause: Clause, why: str) -> WhereWrong:
    if not clause.at:
        return WhereWrong(why, 0)
    return WhereWrong(_placed(f"{clause.name}={clause.value}", clause.at, why), clause.at)


def _placed(shown: str, at: int, why: str) -> str:
    cut = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"where: character {at}, {cut!r}: {why}"


# --- what each name means -------------------------------------------------------------------------


def _status(name: str, value: str) -> tuple[str, str]:
    if value not in STATUSES:
        raise UsageWrong(f"no such status: {value[:_SHOWN]!r}; one of {', '.join(STATUSES)}")
    return "tags", f"status:{value}"


def _tag(name: str, value: str) -> tuple[str, str]:
    if not is_name(value.replace("_", "-")):
        raise UsageWrong(f"{name}: {value[:_SHOWN]!r} is no name")
    return "tags", f"{name}:{value}"


def _version(name: str, value: str) -> tuple[str, str]:
    agent, _, version = value.partition("=")
    if not is_name(agent) or not version:
        raise UsageWrong(f"version: {value[:_SHOWN]!r} is not AGENT=VERSION, such as front=2")
    return "tags", version_tag(agent, version)


def _batch(name: str, value: str) -> tuple[str, str]:
    return "tags", f"batch:{checked_batch(value)}"


def _text(name: str, value: str) -> tuple[str, str]:
    if len(value) > MOST_TEXT:
        raise UsageWrong(f"{name} has {MOST_TEXT} characters at most")
    return name, value


def _whole(name: str, value: str) -> tuple[str, str]:
    return name, value


def _cost(name: str, value: str) -> tuple[str, int]:
    return "nano_dollars", nano_dollars(name, value)


def _time(name: str, value: str) -> tuple[str, int]:
    at = moment(value)
    if at is None:
        raise UsageWrong(
            f"{name}: {value[:_SHOWN]!r} is no time; write 90s, 15m, 2h or 7d ago, or 2026-11-21T02:00Z"
        )
    return name, max(0, int(at.timestamp() * 1e6))


def nano_dollars(name: str, value: str) -> int:
    """Return an amount of dollars as nano-dollars. Raises UsageWrong."""
    try:
        amount = Decimal(value.strip().removeprefix("$"))
    except InvalidOperation:
        amount = Decimal(-1)
    if not (amount.is_finite() and 0 <= amount <= 10**9):
        raise UsageWrong(f"{name}: {value[:_SHOWN]!r} is no amount of dollars")
    return int(amount * 10**9)


class Name(NamedTuple):
    """What can be asked for under one name."""

    read: Callable[[str, str], tuple[str, Any]]
    """Returns the filter's field and its value. Raises UsageWrong."""
    metavar: str
    help: str


NAMES = {
    "status": Name(_status, "STATUS", "open, human (people must act), frozen, completed, refused, failed …"),
    "agent": Name(_tag, "AGENT", "This agent had a turn."),
    "client": Name(_tag, "CLIENT", "This client's."),
    "rule": Name(_tag, "RULE", "This rule refused a move."),
    "version": Name(_version, "AGENT=VERSION", "The agent ran so: front=2."),
    "conversation": Name(_whole, "NAME", "Of this conversation."),
    "batch": Name(_batch, "BATCH", "A command for many requests decided it under this id."),
    "text": Name(_text, "TEXT", "The text has these words, or the id begins so."),
    "cost": Name(_cost, "DOLLARS", "Cost so much at least."),
    "since": Name(_time, "TIME", "Opened since: 90s, 15m, 2h, 7d ago, or a time (ISO-8601)."),
    "until": Name(_time, "TIME", "Opened before that."),
}
"""All names, in the order in which they are listed."""
_SEVERAL = ("agent", "rule", "version")
