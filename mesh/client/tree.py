"""The tree of a request in words: a line for each lead and task, and beneath it what became of it.

No line is longer than `WIDTH`: a tree is read on a terminal at night.
"""

from collections.abc import Iterator, Sequence

from mesh.service.printable import Line, counted, short
from protocol.views.spending import Cost
from protocol.views.tree import ErrorLevel, TreeNode

WIDTH = 80
_NAME_COLUMNS = 44
_STATUS_COLUMNS = 11
_STATUS_STYLE = {
    "delivered": "green",
    "ended": "green",
    "failed": "red",
    "cancelled": "magenta",
    "refused": "red",
    "doubted": "bold red",
}


def tree_lines(nodes: Sequence[TreeNode], now: int) -> Iterator[Line]:
    """Yield a request's trees.

    Args:
        now: UTC µs up to which what is still open has lasted.
    """
    for node in nodes:
        yield from _node(node, "", "", now)


def _node(node: TreeNode, first: str, rest: str, now: int) -> Iterator[Line]:
    """Yield a node and all below it.

    Args:
        first, rest: what stands before its first line, and before all others.
    """
    who = " → ".join(node.agents) or node.agent or "nobody yet"
    name = f"{node.name} ({who})" if node.name else who
    line = Line(f"{first}{short(name, _NAME_COLUMNS - len(first))}".ljust(_NAME_COLUMNS), "  ")
    line.append(
        node.status[:_STATUS_COLUMNS].ljust(_STATUS_COLUMNS), _STATUS_STYLE.get(node.status, "yellow")
    )
    spent = f"{_spent(node.cost):>10}  {_lasting((node.ended or now) - node.began):>8}"
    line.append(f"  {spent}", "dim")
    yield line
    stem = rest + ("│  " if node.tasks else "   ")
    for what, style in _beneath(node):
        yield Line((stem, ""), (short(what, WIDTH - len(stem)), style))
    for place, task in enumerate(node.tasks, 1):
        last = place == len(node.tasks)
        yield from _node(task, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "), now)


def _beneath(node: TreeNode) -> Iterator[tuple[str, str]]:
    if node.revises:
        yield f"revises {node.revises}", "dim"
    if node.chosen:
        yield f"chosen: {node.chosen}", "dim"
    if node.join is not None:
        yield waits(node), "yellow"
    if node.result:
        yield f"result: {node.result}", ""
    for place, level in enumerate(node.errors):
        yield f"{'error' if not place else 'from'}: {channel(level)}", "red"
    if node.why:
        yield _WHY[node.why], "dim"


_WHY = {
    "called_off": "its lead called it off",
    "lead_ended": "its lead's turn is over",
    "request_ended": "the request is over",
}


def waits(node: TreeNode) -> str:
    """Return what a lead waits for."""
    names = [task.name for task in node.tasks if task.is_open]
    if node.join == "all" or node.join is None:
        return f"waits for all of: {', '.join(names)}"
    most = "the first success" if node.join == "any" else counted(int(node.join), "success", "successes")
    return f"waits for {most} of: {', '.join(names)}"


def channel(level: ErrorLevel) -> str:
    """Return what one level made of a failure."""
    attempts = f", {counted(level.attempts, 'attempt')}"
    said = f"{level.code} ({' → '.join(level.lineage) or level.agent}{attempts})"
    return f"{said}: {level.message}" if level.message else said


def _spent(cost: Cost) -> str:
    if cost.nano_dollars or cost.unpriced:
        return f"${cost.nano_dollars / 1e9:.4f}{'?' if cost.unpriced else ''}"
    return counted(cost.model_calls, "call") if cost.model_calls else ""


def _lasting(us: int) -> str:
    seconds = max(0, us) / 1e6
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h"
