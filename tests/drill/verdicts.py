"""The check on verdicts: the tests' oracle judges every one of them again, and shares no code with the guard.

It judges what agents asked for by their own word, which they write down before anybody else sees it. Where
nothing is written down, as in another fleet than the drill's, the move is read back from the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from protocol.domain.ledger import Ledger
from protocol.domain.verdict import message_of
from protocol.wire import events
from protocol.wire.commands import MoveProposed, Submit
from protocol.wire.config import AgentEntry
from protocol.wire.event_parts import Grounds
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Fact
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Ask, Escalate, HandBack, Move, Transfer
from tests.drill.findings import Breach
from tests.drill.reading import Reading, Story
from tests.unit.protocol.oracle.account import Account, grounds_of
from tests.unit.protocol.oracle.audit import Auditor, complaints
from tests.unit.protocol.oracle.second import is_fallback
from tests.unit.protocol.oracle.swarm import SwarmOracle
from tests.unit.protocol.oracle.tree import Tree

T = TypeVar("T", Submit, Transfer | HandBack | Escalate)
_BRINGING = Transfer | HandBack | Escalate
_VERDICTS = (
    events.HandoffAdmitted
    | events.MoveRefused
    | events.MoveDeferred
    | events.TurnSuspended
    | events.EscalationRaised
    | events.RequestCompleted
    | events.RequestFailed
    | events.TurnDelegated
    | events.TaskDelivered
    | events.TaskFailed
)


def verdicts_right(reading: Reading) -> Iterator[Breach]:
    """Every verdict is the one that the oracle gives, and rests on what the fleet file says."""
    labels = {} if reading.evidence.fleet is None else reading.evidence.fleet.labels
    sent = ((each.request, each.submit) for each in reading.evidence.submitted)
    submits = {request: None if submit is None else _labelled(submit, labels) for request, submit in sent}
    for request, story in reading.stories.items():
        try:
            match _topology(story):
                case "supervised":
                    found = _of_tree(reading, story)
                case "swarm":
                    found = _of_swarm(reading, story)
                case _:
                    found = _complaints(reading, story, submits.get(request))
        except Exception as error:  # a log that no guard could have written may break it anywhere
            found = [f"the oracle cannot follow it: {type(error).__name__}"]
        for detail in found:
            yield Breach(promise="verdicts_right", request=request, detail=detail)


def _topology(story: Story) -> str:
    opened = (event for event in story.events if isinstance(event, events.RequestOpened))
    return next((event.policy.topology for event in opened), "handoff")


def _of_tree(reading: Reading, story: Story) -> list[str]:
    """Complain of the verdicts in a supervised request, and of what follows from them."""
    oracle, ledger = Tree(), Ledger()
    for event in story.events:
        found = list[str]()
        if is_verdict(event):
            proposals = _proposals(reading, ledger, event)
            if not proposals:
                return [f"{event.n}: nobody asked for the move that it decides"]
            found = min((oracle.complaints(each, event) for each in proposals), key=len)
            found += _hidden(reading, event)
        oracle.take(event)
        found += oracle.wrong
        if found:
            return [f"{event.n}: {each}" for each in found]
        ledger.apply(event)
    return list(oracle.at_rest()) if oracle.over else []


def _hidden(reading: Reading, event: AnyEvent) -> list[str]:
    """Complain of a plan that was judged by other agents than the fleet file has."""
    fleet = reading.evidence.fleet
    if fleet is None or not isinstance(event, events.TurnDelegated):
        return []
    entries: Mapping[str, AgentEntry] = fleet.agents
    found: Mapping[str, AgentEntry] = {one.entry.name: one.entry for one in event.grounds.candidates}
    sender = event.grounds.sender
    able = [
        name
        for name, entry in entries.items()
        for planned in event.tasks
        if planned.task.to_agent is None and entry.takes(planned.task.intent)
        if sender is None or sender.to is None or name in sender.to
    ]
    wrong = [name for name in {*able, *found} if found.get(name) != entries.get(name)]
    return [f"rests on another entry of {name} than the fleet file's" for name in sorted(wrong)]


def _of_swarm(reading: Reading, story: Story) -> list[str]:
    """Complain of the verdicts on claims, and of what offers, tasks and rounds show."""
    if reading.evidence.fleet is None:
        return []
    oracle = SwarmOracle(reading.agents)
    for claim in claims_judged(oracle, story):
        if claim.verdict != claim.right:
            return [f"{claim.n}: {claim.verdict} for {claim.by}, and {claim.right} is right"]
        if oracle.wrong:
            break
    return oracle.wrong[:1]  # what is built on a wrong verdict tells nothing


class JudgedClaim(NamedTuple):
    """The verdict on a claim, and what the oracle says of it."""

    n: int
    by: str
    verdict: str
    """`task.opened`, or the rule that refused it."""
    right: str


def claims_judged(oracle: SwarmOracle, story: Story) -> Iterator[JudgedClaim]:
    """Yield each verdict on a claim, once the oracle has taken it in."""
    for event in story.events:
        offer, by, verdict = "", "", ""
        match event:
            case events.TaskOpened(grounds=Grounds() as grounds):
                offer, by, verdict = oracle.offer_of(event.lead, event.name), event.to, "task.opened"
            case events.MoveRefused(grounds=grounds) if oracle.job_of(event.turn) is not None:
                assert grounds.sender is not None
                offer, by, verdict = event.turn, grounds.sender.name, str(event.refusal.rule)
        right = ""
        if offer:  # of a claim that was decided before, nothing may be written again
            decided = (offer, by) in oracle.claims
            right = "decided" if decided else oracle.opinion(offer, by, grounds.breaker == "open")
        oracle.take(event)
        if offer:
            yield JudgedClaim(event.n, by, verdict, right)


def _complaints(reading: Reading, story: Story, submit: Submit | None) -> list[str]:
    auditor, ledger = Auditor(), Ledger()
    for event in story.events:
        proposal = None
        if is_verdict(event):
            proposals = _proposals(reading, ledger, event)
            if not proposals:
                return [f"{event.n}: nobody asked for the move that it decides"]
            right = (each for each in proposals if not complaints(auditor.account, each, event))
            proposal = next(right, proposals[0])
        untrue = _untrue(reading, auditor.account, event, proposal, submit)
        auditor.follow(event, proposal, submit or _submit(ledger, event))
        if auditor.found or untrue:
            return auditor.found or untrue  # what is built on a wrong verdict tells nothing
        ledger.apply(event)
    return []


def is_verdict(event: AnyEvent) -> bool:
    """Return True for the verdict on a move; a consequence is none, nor is what a person ordered."""
    match event:
        case events.EscalationRaised(reason=reason):
            return reason == "asked"
        case events.HandoffAdmitted():
            return not is_fallback(event)
        case events.RequestCompleted(control=control):
            return not control
        case events.RequestFailed(sender=sender) | events.TaskFailed(sender=sender):
            return sender is not None
    return isinstance(event, _VERDICTS)


def _proposals(reading: Reading, ledger: Ledger, event: AnyEvent) -> Sequence[MoveProposed]:
    """Return what a verdict can be about: what the agent wrote down, or else what the log says of it."""
    turn, round_ = event.turn, max(event.round, 0)
    report = event.proposal.report if isinstance(event, events.MoveDeferred) else ledger.report_of(event)
    moves = reading.asked.get((event.request, turn, round_), [])
    approval = _approval(event)
    if reading.evidence.asked and approval is None:
        labels = {} if reading.evidence.fleet is None else reading.evidence.fleet.labels
        asked = (_labelled(move, labels) if isinstance(move, _BRINGING) else move for move in moves)
        return [MoveProposed(turn=turn, round=round_, move=move, report=report) for move in asked]
    heard = message_of(ledger, event)
    return [heard.what] if heard is not None and isinstance(heard.what, MoveProposed) else []


def _labelled(what: T, labels: Mapping[str, Sequence[str]]) -> T:
    """Return a message with the labels that the fleet file gives to facts by their keys."""
    if all(set(labels.get(fact.key, ())) <= set(fact.labels) for fact in what.facts):
        return what
    return msgspec.structs.replace(what, facts=_with_labels(what.facts, labels))


def _with_labels(facts: Sequence[Fact], labels: Mapping[str, Sequence[str]]) -> tuple[Fact, ...]:
    return tuple(
        Fact(key=fact.key, value=fact.value, labels=tuple(sorted({*fact.labels, *labels.get(fact.key, ())})))
        for fact in facts
    )


def _approval(event: AnyEvent) -> Ask | None:
    """Return the ask that a runtime makes in its code's place, for an effect that somebody has to approve."""
    asked: object = None
    match event:
        case events.TurnSuspended(ask=ask):
            asked = ask
        case events.MoveRefused(move=move):
            asked = move
        case events.MoveDeferred(proposal=MoveProposed(move=move)):
            asked = move
    return asked if isinstance(asked, Ask) and asked.action else None


