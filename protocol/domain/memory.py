"""What a conversation remembers: facts from the end of one request that its later requests begin with.

A conversation belongs to its client. It keeps one fact per key, from the latest answer. Labels stick: if a
submit contains a remembered key, its fact wins and gets the remembered labels besides its own.

The answer in the log is the write. Its sequence there decides what is kept and what is forgotten. The records
in a store are derived from it, and deriving them late or repeatedly does no harm.

An event embeds what was remembered. So a log can be judged again without the memory, and changing the memory
does not affect running requests.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from protocol.domain.carried import NOTHING, Carried, Labels, merge
from protocol.wire.codec import equal
from protocol.wire.commands import Submit
from protocol.wire.config import Policy
from protocol.wire.events import AnyEvent, FactsWithheld, RequestCompleted, RequestOpened, TurnSuspended
from protocol.wire.handoff import TEXT_FACT, Fact, Refusal, Rule
from protocol.wire.moves import Complete
from protocol.wire.records import MOST_KEYS, MemoryForgotten, MemoryRecord, MemorySpeaker, memory_limit

MemoryEntry = MemoryRecord | MemoryForgotten

# --- the records ------------------------------------------------------------------------------------


def left_by(answer: RequestCompleted, kept: FactsWithheld, seq: int, at: int) -> tuple[MemoryRecord, ...]:
    """Return what an answer leaves to its conversation, one record per fact.

    Args:
        kept: what was withheld from the client before the answer.
        seq: the answer's sequence in the log.
        at: UTC µs at which it was stored there.
    """
    conversation = answer.conversation
    if conversation is None:
        return ()
    return tuple(
        MemoryRecord(
            conversation=conversation, key=fact.key, fact=fact, seq=seq, at=at, request=answer.request
        )
        for fact in kept.facts
    )


def speaker_in(event: AnyEvent, seq: int, at: int) -> MemorySpeaker | None:
    """Return who spoke to the client by an answer or a question, as the conversation remembers it.

    Args:
        seq: the event's sequence in the log.
        at: UTC µs at which it was stored there.
    """
    match event:
        case RequestCompleted(conversation=str() as conversation, sender=agent):
            pass
        case TurnSuspended(conversation=str() as conversation, agent=str() as agent):
            pass
        case _:
            return None
    return MemorySpeaker(conversation=conversation, agent=agent, seq=seq, at=at, request=event.request)


def supersedes(new: MemoryRecord | MemorySpeaker, current: MemoryRecord | MemorySpeaker | None) -> bool:
    """Return True if `new` replaces the current record of its key, or of who spoke last.

    The log sequence of the answers decides, however late their records are written. So writing a record
    twice, or after a newer one, changes nothing.
    """
    return current is None or new.seq > current.seq


def recalled(entries: Iterable[MemoryEntry], now: int, max_age_s: float) -> tuple[Fact, ...]:
    """Return what a conversation remembers now, sorted by key; at most one fact more than allowed.

    Args:
        entries: those of one conversation, in any order.
        now: UTC µs.
        max_age_s: older facts are forgotten.
    """
    current = sorted(current_records(entries, now, max_age_s), key=lambda record: record.key)
    return tuple(record.fact for record in current)[: MOST_KEYS + 1]


def last_speaker(
    spoken: Iterable[MemorySpeaker], entries: Iterable[MemoryEntry], now: int, max_age_s: float
) -> MemorySpeaker | None:
    """Return who spoke last in a conversation; None if nobody did, or if it was forgotten or is too old.

    Args:
        entries: as for `recalled`, like the rest.
    """
    newest = max(spoken, key=lambda each: each.seq, default=None)
    if newest is None or newest.at < now - int(max_age_s * 1e6):
        return None
    until = (each.seq for each in entries if isinstance(each, MemoryForgotten) and not each.keys)
    return newest if newest.seq > max(until, default=-1) else None


def current_records(entries: Iterable[MemoryEntry], now: int, max_age_s: float) -> list[MemoryRecord]:
    """Return the newest record of each key, unless forgotten or too old. Arguments as for `recalled`."""
    newest, forgotten, all_until = dict[str, MemoryRecord](), dict[str, int](), -1
    for entry in entries:
        if isinstance(entry, MemoryRecord):
            if supersedes(entry, newest.get(entry.key)):
                newest[entry.key] = entry
        elif entry.keys:
            for key in entry.keys:
                forgotten[key] = max(entry.seq, forgotten.get(key, -1))
        else:
            all_until = max(entry.seq, all_until)
    oldest = now - int(max_age_s * 1e6)
    return [
        record
        for key, record in newest.items()
        if record.seq > max(all_until, forgotten.get(key, -1)) and record.at >= oldest
    ]


# --- the beginning of a request ---------------------------------------------------------------------


class Begun(NamedTuple):
    """What a request begins with."""

    carried: Carried
    remembered: frozenset[str]
    """Keys of its facts that come from the conversation and not from the submit."""


def begun(submit: Submit, memory: tuple[Fact, ...]) -> Begun:
    """Return what a request begins with: the submit's facts plus what its conversation remembers."""
    labels = () if submit.forked_from is None else submit.forked_from.text_labels
    facts = (Fact(key=TEXT_FACT, value=submit.text, labels=labels), *submit.facts)
    if not memory:
        return Begun(merge(NOTHING, facts, submit.artifacts), frozenset())
    carried = merge(merge(NOTHING, memory), facts, submit.artifacts)
    return Begun(carried, frozenset({fact.key for fact in memory} - {fact.key for fact in facts}))


