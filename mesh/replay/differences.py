"""Where a round's code departs from its record: the first difference, and its kind.

    prompt          a model is asked differently: another part of the prompt, or another model
    tool            another step, or none where one was recorded
    arguments       the same step with other arguments
    order           the same steps in another order
    move            another move, with the guard's verdict on it
    raises          the code raises, or raises something else: with file and line in the author's code
    stops           a step or a wait for which the record has no end
    reads outside   clock, random numbers, files, sockets or processes

After the first difference the later ones mean nothing, so each round has one.
"""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from mesh.agent.errors import where_raised
from mesh.replay.again import Ran
from mesh.replay.journal import OwnStep, Wanted
from mesh.replay.rounds import Ending, RecordedRound, Verdict, differing, recorded_verdict, verdict_on
from mesh.service.printable import short
from protocol.wire import codec, events
from protocol.wire.commands import Failure, MoveProposed, ReportFailure, ReportInDoubt
from protocol.wire.config import Fleet
from protocol.wire.moves import Move
from protocol.wire.records import Record

Kind = Literal["prompt", "tool", "arguments", "order", "move", "raises", "stops", "reads outside"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_SHOWN_CHARS = 160
_DIFF_LINES = 60
_PLACE = re.compile(r", at \S+:\d+ in \S+")
"""In the text of a failure: where the code raised. It moves with every line that is added above it."""


class CodeDifference(NamedTuple):
    """The first difference of a round."""

    kind: Kind
    says: str
    """The difference, in one line."""
    was: Any = None
    now: Any = None
    diff: str = ""
    """For a prompt: the changed part, line by line."""
    verdict: str = ""
    """How the guard would decide the new move."""


# --- steps --------------------------------------------------------------------------------------------


def wants_a_model(found: CodeDifference) -> bool:
    """Return True if a model would have to be asked to know more."""
    return found.kind == "prompt" or (found.kind == "stops" and str(found.now).startswith("model "))


def compare_calls(ran: Ran, prompts: Mapping[str, bytes]) -> CodeDifference | None:
    """Return the first difference among what a round read and called; None if there is none.

    Args:
        prompts: fixed parts of prompts, by digest.
    """
    if ran.outside is not None:
        return CodeDifference("reads outside", str(ran.outside), now=ran.outside.kind)
    if ran.out_of_order is not None:
        step, other = ran.out_of_order
        called = f"{_called(other.record)} before {_called(step.record)}"
        return CodeDifference(
            "order", f"now {called}", was=[step.name, other.name], now=[other.name, step.name]
        )
    if ran.changed_prompt is not None:
        _, was, now, what = ran.changed_prompt
        if what == "model":
            return CodeDifference("prompt", f"model: {was} → {now}", was=was, now=now)
        return _compare_fixed(was, prompts.get(was), now, b"", "parameters")
    return None if ran.wanted is None else _compare_call(ran.wanted, _left(ran), prompts)


def _left(ran: Ran) -> list[OwnStep]:
    """Return the recorded calls to which the code did not come, without those that only tell something.

    A model that was asked anew replied in place of the recorded one.
    """
    passed_over = {"remark", "context", "results"} | (set() if ran.asked is None else {"model"})
    return [step for step in ran.left if step.record.kind not in passed_over]


def _compare_call(wanted: Wanted, left: list[OwnStep], prompts: Mapping[str, bytes]) -> CodeDifference:
    """Return how a call without a record differs from what is recorded in its place."""
    alike = [step.record for step in left if step.kind == wanted.kind]
    if wanted.kind == "model" and alike:
        return _compare_prompt(wanted, alike[0], prompts)
    same_name = [record for record in alike if record.name == wanted.name]
    if same_name:
        was, now = _arguments(same_name[0]), _arguments(wanted.given)
        if same_name[0].digest == wanted.digest:
            return CodeDifference("tool", f"{wanted.called} once more", now=wanted.called)
        fields = _fields(was, now) or "those that are secret, or too long to show"
        return CodeDifference("arguments", f"{wanted.called}: {fields}", was=was, now=now)
    if left:
        was, now = _called(left[0].record), wanted.called
        return CodeDifference("tool", f"{was} → {now}", was=was, now=now)
    return CodeDifference("stops", f"wants {wanted.called}, which has no record", now=wanted.called)


def _called(record: Record) -> str:
    return f"{'effect' if record.kind == 'intent' else record.kind} {record.name}".strip()


def _arguments(given: Any) -> Any:
    """Return the arguments of a step or a call as JSON; for long ones, the recorded part."""
    if isinstance(given.arguments, msgspec.Raw):
        return msgspec.json.decode(given.arguments)
    if given.arguments is not None:
        return given.arguments
    return None if given.cut is None else {"…": given.cut.head}


def _fields(was: Any, now: Any) -> str:
    """Describe which fields of two objects differ, and how, in one line. Facts are matched by their keys."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return "" if was == now else f"{_short(was)} → {_short(now)}"
    parts = []
    for name in dict.fromkeys((*was, *now)):
        one, other = was.get(name), now.get(name)
        if name in ("facts", "remember"):
            one, other = _by_key(one), _by_key(other)
            if inner := _fields(one, other):
                parts.append(f"{name}: {inner}")
        elif msgspec.json.encode(one) != msgspec.json.encode(other):
            parts.append(f"{name} {_short(one)} → {_short(other)}")
    return short(", ".join(parts), 400)


def _by_key(facts: Any) -> dict[str, Any]:
    """Return facts by key: the value, or all of a fact with labels."""
    return {fact["key"]: fact if fact.get("labels") else fact.get("value") for fact in facts or ()}


def _short(value: Any) -> str:
    return short("nothing" if value is None else json.dumps(value, ensure_ascii=False), 60)


# --- prompts --------------------------------------------------------------------------------------------


def _compare_prompt(wanted: Wanted, was: Record, prompts: Mapping[str, bytes]) -> CodeDifference:
    """Return which part of a prompt differs."""
    then, now = was.prompt, wanted.given.prompt
    if then is None or now is None:
        name = "" if wanted.name == was.name else f"{was.name} → {wanted.name}, and "
        return CodeDifference(
            "prompt", f"{name}another prompt for {was.name}", was=was.digest, now=wanted.digest
        )
    body = prompts.get(then.fixed)
    if body is not None and _without_parameters(body) != _without_parameters(wanted.fixed):
        return _compare_fixed(then.fixed, body, now.fixed, wanted.fixed, "")
    if then.transcript != now.transcript and then.brief == now.brief:
        what = "transcript: what was said and found so far"
        return CodeDifference("prompt", what, was=then.transcript, now=now.transcript)
    if then.brief != now.brief:
        return CodeDifference("prompt", "brief: the turn as text", was=then.brief, now=now.brief)
    return _compare_fixed(then.fixed, body, now.fixed, wanted.fixed, "")


def _without_parameters(fixed: bytes) -> dict[str, Any]:
    parts: dict[str, Any] = msgspec.json.decode(fixed)
    parts.pop("parameters", None)
    return parts


def _compare_fixed(was: str, then: bytes | None, now: str, body: bytes, what: str) -> CodeDifference:
    """Return the difference in the fixed part of a prompt, as far as both can be read."""
    if then is None or not body:
        return CodeDifference(
            "prompt", what or "fixed part: instructions, tools or parameters", was=was, now=now
        )
    one, other = msgspec.json.decode(then), msgspec.json.decode(body)
    changed = [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
    if "instructions" in changed or "tools" in changed:
        changed = [name for name in changed if name != "parameters"]
    lines = difflib.unified_diff(
        _lines(one, changed), _lines(other, changed), "recorded", "now", lineterm="", n=1
    )
    shown = list(lines)
    if len(shown) > _DIFF_LINES:
        shown = [*shown[:_DIFF_LINES], f"… {len(shown) - _DIFF_LINES} more lines"]
    return CodeDifference("prompt", ", ".join(changed), was=was, now=now, diff="\n".join(shown))


def _lines(fixed: Mapping[str, Any], names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        value = fixed.get(name)
        text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
        found += text.splitlines()
    return found


# --- what the round came to -----------------------------------------------------------------------------


def compare_ending(recorded: RecordedRound, ran: Ran, fleet: Fleet) -> CodeDifference | None:
    """Return how a round's end differs from the recorded one; None if the guard would write the same.

    If the code raises, that takes precedence over calls that it leaves out.
    """
    was = recorded.proposal
    if ran.proposal is None:
        return CodeDifference("raises", _raised(ran.error), was=_ending(was))
    now, left = _alike(was, ran), _left(ran)
    if isinstance(now, ReportFailure) and codec.encode(now) != codec.encode(was):
        return CodeDifference("raises", _raised(ran.error, now.error), was=_ending(was), now=_ending(now))
    if left:
        called = _called(left[0].record)
        return CodeDifference("tool", f"{called} is not called any more: {_proposes(now)}", was=called)
    if codec.encode(now) == codec.encode(was):
        return None
    verdict = verdict_on(recorded, now, fleet)
    then = recorded_verdict(recorded)
    changed = {**differing(then.event, verdict.event), **differing(then.withheld, verdict.withheld)}
    if not changed:
        return None
    return CodeDifference(
        "move", _moves(was, now, changed), _ending(was), _ending(now), verdict=_verdict(verdict)
    )


def _alike(was: Ending, ran: Ran) -> Ending:
    """Return the new proposal with what says which code ran, how long, and where it raised, as recorded.

    The steps were compared one by one: their count and digest are taken over. So is the cost, where a model
    was asked anew. A move that the bus could not hold is recorded as an outline, so outlines are compared.
    """
    now: Any = ran.proposal
    told = was.report
    report = replace(
        now.report,
        version=told.version,
        build=told.build,
        prompt=told.prompt,
        digest=told.digest,
        steps=told.steps,
        worked_ms=told.worked_ms,
        usage=now.report.usage if ran.asked is None else told.usage,
    )
    now = replace(now, report=report)
    if isinstance(now, ReportFailure) and isinstance(was, ReportFailure):
        if _without_place(now.error) == _without_place(was.error):
            now = replace(now, error=was.error)
    elif isinstance(now, ReportInDoubt) and isinstance(was, ReportInDoubt):
        now = replace(now, effect=replace(now.effect, message=was.effect.message))
    elif isinstance(now, MoveProposed) and isinstance(was, MoveProposed) and was.oversized:
        now = replace(now, move=now.move.summarize(), oversized=was.oversized)
    return now  # type: ignore[no-any-return]


def _without_place(error: Failure) -> Failure:
    return replace(error, message=_PLACE.sub("", error.message))


def _raised(error: BaseException | None, failure: Failure | None = None) -> str:
    """Return what the code raised, with the place in the author's code first."""
    if error is None:
        return "comes to no end"
    where = where_raised(error)
    text = failure.message if failure is not None and failure.code != "bug" else ""
    what = f"{failure.code}: {_PLACE.sub('', text)}" if failure is not None and text else type(error).__name__
    return f"{where}: {what}" if where else what


def _ending(proposal: Ending) -> Any:
    """Return what a proposal asks for, as JSON."""
    if isinstance(proposal, MoveProposed):
        return msgspec.to_builtins(proposal.move)
    return msgspec.to_builtins(proposal.error if isinstance(proposal, ReportFailure) else proposal.effect)


_FOLLOWS = frozenset(("id", "n", "prev", "salt"))
"""Fields of an event that follow from another event beside it."""


def _moves(was: Ending, now: Ending, changed: Mapping[str, tuple[object, object]]) -> str:
    """Describe how two proposals differ, in one line."""
    if not isinstance(was, MoveProposed) or not isinstance(now, MoveProposed):
        return f"{_proposes(was)} → {_proposes(now)}"
    if type(was.move) is not type(now.move):
        return f"{_asks(was.move)} → {_asks(now.move)}"
    one, other = _ending(was), _ending(now)
    if one.get("to_agent") != other.get("to_agent"):
        return f"to {one.get('to_agent')} → {other.get('to_agent')}"
    if differs := _fields(one, other):
        return f"{was.move.name}: {differs}"
    return f"{was.move.name}: " + ", ".join(
        f"{name} {_short(a)} → {_short(b)}" for name, (a, b) in changed.items() if name not in _FOLLOWS
    )


def _proposes(proposal: Ending) -> str:
    match proposal:
        case MoveProposed(move=move):
            return _asks(move)
        case ReportFailure(error=error):
            return f"failed ({error.code})"
        case ReportInDoubt(effect=effect):
            return f"in doubt about {effect.action}"
    raise AssertionError(proposal)


def _asks(move: Move) -> str:
    to = f" to {move.to_agent}" if move.to_agent else ""
    return f"{move.name}{to}"


def _verdict(verdict: Verdict) -> str:
    """Return how the guard would decide it, as the end of a sentence."""
    match verdict.event:
        case None:
            return "the guard would reject it"
        case events.MoveRefused(refusal=refusal):
            return f"the guard would refuse it: {refusal.rule}"
        case events.MoveDeferred():
            return "the guard would put it off"
    return "the guard would admit it"
