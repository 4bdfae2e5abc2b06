"""Shadows of policies: begin and end one, report how often it disagreed, make it the policy."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from mesh.bus.connection import Bus
from mesh.bus.reader import every, listing
from mesh.bus.stores import Revision, revisions, write_revision
from mesh.bus.streams import SHADOW
from mesh.errors import Impossible, NotFound
from mesh.ops.checks import Results
from mesh.ops.policies import StandingPolicy, policies, standing
from mesh.service.printable import counted, when
from protocol.domain.judgement import edge_of, ground_of
from protocol.wire import codec
from protocol.wire.config import Policy, policy_hash
from protocol.wire.documents import DocumentInvalid
from protocol.wire.shadow import Disagreement, ShadowCounts, ShadowEntry, read_shadow
from protocol.wire.subjects import policy, shadow, shadow_stored

EXAMPLES = 3
"""Disagreements that a report shows whole."""
MUCH = 0.01
"""Share of commands that were not judged from which on doctor finds it wrong."""


async def begin_shadow(bus: Bus, wanted: Policy, *, by: str) -> StandingPolicy:
    """Have guards judge by another policy beside the one of its name; return both.

    It takes the place of the shadow before it. It takes the admin's credentials.

    Raises NotFound without a policy of that name, Impossible if both say the same or the bus has no stream
    SHADOW, SequenceConflict if somebody else writes, BusError.
    """
    found = await standing(bus, wanted.name)
    if policy_hash(wanted) == found.digest:
        raise Impossible(f"this is the policy {wanted.name} as it is: a shadow of it shows nothing")
    if SHADOW not in (await listing(bus)).streams:
        raise Impossible(f"the bus has no stream {SHADOW}: run mesh setup, and reload the server")
    await _write(bus, wanted.name, ShadowEntry(policy=wanted), by=by)
    return await standing(bus, wanted.name)


async def end_shadow(bus: Bus, name: str, *, by: str) -> StandingPolicy:
    """End the shadow of a policy; return the policy.

    Raises NotFound, Impossible if there is no shadow, SequenceConflict, BusError.
    """
    found = await standing(bus, name)
    if found.shadow is None:
        raise Impossible(f"the policy {name} has no shadow")
    await _write(bus, name, ShadowEntry(), by=by)
    return await standing(bus, name)


async def _write(bus: Bus, name: str, entry: ShadowEntry, *, by: str) -> int:
    kept = await revisions(bus, shadow(name))
    after = kept[-1].seq if kept else 0
    return await write_revision(bus, shadow(name), msgspec.json.encode(entry), by=by, after=after)


# --- the report -----------------------------------------------------------------------------------


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """How often a shadow would have decided otherwise, and where."""

    policy: str
    rev: int
    """The shadow's revision."""
    shadow: str
    """Its digest."""
    began: int
    """UTC µs."""
    stands: bool
    """False once it was stopped, promoted or replaced."""
    since: int
    """UTC µs from which on it is counted."""
    until: int
    """UTC µs of the newest count."""
    guards: int
    """That counted."""
    judged: int
    agreed: int
    disagreed: int
    dropped: int
    failed: int
    unkept: int
    """Disagreements that are counted and were not stored."""
    stopped: tuple[str, ...]
    """Guards that judge by it no more, and why."""
    kept: int
    """Disagreements that are stored. What follows counts these."""
    requests: int
    """In which they are."""
    by_rule: dict[str, int]
    by_agent: dict[str, int]
    by_edge: dict[str, int]
    examples: tuple[Disagreement, ...]
    digest: str = ""
    """SHA-256 (hex) over this report as JSON with sorted keys, without this field."""

    @property
    def unjudged(self) -> int:
        return self.dropped + self.failed


async def report(bus: Bus, name: str, since_us: int = 0) -> ShadowReport:
    """Report on the newest shadow of a policy, whether it still stands or not.

    Args:
        since_us: count only from this time on (UTC µs). Guards store their counts by the minute.

    Raises NotFound if there was never one, BusError.
    """
    kept, judges, stands = await _newest(bus, name)
    counts, found = await _counts(bus, name, kept.seq), await _disagreements(bus, name, kept.seq, since_us)
    newest, total = _summed(counts, since_us)
    whole = ShadowReport(
        policy=name,
        rev=kept.seq,
        shadow=policy_hash(judges),
        began=kept.at,
        stands=stands,
        since=max(kept.at, since_us),
        until=max((each.at for each in newest), default=0),
        guards=len(newest),
        judged=total["agreed"] + total["disagreed"],
        agreed=total["agreed"],
        disagreed=total["disagreed"],
        dropped=total["dropped"],
        failed=total["failed"],
        unkept=total["unkept"],
        stopped=tuple(f"{each.guard}: {each.stopped}" for each in newest if each.stopped),
        kept=len(found),
        requests=len({each.request for each in found}),
        by_rule=_by(ground_of(each.was, each.would) for each in found),
        by_agent=_by(each.agent for each in found),
        by_edge=_by(edge_of(each.agent or each.client, each.to) for each in found),
        examples=_examples(found),
    )
    return replace(whole, digest=digest_of(whole))


