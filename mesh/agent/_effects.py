"""Effects: a change of the world happens once in a turn, whatever its rounds do, or a person is asked.

    approve    if the tool needs an approval, the turn is suspended until it is given
    intend     the intent is recorded, under a key that is the same in every round
    check      no later round has fenced this one, and no other instance has the turn
    call       the tool runs
    record     its result or its refusal

An intent without a result is a doubt: the process died in between, or the call broke. The tool declares what
is done then. It runs again, it is asked what happened, or a person settles it. After a restore from a backup
the intent may be missing, too. So an effect that has no record there is treated as if it had an intent
(`begun_in_lost_time`).

An approval is bound to its effect by the ask's digest, which is the effect's key. The key derives from the
turn, the tool, the arguments, the facts that the tool reads of the turn, and the number of equal calls
before. Other arguments make another effect, which has no approval. The guard names the digest that a reply
answers (`RoundOutcome.asked`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from mesh.agent._fork import EFFECTS_REFUSED
from mesh.agent._journal import Journal, Produce
from mesh.agent._places import Place
from mesh.agent._steps import (
    NOTHING_GIVEN,
    Call,
    Earlier,
    Given,
    Named,
    Recorded,
    as_json,
    digest_of,
    giving,
    to_json,
    value_of,
)
from mesh.agent.errors import ApprovalNeeded, EffectUnknown, Fenced, InDoubt, TurnError, effect_broke
from mesh.agent.tools import NOT_DONE, Tool
from mesh.bus.stores import rfc3339
from mesh.service.failpoints import failpoint
from protocol.wire.event_parts import Assignment
from protocol.wire.handoff import Fact, Refusal
from protocol.wire.ids import HUMAN, derive, submitted_ms, submitter_of
from protocol.wire.moves import Ask
from protocol.wire.records import DONE, FENCE, Reads, Record, Refused

ALL_FACTS = ""
"""Stands for all facts, among the facts that a tool read."""
SHOWN_CHARS = 4_000
"""How much of an effect's arguments the question for its approval shows."""


def _allow_any() -> None:
    """Allow any effect."""


async def _nothing() -> None:
    """Know nothing."""


async def run_effect(
    journal: Journal,
    call: Call,
    key: str,
    produce: Produce,
    *,
    given: Given = NOTHING_GIVEN,
    again: Produce | None,
    allow: Callable[[], None] = _allow_any,
    outcome: Callable[[], Awaitable[Record | None]] = _nothing,
    lost: Callable[[], "Awaitable[LostEffect | None]"] = _nothing,
) -> Any:
    """Run an effect and return its value. Its intent is recorded before it is tried.

    Args:
        key: the effect's own, the same in every round.
        given: what the tool is called with.
        again: called for an intent without a result: runs the effect again, or reconciles. None: the
            effect is in doubt, and a person has to settle it.
        allow: called before the effect is begun for the first time. It raises a `Recorded` refusal, which
            becomes the outcome, or a TurnError that stops the round.
        outcome: called before that. A record that it returns is the effect's outcome, and nothing is done.
        lost: called before an effect that has no record is begun. What it returns says why it may have been
            begun all the same; then its new intent counts as one without a result.

    An attempt that raises anything but a `Recorded` refusal leaves its intent without a result and ends the
    round. No code continues as if the attempt had not happened. Raises InDoubt, or the TurnError that ended
    the round.
    """
    nth = await journal.begin()
    before = journal.earlier.effect(key)
    if before is not None and before[1].kind == "effect":
        return journal.recall(*before, nth)
    place = await journal.take(call)
    if place.record is not None:
        return journal.reach(place.name, place.record, nth)
    journal.effects_running += 1
    try:
        doubtful = before if place.intent is None else (place.name, place.intent)
        attempt = produce
        if doubtful is not None:
            attempt = _settling(journal, call, key, place, doubtful, before, produce, again)
        elif (known := await outcome() or _refused(journal, call, given, key, allow)) is not None:
            return value_of(await journal.write(place.name, known, nth))
        unsure = None if doubtful is not None else await lost()
        await _intend(journal, call, given, key, place, nth)
        if unsure is not None:
            if unsure.again is None:
                raise journal.stop(InDoubt(place.name, call[1], key, unsure.why))
            attempt = _another_attempt(call[1], unsure.again)
        try:
            record = await journal.produced(call, attempt, given, key=key)
        except Exception as broken:  # like a crash: how far it came is unknown
            error = effect_broke(call[1], broken)
            if again is None:
                error = InDoubt(place.name, call[1], key, error)
            raise journal.stop(error) from broken
        failpoint("effect.ran")
        await journal.write(f"{place.name}{DONE}", record, nth)
    finally:
        journal.effects_running -= 1
        await journal.places.ended()
    return value_of(record)


