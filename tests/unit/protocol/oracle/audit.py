"""The oracle's complaints: whatever in a verdict, or in a whole story, is not as it holds to be right."""

from dataclasses import dataclass, field

from protocol.wire import events as ev
from protocol.wire.commands import MoveProposed, Submit
from protocol.wire.handoff import Budget, Handoff
from protocol.wire.moves import Ask, Complete, Escalate, Fail, Move
from tests.unit.protocol.oracle import people
from tests.unit.protocol.oracle.account import (
    DIMENSIONS,
    Account,
    grounds_of,
    learn,
    remembered_in,
    rest,
    same,
    spent,
    told,
)
from tests.unit.protocol.oracle.consequences import Waiting, consequence_complaints, waiting_after
from tests.unit.protocol.oracle.giving import MOVES, as_shown, differing
from tests.unit.protocol.oracle.opinion import Opinion, opine
from tests.unit.protocol.oracle.second import complaints_of_fallback, complaints_of_people, is_fallback
from tests.unit.protocol.oracle.submits import submit_complaints


def complaints(account: Account, proposal: MoveProposed, event: ev.AnyEvent) -> list[str]:
    """Return what is wrong with the verdict on a proposal; nothing if it is right."""
    if isinstance(event, ev.MoveDeferred):
        found = [] if account.frozen else ["deferred, though nothing is frozen"]
        return found if same(event.proposal, proposal) else [*found, "defers another proposal"]
    grounds = grounds_of(account, event)
    if grounds is None:
        return [f"{type(event).__name__} says not what it rests on"]
    opinion = opine(account, proposal, grounds, event.at)
    if isinstance(event, ev.MoveRefused):
        if opinion.rule is None:
            return [f"refused by {event.refusal.rule}, though no rule forbids it"]
        if opinion.rule != event.refusal.rule:
            return [f"refused by {event.refusal.rule}, though {opinion.rule} comes first"]
        return _of_round(account, proposal.move, event)
    if opinion.rule is not None:
        return [f"{type(event).__name__}, though {opinion.rule} forbids it"]
    return [*_of_kind(account, proposal.move, event), *_of_handoff(account, opinion, event)]


def _of_kind(account: Account, move: Move, event: ev.AnyEvent) -> list[str]:
    if isinstance(move, Escalate):
        over = account.escalations >= account.policy.max_escalations
        expected: type = ev.RequestFailed if over else ev.EscalationRaised
    else:
        expected = {
            "transfer": ev.HandoffAdmitted,
            "hand_back": ev.HandoffAdmitted,
            "ask": ev.TurnSuspended,
            "complete": ev.RequestCompleted,
            "fail": ev.RequestFailed,
        }[MOVES[type(move)]]
    if not isinstance(event, expected):
        return [f"became a {type(event).__name__}"]
    match move, event:
        case (Ask(), ev.TurnSuspended(ask=asked)) if not same(asked, move):
            return ["asks another question"]
        case (Complete(answer=answer), ev.RequestCompleted(answer=said)) if not same(said, answer):
            return ["answers otherwise"]
        case (Escalate(), ev.RequestFailed(reason=told)) if move.summary and move.summary in told:
            return ["tells the client what a person was to read"]
        case (Fail(reason=reason), ev.RequestFailed(reason=told)) if told != reason:
            return ["gives up for another reason"]
    return []


def _of_round(account: Account, move: Move, event: ev.MoveRefused) -> list[str]:
    """Complain of a refusal that names another move, or of the round that it opens or does not open."""
    found = [] if same(event.move, move) else ["refuses another move"]
    left = account.refusals < account.policy.max_refusals
    if (event.work is not None) != left:
        return [*found, f"refusal {account.refusals + 1} of a turn {'opens no' if left else 'opens a'} round"]
    if event.work is not None:
        if (str(event.work.turn), event.work.round, event.to) != (
            account.turn,
            account.round + 1,
            account.agent,
        ):
            found.append("opens another round than the next")
        if len(event.work.past) != len(account.past) + 1:
            found.append("tells the next round too much or too little of those before it")
    return found


def failure_complaints(account: Account, event: ev.TurnFailed) -> list[str]:
    """Return what is wrong with a failed round's consequence: it is tried again so often, and no more."""
    again = not event.error.permanent and account.failures < account.policy.max_retries
    if (event.retry_at is not None) != again:
        return [f"failure {account.failures + 1} of a turn is {'not ' if again else ''}to be tried again"]
    if event.retry_at is not None and event.retry_at < event.at:
        return ["is to be tried again before it failed"]
    return []


