"""The oracle's complaints: whatever in a verdict, or in a whole story, is not as it holds to be right."""

from dataclasses import dataclass, field

from protocol import events as ev
from protocol.messages import Escalate, Move, MoveProposed
from protocol.world import Grounds
from tests.unit.protocol.oracle.account import Account, learn
from tests.unit.protocol.oracle.giving import MOVES, as_shown
from tests.unit.protocol.oracle.opinion import Opinion, opine


def complaints(account: Account, proposal: MoveProposed, event: ev.AnyEvent) -> list[str]:
    """Return what is wrong with the verdict on a proposal; nothing if it is right."""
    if isinstance(event, ev.MoveDeferred):
        return [] if account.frozen else ["deferred, though nothing is frozen"]
    grounds = getattr(event, "grounds", None)
    if grounds is None:
        return [f"{type(event).__name__} says not what it rests on"]
    opinion = opine(account, proposal, grounds, event.at)
    if isinstance(event, ev.MoveRefused):
        if opinion.rule is None:
            return [f"refused by {event.refusal.rule}, though no rule forbids it"]
        if opinion.rule != event.refusal.rule:
            return [f"refused by {event.refusal.rule}, though {opinion.rule} comes first"]
        return []
    if opinion.rule is not None:
        return [f"{type(event).__name__}, though {opinion.rule} forbids it"]
    return [*_of_kind(account, proposal.move, event), *_of_handoff(account, opinion, event, grounds)]


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
    return [] if isinstance(event, expected) else [f"became a {type(event).__name__}"]


def _of_handoff(account: Account, opinion: Opinion, event: ev.AnyEvent, grounds: Grounds) -> list[str]:
    whole = opinion.handoff
    if whole is None or not isinstance(event, ev.HandoffAdmitted | ev.EscalationRaised):
        return []
    found: list[str] = []
    work = event.work
    to_people = isinstance(event, ev.EscalationRaised)
    clearance = () if grounds.target is None else grounds.target.clearance
    expected = whole if to_people else as_shown(whole, clearance)
    if work.handoff != expected:
        found.append(f"hands over {work.handoff}, not {expected}")
    hidden = len(whole.facts) - len(expected.facts), len(whole.artifacts) - len(expected.artifacts)
    told = (0, 0) if work.withheld is None else (work.withheld.facts, work.withheld.artifacts)
    if hidden != told:
        found.append(f"withholds {hidden} and tells of {told}")
    back = account.path.index(whole.to_agent) if whole.to_agent in account.path else None
    path = [*account.path, str(whole.to_agent)] if back is None else account.path[: back + 1]
    if list(work.path) != (account.path if to_people else path):
        found.append(f"says that the path is {work.path}")
    if work.depth != account.hops + (not to_people):
        found.append(f"says that the depth is {work.depth}")
    if str(work.turn) != event.id or work.round != 0 or event.to != whole.to_agent:
        found.append("opens another turn than its own")
    return found


@dataclass
class Auditor:
    """Follows a story and collects complaints."""

    account: Account = field(default_factory=Account)
    found: list[str] = field(default_factory=list)
    verdicts: int = 0

    def follow(self, event: ev.AnyEvent, proposal: MoveProposed | None = None) -> None:
        """Take in the next event; with the proposal that it decides, judge it first."""
        if self.found:
            return  # what is built on a wrong verdict tells nothing
        whole = None
        if proposal is not None and not isinstance(event, ev.FactsWithheld):
            self.verdicts += 1
            self.found += [f"{event.n}: {each}" for each in complaints(self.account, proposal, event)]
            grounds = getattr(event, "grounds", None)
            if grounds is not None:
                whole = opine(self.account, proposal, grounds, event.at).handoff
        self.found += self._lost(event)
        if not self.found:
            self.account = learn(self.account, event, whole)

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
