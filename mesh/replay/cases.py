"""A recorded request as test cases: each turn's rounds, what was given and answered, and what came of it.

`mesh.testing.assert_as_recorded` runs an agent's code over a case, and `as_pytest` writes a file of them.
What a record does not hold is refused, with the reason: a test that tries nothing is worth nothing.
"""

import keyword
import pprint
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mesh.errors import Impossible, NotFound, OldForm
from mesh.replay.code import OLDER_FORM, Recording
from mesh.replay.fakes import Fakes
from mesh.replay.rounds import RecordedRound, rounds_of
from mesh.service.printable import counted
from protocol.wire import codec
from protocol.wire.commands import MoveProposed, ReportFailure
from protocol.wire.events import AnyEvent, FactsWithheld
from protocol.wire.handoff import Fact
from protocol.wire.records import DONE, FENCE, Record, place_of

_ANSWERED = ("call", "effect", "model", "now", "random")
_NOT_ITS_CODES = ("crash_loop", "journal_mismatch", "course.changed")
_WIDTH = 116


class TurnCase(NamedTuple):
    """One turn of a request."""

    agent: str
    n: int
    """Number of the event that answered its first round."""
    fleet: int
    """Revision of the fleet when it began."""
    rounds: list[dict[str, Any]]
    """Each with `work`, `calls` and `comes_to`, as JSON has them."""
    ends: str
    """What it came to, in words: `transfers to billing`."""


class CaseFile(NamedTuple):
    """The cases of one request, and what they share."""

    request: str
    fleets: dict[int, dict[str, Any]]
    cases: list[TurnCase]
    fakes: int
    """Values under labels that are stand-ins."""
    left_out: list[str]
    """Agents of which no code is named."""


# --- from a record to cases -----------------------------------------------------------------------


def cases_of(
    bodies: Sequence[bytes],
    recording: Recording,
    agents: Collection[str],
    pair: tuple[str, str] | None = None,
) -> CaseFile:
    """Return the turns that these agents had in a request.

    Args:
        bodies: its stored events, from the first on.
        pair: a giver and a taker: only the turns by which the one handed over to the other.

    Raises Impossible where the record does not hold what a test needs, NotFound without such a hand-over.
    """
    try:
        happened = [codec.decode_event(body) for body in bodies]
    except OldForm:
        raise Impossible(f"the request cannot become a test: {OLDER_FORM}") from None
    request = str(happened[0].request)
    turns: dict[tuple[str, str], list[_Round]] = {}
    held = {str(event.work.handoff.to_agent) for event in happened if event.work is not None} - {"human"}
    for recorded in rounds_of(happened, bodies, sorted(held)):
        key = str(recorded.agent), str(recorded.work.journal_id)
        turns.setdefault(key, []).append(_Round.of(recorded))
    chosen = _chosen(turns, pair, request)
    wanted = {key: rounds for key, rounds in chosen.items() if key[0] in agents}
    fakes = Fakes(request)
    for value in _labelled(happened):
        fakes.learn(value)
    cases = [
        case
        for (agent, journal), rounds in wanted.items()
        if (case := _case(agent, rounds, _records(recording, request, agent, journal), fakes)) is not None
    ]
    if not cases and not wanted:
        raise NotFound(
            f"{request}: no agent whose code is named had a turn; there are {', '.join(sorted(held))}"
        )
    if not cases:
        raise Impossible(f"{request}: no round of it came to an end that could be tried")
    fleets = {}
    for case in cases:
        fleet = recording.fleet_of(case.fleet)
        if fleet is None:
            raise Impossible(f"{request}: revision {case.fleet} of the fleet is not kept")
        fleets[case.fleet] = msgspec.to_builtins(fleet)
    left_out = sorted({agent for agent, _ in chosen} - set(agents))
    ordered = sorted(cases, key=lambda each: each.n)
    return CaseFile(request, fleets, ordered, len(fakes), left_out)