def _submit(ledger: Ledger, event: AnyEvent) -> Submit | None:
    if not isinstance(event, events.RequestOpened | events.RequestRefused):
        return None
    heard = message_of(ledger, event)
    return heard.what if heard is not None and isinstance(heard.what, Submit) else None


def _untrue(
    reading: Reading, account: Account, event: AnyEvent, proposal: MoveProposed | None, submit: Submit | None
) -> list[str]:
    """Complain of a verdict that rests on something else than what the fleet file says."""
    fleet, grounds = reading.evidence.fleet, grounds_of(account, event)
    if fleet is None or grounds is None:
        return []
    sender, target = "", ""
    if isinstance(event, events.RequestOpened | events.RequestRefused) and submit is not None:
        target = submit.to or fleet.entry
    elif isinstance(event, events.HandoffAdmitted) and is_fallback(event):
        sender = account.agent
    elif proposal is not None:
        sender, target = account.agent, _target(account, proposal.move)
    else:
        return []
    entries: Mapping[str, AgentEntry] = fleet.agents
    found = []
    if grounds.sender != entries.get(sender):
        found.append(f"{event.n}: rests on another entry of {sender} than the fleet file's")
    found += [
        f"{event.n}: rests on another entry of {one.entry.name} than the fleet file's"
        for one in grounds.candidates
        if one.entry != entries.get(one.entry.name)
    ]
    if grounds.target != entries.get(target):
        found.append(f"{event.n}: rests on another entry of {target} than the fleet file's")
    if grounds.human != fleet.human:
        found.append(f"{event.n}: rests on people who are there, or not, otherwise than the fleet file says")
    return found


def _target(account: Account, move: Move) -> str:
    """Return whom a move is for; empty for nobody."""
    match move:
        case Transfer(to_agent=named) | Ask(to_agent=named):
            return named
        case HandBack() if account.back is not None:
            return account.path[account.back]
        case Escalate():
            return HUMAN
    return ""
