"""Prompts: an agent's instructions, and the brief, which is one round of a turn as text.

In the brief, foreign text is on one line and values are JSON, so a customer's text cannot begin a section.
Each line has one fact, peer or refusal, so the brief can be read back.

A round after a refusal continues where the last one ended. It reuses the recorded replies, and the refusal is
the result of the call that asked for the move. That needs exactly the same prompt, since a vendor binds a
model's thoughts to it. So everything that may change between rounds is recorded with the first reply
(`PromptContext`).
"""

import datetime as dt
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import msgspec

from mesh.agent._tasks import TaskNews, by_agent
from mesh.agent.tools import Tool
from mesh.agent.turn import Turn
from mesh.model.transcript import is_transcript
from protocol.wire.config import AgentEntry
from protocol.wire.event_parts import Posted, RoundOutcome, TaskResult
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import AgentName, is_label

_VERSION = r"[\w.-]{1,32}"
_FIRST = re.compile(rf"<!--\s*version:\s*(?P<version>{_VERSION})\s*-->")


@dataclass(frozen=True, slots=True)
class Instructions:
    """A system text and its version, which the agent's card and journal name.

    A file's first line is the version, `<!-- version: 3 -->`. Raises ValueError for a blank text, and for a
    version that is not 1 to 32 of letters, digits, `_`, `.` and `-`.
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


def load_instructions(given: Instructions | Path) -> Instructions:
    """Return instructions; a path is that of their file.

    Raises OSError; ValueError for a file without a version line or a text.
    """
    if isinstance(given, Instructions):
        return given
    first, _, rest = given.read_text(encoding="utf-8").partition("\n")
    found = _FIRST.fullmatch(first.strip())
    if found is None:
        raise ValueError(f"{given.name}: the first line has to be <!-- version: … -->")
    if not rest.strip():
        raise ValueError(f"{given.name}: no text after the version line")
    return Instructions(found["version"], rest.strip())


class PromptContext(msgspec.Struct, frozen=True, kw_only=True):
    """All that a prompt is made from besides the handoff."""

    peers: tuple[AgentEntry, ...]
    """Agents that the agent may hand work to."""
    human: bool
    """True if people can be asked."""
    tools: tuple[str, ...]
    """Names of the tools that are offered."""
    past: int = 0
    """How many rounds had ended when the conversation began."""
    results: tuple[TaskResult, ...] = ()
    """Results of tasks, as known then."""
    board: tuple[Posted, ...] = ()
    said: tuple[str, ...] = ()
    """The request's conversation so far, one line each."""
    back: str | None = None
    """The agent that a hand-back goes to; None if there is none."""
    forms: Mapping[AgentName, Mapping[str, Any]] = {}
    """By target: the form that the fleet file gives what a transfer hands over."""


def context_now(turn: Turn, tools: Iterable[Tool] = ()) -> PromptContext:
    """Return the context of a conversation that begins now."""
    execution = turn.execution
    return PromptContext(
        peers=tuple(turn.peers.values()),
        human=turn.has_human,
        tools=tuple(tool.name for tool in tools if not execution.forbids(tool)),
        past=len(turn.past),
        results=execution.tasks.results,
        board=execution.work.board,
        back=_hands_back_to(turn),
        forms=execution.fleet.carries.get(turn.agent, {}),
    )


