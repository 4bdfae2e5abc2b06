"""The rules on tasks: they may refuse a plan, a result, or an answer that leaves tasks open.

A refusal that concerns one task of a plan names it in `numbers["task"]`.
"""

import difflib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import msgspec

from protocol.domain import budget
from protocol.domain.carried import lost
from protocol.domain.case import Case, too_large
from protocol.domain.plans import SWARM, PlannedWork, claimants, kept_back, may_give
from protocol.domain.tasks import MAX_JOIN_BYTES, lists, open_of, revision_of, size_of, unreported
from protocol.wire.codec import canonical
from protocol.wire.event_parts import PlannedTask
from protocol.wire.handoff import Refusal, Rule
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Complete, Delegate, Deliver, Task


def _first(found: Callable[[Case], Iterator[Refusal]]) -> Callable[[Case], Refusal | None]:
    """Turn a generator of all refusals of a plan into a rule, which returns the first."""
    return wraps(found)(lambda case: next(found(case), None))


def _lineage(case: Case) -> str:
    return " → ".join(case.turn.path)


@_first
def known_agents(case: Case) -> Iterator[Refusal]:
    """Refuse tasks for agents that are not in the fleet, or that the lead may not give the work to."""
    grounds, lead = case.world.grounds, case.turn.agent
    for work in case.plan:
        task, reason = work.task, ""
        if grounds.sender is None:
            reason = f"{lead} is not in the fleet any more"
        elif task.to_agent is None:
            continue
        elif task.to_agent == HUMAN:
            reason = "`human` is reached by `escalate` and `ask` only"
        elif work.worker is None:
            reason = f"{task.to_agent!r} is not in the fleet"
        elif not may_give(grounds, work.worker):
            reason = f"{lead} may not give work to {task.to_agent}"
        elif not work.worker.entry.takes(task.intent):
            reason = f"{task.to_agent} does not take the intent {task.intent!r}"
        if reason:
            allowed = None if grounds.sender is None else grounds.sender.to
            yield Refusal(
                rule=Rule.KNOWN_AGENT,
                detail=f"task {task.name!r}: {reason}",
                numbers={"task": task.name, "target": task.to_agent},
                hint=f"may give work to: {', '.join(allowed)}" if allowed else "",
            )


def levels(case: Case) -> Refusal | None:
    level = len(case.turn.path) + 1
    if not case.plan or level <= case.policy.max_levels:
        return None
    return Refusal(
        rule=Rule.LEVELS,
        detail=f"a task would lie on level {level} of at most {case.policy.max_levels}: {_lineage(case)}",
        numbers={"level": level, "max_levels": case.policy.max_levels, "lineage": list(case.turn.path)},
        hint="do it yourself, and deliver or complete",
    )


# --- which tasks ------------------------------------------------------------------------------------


@_first
def known_task(case: Case) -> Iterator[Refusal]:
    """Refuse names already taken, references to missing or unfinished tasks, and a wait for nothing."""
    assert isinstance(case.move, Delegate)
    own, known, names = case.turn.tasks, case.turn.known_tasks, set[str]()
    for task in case.move.tasks:
        if task.name in own or task.name in names:
            yield _known_task(task.name, f"this turn has a task {task.name!r} already", "another name")
        names.add(task.name)
        for named in (*task.uses, *((task.revises,) if task.revises else ())):
            if named not in known:
                yield _known_task(
                    task.name, f"task {task.name!r} names {named!r}, which is no earlier task", ""
                )
            elif known[named].is_open:
                hint = "delegate it once the other has ended: join `any`"
                yield _known_task(task.name, f"task {task.name!r} names {named!r}, which has not ended", hint)
    for named in case.move.cancel:
        if named not in own:
            yield _known_task(named, f"there is no task {named!r} to cancel", "")
    if not case.move.tasks and not open_of(own.values()) and not unreported(own.values()):
        yield _known_task(
            None, "no task is open, so there is nothing to wait for", "delegate tasks, or go on"
        )


def _known_task(name: str | None, detail: str, hint: str) -> Refusal:
    return Refusal(rule=Rule.KNOWN_TASK, detail=detail, numbers={"task": name}, hint=hint)


def fan_out(case: Case) -> Refusal | None:
    if not case.plan:
        return None
    assert isinstance(case.move, Delegate)
    still = [task for task in open_of(case.turn.tasks.values()) if task.name not in case.move.cancel]
    at_once, in_all = len(still) + len(case.plan), len(case.ledger.tasks) + len(case.plan)
    policy = case.policy
    if at_once > policy.max_open_tasks:
        return Refusal(
            rule=Rule.FAN_OUT,
            detail=f"this turn would have {at_once} tasks open of at most {policy.max_open_tasks}",
            numbers={"open": at_once, "max_open_tasks": policy.max_open_tasks},
            hint="fewer at once: the others after a join",
        )
    if in_all > policy.max_tasks:
        return Refusal(
            rule=Rule.FAN_OUT,
            detail=f"the request would have had {in_all} tasks of at most {policy.max_tasks}",
            numbers={"tasks": in_all, "max_tasks": policy.max_tasks},
            hint="go on with the results that are there",
        )
    return None


