"""A fork: a new request that begins with the state which an old one had after an event.

What of that state a submit can carry goes into it: facts (those withheld from the holder too, with their
labels), artifacts, conversation, policy, what the work was handed over for, and its limits. Deadline and
budget begin again. Its `forked_from` tells each agent what to do about effects, and where its own steps of
the old request lie. The guard takes it from operators alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.lane import FORKS
from mesh.bus.stores import stored_steps
from mesh.errors import Impossible, NotFound, UsageWrong
from mesh.ops.checks import guards_without
from mesh.ops.rerun import Effect, effects_of, grant_in, text_in
from mesh.ops.roster import card_of, mesh_freeze
from mesh.replay.rounds import rounds_of
from protocol.domain.hash_chain import breaks
from protocol.domain.ledger import Ledger, fold
from protocol.domain.turns import TurnState
from protocol.wire import codec
from protocol.wire.commands import ForkedFrom, Submit
from protocol.wire.events import AnyEvent, RequestRefused
from protocol.wire.handoff import TEXT_FACT, Constraints, Fact
from protocol.wire.ids import HUMAN, AgentName, RequestId, TurnId
from protocol.wire.records import DONE, FENCE, Record

Effects = Literal["recorded", "refuse", "run"]


def fork_of(
    happened: Sequence[AnyEvent],
    bodies: Sequence[bytes],
    n: int,
    *,
    facts: Iterable[Fact] = (),
    drop: Iterable[str] = (),
    to: str | None = None,
    policy: str | None = None,
    effects: Effects = "recorded",
) -> Submit:
    """Return the submit of a request that goes on from an old one after event `n`.

    Args:
        happened, bodies: all events of the old request, from the first on.
        facts: new or changed ones. A changed fact keeps its labels; `text` is the request's own.
        drop: keys of facts that are left out.
        to: another agent than the one that has the work after the event; then the intent is left out.
        policy: the name of another policy.

    Raises NotFound for an event that there is not, UsageWrong for facts that cannot be so, and Impossible
    where nothing that a submit can carry goes on from the event.
    """
    if not 0 <= n < len(happened):
        raise NotFound(f"there is no event {n} of {happened[0].request}; the last one is {len(happened) - 1}")
    if wrong := breaks(bodies[: n + 1]):
        told = f"the chain of {happened[0].request} does not hold at event {wrong[0].n}: {wrong[0].what}"
        raise Impossible(f"{told}; look with mesh log verify {happened[0].request}")
    ledger = fold(happened[: n + 1])
    holder = _holder(ledger, happened, n)
    agent = to or holder.agent
    if agent == HUMAN:
        raise Impossible(f"after event {n} people have the work: say which agent is to have it (--to AGENT)")
    handoff, carried = holder.work.handoff, holder.carried()
    kept = _changed(carried.facts, facts, drop)
    said = kept.pop(TEXT_FACT, None)
    text = text_in(said, "--set text=…", labelled=True)
    labels = () if said is None else said.labels
    is_first = handoff.move == "submit" and ledger.forked_from is None and not labels
    return Submit(
        text=text,
        to=AgentName(agent),
        intent=handoff.intent if agent == handoff.to_agent else None,
        facts=tuple(kept.values()),
        artifacts=carried.artifact_tuple,
        constraints=Constraints(
            allowed_actions=handoff.constraints.allowed_actions,
            budget=grant_in(happened[: n + 1], handoff.to_agent),
            must_carry=tuple(key for key in handoff.constraints.must_carry if key in (TEXT_FACT, *kept)),
            read_only=handoff.constraints.read_only,
        ),
        policy=policy or ledger.policy.name,
        conversation=ledger.conversation,
        continue_with="entry" if ledger.notes_speakers else None,  # it names its agent; who speaks is noted
        forked_from=ForkedFrom(
            request=RequestId(str(ledger.request)),
            n=n,
            digest=codec.body_digest(bodies[n]),
            effects=effects,
            summary="" if is_first else handoff.summary,
            text_labels=labels,
            journals=_journals(happened, _opened_by(happened, holder)) if effects == "recorded" else {},
        ),
    )


def _holder(ledger: Ledger, happened: Sequence[AnyEvent], n: int) -> TurnState:
    """Return the turn that has the request after event `n`. Raises Impossible."""
    request = happened[0].request
    if ledger.status == "unknown":
        raise Impossible(f"event {n} only keeps back what the next one does not show: fork at event {n + 1}")
    if isinstance(ledger.ended, RequestRefused):
        raise Impossible(f"{request} was refused as it came, and has no state: mesh request rerun {request}")
    if not ledger.is_open:
        raise Impossible(f"event {n} ended {request}, and nothing goes on from there: fork at an earlier one")
    holder = ledger.root
    assert holder is not None  # an open request has one
    if holder.tasks:
        plan = _opened_by(happened, holder)
        told = f"event {n} is in the middle of a tree: a new request cannot have the tasks of {holder.agent}"
        raise Impossible(f"{told}; fork at the plan: --at {plan}, where {holder.agent} gets the work")
    return holder


def _opened_by(happened: Sequence[AnyEvent], turn: TurnState) -> int:
    """Return the number of the event that opened a turn."""
    works = ((event.n, event.work) for event in happened if event.opens_turn)
    return next(n for n, work in works if work is not None and work.turn == turn.id)


def _beginning(happened: Sequence[AnyEvent], n: int) -> int:
    """Return the number of the event that opened the turn which a fork at event `n` does anew."""
    return _opened_by(happened, _holder(fold(happened[: n + 1]), happened, n))


def _changed(carried: Mapping[str, Fact], facts: Iterable[Fact], drop: Iterable[str]) -> dict[str, Fact]:
    kept = dict(carried)
    for key in drop:
        if key == TEXT_FACT:
            raise UsageWrong("a request has a text: change it (--set text=…)")
        if kept.pop(key, None) is None:
            there = ", ".join(each for each in carried if each != TEXT_FACT) or "none"
            raise UsageWrong(f"--drop {key}: there is no such fact; those are: {there}")
    for fact in facts:
        known = None if fact.key == TEXT_FACT else kept.get(fact.key)  # an operator's words have no label
        kept[fact.key] = fact if known is None else replace(known, value=fact.value)
    return kept


def _journals(happened: Sequence[AnyEvent], since: int) -> dict[AgentName, tuple[TurnId, ...]]:
    """Return by agent under which turns its steps lie: those opened by event `since` or later first."""
    found = defaultdict[AgentName, dict[TurnId, None]](dict)
    for event in (*happened[since:], *happened[:since]):
        work = event.work
        if work is not None and event.opens_turn and work.handoff.to_agent != HUMAN:
            found[work.handoff.to_agent].setdefault(work.journal_id)
    return {agent: tuple(turns) for agent, turns in found.items()}


# --- what the mesh has to be like -------------------------------------------------------------------


async def require_forkable(
    bus: Bus, happened: Sequence[AnyEvent], bodies: Sequence[bytes], wanted: Submit
) -> None:
    """Raise Impossible if a fork would not begin, or might run an effect. Raises BusError."""
    stands = await mesh_freeze(bus)
    if stands.frozen:
        raise Impossible(f"{stands.notice}; thaw it first (mesh thaw), then fork")
    if older := await guards_without(bus, FORKS):
        told = f"guard {', '.join(older)} is of a release before forks, and would open a request that is none"
        raise Impossible(f"{told}: start it with this release, then fork")
    fork = wanted.forked_from
    assert fork is not None
    if fork.effects == "run":
        return
    opening = _beginning(happened, fork.n)
    agents = _agents_of(happened[opening:]) | {str(wanted.to)}
    for agent in sorted(agents):
        card = await card_of(bus, agent)
        if card is None or not card.forks:
            raise Impossible(
                f"{agent} does not say in its card that it keeps what a fork says about effects, and might "
                "run them: start it with this release, or say --effects run"
            )
    if fork.effects == "recorded":
        await _require_whole_journals(bus, happened, bodies, opening)


def _agents_of(happened: Iterable[AnyEvent]) -> set[str]:
    works = (event.work for event in happened)
    return {str(work.handoff.to_agent) for work in works if work is not None} - {str(HUMAN)}


async def _require_whole_journals(
    bus: Bus, happened: Sequence[AnyEvent], bodies: Sequence[bytes], opening: int
) -> None:
    """Raise Impossible if a journal has fewer steps than its rounds reported, from an event on."""
    agents = _agents_of(happened)
    places = defaultdict[tuple[str, str], set[str]](set)
    async for stored in stored_steps(bus, happened[0].request, sorted(agents)):
        _, _, agent, _, turn, name = stored.subject.split(".")
        record = codec.readable(stored.data, Record)
        if record is not None and record.kind != FENCE:
            places[agent, turn].add(name.removesuffix(DONE))
    for recorded in rounds_of(happened, bodies, agents):
        if recorded.event is None or recorded.event.n <= opening:
            continue
        work = recorded.work
        wanted = recorded.proposal.report.steps - work.reported.steps
        names = places[recorded.agent, work.journal_id]
        there = sum(int(name.partition("-")[0]) <= work.round for name in names)
        if there < wanted:
            came = f"the round of {recorded.agent} that came to event {recorded.event.n}"
            raise Impossible(
                f"the journal of {came} is trimmed: {there} of {wanted} steps are left. "
                "Say --effects refuse, or --effects run"
            )


async def effects_since(bus: Bus, happened: Sequence[AnyEvent], wanted: Submit) -> list[Effect]:
    """Return the effects that the old request had from a fork's beginning on: they can happen again."""
    fork = wanted.forked_from
    assert fork is not None
    rest = happened[_beginning(happened, fork.n) :]
    journals = {str(event.work.journal_id) for event in rest if event.opens_turn and event.work is not None}
    return [each for each in await effects_of(bus, happened) if each.turn in journals]
