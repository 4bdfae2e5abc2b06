"""What a drill found, for people. Programs get the same as JSON of `Findings`."""

from collections.abc import Iterable, Mapping, Sequence

from tests.drill.check import BY_NAME
from tests.drill.findings import Breach, Findings, Unrested

MOST_SHOWN = 20
"""Breaches that are printed of each promise; the rest is in the JSON."""


def lines(findings: Findings) -> list[str]:
    """Return the report: a table of counts and every breach with where to look."""
    rows: list[tuple[str, str]] = [
        ("requests", f"{findings.requests} ({findings.acknowledged} acknowledged)"),
        ("ended", _counts(findings.ended)),
        ("waiting for people", str(findings.waiting)),
        ("faults", f"{sum(findings.faults.values())} ({_counts(findings.faults)})"),
        ("failpoints not reached", ", ".join(findings.unreached) or "none"),
        ("deeds in the ledger", _counts(findings.deeds) if findings.ledger else "no ledger: not checked"),
        ("steps", f"{findings.steps} ({findings.events} events, and deeds and faults)"),
        ("lost", str(findings.lost)),
        ("duplicated", str(findings.duplicated)),
        ("in doubt", f"{findings.in_doubt} ({findings.doubted} came into doubt, the rest is settled)"),
        ("dead letters", _counts(findings.dead_letters)),
        ("breaches", str(len(findings.breaches))),
    ]
    told = _aligned(rows)
    if findings.unrested:
        told += ["", *_unrested(findings.unrested)]
    if findings.breaches:
        told += ["", *_breaches(findings.breaches)]
    return [*told, "", "no promise was broken" if findings.passed else "PROMISES WERE BROKEN"]


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "none"


def _unrested(found: Sequence[Unrested]) -> list[str]:
    told = [f"did not come to rest ({len(found)})"]
    for each in found[:MOST_SHOWN]:
        at = f" round {each.round} of turn {each.turn}," if each.turn else ""
        told.append(f"  {each.request} {at} waits for {each.waits_for}; {each.for_s:.1f} s")
    if len(found) > MOST_SHOWN:
        told.append(f"  … and {len(found) - MOST_SHOWN} more (--json has all)")
    return told


def _breaches(breaches: Sequence[Breach]) -> list[str]:
    told: list[str] = []
    for promise in dict.fromkeys(breach.promise for breach in breaches):
        several = [breach for breach in breaches if breach.promise == promise]
        counted = f"{len(several)} breach{'es' if len(several) > 1 else ''}"
        told.append(f"{promise}: {BY_NAME[promise].promise} ({counted})")
        for breach in several[:MOST_SHOWN]:
            look = f"   (mesh request show {breach.request})" if breach.request else ""
            told.append(f"  {breach.request or '-'}  {breach.detail}{look}")
        if len(several) > MOST_SHOWN:
            told.append(f"  … and {len(several) - MOST_SHOWN} more (--json has all)")
    return told


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    listed = list(rows)
    widths = [max(len(row[column]) for row in listed) for column in range(len(listed[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in listed
    ]