def _settling(
    journal: Journal,
    call: Call,
    key: str,
    place: Place,
    doubtful: Named,
    before: Named | None,
    produce: Produce,
    again: Produce | None,
) -> Produce:
    """Return the attempt that settles an intent without a result. Raises InDoubt if only a person can."""
    settled = journal.earlier.settled(doubtful[0])
    if settled is None and place.intent is not None and before is not None:
        word = journal.earlier.settled(before[0])
        settled = word if word is not None and word.settled == "done" else None  # nothing was tried since
    if settled is not None:
        return giving(settled.reply) if settled.settled == "done" else produce
    if again is None:
        raise journal.stop(InDoubt(doubtful[0], call[1], key))
    return _another_attempt(call[1], again)


async def _intend(journal: Journal, call: Call, given: Given, key: str, place: Place, nth: int) -> None:
    """Record the intent, then check that this round may still act. Raises Fenced, Superseded.

    If the intent was stored before a later round's fence, that round reads it. If it was stored after, the
    fence occupies one of the places that were free below it.
    """
    began = time.monotonic()
    if place.intent is None:
        await journal.write(place.name, journal.steps.record("intent", call, given, key=key), nth)
        failpoint("effect.intended")
    journal.with_effect = True
    for free in journal.places.free_below(place.n):
        stored = await journal.steps.get(free)
        if stored is not None and stored.kind == FENCE:
            raise journal.stop(Fenced(f"a later round has fenced this one at step {free}"))
    await journal.require_held(began)


def _refused(
    journal: Journal, call: Call, given: Given, key: str, allow: Callable[[], None]
) -> Record | None:
    """Return the recorded refusal of an effect that may not begin; None if it may."""
    try:
        allow()
    except Recorded as no:
        return journal.refused(call, given, no, key=key)
    except TurnError as error:
        raise journal.stop(error) from None
    return None


class LostEffect(NamedTuple):
    """An effect that may have been begun, though nothing is recorded of it."""

    why: EffectUnknown
    again: Produce | None
    """What settles it; None if only a person can."""


async def begun_in_lost_time(journal: Journal, request: str, again: Produce | None) -> LostEffect | None:
    """Return what to do about an effect without a record; None if no record can be missing.

    A bus that was restored lacks the steps of some time. Requests that are older than its end may have been
    at work in it. A turn that the backup has comes again under its id, and so its effects have the keys that
    they had. A turn that is opened later has the id that it had only if the turns before it take as many
    rounds. So no other system can be asked about its effects, and none knows their keys.

    Args:
        again: what settles the effect if it has its old key.
    """
    lost = await journal.steps.lost_time()
    if lost is None or submitted_ms(request) * 1000 >= lost.until:
        return None
    since, until = (f"{rfc3339(each)[:19]}Z" for each in (lost.since, lost.until))
    why = f"it may have been begun between {since} and {until}, whose steps a restore lost"
    return LostEffect(EffectUnknown(why), again if await journal.steps.is_known() else None)


def _another_attempt(action: str, again: Produce) -> Produce:
    """Wrap another attempt at an effect: a refusal before it began is not the effect's outcome."""

    async def attempt() -> Any:
        try:
            return await again()
        except Recorded as no:
            if no.begun:
                raise
            raise EffectUnknown(f"{action} was tried before, and now: {no}") from no

    return attempt


def another_try(journal: Journal, tool: Tool, key: str, run: Produce, *, lease_s: float) -> Produce | None:
    """Return what settles an effect after a crash in the middle of it; None if only a person can.

    Args:
        lease_s: how long the instance that began it may still be at it.
    """
    if tool.effect == "once":
        return None

    async def again() -> Any:
        reconciles = tool.effect == "reconcilable"
        if reconciles:
            await asyncio.sleep(lease_s)
        if tool.is_under_way(key):  # two at once would both find no key
            raise EffectUnknown(f"{tool.name} is still under way")
        if reconciles:
            found = await tool.ask(key)
            if found is not NOT_DONE:
                return to_json(found)
            await journal.require_held()
        return await run()

    return again