@_first
def capable(case: Case) -> Iterator[Refusal]:
    """Refuse a task without any capable agent, and one that asks for a fallback without an intent."""
    for work in case.plan:
        task = work.task
        if task.intent is None and (task.to_agent is None or task.fallback):
            what = "a fallback" if task.to_agent is not None else "a task without an agent"
            yield _capable(task, f"task {task.name!r}: {what} needs an intent", {}, "name the intent")
        elif work.worker is None:  # a task for a named agent has one, by the rule `known_agent`
            is_offered = case.policy.topology == SWARM
            if not is_offered or not claimants(task, case.turn, case.world.grounds):
                yield _nobody(case, task)


def _nobody(case: Case, task: Task) -> Refusal:
    grounds, intent = case.world.grounds, str(task.intent)
    swarm = case.policy.topology == SWARM
    takers = [
        one.entry.name
        for one in grounds.candidates
        if (lists(one.entry, intent) if swarm else one.entry.takes(intent)) and may_give(grounds, one)
    ]
    if takers:
        detail = f"all that take {intent!r} are in the lineage: {_lineage(case)}"
        return _capable(task, f"task {task.name!r}: {detail}", {"lineage": list(case.turn.path)}, "")
    there = sorted({intent for one in grounds.candidates for intent in one.entry.intents or ()})
    near = difflib.get_close_matches(intent, there, cutoff=0.5) or there[:5]
    hint = f"the nearest intents: {', '.join(near)}" if near else ""
    return _capable(
        task, f"no capable agent for task {task.name!r}: none takes {intent!r}", {"nearest": near}, hint
    )


def _capable(task: Task, detail: str, numbers: dict[str, Any], hint: str) -> Refusal:
    all_numbers = {"task": task.name, "intent": task.intent, **numbers}
    return Refusal(rule=Rule.CAPABLE, detail=detail, numbers=all_numbers, hint=hint)


# --- the same again ---------------------------------------------------------------------------------


@_first
def cycle(case: Case) -> Iterator[Refusal]:
    """Refuse a task for an agent in its own lineage, and a repeated task without anything new."""
    path = case.turn.path
    given = {_key(task.planned): task.name for task in case.turn.tasks.values()}
    here = dict[tuple[Any, ...], str]()
    for work in case.plan:
        agent, task = work.planned.agent, work.task
        if agent in path:
            yield Refusal(
                rule=Rule.CYCLE,
                detail=f"task {task.name!r}: {agent} is in the lineage: {_lineage(case)}",
                numbers={"task": task.name, "lineage": list(path), "agent": agent},
                hint="an agent outside the lineage, or do it yourself",
            )
        key = _key(work.planned)
        same = given.get(key) or here.get((*key, task.summary))
        if same is not None:
            yield Refusal(
                rule=Rule.CYCLE,
                detail=f"task {task.name!r} gives {agent or 'its claimant'} again what task {same!r} gave, "
                "and nothing new",
                numbers={"task": task.name, "same": same, "agent": agent},
                hint="bring what is new as a fact: of a revision, the feedback",
            )
        here[(*key, task.summary)] = task.name


def _key(planned: PlannedTask) -> tuple[Any, ...]:
    """Return a key that equal tasks share. A different summary alone makes no new task."""
    task = planned.task
    facts = sorted((fact.key, canonical(fact.value)) for fact in task.facts)
    artifacts = sorted((item.name, item.uri, item.digest) for item in task.artifacts)
    return planned.agent, task.intent, tuple(facts), tuple(artifacts), tuple(sorted(planned.uses))


@_first
def revisions(case: Case) -> Iterator[Refusal]:
    for work in case.plan:
        revision, first = revision_of(work.planned, case.ledger.tasks)
        if revision > case.policy.max_revisions:
            yield Refusal(
                rule=Rule.REVISIONS,
                detail=f"task {work.task.name!r} would be revision {revision} of at most "
                f"{case.policy.max_revisions} of task {first!r}",
                numbers={
                    "task": work.task.name,
                    "revisions": revision,
                    "max_revisions": case.policy.max_revisions,
                },
                hint="take what is there, another way, or give up",
            )


