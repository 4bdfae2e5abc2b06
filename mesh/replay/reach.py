"""Which requests another policy or fleet can affect: found by a scan of a few fields, without decoding
events.

Most requests are nowhere near a limit. For these `may_differ` shows that no verdict can differ. It never errs
on that side. Requests that a scan cannot decide are compared in full.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from protocol.domain.recorded import Other
from protocol.wire import events
from protocol.wire.config import AgentEntry, Fleet, Policy
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Rule

_TYPE = b'{"type":"'
_DEPTH, _ASKED = b'"depth":', b'"asked":{'
_POLICY, _POLICY_ENDS = b'"policy":{', b',"policy_hash":"'
_NUMBER = re.compile(rb"[0-9]+")
_PLAIN = frozenset((b"request.opened", b"facts.withheld", b"handoff.admitted", b"request.completed"))
"""Event types of a request in which nothing was refused, failed, asked, planned or waited for."""
_AMOUNTS = ("nano_dollars", "tokens", "model_calls")


class _Usage(msgspec.Struct, frozen=True, gc=False):
    nano_dollars: int = 0
    tokens: int = 0
    model_calls: int = 0
    unpriced_calls: int = 0


class _Report(msgspec.Struct, frozen=True, gc=False):
    usage: _Usage = _Usage()


class _Refusal(msgspec.Struct, frozen=True, gc=False):
    rule: str = ""


class _Grounds(msgspec.Struct, frozen=True, gc=False):
    sender: msgspec.Raw = msgspec.Raw()
    target: msgspec.Raw = msgspec.Raw()
    candidates: msgspec.Raw = msgspec.Raw()
    form: msgspec.Raw = msgspec.Raw()
    human: bool = False


class _At(msgspec.Struct, frozen=True, gc=False):
    at: int


class _Refused(msgspec.Struct, frozen=True, gc=False):
    refusal: _Refusal = _Refusal()


class _Reported(msgspec.Struct, frozen=True, gc=False):
    report: _Report = _Report()


class _Grounded(msgspec.Struct, frozen=True, gc=False):
    grounds: _Grounds | None = None


_AT = msgspec.json.Decoder(_At)
_REFUSED, _REPORTED = msgspec.json.Decoder(_Refused), msgspec.json.Decoder(_Reported)
_GROUNDED, _ENTRY = msgspec.json.Decoder(_Grounded), msgspec.json.Decoder(AgentEntry)


class _Scan:
    """What a scan finds in one request's stored events, searched for on first use."""

    __slots__ = ("_bodies", "_types", "policy", "types")

    def __init__(self, bodies: Sequence[bytes], types: Sequence[bytes], policy: Policy) -> None:
        self._bodies, self._types, self.policy = bodies, types, policy
        self.types = frozenset(types)

    def count(self, *types: bytes) -> int:
        return sum(map(self._types.count, types))

    @property
    def rules(self) -> frozenset[str]:
        """The rules that refused something."""
        refused = (body for body, type_ in self._of(b"move.refused", b"request.refused"))
        return frozenset(_REFUSED.decode(body).refusal.rule for body in refused)

    @property
    def deepest(self) -> int:
        """An upper bound of any assignment's depth: facts that look like one can only make it greater."""
        most = 0
        for body in self._bodies:
            at = body.find(_DEPTH)
            while at >= 0:
                number = _NUMBER.match(body, at + len(_DEPTH))
                most = max(most, int(number[0]) if number else 0)
                at = body.find(_DEPTH, at + 1)
        return most

    @property
    def span_us(self) -> int:
        first, last = (_AT.decode(self._bodies[at]).at for at in (0, -1))
        return last - first

    @property
    def size(self) -> int:
        return sum(map(len, self._bodies))

    @property
    def asks_limits(self) -> bool:
        """True if a submit or a handoff asked for constraints of its own."""
        return any(_ASKED in body for body in self._bodies)

    @property
    def usage(self) -> _Usage:
        """The sum of all reports: what was spent, or more."""
        reports = [_REPORTED.decode(body).report.usage for body in self._bodies]
        return _Usage(*(sum(getattr(each, name) for each in reports) for name in _Usage.__struct_fields__))

    @property
    def grounds(self) -> list[_Grounds]:
        found = (_GROUNDED.decode(body).grounds for body in self._bodies)
        return [each for each in found if each is not None]

    def _of(self, *types: bytes) -> list[tuple[bytes, bytes]]:
        return [each for each in zip(self._bodies, self._types, strict=True) if each[1] in types]