_AGAIN = "Whoever had this work from you before gets it again only with a fact that is new to the request."
_GO_ON = "A person says: go on."
_PLAIN = re.compile(r"[\w.-]+")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Line ends of `str.splitlines`, and other invisible characters."""


def render(
    turn: Turn, seen: PromptContext | None = None, handoffs: Container[str] | None = None, speaker: str = ""
) -> str:
    """Return the brief with which a conversation begins.

    Args:
        seen: the conversation's context; by default as it is now.
        handoffs: agents it may transfer to, among those the fleet allows; None for all of these.
        speaker: as whom the model speaks, if an agent has several models; by default as the agent.
    """
    handoff = turn.handoff
    seen = seen or context_now(turn)
    rounds = [past for past in turn.past[: seen.past] if _is_shown(past)]
    peers = [peer for peer in seen.peers if handoffs is None or peer.name in handoffs]
    if turn.topology == "handoff":
        peers = [peer for peer in peers if peer.name not in turn.path]
    head = [
        f"You are: {speaker or turn.agent}",
        f"Given by: {handoff.from_agent} ({handoff.move})",
        f"Summary: {one_line(handoff.summary)}",
    ]
    if turn.task_name:
        head.append(f"Task: {one_line(turn.task_name)}")
    if handoff.intent is not None:
        head.append(f"Intent: {one_line(handoff.intent)}")
    head += [f"Path: {' > '.join(turn.path)}", f"Round: {len(rounds)}"]
    if handoff.move == "hand_back":
        head.append(_AGAIN)
    if turn.withheld:
        withheld = ", ".join(map(_label, turn.withheld))
        head.append(f"Withheld from you: {withheld} (it travels on without you)")
    sections = (
        ("Conversation so far:", map(one_line, seen.said)),
        ("Facts:", (_fact(fact) for fact in handoff.facts if not is_transcript(fact.key))),
        ("Artifacts:", map(_artifact, handoff.artifacts)),
        ("Constraints:", _constraints(handoff.constraints)),
        ("May hand to:" if turn.topology == "handoff" else "May delegate to:", map(_peer, peers)),
        ("Results:", map(result_line, seen.results)),
        ("Board:", board_lines(seen.board)),
        ("Earlier rounds of this turn:", starmap(_past, enumerate(rounds))),
    )
    blocks = [head, *([title, *(f"- {line}" for line in lines)] for title, lines in sections)]
    return "\n\n".join("\n".join(block) for block in blocks if len(block) > 1)


def _hands_back_to(turn: Turn) -> str | None:
    """Return the agent that a hand-back goes to; None if there is none, or it may not get the work."""
    below, to = turn.path[:-1], turn.handoff.return_to
    if not below or turn.handoff.no_return:
        return None
    back = to if to in below else below[-1]
    return back if back in below[turn.execution.work.seal :] else None


def one_line(text: str) -> str:
    """Return text with a space for each line break and control character."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def _json(value: Any) -> str:
    """Return a value as JSON on one line, with every control character escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def _key(key: str) -> str:
    return key if _PLAIN.fullmatch(key) else _json(key)


def _label(label: str) -> str:
    """Return a label as it is, or as JSON if it is from a log older than the syntax of labels."""
    return label if is_label(label) else _json(label)


def _fact(fact: Fact) -> str:
    labels = f" [{', '.join(map(_label, fact.labels))}]" if fact.labels else ""
    return f"{_key(fact.key)}: {_json(fact.value)}{labels}"


def _artifact(item: Artifact) -> str:
    return one_line(f"{_key(item.name)}: {item.uri} {item.media_type}")


def result_line(result: TaskResult) -> str:
    """Return a task's result as one line: its name, and the rest as JSON."""
    return f"{_key(result.name)}: {_json(shown_result(result))}"


def shown_result(result: TaskResult) -> dict[str, Any]:
    """Return a result as a model sees it."""
    error = result.error
    shown: dict[str, Any] = {
        "status": result.status,
        "agent": result.agent,
        "summary": one_line(result.summary),
        "facts": {fact.key: fact.value for fact in result.facts},
        "artifacts": [each.name for each in result.artifacts],
        "withheld": () if result.withheld is None else result.withheld.labels,
        "error": None if error is None else msgspec.to_builtins(error),
    }
    return {name: value for name, value in shown.items() if value}


def board_lines(board: Iterable[Posted]) -> Iterator[str]:
    """Yield what each agent put on the board: one line per agent, as JSON."""
    return (f"{by}: {_json(facts)}" for by, facts in by_agent(board).items())


def _constraints(own: Constraints) -> Iterable[str]:
    if own.deadline is not None:
        yield f"deadline: {_utc(own.deadline)}"
    if own.allowed_actions is not None:
        yield f"allowed actions: {', '.join(map(_key, own.allowed_actions)) or 'none'}"
    if own.read_only:
        yield "read only: nothing may be changed in the world"
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


def _is_shown(past: RoundOutcome) -> bool:
    """Return True if a model is shown how a round ended.

    Joined tasks show in the results. After an approval, and after a failure that is tried again, the prompt
    stays the same. So the model's replies remain valid, and it reads nothing of overloaded vendors and dead
    processes.
    """
    return not past.asked and past.how not in ("failed", "joined")


def _past(number: int, past: RoundOutcome) -> str:
    return one_line(f"round {number} {past.how}: {_how(past)}")


def outcome_line(past: RoundOutcome, joined: TaskNews | None = None) -> str:
    """Return the outcome of a move in one line.

    Args:
        joined: for a `delegate`: what the following round received.
    """
    match past.how:
        case "joined":
            joined = joined or TaskNews()
            results = {each.name: shown_result(each) for each in joined.results}
            board = {"board": list(board_lines(joined.board))} if joined.board else {}
            return _json({"results": results, "open": joined.waiting, **board})
        case "expired":
            return "Nobody replied in time."
        case "resolved":
            return one_line(f"{_GO_ON} {past.reply or ''}")
    return one_line(_how(past))


def _how(past: RoundOutcome) -> str:
    if past.refusal is not None:
        asked = _asked(past)
        hint = f" Allowed instead: {past.refusal.hint}." if past.refusal.hint else ""
        return f"rule {past.refusal.rule} refused {asked}: {past.refusal.detail}.{hint}"
    if past.failure is not None:
        return f"{past.failure.code}: {past.failure.message}"
    if past.settled is not None:
        return f"{past.settled}: {_json(past.reply)}"
    if past.how == "resolved" and past.move is not None:
        answer = "go on." if past.reply is None else _json(past.reply)
        return f"{_json(past.move.sentence)} went to a person, who says: {answer}"
    if past.how == "resolved" and past.reply is None:
        return _GO_ON
    return _json(past.reply)


def _asked(past: RoundOutcome) -> str:
    if past.move is None:
        return "the move"
    to = past.move.to_agent
    return past.move.name if to is None else f"{past.move.name} to {to}"
