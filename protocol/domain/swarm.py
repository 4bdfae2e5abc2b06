"""Swarms: tasks that are offered, agents that claim them, and the board that every turn may post to.

An offer goes to an inbox that all agents of its intent share. So it shows only what all of them may see. The
agent whose claim is admitted gets the task, with everything that it may see, in its own inbox. All tasks of a
swarm are read-only; only the root's turn may write.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import json

from protocol.domain.admission import Rejected
from protocol.domain.carried import NOTHING, merge
from protocol.domain.envelope import Draft, World, due_draft, show
from protocol.domain.ledger import Ledger
from protocol.domain.plans import given, never_opened, opening, task_work
from protocol.domain.rules import breaker_open
from protocol.domain.steps import Attendance, OfferedTask, Reader, ReadersSeen
from protocol.domain.tasks import TaskState, lists, offering_cause
from protocol.wire import events
from protocol.wire.commands import Command, FactsPost, OfferClaimed, Proposal
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.event_parts import Assignment, Candidate, Grounds
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Refusal, Rule
from protocol.wire.ids import NOBODY, AgentName, EventId, claim_id, draw
from protocol.wire.moves import UnknownMove

UNCLAIMED = "unclaimed"
"""Code of a task that was not claimed in time."""
MOST_ASKED = 16
"""Most agents that get an offer again."""
MAX_BOARD_BYTES = 131_072
"""Largest JSON size of the board, which every turn gets when it opens or resumes."""
CLAIM = UnknownMove(name="claim")
"""Takes the place of the move in a `move.refused` for a claim."""


# --- offers -----------------------------------------------------------------------------------------


def common_clearance(readers: Iterable[AgentEntry]) -> frozenset[str]:
    """Return the labels that all of an offer's readers may see."""
    sets = [frozenset(reader.clearance) for reader in readers]
    return frozenset.intersection(*sets) if sets else frozenset()


def offered(ledger: Ledger, world: World, task: TaskState) -> AnyEvent:
    """Return the offer of a task to all agents that list its intent, or its repeat to the next one."""
    reader = task.next_asked
    if reader is not None:
        draft = due_draft(events.TaskOffered, ledger, world, task.turn, task.since_n)
        return _offer(draft, task, reader.entry.name, frozenset(reader.entry.clearance))
    draft = Draft(ledger, world, offering_cause(str(ledger.request), task.lead, task.since_n))
    return _offer(draft, task, task.addressee, common_clearance(task.readers), id_=EventId(task.turn))


def _offer(
    draft: Draft,
    task: TaskState,
    inbox: AgentName,
    clearance: frozenset[str],
    *,
    id_: EventId | None = None,
    grounds: Grounds | None = None,
) -> events.TaskOffered:
    """Return the offer of a task in one inbox, as its readers may see it."""
    ledger, lead = draft.ledger, draft.ledger.turns[task.lead]
    work = task_work(ledger, lead, task.planned, inbox)
    shown = show(work.handoff, work.carried, clearance)
    until = draft.world.now + int(ledger.policy.claim_within_s * 1e6)
    ends = [at for at in (ledger.deadline, task.planned.constraints.deadline) if at is not None]
    offer = Assignment(
        turn=task.turn,
        round=0,
        handoff=shown.handoff,
        path=lead.path,
        depth=0,
        withheld=shown.withheld,
        prices=ledger.prices,
        topology=ledger.policy.topology,
        task=task.name,
        results=given(ledger, task.planned, clearance),
        board=ledger.board_for(clearance),
        timeout_s=ledger.policy.turn_timeout_s,
    )
    return events.TaskOffered(
        **draft.envelope(events.TaskOffered, inbox, id_),
        lead=lead.id,
        name=task.name,
        intent=str(task.planned.task.intent),
        offer=offer,
        claim_by=min([until, *ends]),
        grounds=grounds,
    )


def could_claim(ledger: Ledger, task: TaskState, fleet: Fleet) -> tuple[AgentEntry, ...]:
    """Return the agents that may claim an offered task, in fleet order."""
    return tuple(
        entry
        for entry in fleet.agents.values()
        if entry.name not in task.agents and _capable(ledger, task, entry.name, entry) is None
    )


