"""The oracle of trees: what a request's events come to by another reckoning, and what is wrong with them.

It knows the wire alone. Each turn is a node, each task a job.
"""

import itertools
from collections.abc import Collection, Iterator

from protocol.wire import events as ev
from protocol.wire.commands import Assign, Control, MoveProposed, ReplyToAsk, Report, Resolve, Settle
from protocol.wire.config import Policy
from protocol.wire.event_parts import Assignment, Grounds
from protocol.wire.handoff import Budget, Rule
from protocol.wire.moves import Ask, Complete, Delegate, Deliver, Escalate, Fail, Move
from tests.unit.protocol.oracle.guardrails import Given, is_against
from tests.unit.protocol.oracle.jobs import DIMENSIONS, Job, Node
from tests.unit.protocol.oracle.plans import against, placed
from tests.unit.protocol.oracle.wrong import Lost, Twice

BECOMES: dict[type, tuple[type, ...]] = {
    Ask: (ev.TurnSuspended,),
    Complete: (ev.RequestCompleted,),
    Delegate: (ev.TurnDelegated,),
    Deliver: (ev.TaskDelivered,),
    Escalate: (ev.EscalationRaised, ev.RequestFailed),
    Fail: (ev.TaskFailed, ev.RequestFailed),
}
"""What comes of a move that is admitted."""
ORDER = {rule: place for place, rule in enumerate(Rule)}
KNOWN = frozenset(
    {
        *(Rule.KNOWN_MOVE, Rule.KNOWN_AGENT, Rule.LEVELS, Rule.KNOWN_TASK, Rule.FAN_OUT, Rule.CAPABLE),
        *(Rule.CYCLE, Rule.REVISIONS, Rule.ASKS, Rule.OPEN_TASKS, Rule.BUDGET, Rule.READ_ONLY),
        Rule.GUARDRAIL,
    }
)
"""The rules that the oracle has an opinion on."""


