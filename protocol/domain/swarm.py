"""A swarm: tasks that are offered, agents that claim them, and the board that every turn may post to.

An offer lies in an inbox that all agents of its intent share. So it shows what each of them may see, and no
more. Whose claim is admitted gets the task as it may see it, in its own inbox. Every task of a swarm may only
read: what writes is the root's turn, and there is one.
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import json

from protocol.domain.admission import Rejected
from protocol.domain.carried import NOTHING, merge
from protocol.domain.envelope import Draft, World, show
from protocol.domain.ledger import Ledger
from protocol.domain.plans import given, never_opened, opening, task_work
from protocol.domain.rules import breaker_open
from protocol.domain.tasks import TaskState, lists, offering_cause
from protocol.wire import events
from protocol.wire.commands import Command, FactsPost, OfferClaimed, UnknownMove
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.event_parts import Assignment
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Refusal, Rule
from protocol.wire.ids import NOBODY, AgentName

UNCLAIMED = "unclaimed"
"""The code of a task that nobody claimed in time."""
MAX_BOARD_BYTES = 131_072
"""What the board may come to, as JSON: every turn that opens or resumes is shown it."""
CLAIM = UnknownMove(name="claim")
"""In `move.refused`, in place of a move: a claim was refused."""


# --- offers -----------------------------------------------------------------------------------------


def common_clearance(readers: Iterable[AgentEntry]) -> frozenset[str]:
    """Return the labels that each of an offer's readers may see."""
    sets = [frozenset(one.clearance) for one in readers]
    return frozenset.intersection(*sets) if sets else frozenset()


def offered(ledger: Ledger, world: World, task: TaskState) -> AnyEvent:
    """Return the offer of a task, as every agent that lists its intent may see it."""
    lead, intent = ledger.turns[task.lead], str(task.planned.task.intent)
    inbox, clearance = task.addressee, common_clearance(task.readers)
    work = task_work(ledger, lead, task.planned, inbox)
    shown = show(work.handoff, work.carried, clearance)
    until = world.now + int(ledger.policy.claim_within_s * 1e6)
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
    draft = Draft(ledger, world, offering_cause(str(ledger.request), lead.id, task.since_n))
    said: dict[str, Any] = {"lead": lead.id, "name": task.name, "intent": intent, "offer": offer}
    return draft.event(events.TaskOffered, inbox, id=task.turn, claim_by=min([until, *ends]), **said)


def could_claim(ledger: Ledger, task: TaskState, fleet: Fleet) -> tuple[AgentName, ...]:
    """Return who may have an offered task, in the fleet's order."""
    return tuple(
        entry.name
        for entry in fleet.agents.values()
        if entry.name not in task.agents and _capable(ledger, task, entry.name, entry) is None
    )


def unclaimed(
    ledger: Ledger, world: World, task: TaskState, what: Literal["unclaim", "unattended"]
) -> AnyEvent:
    """Return the failure of a task that nobody has claimed in time, or that nobody could claim for long."""
    intent, policy = str(task.planned.task.intent), ledger.policy
    if what == "unattended":
        message = f"nobody served an agent that may claim {intent!r} for the policy's unattended_after_s"
        return never_opened(ledger, world, task, what, message)
    message = f"no agent that lists {intent!r} claimed it within {policy.claim_within_s:g} s"
    return never_opened(ledger, world, task, UNCLAIMED, message)


# --- claims -----------------------------------------------------------------------------------------


def decide_claim(ledger: Ledger, command: Command, claim: OfferClaimed, world: World) -> AnyEvent:
    """Return what comes of a claim: the task's turn, a refusal, or that it waits for a thaw."""
    draft, task = Draft(ledger, world, command.cause), ledger.offers[claim.turn]
    said: dict[str, Any] = {"turn": claim.turn, "round": 0}
    if ledger.frozen_at is not None:
        return draft.event(events.MoveDeferred, NOBODY, proposal=claim, sender=command.sender, **said)
    refusal = _refusal(ledger, task, command.sender, world)
    if refusal is not None:
        said |= {"move": CLAIM, "refusal": refusal, "grounds": world.grounds}
        return draft.event(events.MoveRefused, NOBODY, **said)
    lead, entry = ledger.turns[task.lead], world.grounds.sender
    assert entry is not None  # else it is not capable
    return opening(draft, lead, task.planned, entry, grounds=world.grounds)