def to_ask(task: TaskState, readers: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the agents that get an unclaimed offer again, out of those that may claim it.

    They must be served, with a closed breaker. At most `MOST_ASKED` are chosen, in an order drawn from the
    offer's id, so that no agent is always preferred. If the offer was repeated already, return the agents
    that got it.
    """
    if task.asked:
        return tuple(reader for reader in readers if reader.entry.name in task.copies)
    could = [reader for reader in readers if reader.served and reader.breaker == "closed"]
    return tuple(sorted(could, key=lambda reader: draw(task.turn, reader.entry.name))[:MOST_ASKED])


def readers_seen(offer: OfferedTask, readers: Sequence[Reader]) -> ReadersSeen:
    """Return what a guard decides an offer's expiry by.

    Args:
        readers: what a probe found of each agent that may claim it, in the order of `offer.entries`.
    """
    could = [
        Candidate(entry=entry, breaker=reader.breaker, served=reader.served, took=reader.took)
        for entry, reader in zip(offer.entries, readers, strict=True)
    ]
    return ReadersSeen(Attendance.of_any(readers) if readers else None, to_ask(offer.task, could))


def unclaimed(
    ledger: Ledger,
    world: World,
    task: TaskState,
    what: Literal["unclaim", "unattended"],
    *,
    at_deadline: bool,
) -> AnyEvent:
    """Return the consequence of an offer that was not claimed in time, or that no agent could claim for long.

    It goes once more to each agent that could claim it, in a separate inbox each. So an agent that took the
    shared offer and sat on it cannot keep it from others again. After that, or at the task's own deadline,
    the task fails.
    """
    intent, policy = str(task.planned.task.intent), ledger.policy
    if what == "unattended":
        message = f"nobody served an agent that may claim {intent!r} for the policy's unattended_after_s"
        return never_opened(ledger, world, task, what, message)
    asked = world.grounds.candidates
    if asked and not task.asked and not at_deadline:
        draft = due_draft(events.TaskOffered, ledger, world, task.turn, task.since_n)
        first = asked[0].entry
        return _offer(draft, task, first.name, frozenset(first.clearance), grounds=world.grounds)
    message = f"no agent that lists {intent!r} claimed it within {policy.claim_within_s:g} s"
    if task.asked and asked:
        message += ", nor when it was offered again to each: " + "; ".join(map(_in_vain, asked))
    return never_opened(ledger, world, task, UNCLAIMED, message)


def _in_vain(asked: Candidate) -> str:
    name = asked.entry.name
    return f"{name} took it and did not claim it" if asked.took else f"{name} did not take it"


# --- claims -----------------------------------------------------------------------------------------


def decide_claim(ledger: Ledger, command: Command, claim: OfferClaimed, world: World) -> AnyEvent:
    """Return the verdict on a claim: the task's turn, a refusal, or a deferral until a thaw."""
    draft, task = Draft(ledger, world, command.cause), ledger.offers[claim.turn]
    if ledger.frozen_at is not None:
        return events.MoveDeferred(
            **draft.envelope(events.MoveDeferred, NOBODY),
            turn=claim.turn,
            round=claim.round,
            proposal=claim,
            sender=command.sender,
        )
    refusal = _refusal(ledger, task, command.sender, world)
    if refusal is not None:
        return events.MoveRefused(
            **draft.envelope(events.MoveRefused, NOBODY),
            turn=claim.turn,
            round=claim.round,
            move=CLAIM,
            refusal=refusal,
            grounds=world.grounds,
        )
    lead, entry = ledger.turns[task.lead], world.grounds.sender
    assert entry is not None  # otherwise the claim was refused
    return opening(draft, lead, task.planned, entry, grounds=world.grounds)


def _refusal(ledger: Ledger, task: TaskState, sender: AgentName, world: World) -> Refusal | None:
    if world.grounds.breaker == "open":
        return breaker_open(sender, world.grounds, "leave the offer to others")
    return _capable(ledger, task, sender, world.grounds.sender) or _claimed(task, sender)


def _capable(ledger: Ledger, task: TaskState, sender: AgentName, entry: AgentEntry | None) -> Refusal | None:
    lead, intent = ledger.turns[task.lead], str(task.planned.task.intent)
    allowed = None if lead.entry is None else lead.entry.to
    if entry is None or not lists(entry, intent):
        detail = f"{sender} does not list the intent {intent!r}"
    elif allowed is not None and sender not in allowed:
        detail = f"{lead.agent} may not give work to {sender}"
    elif sender in lead.path:
        detail = f"{sender} is in the lineage: {' → '.join(lead.path)}"
    else:
        return None
    numbers = {"task": task.name, "intent": intent, "agent": sender}
    return Refusal(rule=Rule.CAPABLE, detail=detail, numbers=numbers, hint="leave the offer to others")


def _claimed(task: TaskState, sender: AgentName) -> Refusal | None:
    """Refuse a claim to a task that the claimant has had before."""
    if sender not in task.agents:
        return None
    detail = f"{sender} had task {task.name!r} before, and it failed"
    numbers = {"task": task.name, "agent": sender}
    return Refusal(rule=Rule.CLAIMED, detail=detail, numbers=numbers, hint="leave the offer to others")


# --- the board --------------------------------------------------------------------------------------


def rejection_of_post(ledger: Ledger, post: FactsPost, most: int) -> Rejected | None:
    """Return the rejection of a post, if any. It makes no event, since a refusal would end the running round.

    Posts that wait for a thaw count towards the limits, and are not checked again.

    Args:
        most: largest size of a handoff, in bytes.
    """
    turn, policy = ledger.turns[post.turn], ledger.policy
    agent, path = turn.agent, " → ".join(turn.path)
    own = len(json.encode(post.facts))
    if own > most:
        return Rejected(Rule.SIZE, f"{own} bytes of at most {most}; put large things in a store")
    waiting = ((each.sender, each.proposal) for each in ledger.deferred)
    posts = [(by, waits) for by, waits in waiting if isinstance(waits, FactsPost)]
    count = turn.posts + sum(waits.turn == post.turn for _, waits in posts)
    if count >= policy.max_posts:
        reason = f"this would be post {count + 1} of at most {policy.max_posts} of one turn (max_posts)"
        return Rejected(
            "posts", f"{reason}; path: {path}; post several facts at once, or deliver what was found"
        )
    posted = ledger.posted_bytes + own + sum(len(json.encode(waits.facts)) for _, waits in posts)
    if posted > policy.max_posted_bytes:
        reason = (
            f"the request's posts would come to {posted} bytes of at most {policy.max_posted_bytes} in all"
        )
        return Rejected("posts", f"{reason} (max_posted_bytes); path: {path}; put large things in a store")
    board = dict(ledger.board)
    for by, each in (*posts, (agent, post)):
        board |= {(by, fact.key): fact for fact in each.facts}
    whole = len(json.encode([(by, fact) for (by, _), fact in board.items()]))
    if whole > MAX_BOARD_BYTES:
        return Rejected(Rule.SIZE, f"the board would come to {whole} bytes of at most {MAX_BOARD_BYTES}")
    return None


def decide_post(ledger: Ledger, command: Command, post: FactsPost, world: World) -> AnyEvent:
    """Return the event with the posted facts and the labels of their keys, or a deferral until a thaw."""
    draft = Draft(ledger, world, command.cause)
    if ledger.frozen_at is not None:
        return events.MoveDeferred(
            **draft.envelope(events.MoveDeferred, NOBODY),
            turn=post.turn,
            round=post.round,
            proposal=post,
            sender=command.sender,
        )
    facts = merge(NOTHING, post.facts, labels=ledger.history.labels).fact_tuple
    return events.FactsPosted(
        **draft.envelope(events.FactsPosted, NOBODY),
        turn=post.turn,
        round=post.round,
        post=post.post,
        facts=facts,
        sender=command.sender,
        grounds=world.grounds,
    )


# --- the way back -------------------------------------------------------------------------------------


def proposal_of(ledger: Ledger, event: AnyEvent) -> OfferClaimed | FactsPost | None:
    """Return the claim or the post that `event` answers; None for every other event.

    Args:
        ledger: the request as it was before `event`.
    """
    match event:
        case events.MoveRefused(turn=turn) if turn in ledger.offers:
            return OfferClaimed(turn=turn, round=0)
        case events.TaskOpened(lead=lead, name=name) if event.grounds is not None:
            offer = ledger.turns[lead].tasks[name].offer
            return None if offer is None else OfferClaimed(turn=offer, round=0)
        case events.FactsPosted(turn=turn, round=round_, post=post, facts=facts):
            return FactsPost(turn=turn, round=round_, post=post, facts=facts)
    return None


def claimant_of(event: AnyEvent, proposal: Proposal) -> AgentName | None:
    """Return the sender of the claim that `event` answers; None if it answers no claim."""
    if not isinstance(proposal, OfferClaimed):
        return None
    if isinstance(event, events.MoveDeferred):
        return event.sender
    entry = None if event.grounds is None else event.grounds.sender
    if entry is not None:
        return entry.name
    # Refused because the claimant had left the fleet. Only the cause proves the name in the refusal.
    name = "" if event.refusal is None else str(event.refusal.numbers.get("agent", ""))
    proven = str(event.cause) == claim_id(event.request, proposal.turn, name)
    return AgentName(name if proven else "")