def digest_of(found: ShadowReport) -> str:
    """Return the digest of a report, which it has itself."""
    body = msgspec.json.encode(replace(found, digest=""), order="deterministic")
    return hashlib.sha256(body).hexdigest()


async def _newest(bus: Bus, name: str) -> tuple[Revision, Policy, bool]:
    """Return the newest shadow of a policy, and whether it still stands."""
    kept = await revisions(bus, shadow(name))
    for each in reversed(kept):
        try:
            judges = read_shadow(each.data, name).policy
        except DocumentInvalid:  # guards judged by it no more than by one that was stopped
            continue
        if judges is not None:
            return each, judges, each.seq == kept[-1].seq
    raise NotFound(f"the policy {name!r} has never had a shadow: see mesh policy ls")


async def _counts(bus: Bus, name: str, rev: int) -> list[ShadowCounts]:
    stored = every(bus, SHADOW, shadow_stored(name, "counts"))
    read = [codec.readable(each.data, ShadowCounts) async for each in stored]
    return [each for each in read if each is not None and each.rev == rev]


async def _disagreements(bus: Bus, name: str, rev: int, since_us: int) -> list[Disagreement]:
    stored = every(bus, SHADOW, shadow_stored(name, "differs"))
    read = [codec.readable(each.data, Disagreement) async for each in stored]
    return [each for each in read if each is not None and each.rev == rev and each.at >= since_us]


_TOTALS = ("agreed", "disagreed", "dropped", "failed", "unkept")


def _summed(counts: Iterable[ShadowCounts], since_us: int) -> tuple[list[ShadowCounts], dict[str, int]]:
    """Return the newest counts of each guard, and what all have counted since a time."""
    newest, before = dict[str, ShadowCounts](), dict[str, ShadowCounts]()
    for each in sorted(counts, key=lambda one: one.at):
        newest[each.guard] = each
        if each.at < since_us:
            before[each.guard] = each
    late = [each for each in newest.values() if each.at >= since_us]
    total = {
        name: sum(getattr(each, name) - getattr(before.get(each.guard), name, 0) for each in late)
        for name in _TOTALS
    }
    return late, total


def _by(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(filter(None, names)).items(), key=lambda each: (-each[1], each[0])))


def _examples(found: Sequence[Disagreement]) -> tuple[Disagreement, ...]:
    """Return some disagreements: the newest of each rule first, the most frequent rule before the others."""
    by_rule: dict[str, list[Disagreement]] = {}
    for each in sorted(found, key=lambda one: (one.at, one.request, one.n), reverse=True):
        by_rule.setdefault(ground_of(each.was, each.would), []).append(each)
    often = sorted(by_rule.values(), key=lambda same: -len(same))
    chosen = [same[0] for same in often] + [each for same in often for each in same[1:]]
    return tuple(chosen[:EXAMPLES])


# --- what comes of it -----------------------------------------------------------------------------


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    """A shadow that is the policy now."""

    policy: str
    rev: int
    digest: str
    report: str
    """The digest of the report by which it was promoted."""


async def promote(bus: Bus, found: ShadowReport, *, by: str) -> Promoted:
    """Make the shadow of a report the policy, and end the shadow. It takes the admin's credentials.

    The policy's revision names the digest of the report, and the shadow's last one holds the report. A call
    that was cut off between the two can be repeated.

    Raises Impossible if the shadow stands no more, SequenceConflict if somebody else writes, BusError.
    """
    name = found.policy
    now = await standing(bus, name)
    if now.shadow is None or now.shadow.rev != found.rev:
        raise Impossible(f"the shadow of {name} is another one by now, or was ended: report on it again")
    rev = now.rev
    if now.digest != now.shadow.digest:
        body = msgspec.json.encode(now.shadow.policy)
        rev = await write_revision(bus, policy(name), body, by=by, after=now.rev, report=found.digest)
    ended = ShadowEntry(report=msgspec.to_builtins(found))
    await write_revision(bus, shadow(name), msgspec.json.encode(ended), by=by, after=found.rev)
    return Promoted(policy=name, rev=rev, digest=now.shadow.digest, report=found.digest)


async def judging(bus: Bus) -> Results:
    """Tell of shadows that judge; find those that could not judge much of what was decided."""
    for each in await policies(bus):
        if each.shadow is None:
            continue
        found = await report(bus, each.name)
        so = f"the shadow of {each.name} judges since {when(each.shadow.at)}: {in_numbers(found)}"
        if found.stopped:
            yield "found", f"{so}; stopped at {', '.join(found.stopped)}"
        elif found.unjudged > MUCH * (found.judged + found.unjudged):
            yield "found", f"{so}; so the report says little: mesh policy report {each.name}"
        else:
            yield "ok", f"{so}; mesh policy report {each.name}"


def in_numbers(found: ShadowReport) -> str:
    """Return what a report counts, as one line."""
    lost = (("dropped", found.dropped), ("failed", found.failed))
    numbers = "".join(f", {number} {what}" for what, number in lost if number)
    return f"{counted(found.judged, 'command')} judged, {found.disagreed} disagreed{numbers}"
