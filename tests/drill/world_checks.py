"""Checks on what really happened: the ledger that tools wrote against the journals and the log.

A deed is believed: it was written by the tool itself, outside of the mesh. What the runtime journaled is
compared with it, and with what a sound runtime could have journaled at all. A deed that does not say of
which request, or which call, it is, is compared as far as its key goes.
"""

from collections import defaultdict
from collections.abc import Iterator

from protocol.wire import events
from tests.drill import stalls
from tests.drill.evidence import SERVER, Deed, Submitted
from tests.drill.findings import Breach
from tests.drill.reading import Placed, Reading, digest_of

KEYED = ("idempotent", "reconcilable")
"""Effects whose tools take our idempotency key."""
EFFECTS = (*KEYED, "once")
_ON_THE_WAY_US = 1_000_000
"""How long before a fault a step may have been made out that is stored after it."""
_RESULTS = ("effect", "call")
"""Kinds of steps that hold what a tool returned."""
DONE = "done"
"""Under what an answer of the drill's own agents lists the calls that were made."""


def no_effect_twice(reading: Reading) -> Iterator[Breach]:
    """A reconcilable effect happens once a key, and one that knows no key once a call.

    An idempotent one may run any number of times under its key: that is what the key is for. A settled
    doubt changes nothing: whoever says `not_done` has looked, so that the effect which then is run again is
    the first. A call that two turns make (a person gave the work back without `again`) has a key in each.
    """
    for (request, tool, call), deeds in reading.deeds.items():
        by_key: dict[str, int] = defaultdict(int)
        for deed in deeds:
            by_key[deed.key] += deed.kind == "reconcilable" and bool(deed.key)
        for key, times in by_key.items():
            if times > 1:
                detail = f"{tool} {call}: {times} deeds under the key {key}"
                yield Breach(promise="no_effect_twice", request=request, detail=detail)
        unkeyed = [deed for deed in deeds if deed.kind in ("reconcilable", "once") and not deed.key]
        turns = {each.where.turn for each in reading.intents_of(request, tool)}
        if call and len(unkeyed) > max(1, len(turns)):
            detail = f"{tool} {call}: {len(unkeyed)} deeds by {_pids(unkeyed)}"
            yield Breach(promise="no_effect_twice", request=request, detail=detail)
    for (request, tool), times in _unkeyed(reading).items():
        meant = len({each.step.key for each in reading.intents_of(request, tool)})
        if meant and times > meant:
            detail = f"{tool}: {times} deeds, and the journal has {meant} such effects"
            yield Breach(promise="no_effect_twice", request=request, detail=detail)


