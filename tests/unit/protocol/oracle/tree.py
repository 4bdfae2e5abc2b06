"""The oracle of trees: what a request's events come to by another reckoning, and what is wrong with them.

It knows the wire alone. Each turn is a node, each task a job. Spending is added up anew from the bottom
whenever it is asked for, so that no account is kept that could be kept wrongly in the same way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.wire import events as ev
from protocol.wire.assignment import Assignment, PlannedTask
from protocol.wire.commands import Complete, Delegate, Deliver, Escalate, MoveProposed, Report, Task
from protocol.wire.config import Policy
from protocol.wire.grounds import Candidate, Grounds
from protocol.wire.handoff import Budget, Rule

DIMENSIONS = ("nano_dollars", "tokens", "model_calls")
Amounts = dict[str, int]


@dataclass(eq=False)
class Job:
    """A task of a lead."""

    plan: PlannedTask
    lead: "Node"
    agent: str
    turn: str
    status: str = "planned"
    nodes: list["Node"] = field(default_factory=list)
    off: bool = False
    told: bool = False
    fell_back: bool = False

    @property
    def name(self) -> str:
        return self.plan.task.name

    @property
    def live(self) -> bool:
        return self.status in ("planned", "open")

    def spent(self, dimension: str) -> int:
        return sum(node.spent(dimension) for node in self.nodes)

    def held(self, dimension: str) -> int:
        """What its lead cannot spend for it."""
        grant = getattr(self.plan.constraints.budget or Budget(), dimension)
        spent = self.spent(dimension)
        return max(grant, spent) if self.live and grant is not None else spent


@dataclass(eq=False)
class Node:
    """A turn."""

    turn: str
    agent: str
    path: tuple[str, ...]
    grant: Budget
    read_only: bool
    job: Job | None = None
    jobs: dict[str, Job] = field(default_factory=dict)
    state: str = "working"
    join: object = "all"
    own: Amounts = field(default_factory=lambda: dict.fromkeys(DIMENSIONS, 0))
    fine: Amounts = field(default_factory=lambda: dict.fromkeys(DIMENSIONS, 0))
    """What it was charged that nobody reported."""
    silent: bool = False
    """True while a round of it that the clock ended was not accounted for."""

    vain: int = 0
    """How often it was resumed without a result."""
    heard: bool = False
    """True once it reported anything."""

    def spent(self, dimension: str) -> int:
        below = sum(job.spent(dimension) for job in self.jobs.values())
        return self.own[dimension] + self.fine[dimension] + below

    def left(self, dimension: str, more: int = 0) -> int | None:
        grant = getattr(self.grant, dimension)
        if grant is None:
            return None
        held = sum(job.held(dimension) for job in self.jobs.values())
        return int(grant - self.own[dimension] - self.fine[dimension] - more - held)

    def more(self, report: Report) -> Amounts:
        """What a report adds; reports are cumulative."""
        return {name: max(0, getattr(report.usage, name) - self.own[name]) for name in DIMENSIONS}

    def learn(self, report: Report) -> None:
        for name, amount in self.more(report).items():
            self.own[name] += amount
        self.silent, self.heard = False, True

    def charge_rest(self) -> None:
        rest = {name: max(0, self.left(name) or 0) for name in DIMENSIONS}
        for name, amount in rest.items():
            self.fine[name] += amount


class Tree:
    """A request, event by event."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.nodes: dict[str, Node] = {}
        self.root: Node | None = None
        self.jobs: list[Job] = []
        self.over = False
        self.frozen = False
        self.wrong: list[str] = []

    # --- what happened ----------------------------------------------------------------------------

    def take(self, event: ev.AnyEvent) -> None:
        """Take in an event; note in `wrong` what is wrong with it."""
        if self.over:
            self.wrong.append(f"{type(event).__name__} after the end")
        node = self.nodes.get(event.turn)
        report = event.report
        match event:
            case ev.RequestOpened(policy=policy, work=work):
                self.policy = policy
                self.root = self._node(work, None)
            case ev.TurnDelegated() if node is not None:
                self._delegated(node, event)
            case ev.TaskOpened():
                self._opened(event)
            case ev.TaskDelivered():
                self._ended(event.turn, "delivered", event.report)
            case ev.TaskFailed():
                self._failed(event)
            case ev.TaskCancelled():
                self._cancelled(event)
            case ev.TurnResumed() if node is not None and node.state == "delegated":
                self._joined(node, event)
            case ev.TurnFailed() if node is not None:
                node.state = "failed"
                if event.sender is not None:
                    node.learn(event.report)
                elif event.grounds is None or not event.grounds.unbegun:
                    node.silent = True
            case ev.MoveRefused() if node is not None:
                node.learn(event.report)
                node.state = "working" if event.work is not None else "refused"
            case ev.EscalationRaised() if node is not None:
                if node.job is not None:
                    self.wrong.append(f"a person is asked about {node.job.name}")
                if event.reason == "asked":
                    node.learn(event.report)
                elif node.silent and not node.heard:
                    node.charge_rest()
                node.state, self.root = "ended", None
            case ev.RequestFrozen() | ev.RequestThawed():
                self.frozen = isinstance(event, ev.RequestFrozen)
            case ev.RequestCompleted() | ev.RequestFailed() | ev.RequestExpired() | ev.RequestCancelled():
                self.over = True
                if node is not None and report is not None:
                    node.learn(report)
            case _ if event.work is not None and node is not None:
                node.state = "working"
            case _:
                pass

    def _node(self, work: Assignment, job: Job | None) -> Node:
        limits = work.handoff.constraints
        node = Node(
            str(work.turn), work.handoff.to_agent, work.path, limits.budget or Budget(), limits.read_only, job
        )
        self.nodes[node.turn] = node
        return node

    def _delegated(self, node: Node, event: ev.TurnDelegated) -> None:
        node.learn(event.report)
        node.state, node.join = "delegated", event.join
        for name in event.cancel:
            node.jobs[name].off = True
        for plan in event.tasks:
            if plan.task.name in node.jobs:
                self.wrong.append(f"{plan.task.name} is planned twice")
            job = Job(plan, node, plan.agent, str(plan.turn))
            node.jobs[plan.task.name] = job
            self.jobs.append(job)
        for name in DIMENSIONS:
            left = node.left(name)
            if event.tasks and left is not None and left < 0:
                self.wrong.append(f"the plan of {node.agent} reserves {-left} {name} too many")

    def _opened(self, event: ev.TaskOpened) -> None:
        lead = self.nodes[event.lead]
        job = lead.jobs[event.name]
        work = event.work
        if job.status != "planned" or str(work.turn) in self.nodes:
            self.wrong.append(f"{event.name} is opened twice")
        if lead.state == "ended" or job.off:
            self.wrong.append(f"{event.name} is opened under a lead that is over")
        if work.path != (*lead.path, event.to) or event.to in lead.path:
            self.wrong.append(f"{event.name} has the path {work.path}")
        if not job.fell_back and event.to != job.agent:
            self.wrong.append(f"{event.name} was planned for {job.agent}, and went to {event.to}")
        if [result.name for result in work.results] != list(job.plan.task.uses):
            self.wrong.append(f"{event.name} is given other results than it uses")
        node = self._node(work, job)
        job.status, job.agent, job.turn = "open", event.to, node.turn
        job.nodes.append(node)

    def _ended(self, turn: str, status: str, report: Report | None) -> Job:
        node = self.nodes.get(turn)
        job = node.job if node is not None else next(job for job in self.jobs if job.turn == turn)
        assert job is not None
        if not job.live:
            self.wrong.append(f"{job.name} ends twice")
        if node is not None:
            if report is not None:
                node.learn(report)
            node.state = "ended"
        job.status = status
        return job

    def _failed(self, event: ev.TaskFailed) -> None:
        node = self.nodes.get(event.turn)
        if node is not None and event.sender is None and node.silent:
            node.charge_rest()
        job = self._ended(event.turn, "failed", event.report if event.sender is not None else None)
        found = event.grounds.candidates if event.grounds is not None else ()
        had = {job.agent, *(one.agent for one in job.nodes)}
        for one in found if job.plan.task.fallback and not job.fell_back and not job.off else ():
            able = one.served and one.breaker != "open" and one.entry.takes(job.plan.task.intent)
            if able and one.entry.name not in {*had, *job.lead.path}:
                job.status, job.fell_back, job.agent, job.turn = "planned", True, one.entry.name, ""
                break
        if event.error.code != "failed" and event.sender is not None:
            self.wrong.append(f"{job.name} gave up as {event.error.code}")

    def _cancelled(self, event: ev.TaskCancelled) -> None:
        node = self.nodes.get(event.turn)
        if node is not None:
            began = node.state == "working" and not (event.grounds is not None and event.grounds.unbegun)
            if any(job.live for job in node.jobs.values()):
                self.wrong.append(f"{event.name} is cancelled before its own tasks")
            if node.silent or began:
                node.charge_rest()
        job = self._ended(event.turn, "cancelled", None)
        if not job.off and job.lead.state != "ended" and not _above(job.lead):
            self.wrong.append(f"{event.name} is cancelled for nothing")

    def _joined(self, node: Node, event: ev.TurnResumed) -> None:
        untold = [job for job in node.jobs.values() if not job.live and not job.told]
        told = [(result.name, result.status) for result in event.work.results]
        if told != [(job.name, job.status) for job in untold]:
            self.wrong.append(f"{node.agent} is told {told} of {[job.name for job in untold]}")
        for result, job in zip(event.work.results, untold, strict=False):
            if any(getattr(result.cost, name) != job.spent(name) for name in DIMENSIONS):
                self.wrong.append(f"{job.name} cost {[job.spent(name) for name in DIMENSIONS]}")
        if list(event.work.waiting) != [job.name for job in node.jobs.values() if job.live]:
            self.wrong.append(f"{node.agent} is told that it waits for {event.work.waiting}")
        node.vain += not untold
        for job in untold:
            job.told = True
        node.state = "working"

    # --- what must hold when nothing is due any more --------------------------------------------------

    def at_rest(self) -> Iterator[str]:
        """Yield what is wrong with how the request stands."""
        yield from self.wrong
        for name in DIMENSIONS:
            grant = getattr(self.nodes[next(iter(self.nodes))].grant, name) if self.nodes else None
            spent = sum(node.own[name] + node.fine[name] for node in self.nodes.values())
            if grant is not None and spent > grant:
                yield f"{spent} {name} are spent of {grant}"
        if self.over or self.frozen:
            return
        for job in self.jobs:
            if job.status == "planned":
                yield f"{job.name} was never opened"
            if job.live and (job.off or job.lead.state == "ended" or _above(job.lead)):
                yield f"{job.name} is open under a lead that is over"
        for node in self.nodes.values():
            if node.state == "delegated" and _is_joined(node):
                yield f"{node.agent} waits though its join is closed"

    # --- which rule comes first -------------------------------------------------------------------------

    def opinion(self, proposal: MoveProposed, grounds: Grounds) -> Rule | None:
        """Return the rule that has to refuse a move; None if it is to be admitted."""
        node, move = self.nodes[proposal.turn], proposal.move
        effects = bool(node.read_only and proposal.report.effects)
        match move:
            case Delegate():
                found = next(self._against(node, move, proposal.report, grounds), None)
            case Deliver():
                found = Rule.KNOWN_MOVE if node.job is None else _still_open(node, move.cancel_open)
            case Complete():
                found = Rule.KNOWN_MOVE if node.job is not None else _still_open(node, move.cancel_open)
            case Escalate():
                found = Rule.KNOWN_MOVE if node.job is not None else None
            case _:
                found = None
        return found or (Rule.READ_ONLY if effects else None)

    def _against(self, node: Node, move: Delegate, report: Report, grounds: Grounds) -> Iterator[Rule]:
        policy, by_name = self.policy, {one.entry.name: one for one in grounds.candidates}
        for task in move.tasks:
            if task.to_agent is not None and (
                task.to_agent not in by_name or not by_name[task.to_agent].entry.takes(task.intent)
            ):
                yield Rule.KNOWN_AGENT
        if move.tasks and len(node.path) >= policy.max_levels:
            yield Rule.LEVELS
        yield from self._misnamed(node, move)
        still = sum(job.live and name not in move.cancel for name, job in node.jobs.items())
        if still + len(move.tasks) > policy.max_open_tasks and move.tasks:
            yield Rule.FAN_OUT
        if len(self.jobs) + len(move.tasks) > policy.max_tasks and move.tasks:
            yield Rule.FAN_OUT
        chosen = self.placed(node, move, grounds)
        for task, agent in zip(move.tasks, chosen, strict=True):
            if (task.intent is None and (task.to_agent is None or task.fallback)) or agent == "":
                yield Rule.CAPABLE
        before = [_same(job.plan.task, job.plan.agent) for job in node.jobs.values()]
        here: list[object] = []
        for task, agent in zip(move.tasks, chosen, strict=True):
            same = _same(task, agent)
            if agent in node.path or same in before or (same, task.summary) in here:
                yield Rule.CYCLE
            here.append((same, task.summary))
        for task in move.tasks:
            number, at = 0, task.revises
            while at:
                number, at = number + 1, node.jobs[at].plan.task.revises
            if number > policy.max_revisions:
                yield Rule.REVISIONS
        if not move.tasks and move.within_s is not None and node.vain >= policy.max_asks:
            yield Rule.ASKS
        more = node.more(report)
        for name in DIMENSIONS:
            left = node.left(name, more[name])
            parts = shares(
                [getattr(task.constraints.budget or Budget(), name) for task in move.tasks], left, policy
            )
            if left is not None and move.tasks and (parts is None or sum(parts) > left):
                yield Rule.BUDGET

    def _misnamed(self, node: Node, move: Delegate) -> Iterator[Rule]:
        names = [*node.jobs, *(task.name for task in move.tasks)]
        if len(set(names)) < len(names) or not set(move.cancel) <= set(node.jobs):
            yield Rule.KNOWN_TASK
        for task in move.tasks:
            for name in {*task.uses, task.revises} - {""}:
                if name not in node.jobs or node.jobs[name].live:
                    yield Rule.KNOWN_TASK
        if not move.tasks and all(not job.live and job.told for job in node.jobs.values()):
            yield Rule.KNOWN_TASK

    def placed(self, node: Node, move: Delegate, grounds: Grounds) -> list[str]:
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


def _same(task: Task, agent: str) -> object:
    facts = {fact.key: fact.value for fact in task.facts}
    return (agent, task.intent, sorted(facts.items()), [one.uri for one in task.artifacts], sorted(task.uses))


def _still_open(node: Node, cancels: bool) -> Rule | None:
    return Rule.OPEN_TASKS if not cancels and any(job.live for job in node.jobs.values()) else None


def _above(node: Node) -> bool:
    """Return True if anything above a turn is over or called off."""
    job = node.job
    return job is not None and (job.off or job.lead.state == "ended" or _above(job.lead))


def _is_joined(node: Node) -> bool:
    if not any(job.live for job in node.jobs.values()):
        return True
    fresh = sum(job.status == "delivered" and not job.told for job in node.jobs.values())
    return node.join != "all" and fresh >= (node.join if isinstance(node.join, int) else 1)