def waits(case: Case) -> Refusal | None:
    """Refuse another short wait of a lead whose waits kept running out, since it could go on for ever."""
    move, most = case.move, case.policy.max_asks
    if not isinstance(move, Delegate) or move.tasks or move.within_s is None or case.turn.waited < most:
        return None
    return Refusal(
        rule=Rule.ASKS,
        detail=f"this turn has waited {case.turn.waited} times in vain of at most {most}",
        numbers={"waits": case.turn.waited + 1, "max_asks": most},
        hint="wait without `within_s`, cancel what takes too long, or go on without it",
    )


def open_tasks(case: Case) -> Refusal | None:
    assert isinstance(case.move, Complete | Deliver)
    still = [task.name for task in open_of(case.turn.tasks.values())]
    if not still or case.move.cancel_open:
        return None
    return Refusal(
        rule=Rule.OPEN_TASKS,
        detail=f"{len(still)} tasks of this turn are still open: {', '.join(still)}",
        numbers={"open": still},
        hint="wait for them (`delegate` without tasks), or say `cancel_open`",
    )


# --- how much ---------------------------------------------------------------------------------------


def budgets(case: Case) -> Refusal | None:
    """Refuse a plan whose tasks would reserve more than their lead has left and may give away."""
    if not case.plan or case.rest == budget.UNLIMITED:
        return None
    asked = [work.task.constraints.budget for work in case.plan]
    numbers = dict[str, Any]()
    for name in msgspec.structs.fields(budget.UNLIMITED):
        have = getattr(case.rest, name.name)
        granted = [getattr(work.planned.constraints.budget, name.name, None) for work in case.plan]
        wanted = [None if each is None else getattr(each, name.name) for each in asked]
        if have is None:
            continue
        total = sum(part for part in granted if part is not None)
        empty_share = any(
            own is None and part is not None and part < 1 for own, part in zip(wanted, granted, strict=True)
        )
        kept = kept_back(have, case.policy.keep_back)
        if total > max(have - kept, 0) or have < 0 or empty_share:
            asked_for = sum(each for each in wanted if each is not None)
            numbers[name.name] = {"asked": asked_for, "left": have, "kept": kept}
    if not numbers:
        return None
    words = ", ".join(
        f"{name}: {each['asked']} asked, {each['left']} left, {each['kept']} of it kept for the answer"
        for name, each in numbers.items()
    )
    return Refusal(
        rule=Rule.BUDGET,
        detail=f"the tasks would reserve more than {case.turn.agent} has left ({words})",
        numbers={**numbers, "keep_back": case.policy.keep_back},
        hint="fewer tasks, or ask for less; what open tasks do not use comes back when they end",
    )


@_first
def must_carry(case: Case) -> Iterator[Refusal]:
    for work in case.plan:
        held = work.work
        given = {fact.key for fact in held.known.facts}
        missing = [key for key in work.task.constraints.must_carry if key not in given]
        keys = sorted({*missing, *lost(held.before, held.carried, case.own.must_carry)})
        if keys:
            yield Refusal(
                rule=Rule.MUST_CARRY,
                detail=f"task {work.task.name!r}: facts that must be carried are gone or changed: "
                + ", ".join(keys),
                numbers={"task": work.task.name, "keys": keys},
                hint="carry them unchanged; put another finding under another key",
            )


@_first
def size(case: Case) -> Iterator[Refusal]:
    """Refuse a task that is too large as its lead knows it, or whose used results are."""
    for work in case.plan:
        refusal = too_large(work.work.known, case.policy)
        if refusal is not None:
            yield msgspec.structs.replace(
                refusal,
                detail=f"task {work.task.name!r}: {refusal.detail}",
                numbers={"task": work.task.name, **refusal.numbers},
            )
        used = _used(case, work)
        if used > MAX_JOIN_BYTES:
            what = f"the results that task {work.task.name!r} uses"
            yield _join_size(what, used, {"task": work.task.name})


def _used(case: Case, work: PlannedWork) -> int:
    return sum(size_of(case.ledger.tasks[turn]) for turn in work.planned.uses)


def join_size(case: Case) -> Refusal | None:
    """Refuse a result that is too large for one event with the results that the lead has not got yet."""
    task = case.turn.task
    assert task is not None
    lead = case.ledger.turns[task.lead]
    others = sum(size_of(task) for task in unreported(lead.tasks.values()))
    total = others + len(msgspec.json.encode(case.move))
    if total <= MAX_JOIN_BYTES:
        return None
    return _join_size("what the lead has to be told", total, {})


def _join_size(what: str, bytes_: int, of: dict[str, Any]) -> Refusal:
    return Refusal(
        rule=Rule.SIZE,
        detail=f"{what} would come to {bytes_} bytes of at most {MAX_JOIN_BYTES}",
        numbers={**of, "bytes": bytes_, "max_join_bytes": MAX_JOIN_BYTES},
        hint="put large things in a store and pass them on as artifacts (a name and a uri)",
    )
