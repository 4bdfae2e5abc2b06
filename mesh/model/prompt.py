"""The brief: one round of a turn as text, the same for every model.

Whatever others wrote stands on one line, values as JSON: a customer's text cannot begin a section of
its own. A line ends nowhere but where this file ends it, whatever a reader takes for the end of one. One
fact, one peer, one refusal a line, so that what a model is shown can be read back.

Instructions: an agent's system text, a file with a version that its card and its journal can name.

The first line says the version, `<!-- version: 3 -->`; the rest goes to the model as it stands.

What a model's conversation began with, the same for the whole turn.

A round after a refusal goes on where the last one ended: the recorded replies are said again, and what was
refused is the result of the call that asked for it. That holds only while the prompt is the same to the
letter (a vendor binds a model's thoughts to it, too), so that what may change between rounds is written down
with the first reply: who is there, which tools there are, and what had happened before it all began.
"""

import datetime as dt
import json
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent.tools import Tool
from mesh.agent.turn import Turn
from protocol.wire.codec import is_label
from protocol.wire.commands import move_name, move_summary
from protocol.wire.config import AgentEntry
from protocol.wire.events import Past
from protocol.wire.handoff import Artifact, Constraints, Fact

_VERSION = r"[\w.-]{1,32}"
_FIRST = re.compile(rf"<!--\s*version:\s*(?P<version>{_VERSION})\s*-->")


@dataclass(frozen=True, slots=True)
class Instructions:
    """A system text and its version.

    Raises ValueError for a text that is blank, and for a version that is not 1 to 32 of letters, digits,
    `_`, `.` and `-`.
    """

    version: str
    text: str

    def __post_init__(self) -> None:
        if re.fullmatch(_VERSION, self.version) is None:
            raise ValueError(
                f"not a version of instructions: {self.version[:64]!r}; 1 to 32 of a-z 0-9 _ . -"
            )
        if not self.text.strip():
            raise ValueError("instructions have to say something: the text is blank")


def parse_instructions(source: str, name: str = "instructions") -> Instructions:
    """Return the instructions in `source`. Raises ValueError where the version line or the text lacks."""
    first, _, rest = source.partition("\n")
    found = _FIRST.fullmatch(first.strip())
    if found is None:
        raise ValueError(f"{name}: the first line has to be <!-- version: … -->")
    if not rest.strip():
        raise ValueError(f"{name}: no text after the version line")
    return Instructions(found["version"], rest.strip())


def load_instructions(path: Path) -> Instructions:
    """Return the instructions in a file. Raises OSError, and ValueError as `parse_instructions`."""
    return parse_instructions(path.read_text(encoding="utf-8"), path.name)


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """All that a prompt is made from besides the handoff."""

    peers: tuple[AgentEntry, ...]
    """Whom the agent may hand to."""
    human: bool
    """Whether people can be asked."""
    tools: tuple[str, ...]
    """Names of the tools that are offered."""
    past: int = 0
    """How many rounds had ended when the conversation began."""


def outlook_now(turn: Turn, tools: Iterable[Tool] = ()) -> Outlook:
    """Return what a conversation would begin with that begins now."""
    allowed = turn.allowed_actions
    return Outlook(
        peers=tuple(turn.peers.values()),
        human=turn.has_human,
        tools=tuple(tool.name for tool in tools if allowed is None or tool.name in allowed),
        past=len(turn.past),
    )


async def outlooks(turn: Turn) -> list[tuple[Any, Outlook]]:
    """Return what this turn's conversations began with that were not taken up yet: as recorded, and read."""
    return [(began, msgspec.convert(began, Outlook)) for began in await turn.begun()]


