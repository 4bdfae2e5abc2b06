"""The oracle of plans: which rule has to refuse one, who gets each of its tasks, and what each is granted."""

from collections.abc import Iterator

from protocol.wire.commands import Report
from protocol.wire.config import Policy
from protocol.wire.event_parts import Candidate, Grounds
from protocol.wire.handoff import Budget, Rule
from protocol.wire.moves import Delegate, Task
from tests.unit.protocol.oracle.jobs import DIMENSIONS, Job, Node


def against(
    policy: Policy, opened: int, node: Node, move: Delegate, report: Report, grounds: Grounds
) -> Iterator[Rule]:
    """Yield the rules that a plan breaks, in their order.

    Args:
        opened: tasks that the request has had so far.
        node: whose plan it is.
    """
    by_name = {one.entry.name: one for one in grounds.candidates}
    for task in move.tasks:
        if task.to_agent is not None and (
            task.to_agent not in by_name or not by_name[task.to_agent].entry.takes(task.intent)
        ):
            yield Rule.KNOWN_AGENT
    if move.tasks and len(node.path) >= policy.max_levels:
        yield Rule.LEVELS
    yield from _misnamed(node, move)
    still = sum(job.live and name not in move.cancel for name, job in node.jobs.items())
    if still + len(move.tasks) > policy.max_open_tasks and move.tasks:
        yield Rule.FAN_OUT
    if opened + len(move.tasks) > policy.max_tasks and move.tasks:
        yield Rule.FAN_OUT
    chosen = placed(node, move, grounds)
    for task, agent in zip(move.tasks, chosen, strict=True):
        if (task.intent is None and (task.to_agent is None or task.fallback)) or agent == "":
            yield Rule.CAPABLE
    before = [_same(job.plan.task, job.plan.agent, job.uses) for job in node.jobs.values()]
    here: list[object] = []
    for task, agent in zip(move.tasks, chosen, strict=True):
        same = _same(task, agent, tuple(node.known[name] for name in task.uses))
        if agent in node.path or same in before or (same, task.summary) in here:
            yield Rule.CYCLE
        here.append((same, task.summary))
    for task in move.tasks:
        if task.revises and node.known[task.revises].revision + 1 > policy.max_revisions:
            yield Rule.REVISIONS
    if not move.tasks and move.within_s is not None and node.vain >= policy.max_asks:
        yield Rule.ASKS
    more = node.more(report)
    for name in DIMENSIONS:
        left = node.left(name, more[name])
        parts = shares(
            [getattr(task.constraints.budget or Budget(), name) for task in move.tasks], left, policy
        )
        if left is None or not move.tasks:
            continue
        kept = int(max(left, 0) * policy.keep_back)
        if left < 0 or parts is None or sum(parts) > left - kept:
            yield Rule.BUDGET


def _misnamed(node: Node, move: Delegate) -> Iterator[Rule]:
    names, known = [*node.jobs, *(task.name for task in move.tasks)], node.known
    if len(set(names)) < len(names) or not set(move.cancel) <= set(node.jobs):
        yield Rule.KNOWN_TASK
    for task in move.tasks:
        for name in {*task.uses, task.revises} - {""}:
            if name not in known or known[name].live:
                yield Rule.KNOWN_TASK
    if not move.tasks and all(not job.live and job.told for job in node.jobs.values()):
        yield Rule.KNOWN_TASK


def placed(node: Node, move: Delegate, grounds: Grounds) -> list[str]:
    """Return who has to get each task of a plan; empty where nobody can."""
    found = []
    for task in move.tasks:
        agent = task.to_agent or ""
        if task.to_agent is None and task.intent is not None:
            able = [
                one
                for one in grounds.candidates
                if one.entry.takes(task.intent) and one.entry.name not in node.path
            ]
            able.sort(key=_preference)
            agent = able[0].entry.name if able else agent
        found.append(agent)
    return found


def _preference(one: Candidate) -> int:
    """Sorting is stable: within a class, the fleet's order holds."""
    return 2 if one.breaker == "open" else 0 if one.served else 1


def shares(asked: list[int | None], left: int | None, policy: Policy) -> list[int] | None:
    """Return what each task gets of one dimension; None where one that asks for nothing would get nothing."""
    if left is None:
        return [one or 0 for one in asked]
    free = left - int(max(left, 0) * policy.keep_back) - sum(one or 0 for one in asked)
    others = sum(one is None for one in asked)
    if others and free < others:
        return None
    return [free // others if one is None else one for one in asked]


def _same(task: Task, agent: str, uses: tuple[Job, ...]) -> object:
    facts = {fact.key: fact.value for fact in task.facts}
    return (
        agent,
        task.intent,
        sorted(facts.items()),
        [one.uri for one in task.artifacts],
        sorted(map(id, uses)),
    )
