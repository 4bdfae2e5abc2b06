"""A rerun: a new submit, taken from the log at the handoff where the old request failed.

Its effects would happen again under new keys. They are read from the journals, which are the agents' own
records; effects that cannot be read there are left out.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.stores import stored_steps
from mesh.client import Client
from mesh.errors import Impossible, UsageWrong
from mesh.ops.journals import owners_of
from mesh.ops.queue import waiting_in
from protocol.domain import budget
from protocol.domain.ledger import Ledger, fold
from protocol.wire import codec, events
from protocol.wire.commands import Submit
from protocol.wire.event_parts import Assignment
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import TEXT_FACT, Budget, Constraints, Fact
from protocol.wire.ids import HUMAN, AgentName, RequestId
from protocol.wire.records import DONE, Record

SUMMARY_FACT = "rerun_summary"
"""Key of the fact with the old handoff's summary: a submit's own summary is its text's first line."""

_KEPT = {
    "budget_exhausted": "with more budget the same turn goes on "
    "(mesh human resolve {} --again --budget tokens=N)",
    "budget_unpriced": "it keeps the prices that it began with, so that the same turn cannot go on",
}
"""Reasons of escalations that would recur if the same turn continued, with the explanation."""


class Rerun(NamedTuple):
    """The new request, and remarks to read before it is submitted."""

    submit: Submit
    agent: str
    """The agent that it goes to; empty for the entry agent of the fleet."""
    remarks: tuple[str, ...]


def rerun_of(happened: Sequence[AnyEvent], *, to: str | None = None, text: str | None = None) -> Rerun:
    """Return a request's rerun: from its last agent turn, as that turn was given the work.

    Facts (including those withheld from that agent, with their labels), artifacts, intent, allowed actions,
    keys that must be carried, policy and conversation are kept; the deadline and the budget begin again.

    Args:
        happened: all events of the old request.
        to: another agent than the one that had the turn; then the intent is left out.
        text: the new text, in place of the old one.

    Raises Impossible while it continues and no person has been asked, UsageWrong if `text` is needed.
    """
    ledger = fold(happened)
    remarks = _remarks(ledger, happened)
    if isinstance(ledger.ended, events.RequestRefused):
        return _of_refused_submit(ledger.ended, to, text, remarks)
    then, given = Ledger(), None
    for event in happened:
        then.apply(event)
        work = _opening(event)
        if work is not None and work.handoff.to_agent != HUMAN:
            given = (work.handoff, then.turns[work.turn].carried())
    assert given is not None  # every opened request begins with an agent's turn
    handoff, carried = given
    facts = dict(carried.facts)
    old_text = facts.pop(TEXT_FACT, None)
    agent = to or handoff.to_agent
    if handoff.move != "submit":
        facts[SUMMARY_FACT] = Fact(key=SUMMARY_FACT, value=handoff.summary)
    submit = Submit(
        text=text or text_in(old_text),
        to=AgentName(agent),
        intent=handoff.intent if agent == handoff.to_agent else None,
        facts=tuple(facts.values()),
        artifacts=carried.artifact_tuple,
        constraints=Constraints(
            allowed_actions=handoff.constraints.allowed_actions,
            budget=grant_in(happened, handoff.to_agent),
            must_carry=tuple(key for key in handoff.constraints.must_carry if key in (TEXT_FACT, *facts)),
        ),
        policy=ledger.policy.name,
        conversation=ledger.conversation,
        continue_with="entry" if ledger.notes_speakers else None,  # it names its agent; who speaks is noted
        rerun_of=RequestId(str(ledger.request)),
    )
    return Rerun(submit, agent, remarks)


async def submit(bus: Bus, again: Rerun) -> RequestId:
    """Submit a rerun in the name of this connection; return the new request. Raises BusError."""
    return await Client(bus, bus.name).submit_whole(again.submit)


def _remarks(ledger: Ledger, happened: Sequence[AnyEvent]) -> tuple[str, ...]:
    """Return remarks on the old request's state. Raises Impossible."""
    request = ledger.request
    if not ledger.is_open:
        if ledger.status == "completed":
            return (f"{request} was completed; its answer stands",)
        return ()
    waiting = waiting_in(happened)
    waits = {each.what for each in waiting}
    if "doubt" in waits:
        raise Impossible(
            f"{request} waits for an effect in doubt: settle that (mesh doubt settle {request} …), and the "
            "same turn goes on"
        )
    out_of_budget = [each.reason for each in waiting if each.reason in _KEPT]
    if out_of_budget:
        code = out_of_budget[0]
        return (
            f"{request} is open: it waits for a person, because of {code}; {_KEPT[code].format(request)}. "
            "A rerun begins with the prices of now and the whole grant, and leaves it open: cancel it "
            f"afterwards (mesh request cancel {request})",
        )
    if waits:
        return (
            f"{request} is open: it waits for a person. `mesh human resolve {request} --again` goes on in "
            "the same turn, under the same effect keys, and is mostly the better way. A rerun leaves it "
            f"open: cancel it afterwards (mesh request cancel {request})",
        )
    raise Impossible(
        f"{request} goes on, and two of it would do the same work: wait, or end it first "
        f"(mesh request cancel {request})"
    )