_GO_ON = "A person says: go on."
_PLAIN = re.compile(r"[\w.-]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""All at which `str.splitlines` begins another line, and what else is no character to be seen."""


def render(turn: Turn, seen: Outlook | None = None, handoffs: Container[str] | None = None) -> str:
    """Return what a model is told as its conversation begins.

    Args:
        seen: what the conversation began with; by default, things as they are now.
        handoffs: to whom it may transfer, of those whom the fleet lets it; None for all of these.
    """
    handoff = turn.handoff
    seen = seen or outlook_now(turn)
    rounds = turn.past[: seen.past]
    number = sum(map(_says_something, rounds))
    peers = [peer for peer in seen.peers if handoffs is None or peer.name in handoffs]
    head = [
        f"You are: {turn.agent}",
        f"Given by: {handoff.from_agent} ({handoff.move})",
        f"Summary: {one_line(handoff.summary)}",
        f"Intent: {one_line(handoff.intent)}" if handoff.intent is not None else None,
        f"Path: {' > '.join(turn.path)}",
        f"Round: {number}",
        f"Withheld from you: {', '.join(map(_label, turn.withheld))} (it travels on without you)"
        if turn.withheld
        else None,
    ]
    sections = (
        ("Facts", map(_fact, handoff.facts)),
        ("Artifacts", map(_artifact, handoff.artifacts)),
        ("Constraints", _constraints(handoff.constraints)),
        ("May hand to", map(_peer, peers)),
        ("Earlier rounds of this turn", starmap(_past, _stretches(rounds))),
    )
    blocks = ["\n".join(line for line in head if line is not None)]
    for title, lines in sections:
        listed = [f"- {line}" for line in lines]
        if listed:
            blocks.append("\n".join((f"{title}:", *listed)))
    return "\n\n".join(blocks)


def one_line(text: str) -> str:
    """Return text without line breaks and control characters, whatever stood there is a space."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def _json(value: Any) -> str:
    """Return a value as JSON on one line, with every control character escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def _key(key: str) -> str:
    return key if _PLAIN.fullmatch(key) else _json(key)


def _label(label: str) -> str:
    """Return a label as it stands, or as JSON: logs are older than the syntax of labels."""
    return label if is_label(label) else _json(label)


def _fact(fact: Fact) -> str:
    labels = f" [{', '.join(map(_label, fact.labels))}]" if fact.labels else ""
    return f"{_key(fact.key)}: {_json(fact.value)}{labels}"


def _artifact(item: Artifact) -> str:
    return one_line(f"{_key(item.name)}: {item.uri} {item.media_type}")


def _constraints(own: Constraints) -> Iterable[str]:
    if own.deadline is not None:
        yield f"deadline: {_utc(own.deadline)}"
    if own.allowed_actions is not None:
        yield f"allowed actions: {', '.join(map(_key, own.allowed_actions)) or 'none'}"
    if own.must_carry:
        yield f"facts that must be carried on unchanged: {', '.join(map(_key, own.must_carry))}"


def _utc(micros: int) -> str:
    """Return UTC µs as ISO 8601, to the second."""
    at = dt.datetime.fromtimestamp(micros // 1_000_000, dt.UTC)
    return at.isoformat().replace("+00:00", "Z")


def _peer(peer: AgentEntry) -> str:
    takes = f" (intents: {', '.join(peer.intents)})" if peer.intents else ""
    says = f": {peer.description}" if peer.description else ""
    return one_line(f"{peer.name}{says}{takes}")


def _stretches(rounds: Iterable[Past]) -> Iterable[tuple[int, Past]]:
    """Yield each earlier round that a model is told of, and its number among these."""
    silent = 0
    for past in rounds:
        if _says_something(past):
            yield past.round - silent, past
        else:
            silent += 1


def _says_something(past: Past) -> bool:
    """Say whether how a round ended is any of a model's business.

    After an approval, and after a failure that is tried again, all is told as before: so the model's replies
    still stand, and it reads nothing of overloaded vendors and dying processes.
    """
    return not past.asked and past.how != "failed"


def _past(number: int, past: Past) -> str:
    return one_line(f"round {number} {past.how}: {_how(past)}")


def told(past: Past) -> str:
    """Return in one line what came of a move."""
    match past.how:
        case "expired":
            return "Nobody replied in time."
        case "resolved":
            return one_line(f"{_GO_ON} {past.reply or ''}")
    return one_line(_how(past))


def _how(past: Past) -> str:
    if past.refusal is not None:
        asked = _asked(past)
        hint = f" Allowed instead: {past.refusal.hint}." if past.refusal.hint else ""
        return f"rule {past.refusal.rule} refused {asked}: {past.refusal.detail}.{hint}"
    if past.failure is not None:
        return f"{past.failure.code}: {past.failure.message}"
    if past.settled is not None:
        return f"{past.settled}: {_json(past.reply)}"
    if past.how == "resolved" and past.move is not None:
        said = "go on." if past.reply is None else _json(past.reply)
        return f"{_json(move_summary(past.move))} went to a person, who says: {said}"
    if past.how == "resolved" and past.reply is None:
        return _GO_ON
    return _json(past.reply)


def _asked(past: Past) -> str:
    if past.move is None:
        return "the move"
    to = getattr(past.move, "to_agent", None)
    return move_name(past.move) if to is None else f"{move_name(past.move)} to {to}"