class Tree:
    """A request, event by event."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.nodes: dict[str, Node] = {}
        self.root: Node | None = None
        """The agent's turn that holds the request, or held it before a person was asked."""
        self.person = ""
        """The turn of the person who holds it."""
        self.kept: ev.FactsWithheld | None = None
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
        kept = self.kept if self.kept is not None and self.kept.cause == event.cause else None
        report = event.report if kept is None else kept.report
        if node is not None and event.work is not None and str(event.work.turn) == node.turn:
            node.round = event.work.round
        match event:
            case ev.FactsWithheld():
                self.kept = event
            case ev.RequestOpened(policy=policy, work=work):
                self.policy = policy
                self.root = self._node(work, None)
            case ev.TurnDelegated() if node is not None:
                self._delegated(node, event)
            case ev.TurnSuspended() if node is not None and report is not None:
                node.learn(report)
                node.state, node.asks, node.asked = "suspended", node.asks + 1, event.ask.to_agent
            case ev.EffectDoubted() if node is not None:
                node.learn(event.report)
                node.state = "doubted"
            case ev.TaskOffered() if not event.again:
                self.nodes[event.lead].jobs[event.name].turn = event.id
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
            case ev.TurnResumed() if node is not None and event.work.past[-1].how == "joined":
                self.wrong.append(Twice(f"{node.agent} goes on, and waited for no task"))
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
                node.state, self.person = "ended", str(event.work.turn)
            case ev.EscalationRaised():  # nobody took it up in time
                self.person = str(event.work.turn)
            case ev.EscalationResolved():
                self._resolved(event)
            case ev.RequestFrozen() | ev.RequestThawed():
                self.frozen = isinstance(event, ev.RequestFrozen)
            case ev.RequestCompleted() | ev.RequestFailed() | ev.RequestExpired() | ev.RequestCancelled():
                self.over = True
                if node is not None and report is not None:
                    node.learn(report)
                self.wrong += self._left_open()
                self._cut_off()
            case _ if event.work is not None and node is not None:
                node.state = "working"
            case _:
                pass

    def _cut_off(self) -> None:
        """Charge the tasks that the request's end leaves unfinished, the deepest first."""
        unfinished = [node for node in self.nodes.values() if node.job is not None and node.state != "ended"]
        for node in sorted(unfinished, key=lambda one: -len(one.path)):
            if node.state == "working" or node.silent:
                node.charge_rest()
            assert node.job is not None
            node.state, node.job.status = "ended", "cancelled"

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
        known = node.known
        for plan in event.tasks:
            task = plan.task
            if task.name in node.jobs:
                self.wrong.append(Twice(f"{task.name} is planned twice"))
            job = Job(plan, node, plan.agent, str(plan.turn))
            job.uses, job.revises = tuple(known[name] for name in task.uses), known.get(task.revises)
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
            self.wrong.append(Twice(f"{event.name} is opened twice"))
        if lead.state == "ended" or job.off:
            self.wrong.append(f"{event.name} is opened under a lead that is over")
        if work.path != (*lead.path, event.to) or event.to in lead.path:
            self.wrong.append(f"{event.name} has the path {work.path}")
        if job.plan.agent and not job.fell_back and event.to != job.agent:
            self.wrong.append(f"{event.name} was planned for {job.agent}, and went to {event.to}")
        if [(result.name, result.task) for result in work.results] != [
            (used.name, used.turn) for used in job.uses
        ]:
            self.wrong.append(f"{event.name} is given other results than it uses")
        node = self._node(work, job)
        job.status, job.agent, job.turn = "open", event.to, node.turn
        job.nodes.append(node)

    def _ended(self, turn: str, status: str, report: Report | None) -> Job:
        node = self.nodes.get(turn)
        job = node.job if node is not None else next(job for job in self.jobs if job.turn == turn)
        assert job is not None
        if not job.live:
            self.wrong.append(Twice(f"{job.name} ends twice"))
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
        again = job.plan.task.fallback and not job.fell_back and not job.off
        if again and not job.plan.agent and node is not None:  # it was claimed, and is offered again
            job.status, job.fell_back, job.turn = "planned", True, ""
        for one in found if again and job.plan.agent else ():
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
            right = [(job.name, job.status) for job in untold]
            self.wrong.append(Lost(f"{node.agent} is told {told}, and {right} is right"))
        for result, job in zip(event.work.results, untold, strict=False):
            if any(getattr(result.cost, name) != job.spent(name) for name in DIMENSIONS):
                self.wrong.append(f"{job.name} cost {[job.spent(name) for name in DIMENSIONS]}")
        if list(event.work.waiting) != [job.name for job in node.jobs.values() if job.live]:
            self.wrong.append(f"{node.agent} is told that it waits for {event.work.waiting}")
        node.vain += not untold
        for job in untold:
            job.told = True
        node.state = "working"

    def _resolved(self, event: ev.EscalationResolved) -> None:
        ended, work = self.root, event.work
        assert ended is not None
        if work.path != (event.to,) or (event.again and event.to != ended.agent):
            self.wrong.append(f"{event.to} has the path {work.path}, again: {event.again}")
        node = self.root = self._node(work, None)
        self.person, node.round = "", work.round
        if event.again:
            node.before = ended.known
        for name in DIMENSIONS:
            granted, left = getattr(event.budget or Budget(), name), ended.left(name)
            if getattr(node.grant, name) != (left if granted is None else granted):
                self.wrong.append(f"{node.agent} is granted {getattr(node.grant, name)} {name} of {left}")

    # --- what must hold when nothing is due any more --------------------------------------------------

    def at_rest(self) -> Iterator[str]:
        """Yield what is wrong with how the request stands."""
        yield from self.wrong
        for root, name in itertools.product(self.nodes.values(), DIMENSIONS):
            grant = getattr(root.grant, name)
            if root.job is None and grant is not None and root.spent(name) > max(grant, 0):
                yield f"{root.spent(name)} {name} are spent of {grant}"
        if self.over or self.frozen:
            return
        yield from self._left_open()
        for job in self.jobs:
            if job.status == "planned":
                yield f"{job.name} was never opened"
        for node in self.nodes.values():
            if node.state == "delegated" and _is_joined(node):
                yield f"{node.agent} waits though its join is closed"

    def _left_open(self) -> Iterator[Lost]:
        for job in self.jobs:
            if job.live and (job.off or job.lead.state == "ended" or _above(job.lead)):
                yield Lost(f"{job.name} is open under a lead that is over")

    # --- what people's words become ---------------------------------------------------------------------

    def obeyed(self, said: Control, by: str, agents: Collection[str]) -> type[ev.AnyEvent] | None:
        """Return what a person's word has to become; None if nothing may come of it.

        Args:
            by: `human`, or the client.
            agents: the fleet's.
        """
        node = self.nodes.get(str(said.turn))
        waits = "" if node is None or node.round != said.round else node.state
        match said:
            case _ if self.over:
                return None
            case Assign() | Resolve() if not self.person or said.turn != self.person:
                return None
            case Assign():
                return ev.EscalationAssigned
            case Resolve(complete=True):
                return ev.RequestCompleted
            case Resolve():
                return ev.EscalationResolved if said.again or said.to in (None, *agents) else None
            case Settle():
                return ev.EffectSettled if waits == "doubted" else None
            case ReplyToAsk():
                asked = waits == "suspended" and node is not None and node.asked == by
                return ev.TurnResumed if asked else None
        return None

    # --- what is wrong with a verdict -------------------------------------------------------------------

    def complaints(self, said: MoveProposed, event: ev.AnyEvent) -> list[str]:
        """Return what is wrong with the verdict on a move. The event is not taken in yet.

        A refusal by a rule that it does not know is believed, unless a rule before that forbids the move.
        """
        if isinstance(event, ev.MoveDeferred):
            return [] if self.frozen else ["deferred, though nothing is frozen"]
        grounds = event.grounds or Grounds()
        right = self.opinion(said, grounds)
        if isinstance(event, ev.MoveRefused):
            ruled = event.refusal.rule
            if ruled == right or (ruled not in KNOWN and (right is None or ORDER[ruled] < ORDER[right])):
                return []
            return [f"refused by {ruled}, and {right or 'admitting it'} is right: {said.move}"]
        if right is not None:
            return [f"{type(event).__name__}, though {right} forbids it: {said.move}"]
        if not isinstance(event, BECOMES[type(said.move)]):
            return [f"became a {type(event).__name__}: {said.move}"]
        if isinstance(event, ev.TurnDelegated) and isinstance(said.move, Delegate):
            agents = [str(planned.agent) for planned in event.tasks]
            able = placed(self.nodes[said.turn], said.move, grounds)
            return [] if agents == able else [f"the tasks went to {agents} instead of {able}"]
        return []

    # --- which rule comes first -------------------------------------------------------------------------

    def opinion(self, proposal: MoveProposed, grounds: Grounds) -> Rule | None:
        """Return the rule that has to refuse a move; None if it is to be admitted."""
        node, move = self.nodes[proposal.turn], proposal.move
        effects = bool(node.read_only and proposal.report.effects)
        match move:
            case Delegate():
                found = next(against(self.policy, len(self.jobs), node, move, proposal.report, grounds), None)
            case Deliver():
                found = Rule.KNOWN_MOVE if node.job is None else _still_open(node, move.cancel_open)
            case Complete():
                found = Rule.KNOWN_MOVE if node.job is not None else _still_open(node, move.cancel_open)
            case Escalate():
                found = Rule.KNOWN_MOVE if node.job is not None else None
            case Ask():
                found = Rule.ASKS if node.asks >= self.policy.max_asks else None
            case Fail():
                found = None
            case _:
                found = Rule.KNOWN_MOVE
        if found is None and effects:
            return Rule.READ_ONLY
        return found or (Rule.GUARDRAIL if self._meets_a_guardrail(node, move, grounds) else None)

    def _meets_a_guardrail(self, node: Node, move: Move, grounds: Grounds) -> bool:
        """Say if a guardrail forbids it. Those of the stories look at no fact that is only carried on."""
        given = []
        if isinstance(move, Delegate):
            given = [
                Given("delegate", agent, task, task.facts, (), ())
                for task, agent in zip(move.tasks, placed(node, move, grounds), strict=True)
            ]
        elif isinstance(move, Deliver) and node.job is not None:
            given = [Given("deliver", node.job.lead.agent, move, move.facts, (), ())]
        return any(is_against(guardrail, each) for guardrail in self.policy.guardrails for each in given)


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