def _refusal(ledger: Ledger, task: TaskState, sender: AgentName, world: World) -> Refusal | None:
    if world.grounds.breaker == "open":
        return breaker_open(sender, world.grounds, "leave the offer to others")
    return _capable(ledger, task, sender, world.grounds.sender) or _claimed(task, sender)


def _capable(ledger: Ledger, task: TaskState, sender: AgentName, entry: AgentEntry | None) -> Refusal | None:
    lead, intent = ledger.turns[task.lead], str(task.planned.task.intent)
    allowed = None if lead.entry is None else lead.entry.to
    if entry is None or not lists(entry, intent):
        said = f"{sender} does not list the intent {intent!r}"
    elif allowed is not None and sender not in allowed:
        said = f"{lead.agent} may not give work to {sender}"
    elif sender in lead.path:
        said = f"{sender} is in the lineage: {' → '.join(lead.path)}"
    else:
        return None
    numbers = {"task": task.name, "intent": intent, "agent": sender}
    return Refusal(rule=Rule.CAPABLE, detail=said, numbers=numbers, hint="leave the offer to others")


def _claimed(task: TaskState, sender: AgentName) -> Refusal | None:
    """Refuse an offer of a task that its claimant had before."""
    if sender not in task.agents:
        return None
    said = f"{sender} had task {task.name!r} before, and it failed"
    numbers = {"task": task.name, "agent": sender}
    return Refusal(rule=Rule.CLAIMED, detail=said, numbers=numbers, hint="leave the offer to others")


# --- the board --------------------------------------------------------------------------------------


def rejection_of_post(ledger: Ledger, post: FactsPost, most: int) -> Rejected | None:
    """Return what speaks against a post. It is no event: a refused one would end the round that goes on.

    Posts that wait for a thaw count, and are not asked about again.

    Args:
        most: bytes that a handoff may have.
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
        told = f"this would be post {count + 1} of at most {policy.max_posts} of one turn (max_posts)"
        return Rejected(
            "posts", f"{told}; path: {path}; post several facts at once, or deliver what was found"
        )
    posted = ledger.posted_bytes + own + sum(len(json.encode(waits.facts)) for _, waits in posts)
    if posted > policy.max_posted_bytes:
        told = f"the request's posts would come to {posted} bytes of at most {policy.max_posted_bytes} in all"
        return Rejected("posts", f"{told} (max_posted_bytes); path: {path}; put large things in a store")
    board = dict(ledger.board)
    for by, one in (*posts, (agent, post)):
        board |= {(by, fact.key): fact for fact in one.facts}
    whole = len(json.encode([(by, fact) for (by, _), fact in board.items()]))
    if whole > MAX_BOARD_BYTES:
        return Rejected(Rule.SIZE, f"the board would come to {whole} bytes of at most {MAX_BOARD_BYTES}")
    return None


def decide_post(ledger: Ledger, command: Command, post: FactsPost, world: World) -> AnyEvent:
    """Return the facts as they are posted, with the labels that stick to their keys; or that they wait."""
    draft = Draft(ledger, world, command.cause)
    if ledger.frozen_at is not None:
        round_ = {"turn": post.turn, "round": post.round}
        return draft.event(events.MoveDeferred, NOBODY, proposal=post, sender=command.sender, **round_)
    facts = merge(NOTHING, post.facts, labels=ledger.history.labels).fact_tuple
    said: dict[str, Any] = {"turn": post.turn, "round": post.round, "post": post.post, "facts": facts}
    return draft.event(events.FactsPosted, NOBODY, sender=command.sender, grounds=world.grounds, **said)
