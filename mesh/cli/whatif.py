"""`mesh replay --policy …` and `--fleet …`: what would have gone another way."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mesh.cli.exits import Exit, Leave
from mesh.cli.output import emit, note, say
from mesh.ops.policies import policy_at
from mesh.replay.whatif import Divergence, Summary
from mesh.service.printable import counted
from protocol.domain.recorded import Other
from protocol.wire.shadow import Judgement

_SHOWN = 5
"""Names that a line of the summary shows."""


class Tried(NamedTuple):
    """Something to try, and the file that says it."""

    name: str
    other: Other


def tried_from(policies: Sequence[Path], fleet: Path | None) -> list[Tried]:
    """Return the changes that these files describe. Raises UsageWrong, FleetFileError."""
    tried = [Tried(str(path), Other({"*": policy_at(path)})) for path in policies]
    if fleet is not None:
        from mesh.fleet.file import load_fleet

        file = load_fleet(fleet)
        tried.append(Tried(str(fleet), Other(file.rules, file.fleet)))
    return tried


def tell(tried: Sequence[Tried], came: Sequence[tuple[Summary, list[Divergence]]], *, as_json: bool) -> None:
    """Print the outcome of each change that was tried. Ends with status 1 if anything differs."""
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
        was, would = in_words(each.was), in_words(each.would)
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
            say(f"by {kind}: {most(counts)}")


def most(counts: Mapping[str, int]) -> str:
    """Return the largest counts by name, as text."""
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    more = len(ordered) - _SHOWN
    shown = ", ".join(f"{name} {count}" for name, count in ordered[:_SHOWN])
    return f"{shown}, and {more} more" if more > 0 else shown


def in_words(verdict: Judgement) -> str:
    """Return a verdict as text."""
    extra = [f"rule {verdict.rule}"] if verdict.rule else []
    extra += [verdict.reason] if verdict.reason else []
    extra += [f"next {verdict.then}"] if verdict.then else []
    if verdict.type == "facts.withheld":
        extra.append(f"{verdict.withheld} kept from its reader")
    return f"{verdict.type} ({', '.join(extra)})" if extra else verdict.type
