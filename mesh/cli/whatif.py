"""`mesh replay --policy …` and `--fleet …`: what would have gone another way."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mesh.cli.exits import Exit, Leave
from mesh.cli.output import emit, note, say
from mesh.errors import UsageWrong
from mesh.replay.answers import Other
from mesh.replay.whatif import Divergence, Judgement, Summary
from mesh.service.printable import counted
from protocol.wire.config import DocumentInvalid, Policy, policy_of

_SHOWN = 5
"""Names that a line of the summary shows."""


class Tried(NamedTuple):
    """Something to try, and the file that says it."""

    name: str
    other: Other


def tried_from(policies: Sequence[Path], fleet: Path | None) -> list[Tried]:
    """Return what these files say is to be otherwise. Raises UsageWrong, FleetFileError."""
    tried = [Tried(str(path), Other({"*": _policy_at(path)})) for path in policies]
    if fleet is not None:
        from mesh.fleet.file import load_fleet

        file = load_fleet(fleet)
        tried.append(Tried(str(fleet), Other(file.rules, file.fleet)))
    return tried


def _policy_at(path: Path) -> Policy:
    """Return the policy in a TOML file: its numbers, or a fleet file's default one. Raises UsageWrong."""
    try:
        fields: dict[str, Any] = tomllib.loads(path.read_text())
        numbers = fields["policies"]["default"] if "policies" in fields else fields
        name = numbers.get("name", "default") if isinstance(numbers, dict) else "default"
        return policy_of(numbers, name)
    except OSError as missing:
        raise UsageWrong(f"{path}: {missing.strerror}") from missing
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, DocumentInvalid, KeyError, TypeError) as wrong:
        raise UsageWrong(f"{path} holds no policy: {wrong}") from wrong


def tell(tried: Sequence[Tried], came: Sequence[tuple[Summary, list[Divergence]]], *, as_json: bool) -> None:
    """Print what came of each thing that was tried. Ends with status 1 if anything differs."""
    named = list(zip((each.name for each in tried), came, strict=True))
    if as_json:
        emit([{"tried": name, "summary": summary, "found": found} for name, (summary, found) in named])
    else:
        for name, (summary, found) in named:
            _tell_one(name if len(tried) > 1 else "", summary, found)
    if any(summary.differ or summary.unreadable for _, (summary, _) in named):
        raise Leave(Exit.FAILED)


def _tell_one(name: str, summary: Summary, found: Sequence[Divergence]) -> None:
    if name:
        say(f"{name}:")
    for each in found:
        giver = each.agent or each.client
        who = f"{giver} → {each.to}" if each.to else giver
        was, would = _in_words(each.was), _in_words(each.would)
        say(f"{each.request} event {each.n}: was {was}, would be {would}; {who}; the rest is as recorded")
    for request, why in summary.unreadable.items():
        note(f"{request} is not compared: {why}")
    whole = f"{counted(summary.requests, 'request')}, {counted(summary.events, 'event')}"
    differ = f"{summary.differ} {'differs' if summary.differ == 1 else 'differ'}"
    say(f"{whole} compared; {differ}, {summary.passed_over} out of reach of what changed")
    if summary.stopped:
        spent = f"{counted(summary.hops, 'hop')}, {summary.nano_dollars / 1e9:.6f} dollars"
        say(f"stopped earlier: {summary.stopped}, of which {summary.stopped_completed} completed in the log")
        say(f"saved at most: {spent}, {summary.seconds:.0f} s")
    if summary.freed:
        say(f"not stopped there: {summary.freed}")
    for kind, counts in (
        ("rule", summary.by_rule),
        ("agent", summary.by_agent),
        ("edge", summary.by_edge),
        ("client", summary.by_client),
    ):
        if counts:
            say(f"by {kind}: {_most(counts)}")


def _most(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    more = len(ordered) - _SHOWN
    shown = ", ".join(f"{name} {count}" for name, count in ordered[:_SHOWN])
    return f"{shown}, and {more} more" if more > 0 else shown


def _in_words(verdict: Judgement) -> str:
    extra = [f"rule {verdict.rule}"] if verdict.rule else []
    extra += [verdict.reason] if verdict.reason else []
    extra += [f"next {verdict.then}"] if verdict.then else []
    if verdict.type == "facts.withheld":
        extra.append(f"{verdict.withheld} kept from its reader")
    return f"{verdict.type} ({', '.join(extra)})" if extra else verdict.type