def may_differ(bodies: Sequence[bytes], other: Other) -> bool:
    """Return False if no verdict of a request can differ; True if one can, or if that is unknown."""
    scan = _scan(bodies)
    if scan is None:
        return True
    policy = other.policy_for(scan.policy)
    if policy is not scan.policy and policy != scan.policy:
        for name, reaches in _REACHES.items():
            was, would = getattr(scan.policy, name), getattr(policy, name)
            if was != would and reaches(scan, was, would):
                return True
    return other.fleet is not None and _fleet_reaches(scan, other.fleet)


def _scan(bodies: Sequence[bytes]) -> _Scan | None:
    """Return what can be scanned; None if it is not a whole request as a guard writes it."""
    begins = len(_TYPE)
    types = [body[begins : body.find(b'"', begins)] for body in bodies if body.startswith(_TYPE)]
    opened = 1 if types[:1] == [b"facts.withheld"] else 0
    if len(types) != len(bodies) or types[opened : opened + 1] != [b"request.opened"]:
        return None
    policy = _policy_in(bodies[opened])
    return None if policy is None else _Scan(bodies, types, policy)


_policies: dict[bytes, Policy | None] = {}
"""Policies by their bytes: a log has few."""
_MOST_POLICIES = 1_000


def _policy_in(opened: bytes) -> Policy | None:
    """Return the policy of a request's first event; None if it is not at its usual place."""
    ends = opened.rfind(_POLICY_ENDS)
    raw = opened[opened.rfind(_POLICY, 0, ends) + len(_POLICY) - 1 : ends]
    if raw not in _policies:
        if len(_policies) >= _MOST_POLICIES:
            _policies.clear()
        try:
            _policies[raw] = msgspec.json.decode(raw, type=Policy)
        except msgspec.MsgspecError:
            _policies[raw] = None
    return _policies[raw]


# --- policies -------------------------------------------------------------------------------------

_Reach = Callable[[_Scan, Any, Any], bool]


def _never(scan: _Scan, was: Any, would: Any) -> bool:
    return False


def _always(scan: _Scan, was: Any, would: Any) -> bool:
    return True


def _unless_plain(scan: _Scan, was: Any, would: Any) -> bool:
    return not scan.types <= _PLAIN


def _where(*types: bytes) -> _Reach:
    return lambda scan, was, would: not scan.types.isdisjoint(types)


def _often(*types: bytes) -> _Reach:
    """Return a check of a limit on how often something happened, by how often it is in the log."""
    return lambda scan, was, would: scan.count(*types) > min(was, would)


def _depth(scan: _Scan, was: int, would: int) -> bool:
    if would > was:
        return bool(scan.rules & {"depth", *_OR_FALLBACK})
    return scan.deepest + (b"move.refused" in scan.types) > would


def _asks(scan: _Scan, was: int, would: int) -> bool:
    if would > was:
        return "asks" in scan.rules
    return scan.count(b"turn.suspended", b"turn.delegated", b"move.refused") > would


def _size(scan: _Scan, was: int, would: int) -> bool:
    return bool(scan.rules & {"size", "memory", *_OR_FALLBACK}) if would > was else scan.size > would


def _deadline(scan: _Scan, was: float, would: float) -> bool:
    if not scan.types <= _PLAIN or scan.asks_limits:
        return True
    return scan.span_us >= min(was, would) * 1e6


def _budget(scan: _Scan, was: Any, would: Any) -> bool:
    if not scan.types <= _PLAIN or scan.asks_limits:
        return True
    usage = scan.usage
    limits = ((getattr(would, name), getattr(usage, name)) for name in _AMOUNTS) if would is not None else ()
    return bool(usage.unpriced_calls) or any(most is not None and used > most for most, used in limits)


_OR_FALLBACK = ("agent_available",)
"""Of a transfer that meets an open breaker: a limit may be why it did not go to the fallback instead."""
_PLANS = (b"turn.delegated", b"move.refused")
_REACHES: Mapping[str, _Reach] = {
    "name": _never,
    "version": _never,
    "topology": _always,
    "max_depth": _depth,
    "max_refusals": _often(b"move.refused"),
    "max_retries": _often(b"turn.failed"),
    "retry_backoff_s": _where(b"turn.failed"),
    "retry_backoff_max_s": _where(b"turn.failed"),
    "max_asks": _asks,
    "max_escalations": _often(b"escalation.raised", b"request.failed"),
    "max_handoff_bytes": _size,
    "deadline_s": _deadline,
    "turn_timeout_s": _unless_plain,
    "unattended_after_s": _unless_plain,
    "escalation_sla_s": _where(b"escalation.raised"),
    "human_deadline_s": _where(b"escalation.raised", b"turn.suspended", b"effect.doubted"),
    "on_budget": _unless_plain,
    "budget": _budget,
    "max_levels": _where(*_PLANS),
    "max_open_tasks": _where(*_PLANS),
    "max_tasks": _where(*_PLANS),
    "max_revisions": _where(*_PLANS),
    "keep_back": _where(*_PLANS),
    "claim_within_s": _where(b"task.offered"),
    "max_posts": _where(b"facts.posted", b"move.refused"),
    "max_posted_bytes": _where(b"facts.posted", b"move.refused"),
    "guardrails": _always,
    "continue_with": _always,
    "tell_client": _never,
}
"""By field of a policy: can a change from one number to another show in a request?"""


