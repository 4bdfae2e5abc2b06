"""A report as text: figures with their spread, the ratio, the target, and whether it is met."""

from collections.abc import Iterable

from bench.figures import Figure, Report, Spread, Use


def as_text(report: Report) -> str:
    """Return the report for a terminal: plain text, no colour."""
    parts = [[f"{name}: {value}" for name, value in report.machine.items()]]
    groups = (_figures(report.figures), _use(report.use))
    parts += [_table(group) for group in groups if len(group) > 1]
    if report.notes:
        parts.append(report.notes)
    return "\n\n".join("\n".join(part) for part in parts)


def _figures(figures: Iterable[Figure]) -> list[list[str]]:
    rows = [["measured", "", "median (min-max)", "beside", "ratio (min-max)", "target", ""]]
    for figure in figures:
        target = figure.target
        rows.append(
            [
                figure.name,
                figure.unit,
                _spread(figure.value),
                _spread(figure.yardstick),
                _spread(figure.ratio, 2),
                "" if target is None else f"{target.bound} {_number(target.value)}",
                {True: "met", False: "MISSED", None: ""}[figure.met],
            ]
        )
    return rows


def _use(used: Iterable[Use]) -> list[list[str]]:
    rows = [["per request, 64 at a time", "side", "CPU ms", "wake-ups"]]
    rows += [[use.member, use.side, f"{use.cpu_ms:.3f}", f"{use.wakeups:.1f}"] for use in used]
    return rows


def _spread(spread: Spread | None, digits: int | None = None) -> str:
    if spread is None:
        return ""
    median, low, high = (_number(value, digits) for value in (spread.median, spread.low, spread.high))
    return f"{median} ({low}-{high})"


def _number(value: float, digits: int | None = None) -> str:
    if digits is None:
        digits = 0 if value >= 100 else 2
    return f"{value:,.{digits}f}"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