def _unkeyed(reading: Reading) -> dict[tuple[str, str], int]:
    """Return how many effects without a key were done, by request and tool."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for deed in reading.evidence.deeds:
        if deed.kind == "once" and deed.request:
            found[deed.request, deed.tool] += 1
    return found


def _pids(deeds: list[Deed]) -> str:
    return "processes " + ", ".join(str(deed.pid) for deed in deeds)


def one_key_a_call(reading: Reading) -> Iterator[Breach]:
    """One call has one key, in whatever round and process of its turn it is made, and shares it with none."""
    calls: dict[str, tuple[str, str, str]] = {}
    for which, deeds in reading.deeds.items():
        request, tool, call = which
        keys = {deed.key for deed in deeds if deed.kind in KEYED and deed.key}
        in_turn: dict[str, set[str]] = defaultdict(set)
        for key in keys:
            for intent in reading.intents.get(key, ()):
                in_turn[intent.where.turn].add(key)
            other = calls.setdefault(key, which)
            if other != which:
                detail = f"{tool} {call} and {other[1]} {other[2]} have one key"
                yield Breach(promise="one_key_a_call", request=request, detail=detail)
        known = set().union(*in_turn.values()) if in_turn else set()
        if call and len(keys) > 1 and (keys - known or any(len(found) > 1 for found in in_turn.values())):
            detail = f"{tool} {call} was done under {len(keys)} keys: {', '.join(sorted(keys))}"
            yield Breach(promise="one_key_a_call", request=request, detail=detail)


def intent_first(reading: Reading) -> Iterator[Breach]:
    """No effect happens whose intent was not journaled before."""
    for (request, tool, call), deeds in reading.deeds.items():
        for deed in deeds:
            if deed.kind not in EFFECTS or not (deed.key or request):
                continue
            intents = reading.intents.get(deed.key, ()) if deed.key else reading.intents_of(request, tool)
            if not any(intent.step.at <= deed.at for intent in intents):
                when = "after" if intents else "without"
                detail = f"{tool} {call} was done {when} its intent, by process {deed.pid}"
                yield Breach(promise="intent_first", request=request, detail=detail)
                break


def remarked_first(reading: Reading) -> Iterator[Breach]:
    """What an agent remarks before it writes a letter is journaled before that."""
    for (request, tool, call), deeds in reading.deeds.items():
        if tool != "post" or not (request and call):
            continue
        said = [
            placed.step.at
            for placed in reading.steps_of.get(request, ())
            if placed.step.kind == "remark" and placed.step.value == call
        ]
        if not said or min(said) > deeds[0].at:
            detail = f"{tool} {call} was done, and the remark before it is in no journal by then"
            yield Breach(promise="remarked_first", request=request, detail=detail)


def done_as_said(reading: Reading) -> Iterator[Breach]:
    """What the journal says was done was done: an effect with a result has its deed in the ledger."""
    keys = {deed.key for deed in reading.evidence.deeds if deed.key}
    unkeyed = _unkeyed(reading)
    said: dict[tuple[str, str], set[str]] = defaultdict(set)
    for placed in reading.steps:
        step = placed.step
        if step.kind != "effect" or step.error is not None or step.name not in reading.noting:
            continue
        if step.key in keys:
            continue
        said[placed.where.request, step.name].add(step.key)
    for (request, tool), missing in said.items():
        if len(missing) > unkeyed.get((request, tool), 0):
            detail = f"{tool}: {len(missing)} effects have a result, {unkeyed.get((request, tool), 0)} a deed"
            yield Breach(promise="done_as_said", request=request, detail=detail)
    calls: dict[str, set[str]] = defaultdict(set)
    for deed in reading.evidence.deeds:
        calls[deed.request].add(deed.call)
    for submitted in reading.evidence.submitted:
        for call in _answered(reading, submitted):
            if call not in calls[submitted.request]:
                detail = f"its answer says that {call} was done, and the ledger does not"
                yield Breach(promise="done_as_said", request=submitted.request, detail=detail)


def _answered(reading: Reading, submitted: Submitted) -> list[str]:
    """Return the calls that an answer lists under `done`, as those of the drill's own agents do.

    Only of requests whose end is known beforehand: what another fleet's answers mean nobody knows.
    """
    story = reading.stories.get(submitted.request)
    ended = None if story is None or story.ledger is None or not submitted.expected else story.ledger.ended
    answer = ended.answer if isinstance(ended, events.RequestCompleted) else None
    done = answer.get(DONE) if isinstance(answer, dict) else None
    return [each for each in done if isinstance(each, str)] if isinstance(done, list) else []


def journaled_before_used(reading: Reading) -> Iterator[Breach]:
    """What an answer lists as done was journaled: the reply, or the result, and not only the intent."""
    replies = _replies(reading)
    kinds = {(deed.request, deed.call): deed for deed in reading.evidence.deeds}
    for submitted in reading.evidence.submitted:
        request = submitted.request
        results = [each.step for each in reading.steps_of.get(request, ()) if each.step.kind in _RESULTS]
        keys = {step.key for step in results}
        unkeyed: dict[str, int] = defaultdict(int)
        for call in _answered(reading, submitted):
            deed = kinds.get((request, call))
            if deed is None:
                continue  # that is `done_as_said`
            if deed.kind == "model":
                found = bool(_records(replies, request, deed.tool, call))
            elif deed.key:
                found = deed.key in keys
            else:
                unkeyed[deed.tool] += 1
                found = unkeyed[deed.tool] <= sum(step.name == deed.tool for step in results)
            if not found:
                detail = f"{deed.tool} {call}: what came of it was used and is in no journal"
                yield Breach(promise="journaled_before_used", request=request, detail=detail)


def no_model_call_paid_twice(reading: Reading) -> Iterator[Breach]:
    """A model call whose reply was journaled is never made again, and without a fault none is made twice.

    Two processes may make one call at a time only where one of them lost its lease without dying: by a
    pause, a stall of the machine, or because the server was away. That, and nothing else, excuses a call
    after the record, and only if it was around that time that it was recorded. A call *before* any record
    may be made once more for each fault or stall that hit its agent, or the server, meanwhile.
    """
    replies = _replies(reading)
    for (request, tool, call), deeds in reading.deeds.items():
        if deeds[0].kind != "model" or not call:
            continue
        records = _records(replies, request, tool, call)
        agents = {placed.where.agent for placed in reading.steps_of.get(request, ()) if placed in records}
        yield from _recorded_twice(request, f"{tool} {call}", records)
        late: list[Deed] = []
        if len({placed.where.turn for placed in records}) == 1:
            first = min(records, key=lambda placed: placed.step.at)
            late = [deed for deed in deeds if deed.at > first.step.at]
            for deed in late:
                if not _two_at_a_time(reading, first, deed):
                    since = _ms(deed.at - first.step.at)
                    detail = f"{tool} {call} was called {since} after its reply was journaled"
                    yield Breach(promise="no_model_call_paid_twice", request=request, detail=detail)
        early = [deed for deed in deeds if deed not in late]
        turns = max(1, len({placed.where.turn for placed in records}))
        lease = int(reading.evidence.lease_s * 2e6)
        hits = _hits(reading, agents, deeds[0].at - lease, deeds[-1].at)
        if len(early) > turns + hits:
            detail = f"{tool} {call} was called {len(early)} times; {hits} faults could have made it so"
            yield Breach(promise="no_model_call_paid_twice", request=request, detail=detail)


_Replies = dict[tuple[str, str, str], list[Placed]]
"""Journaled replies of models by request, model and digest of the prompt."""


def _records(replies: _Replies, request: str, tool: str, call: str) -> list[Placed]:
    """Return the journaled replies to one call; its prompt is as `Deed.call` says."""
    prompts = (call, {"request": request, "call": call})
    return [each for prompt in prompts for each in replies.get((request, tool, digest_of(prompt)), ())]


def _replies(reading: Reading) -> _Replies:
    found: _Replies = defaultdict(list)
    for placed in reading.steps:
        if placed.step.kind == "model":
            found[placed.where.request, placed.step.name, placed.step.digest].append(placed)
    return found


def _recorded_twice(request: str, what: str, records: list[Placed]) -> Iterator[Breach]:
    by_turn: dict[str, list[Placed]] = defaultdict(list)
    for placed in records:
        by_turn[placed.where.turn].append(placed)
    for turn, several in by_turn.items():
        if len(several) > 1:
            where = ", ".join(placed.where.step for placed in several)
            detail = f"{what} has {len(several)} replies in the journal of turn {turn}: {where}"
            yield Breach(promise="no_model_call_paid_twice", request=request, detail=detail)


def _two_at_a_time(reading: Reading, record: Placed, deed: Deed) -> bool:
    """Say whether the one who recorded a call and the one who made it could not know of each other.

    Either the one slept, or was cut off, while the other recorded, and made its call as it came back; or the
    one was stopped with its record on the way; or the one woke and recorded while the other, which had the
    turn by then, was at the same call or about to make it: it looks for strange records only if half a lease
    has passed since it read the journal (`Journal.require_held`). A lease later each has been fenced, or was
    done.
    """
    lease = int(reading.evidence.lease_s * 1e6)
    recorded = record.step.at
    for fault in reading.disturbances(record.where.agent, recorded - lease, deed.at):
        until = max(fault.until, fault.at)
        if deed.at > until + lease or recorded < fault.at - _ON_THE_WAY_US:
            continue
        if fault.name == SERVER:
            return True
        slept = fault.pid in (0, deed.pid)
        stopped = recorded <= fault.at
        under_way = 0 < deed.began <= recorded + lease // 2
        if fault.kind in ("pause", stalls.KIND) and (slept or stopped or under_way):
            return True
    return False


def _hits(reading: Reading, agents: set[str], begin: int, end: int) -> int:
    """Return how many faults could have made somebody call again; of any agent where none is known."""
    known = agents or {fault.name for fault in reading.evidence.faults}
    found = {id(fault) for agent in known for fault in reading.disturbances(agent, begin, end)}
    return len(found)


def _ms(us: int) -> str:
    return f"{us / 1000:.1f} ms"


def fenced(reading: Reading) -> Iterator[Breach]:
    """A round that journals has closed each earlier one by a fence, and no effect came of that one after it.

    Fences may also stand in gaps below steps that were there before. A step behind the last fence is
    harmless unless it is an effect's result: of several that ran at once, one found its own place taken.
    """
    turns: dict[tuple[str, str, str], list[Placed]] = defaultdict(list)
    for placed in reading.steps:
        turns[placed.where[:3]].append(placed)
    for (_agent, request, turn), steps in turns.items():
        own = {placed.place.round for placed in steps if placed.step.kind != "fence"}
        fences: dict[int, int] = {}
        for placed in steps:  # in order of place: the last fence of a round is what closes it
            if placed.step.kind == "fence":
                fences[placed.place.round] = placed.place.n
        last = max(own, default=0)
        for round_ in range(last):
            if round_ not in fences:
                detail = f"round {last} of turn {turn} journals, and round {round_} has no fence"
                yield Breach(promise="fenced", request=request, detail=detail)
        for placed in steps:
            fence = fences.get(placed.place.round)
            if fence is not None and placed.place.n > fence and placed.place.result:
                detail = (
                    f"the effect at step {placed.where.step} of turn {turn} is behind the fence at {fence}"
                )
                yield Breach(promise="fenced", request=request, detail=detail)


def readable_journals(reading: Reading) -> Iterator[Breach]:
    """Every step of a journal is a record."""
    _ = reading.steps  # reads them
    for where, why in reading.unreadable:
        detail = f"step {where.step} of turn {where.turn} cannot be read: {why}"
        yield Breach(promise="readable_journals", request=where.request, detail=detail)