def _of_handoff(account: Account, opinion: Opinion, event: ev.AnyEvent) -> list[str]:
    whole = opinion.handoff
    if whole is None or not isinstance(event, ev.HandoffAdmitted | ev.EscalationRaised):
        return []
    found: list[str] = []
    work = event.work
    to_people = isinstance(event, ev.EscalationRaised)
    clearance = opinion.clearance
    expected = as_shown(whole, None if to_people else clearance)
    if not same(told(account, event, work), whole):
        found.append("hands over or withholds something else")
    if isinstance(event, ev.HandoffAdmitted) and event.instead_of != opinion.instead_of:
        found.append(f"is instead of {event.instead_of}")
    if not same(work.handoff, expected):
        found.append(f"hands over another {differing(work.handoff, expected)}")
    found += [f"says wrongly what it brought: {each}" for each in _said_wrongly(account, whole, event)]
    unseen = [
        [item for item in items if not to_people and not set(item.labels) <= set(clearance)]
        for items in (whole.facts, whole.artifacts)
    ]
    hidden = len(unseen[0]), len(unseen[1])
    counted = (0, 0) if work.withheld is None else (work.withheld.facts, work.withheld.artifacts)
    if hidden != counted:
        found.append(f"withholds {hidden} and tells of {counted}")
    back = account.path.index(whole.to_agent) if whole.to_agent in account.path else None
    path = [*account.path, str(whole.to_agent)] if back is None else account.path[: back + 1]
    if list(work.path) != (account.path if to_people else path):
        found.append(f"says that the path is {work.path}")
    if work.depth != account.hops + (not to_people):
        found.append(f"says that the depth is {work.depth}")
    if str(work.turn) != event.id or work.round != 0 or event.to != whole.to_agent:
        found.append("opens another turn than its own")
    return found


def _said_wrongly(
    account: Account, whole: Handoff, event: ev.HandoffAdmitted | ev.EscalationRaised
) -> list[str]:
    """Return which fields of an event do not name what is new, changed or gone since the handoff before."""
    facts = {fact.key: fact for fact in whole.facts}
    right = {"added": [key for key in sorted(facts) if not same(facts[key], account.facts.get(key))]}
    if isinstance(event, ev.HandoffAdmitted):
        right["dropped"] = [key for key in sorted(account.facts) if key not in facts]
        right["artifacts"] = [
            item.name for item in whole.artifacts if not same(item, account.things.get(item.name))
        ]
    return [name for name, names in right.items() if list(getattr(event, name)) != names]


def _or(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


@dataclass
class Auditor:
    """Follows a story and collects complaints."""

    account: Account = field(default_factory=Account)
    waiting: Waiting = field(default_factory=Waiting)
    found: list[str] = field(default_factory=list)
    verdicts: int = 0

    def follow(
        self, event: ev.AnyEvent, proposal: MoveProposed | None = None, submit: Submit | None = None
    ) -> None:
        """Take in the next event; with the proposal or the submit that it decides, judge it first."""
        if self.found:
            return  # what is built on a wrong verdict tells nothing
        opinion = Opinion(None)
        if proposal is not None and not isinstance(event, ev.FactsWithheld):
            self.verdicts += 1
            self.found += [f"{event.n}: {each}" for each in complaints(self.account, proposal, event)]
            grounds = grounds_of(self.account, event)
            if grounds is not None:
                opinion = opine(self.account, proposal, grounds, event.at)
        if submit is not None and isinstance(event, ev.RequestOpened | ev.RequestRefused):
            self.verdicts += 1
            grounds = grounds_of(self.account, event)
            memory = remembered_in(self.account, event)
            found = submit_complaints(submit, event, grounds, memory)
            self.found += [f"{event.n}: {each}" for each in found]
        if isinstance(event, ev.HandoffAdmitted) and is_fallback(event):
            self.found += [f"{event.n}: {each}" for each in complaints_of_fallback(self.account, event)]
        self.found += [f"{event.n}: {each}" for each in complaints_of_people(self.account, event)]
        if isinstance(event, ev.TurnFailed):
            self.found += [f"{event.n}: {each}" for each in failure_complaints(self.account, event)]
        own = consequence_complaints(self.account, self.waiting, event)
        self.found += [f"{event.n}: {each}" for each in own]
        self.found += self._lost(event) + self._granted(event)
        self.found += [f"{event.n}: {each}" for each in people.complaints_of_deadlines(self.account, event)]
        if not self.found:
            self.waiting = waiting_after(self.waiting, event)
            learned = learn(self.account, event, opinion.handoff)
            self.account = people.with_deadlines(self.account, learned, event)

    def _granted(self, event: ev.AnyEvent) -> list[str]:
        """Complain of a resolution that grants anything but what its person said, and else what was left."""
        if not isinstance(event, ev.EscalationResolved):
            return []
        left, granted = rest(self.account.holder, spent(self.account)), event.budget or Budget()
        wanted = [_or(getattr(granted, name), getattr(left, name)) for name in DIMENSIONS]
        given = event.work.handoff.constraints.budget or Budget()
        return (
            [f"{event.n}: grants {given}"] if [getattr(given, name) for name in DIMENSIONS] != wanted else []
        )

    def _lost(self, event: ev.AnyEvent) -> list[str]:
        """Complain of an escalation that does not carry everything, or that shows it with fewer labels."""
        if not isinstance(event, ev.EscalationRaised):
            return []
        carried = {fact.key: fact for fact in event.work.handoff.facts}
        lost = [
            key
            for key, fact in self.account.facts.items()
            if key not in carried or not set(fact.labels) <= set(carried[key].labels)
        ]
        return [f"{event.n}: loses {', '.join(lost)}"] if lost else []