class _Round(NamedTuple):
    """A recorded round, by what is asked of it here: the record itself lives until the next one."""

    work: dict[str, Any]
    number: int
    n: int
    fleet: int
    expected: int
    """Steps that its journal and those of earlier rounds have to have."""
    comes_to: dict[str, Any] | None
    given_to: str
    why: str
    """Why it cannot be tried; empty if it can."""

    @classmethod
    def of(cls, recorded: RecordedRound) -> "_Round":
        work = msgspec.to_builtins(recorded.work)
        work.get("reported", {}).pop("digest", None)
        comes_to, given_to, why, expected = None, "", recorded.why, 0
        if not why:
            proposal = recorded.proposal
            expected = proposal.report.steps - recorded.work.reported.steps
            if not proposal.report.version:
                why = OLDER_FORM
            elif isinstance(proposal, MoveProposed):
                why = "only an outline of its move is recorded" if proposal.oversized else ""
                comes_to, given_to = msgspec.to_builtins(proposal.move), str(proposal.move.to_agent or "")
                if recorded.event is not None and recorded.event.refusal is not None:
                    given_to = ""
                elif recorded.event is not None and recorded.event.work is not None:
                    given_to = str(recorded.event.work.handoff.to_agent)
            elif isinstance(proposal, ReportFailure) and proposal.error.code not in _NOT_ITS_CODES:
                comes_to = {"failed": proposal.error.code}
            else:
                why = "an effect of it was in doubt, or its process broke"
        n = recorded.ledger.n if recorded.event is None else recorded.event.n
        return cls(work, recorded.work.round, n, recorded.fleet, expected, comes_to, given_to, why)


def _chosen(
    turns: Mapping[tuple[str, str], list[_Round]], pair: tuple[str, str] | None, request: str
) -> dict[tuple[str, str], list[_Round]]:
    if pair is None:
        return dict(turns)
    giver, taker = pair
    gave = {
        key: [each for each in rounds if each.n <= at]
        for key, rounds in turns.items()
        if key[0] == giver
        and (at := max((each.n for each in rounds if each.given_to == taker), default=-1)) >= 0
    }
    if not gave:
        edges = sorted(
            {f"{key[0]}:{each.given_to}" for key, rounds in turns.items() for each in rounds if each.given_to}
        )
        raise NotFound(
            f"{request}: {giver} handed nothing to {taker}; there are {', '.join(edges) or 'none'}"
        )
    took = {
        key: rounds[:1]
        for key, rounds in turns.items()
        if key[0] == taker and rounds[0].work["handoff"]["from_agent"] == giver
    }
    return gave | took


def _labelled(happened: Sequence[AnyEvent]) -> list[Any]:
    """Return the values that stand under a label anywhere in the request, in the order of its events."""
    found = []

    def look(node: Any) -> None:
        if isinstance(node, Mapping):
            if node.get("labels") and "key" in node and "value" in node:
                found.append(node["value"])
            for each in node.values():
                look(each)
        elif isinstance(node, list | tuple):
            for each in node:
                look(each)

    for event in happened:
        if isinstance(event, FactsWithheld):
            found.extend(fact.value for fact in event.facts if _is_labelled(fact))
        look(msgspec.to_builtins(event))
    return found


def _is_labelled(fact: Fact) -> bool:
    return bool(fact.labels)


def _records(recording: Recording, request: str, agent: str, journal: str) -> dict[str, Record]:
    found = {}
    for name, body in recording.journal(request, agent, journal).items():
        record = codec.readable(body, Record)
        if record is None or record.v > 1:
            raise Impossible(f"{request}: step {name} of {agent} cannot be read")
        if record.kind != FENCE:
            found[name] = record
    return found