def recalled_for(event: AnyEvent, kept: FactsWithheld | None) -> tuple[Fact, ...]:
    """Return the remembered facts that `event`, the verdict on a submit, embeds.

    Args:
        kept: what was withheld from its reader.
    """
    hidden = () if kept is None else kept.facts
    if not isinstance(event, RequestOpened):
        return hidden
    if not event.remembered:
        return ()
    return tuple(fact for fact in (*event.work.handoff.facts, *hidden) if fact.key in event.remembered)


def too_much(memory: tuple[Fact, ...], bytes_: int, most_bytes: int) -> Refusal | None:
    """Refuse a submit whose conversation remembers more than a request can begin with.

    Args:
        bytes_: JSON size of the handoff, including what is remembered.
        most_bytes: the policy's limit for it.
    """
    if not memory or (len(memory) <= MOST_KEYS and bytes_ <= most_bytes):
        return None
    count = len(memory)
    return _refusal(
        f"with {count} remembered facts the request has {bytes_} bytes of at most {most_bytes}"
        if count <= MOST_KEYS
        else f"the conversation remembers more than {MOST_KEYS} facts",
        {"keys": count, "max_keys": MOST_KEYS, "bytes": bytes_, "max_handoff_bytes": most_bytes},
        "forget some of it (`mesh memory forget`), or begin another conversation",
    )


def goes_to_last(submit: Submit, policy: Policy) -> bool:
    """Return True if a submit goes to the agent that spoke last in its conversation, if there is one."""
    with_ = submit.continue_with or policy.continue_with
    return submit.conversation is not None and submit.to is None and with_ == "last"


def notes_speakers(opened: RequestOpened) -> bool:
    """Return True if a request's conversation remembers who answers and asks in it, to go on with them."""
    goes_on = opened.continue_with is not None or opened.policy.continue_with == "last"
    return opened.conversation is not None and goes_on


# --- the end of a request ---------------------------------------------------------------------------


def to_remember(move: Complete, carried: Carried, labels: Labels) -> tuple[Fact, ...]:
    """Return the facts that an answer leaves to its conversation, with the labels that stick to them.

    Args:
        carried: everything the turn carries. A rule ensures that the agent may see what it asks to remember.
        labels: labels that keys had earlier in the request.
    """
    after = merge(carried, move.remember, labels=labels)
    keys = {*move.remember_keys, *(fact.key for fact in move.remember)}
    return tuple(fact for key, fact in after.facts.items() if key in keys)


def as_asked(leaves: Iterable[Fact], carried: Carried) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
    """Return the facts, and the keys of carried facts, for which `to_remember` returns `leaves`.

    A carried fact has to be named by its key: brought anew, it would get the labels that its key got since.
    """
    facts = tuple(leaves)
    same = {fact.key for fact in facts if equal(fact, carried.facts.get(fact.key))}
    return tuple(fact for fact in facts if fact.key not in same), tuple(sorted(same))


def unfit(
    move: Complete, shown: Iterable[Fact], known: Iterable[Fact], max_handoff_bytes: int
) -> Refusal | None:
    """Refuse an answer that asks to remember too much, or facts that the turn did not get.

    Args:
        shown: the facts that the turn got.
        known: the conversation's facts at the beginning of the request that the agent may see. The size of
            the others must not leak.
    """
    handed = {fact.key: fact for fact in shown if fact.key in move.remember_keys}
    missing = sorted(set(move.remember_keys) - handed.keys())
    asked = handed | {fact.key: fact for fact in move.remember}
    if TEXT_FACT in asked:
        detail = f"`{TEXT_FACT}` is each request's own text"
        return _refusal(detail, {"keys": [TEXT_FACT]}, "remember it under another key")
    if missing:
        detail = f"the turn was not handed what it wants remembered: {', '.join(missing)}"
        return _refusal(detail, {"keys": missing}, "bring the fact itself, or leave the key out")
    if not asked:
        return None
    everything = {fact.key: fact for fact in known} | asked
    count, most = len(everything), memory_limit(max_handoff_bytes)
    bytes_ = len(msgspec.json.encode(tuple(everything.values())))
    if count <= MOST_KEYS and bytes_ <= most:
        return None
    return _refusal(
        f"the conversation would remember {count} facts of at most {MOST_KEYS}"
        if count > MOST_KEYS
        else f"the conversation would remember {bytes_} bytes of at most {most}",
        {"keys": count, "max_keys": MOST_KEYS, "bytes": bytes_, "max_bytes": most},
        "remember less; put large things in a store and remember where",
    )


def _refusal(detail: str, numbers: Mapping[str, object], hint: str) -> Refusal:
    return Refusal(rule=Rule.MEMORY, detail=detail, numbers=numbers, hint=hint)