def _of_refused_submit(
    ended: events.RequestRefused, to: str | None, text: str | None, remarks: tuple[str, ...]
) -> Rerun:
    """Return the rerun of a request that was never opened: the same submit again."""
    old = ended.submit
    agent = to or old.to
    again = replace(
        old,
        text=text or old.text,
        to=None if agent is None else AgentName(agent),
        intent=old.intent if to in (None, old.to) else None,
        constraints=replace(old.constraints, deadline=None),
        rerun_of=ended.request,
    )
    return Rerun(again, agent or "", remarks)


def _opening(event: AnyEvent) -> Assignment | None:
    """Return the work of an event that opens a turn; a task is up to its lead."""
    return event.work if event.opens_turn and event.work is not None and not event.work.task else None


def text_in(fact: Fact | None, instead: str = "--text", *, labelled: bool = False) -> str:
    """Return a text fact as a submit can have it. Raises UsageWrong.

    Args:
        instead: the option by which another text is given.
        labelled: True where the submit says the text's labels, too.
    """
    if fact is None:
        raise UsageWrong(f"the old text was dropped on the way: say what is wanted with {instead}")
    if fact.labels and not labelled:
        raise UsageWrong(
            f"the old text is labelled {', '.join(fact.labels)}, which a request's text cannot be: "
            f"say what is wanted with {instead}"
        )
    if not isinstance(fact.value, str) or not fact.value.strip():
        raise UsageWrong(f"the old fact `text` is no text any more: say what is wanted with {instead}")
    return fact.value


def grant_in(happened: Sequence[AnyEvent], agent: str) -> Budget | None:
    """Return the budget that this agent was last granted; else the request's own.

    A hand-back or a person passes on only the rest of a grant, which may be nothing and then is of no use.
    """
    for event in reversed(happened):
        work = _opening(event)
        if work is None:
            continue
        handoff, grant = work.handoff, work.handoff.constraints.budget
        if handoff.move == "submit" or (handoff.move == "transfer" and handoff.to_agent == agent):
            amounts = () if grant is None else (grant.nano_dollars, grant.tokens, grant.model_calls)
            if all(amount is None or amount > 0 for amount in amounts):
                return None if grant is None else budget.public(grant)
    return None


# --- what it did to the world, and what it may have done ------------------------------------------


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One effect, identified by its key in every round that tried it."""

    agent: str
    turn: str
    step: str
    """The step of its intent in the turn's journal."""
    action: str
    key: str
    at: int
    """When its intent was journaled (UTC µs)."""
    state: Literal["done", "not_proven"]
    """`not_proven`: there is an intent and no result. It may have happened."""
    arguments: Any = None
    """What its tool was called with, as far as it was recorded and is not secret."""
    result: Any = None
    """If it is done: the tool's result, or its refusal."""


async def effects_of(bus: Bus, happened: Sequence[AnyEvent]) -> list[Effect]:
    """Return the effects in the journals of a request, given its events, in the order of their beginning."""
    found: dict[tuple[str, str, str], Effect] = {}
    agents = owners_of(happened).values()
    async for kept in stored_steps(bus, happened[0].request, agents):
        _, _, agent, _, turn, name = kept.subject.split(".")
        record, step = codec.readable(kept.data, Record), name.removesuffix(DONE)
        if record is None or record.kind not in ("intent", "effect"):
            continue  # a mark of its attempts, another step, or a foreign message
        place = (agent, turn, record.key or step)
        effect = found.get(place) or Effect(
            agent=agent,
            turn=turn,
            step=step,
            action=record.name,
            key=record.key,
            at=record.at,
            state="not_proven",
            arguments=record.arguments,
        )
        if record.kind == "effect":
            refused = None if record.error is None else {"refused": record.error.code}
            effect = replace(effect, state="done", result=refused or record.value)
        found[place] = effect
    return list(found.values())