# --- what a tool reads of its turn ------------------------------------------------------------------


def fact_digest(facts: Iterable[Fact], key: str = ALL_FACTS) -> str:
    """Return the digest of a fact's value, or of all facts (`ALL_FACTS`); empty if there is no such fact."""
    if key == ALL_FACTS:
        return digest_of({fact.key: fact.value for fact in facts})
    return next((digest_of(fact.value) for fact in facts if fact.key == key), "")


def key_by_facts(earlier: Earlier, call_key: str, facts: Collection[Fact]) -> str:
    """Return the key of an effect whose tool takes the turn.

    It is the key of the same call in an earlier round, unless a fact that the tool read then has changed.
    What a first run will read is unknown, so all facts count.

    Args:
        call_key: the key of the call itself, independent of facts.
    """
    for record in reversed(earlier.same_calls(call_key)):
        assert record.reads is not None
        if reads_the_same(facts, record.reads):
            return record.key
    return derive(call_key, fact_digest(facts))


def reads_the_same(facts: Collection[Fact], reads: Reads) -> bool:
    """Return True if the facts that an effect read are the same now."""
    return all(fact_digest(facts, key) == was for key, was in reads.facts.items())


# --- forks -----------------------------------------------------------------------------------------


async def outcome_before(
    journal: Journal, work: Assignment, call: Call, given: Given, key: str, forbidden: str
) -> Record | None:
    """Return the outcome of an effect in a fork: what came of it before, or a no; None where it is tried.

    Args:
        forbidden: why it may not be called, whatever the record says; empty if it may.
    """
    fork = None if forbidden else work.forked_from
    outcome: Record | Refused | None = None
    if fork is not None and fork.effects == "refuse":
        told = f"{call[1]} is not run: this request was forked from {fork.request} without effects"
        outcome = Refused(code=EFFECTS_REFUSED, message=told)
    elif fork is not None and journal.before is not None:
        same = partial(reads_the_same, work.handoff.facts)
        outcome = await journal.before.effect(call, journal.nth_of(call), same)
    match outcome:
        case None:
            return None
        case Refused():
            return journal.steps.record(call[0], call, given, key=key, error=outcome)
    return journal.again(outcome, call, given, key=key)


# --- approvals -------------------------------------------------------------------------------------


def require_approval(
    work: Assignment, request: str, tool: Tool, arguments: Mapping[str, Any], key: str
) -> None:
    """Return if the newest answer on this call is yes, or if it needs none.

    Args:
        work: the round in which the tool is called.
        key: the call's, under which the approval was asked for.

    Raises ApprovalNeeded if the question was not asked yet. Raises Recorded, the effect's outcome, for any
    reply but `true`, if none came in time, and if the guard refused the question.
    """
    to = submitter_of(request) if tool.approve == "client" else HUMAN
    for ended in reversed(work.past):
        if ended.asked == key:
            if ended.how == "expired":
                raise Recorded("approval_expired", f"nobody approved {tool.name} in time")
            if ended.reply is True:
                return
            said = f": {ended.reason}" if ended.reason else ""
            raise Recorded("not_approved", f"{ended.by or to} did not approve {tool.name}{said}")
        if isinstance(ended.move, Ask) and ended.move.digest == key:
            why = ended.refusal
            said = f"{why.rule}: {why.detail}" if isinstance(why, Refusal) else "the guard refused it"
            raise Recorded("not_approved", f"nobody could be asked to approve {tool.name}: {said}")
    taken = tool.check(arguments)
    if tool.needs_approval is not None and not tool.needs_approval(taken):
        return
    whole = {
        name: "(secret)" if name in tool.secret else arguments.get(name, value)
        for name, value in taken.items()
    }
    shown = msgspec.json.encode(whole, enc_hook=as_json).decode()
    if len(shown) > SHOWN_CHARS:
        shown = f"{shown[:SHOWN_CHARS]}… (cut: {len(shown)} characters in all)"
    raise ApprovalNeeded(
        Ask(
            to_agent=to,
            question=f"{work.handoff.to_agent} asks for approval: {tool.name} {shown}",
            schema={"type": "boolean"},
            expires_s=tool.approve_within_s,
            digest=key,
            action=tool.name,
        )
    )