# --- events ---------------------------------------------------------------------------------------

_Concerns = Callable[[AnyEvent, Any, Any], bool]


def _is(*kinds: type) -> _Concerns:
    return lambda event, was, would: isinstance(event, kinds)


def _refused_by(event: AnyEvent, rule: Rule) -> bool:
    return event.refusal is not None and event.refusal.rule == rule


def _concerns_depth(event: AnyEvent, was: int, would: int) -> bool:
    if would > was:
        return _refused_by(event, Rule.DEPTH) or _refused_by(event, Rule.AGENT_AVAILABLE)
    if isinstance(event, events.HandoffAdmitted):
        return event.work.depth > would
    return isinstance(event, events.MoveRefused)


def _concerns_asks(event: AnyEvent, was: int, would: int) -> bool:
    if would > was:
        return _refused_by(event, Rule.ASKS)
    return isinstance(event, events.TurnSuspended | events.TurnDelegated | events.MoveRefused)


_CONCERNS_PLANS = _is(events.TurnDelegated, events.MoveRefused)
_CONCERNS: Mapping[str, _Concerns] = {
    "name": _is(),
    "version": _is(),
    "tell_client": _is(),
    "max_depth": _concerns_depth,
    "max_refusals": _is(events.MoveRefused),
    "max_asks": _concerns_asks,
    "max_escalations": _is(events.EscalationRaised, events.RequestFailed),
    "max_levels": _CONCERNS_PLANS,
    "max_open_tasks": _CONCERNS_PLANS,
    "max_tasks": _CONCERNS_PLANS,
    "max_revisions": _CONCERNS_PLANS,
}
"""By field of a policy that is only a limit: may an event differ because of it?"""


class Concerned:
    """Which events of a request may differ: all of them, unless only limits are changed.

    A limit changes only decisions that check it. Any other field of a policy also changes the consequences of
    a decision: then each event has to be derived from the derived events before it.
    """

    def __init__(self, recorded: Policy | None, other: Other) -> None:
        self._limits: list[tuple[_Concerns, Any, Any]] | None = None
        if recorded is None or other.fleet is not None:
            return
        policy = other.policy_for(recorded)
        names = [name for name in _REACHES if getattr(recorded, name) != getattr(policy, name)]
        if all(name in _CONCERNS for name in names):
            self._limits = [
                (_CONCERNS[name], getattr(recorded, name), getattr(policy, name)) for name in names
            ]

    @property
    def is_all(self) -> bool:
        return self._limits is None

    def may_be_another(self, event: AnyEvent) -> bool:
        """Return True if an event has to be derived to find out."""
        limits = self._limits
        return limits is None or any(concerns(event, was, would) for concerns, was, would in limits)


# --- fleets ---------------------------------------------------------------------------------------


class _Known(NamedTuple):
    fleet: Fleet
    same: dict[bytes, bool]
    """By recorded entry: is it the same in the fleet?"""


_known: list[_Known] = []
"""The latest fleet that was asked for."""


def _fleet_reaches(scan: _Scan, fleet: Fleet) -> bool:
    """Return False if all agents of a request that went well are in the fleet unchanged."""
    if fleet.labels or fleet.carries or not scan.types <= _PLAIN:
        return True
    if not _known or _known[0].fleet is not fleet:
        _known[:] = [_Known(fleet, {})]
    same = _known[0].same
    for grounds in scan.grounds:
        if grounds.candidates or grounds.form or grounds.human != fleet.human:
            return True
        for raw in (bytes(grounds.sender), bytes(grounds.target)):
            if raw and raw not in same:
                same[raw] = _is_same(raw, fleet)
            if raw and not same[raw]:
                return True
    return False


def _is_same(raw: bytes, fleet: Fleet) -> bool:
    entry = _ENTRY.decode(raw)
    there = fleet.agents.get(entry.name)
    return there is not None and msgspec.structs.replace(there, description=entry.description) == entry