def _case(agent: str, rounds: Sequence[_Round], steps: Mapping[str, Record], fakes: Fakes) -> TurnCase | None:
    """Return a turn as a case; None if none of its rounds came to anything. Raises Impossible."""
    tried = [each for each in rounds if each.comes_to is not None and not each.why]
    found = []
    for each in sorted(rounds, key=lambda each: each.number):
        own = {name: record for name, record in steps.items() if name.partition("-")[0] == str(each.number)}
        until = [name for name in steps if int(name.partition("-")[0]) <= each.number]
        named = f"{agent}'s round that event {each.n} answered"
        if each.why or each.comes_to is None:
            if each.why == OLDER_FORM or (
                own and each.number < max((one.number for one in tried), default=-1)
            ):
                raise Impossible(f"{named} cannot become a test: {each.why}")
            continue
        there = len({name.removesuffix(DONE) for name in until})
        if there < each.expected:
            raise Impossible(
                f"{named} cannot become a test: its journal was trimmed, or not exported with --with-steps "
                f"({there} of {each.expected} steps)"
            )
        calls = [_answer(named, name, own) for name in sorted(own, key=place_of) if _is_answer(name, own)]
        found.append(
            {"work": fakes.replaced(each.work), "calls": [fakes.replaced(call) for call in calls]}
            | {"comes_to": fakes.replaced(each.comes_to)}
        )
    if not tried:
        return None
    return TurnCase(agent, tried[0].n, rounds[0].fleet, found, _ends(tried[-1]))


def _is_answer(name: str, own: Mapping[str, Record]) -> bool:
    """Return True for a step that the world answered; of an effect for its result, or a lone intent."""
    record = own[name]
    return record.kind in _ANSWERED or (record.kind == "intent" and f"{name}{DONE}" not in own)


def _answer(named: str, name: str, own: Mapping[str, Record]) -> dict[str, Any]:
    record = own[name]
    if record.kind == "intent":
        raise Impossible(f"{named} cannot become a test: what came of effect {record.name} is not recorded")
    if record.kind in ("now", "random"):
        return {record.kind: record.value}
    if record.kind == "model":
        return {"model": record.name, "reply": record.value}
    if record.arguments is None and record.cut is None and not record.secret:
        raise Impossible(f"{named} cannot become a test: {OLDER_FORM}")
    said: dict[str, Any] = {record.kind: record.name}
    if record.cut is None:
        said["arguments"] = {} if record.arguments is None else record.arguments
    if record.error is not None:
        return said | {"error": msgspec.to_builtins(record.error)}
    return said | {"result": record.value}


def _ends(last: _Round) -> str:
    assert last.comes_to is not None
    if "failed" in last.comes_to:
        return f"fails with {last.comes_to['failed']}"
    move = str(last.comes_to["move"])
    return f"{move} to {last.given_to}" if last.given_to and move != "complete" else move


# --- the file -------------------------------------------------------------------------------------


def as_pytest(found: CaseFile, code: Mapping[str, str]) -> str:
    """Return a file for pytest.

    Args:
        code: by agent, `module:name` of its definition.
    """
    names = {case.agent: f"{_identifier(case.agent)}_agent" for case in found.cases}
    imports = []
    for agent, name in names.items():
        module, _, attribute = code[agent].partition(":")
        imports.append(f"from {module} import {attribute or 'agent'} as {name}")
    told = " → ".join(dict.fromkeys(case.agent for case in found.cases))
    lines = [
        f'"""Request {found.request} as it was recorded: {told}.',
        "",
        "Each test runs one agent's own code. Tools and models answer as they did then: none is called.",
    ]
    if found.fakes:
        lines.append(
            f"{counted(found.fakes, 'value')} under labels are stand-ins of the same type and shape."
        )
    lines += ['"""', "", "from typing import Any", "", "from mesh.testing import assert_as_recorded"]
    lines += [*sorted(imports), "", f'REQUEST = "{found.request}"']
    lines += [f"FLEETS: dict[int, Any] = {_literal(found.fleets)}"]
    for place, case in enumerate(found.cases, 1):
        constant = f"TURN_{place}"
        test = f"test_{place}_{_identifier(case.agent)}_{_identifier(case.ends)}"
        lines += ["", f"{constant}: list[Any] = {_literal(case.rounds)}", "", ""]
        lines += [f"def {test}() -> None:"]
        lines += [
            f"    assert_as_recorded({names[case.agent]}, REQUEST, FLEETS[{case.fleet}], {constant})",
            "",
        ]
    return "\n".join(lines)


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=_WIDTH, sort_dicts=False)


def _identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text).strip("_").lower() or "agent"
    return f"{name}_" if keyword.iskeyword(name) or name[0].isdigit() else name
