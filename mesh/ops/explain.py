"""The text of `mesh why`: the basis of a verdict, and what would have been allowed.

Everything is read from the log; nothing is judged again here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mesh.errors import NotFound
from mesh.ops.words import channel, code_of, waits
from mesh.service.printable import counted, one_line, when
from protocol.domain.ledger import Ledger, fold
from protocol.domain.rules import RULES_FOR
from protocol.domain.turns import TurnState
from protocol.domain.verdict import message_of
from protocol.views.timeline import named, timeline
from protocol.views.tree import ErrorLevel, TreeNode, flat, levels_of
from protocol.wire import events
from protocol.wire.commands import MoveProposed
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.event_parts import Candidate, Grounds
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.handoff import FALLBACK, Budget


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict and its grounds."""

    request: str
    rerun_of: str | None
    forked_from: str | None
    """The request that this one does again."""
    n: int
    at: int
    """In UTC µs."""
    type: str
    verdict: str
    """`admitted`, `refused`, `deferred` or `recorded`."""
    who: str
    to: str | None
    move: str
    summary: str
    rule: str | None
    detail: str | None
    failure: str | None
    """The message of the failed turn that led to this escalation."""
    numbers: dict[str, Any]
    hint: str | None
    """What would be allowed instead."""
    path: tuple[str, ...]
    """The holders when the verdict was given."""
    depth: int
    edges: tuple[tuple[str, str], ...]
    """The edges of this segment until then, giver to receiver."""
    grounds: Grounds | None
    policy: dict[str, Any]
    """All its numbers, including defaults."""
    rules: tuple[str, ...]
    """Rules that judged the move, in order; the first that refuses names the refusal."""
    followed: str
    """What happened next."""
    channel: tuple[ErrorLevel, ...] = ()
    """A failed task's error at each level, its own first and the origin last."""
    version: str = ""
    """Version of the agent that asked for it, as it reported."""
    build: str = ""
    """The build of that agent's code, as it reported it."""
    tree: tuple[TreeNode, ...] = ()
    """The current tasks of the whole request, if it is open and leads wait for them."""


def explain(happened: Sequence[AnyEvent], n: int | None = None) -> Explanation:
    """Return why event `n` is what it is.

    By default, that is the newest refusal, failed task, plan of a lead that still waits, or effect that is
    still in doubt. If there is none, it is the last verdict.

    Raises NotFound if there is no such event.
    """
    now = timeline(happened)
    waiting = {node.turn for node in flat(now.tree) if node.join is not None}
    waiting |= {turn.id for turn in fold(happened).open.values() if turn.state == "doubted"}
    event = _chosen(happened, n, waiting)
    before = fold(happened[: event.n])
    story = timeline(happened[: event.n + 1])
    shown = next((move for move in story.moves if move.seq == event.n), None)
    refusal = event.refusal
    turn = before.turns.get(event.turn) or before.root
    segment = None if turn is None else turn.segment
    path = () if segment is None or turn is None else turn.path if turn.task else segment.names
    policy = before.policy
    if isinstance(event, events.RequestOpened | events.RequestRefused):
        policy = event.policy or Policy()
    grounds = before.grounds_of(event)
    ran = fold(happened[: event.n + 1]).turns.get(event.turn)  # a client's event has no report
    return Explanation(
        request=event.request,
        rerun_of=story.rerun_of,
        forked_from=None if story.forked_from is None else story.forked_from.request,
        n=event.n,
        at=event.at,
        type=type_of(event),
        verdict="recorded" if shown is None else shown.verdict,
        who="guard" if shown is None else named(shown.from_, shown.sender),
        to=None if shown is None else shown.to,
        move=type_of(event) if shown is None else shown.move,
        summary="" if shown is None else shown.summary,
        rule=None if refusal is None else str(refusal.rule),
        detail=refusal.detail if refusal is not None else None if shown is None else shown.detail,
        failure=_failure(happened, event),
        numbers={} if refusal is None else dict(refusal.numbers),
        hint=None if refusal is None else refusal.hint or None,
        path=path,
        depth=0 if segment is None else segment.depth,
        edges=() if segment is None else tuple(sorted(segment.edges)),
        grounds=grounds,
        policy=msgspec.structs.asdict(policy),
        rules=_rules(before, event),
        followed=_followed(happened, event),
        channel=tuple(levels_of(event.error)) if isinstance(event, events.TaskFailed) else (),
        version="" if ran is None else ran.report.version,
        build="" if ran is None else ran.report.build,
        tree=now.tree if now.status == "open" else (),
    )


def _chosen(happened: Sequence[AnyEvent], n: int | None, waiting: Collection[str]) -> AnyEvent:
    if n is not None:
        if not 0 <= n < len(happened):
            raise NotFound(f"there is no event {n}; this request has 0 to {len(happened) - 1}")
        return happened[n]
    notable = [event for event in happened if event.refusal is not None or _is_notable(event, waiting)]
    if notable:
        return notable[-1]
    verdicts = [event for event in happened if isinstance(event, events.Verdict)]
    if not verdicts:
        raise NotFound("no verdict was given in this request yet")
    return verdicts[-1]


def _is_notable(event: AnyEvent, waiting: Collection[str]) -> bool:
    if isinstance(event, events.TurnDelegated | events.EffectDoubted):
        return event.turn in waiting
    return isinstance(event, events.TaskFailed)


def _failure(happened: Sequence[AnyEvent], event: AnyEvent) -> str | None:
    """Return the message of the failure that an escalation or a fallback followed."""
    fell_back = isinstance(event, events.HandoffAdmitted) and event.work.handoff.move == FALLBACK
    if not (fell_back or isinstance(event, events.EscalationRaised)):
        return None
    failed = [
        each.error
        for each in happened[: event.n]
        if isinstance(each, events.TurnFailed) and each.turn == event.turn
    ]
    if isinstance(event, events.EscalationRaised):
        failed = [error for error in failed if error.code == event.reason and error is failed[-1]]
    return failed[-1].message or None if failed else None


def last_trouble(turn: TurnState, happened: Sequence[AnyEvent]) -> str:
    """Return why a turn's last round had no result; empty if it asked for a person itself."""
    if turn.reason == "asked":
        return ""
    for event in reversed(happened):
        if event.turn == turn.id and isinstance(event, events.TurnFailed):
            return event.error.message or event.error.code
        if event.turn == turn.id and isinstance(event, events.MoveRefused):
            return f"refused by rule `{event.refusal.rule}`: {event.refusal.detail}"
    return ""


def _rules(before: Ledger, event: AnyEvent) -> tuple[str, ...]:
    """Return the rules that judged a move, in order; empty if the event was not proposed.

    Args:
        before: the request before `event`.
    """
    command = None if isinstance(event, events.MoveDeferred) else message_of(before, event)
    if command is None or not isinstance(command.what, MoveProposed):
        return ()
    return tuple(map(str, RULES_FOR.get(type(command.what.move), ())))


def _followed(happened: Sequence[AnyEvent], event: AnyEvent) -> str:
    work = event.work
    if isinstance(event, events.MoveRefused):
        if work is not None:
            return f"{event.to} ran again, in round {work.round}, and was told of it"
        return "the turn had no round left for refusals" + (
            "; it was escalated" if len(happened) > event.n + 1 else ""
        )
    if isinstance(event, events.Ended):
        return "the request ended"
    if isinstance(event, events.TurnDelegated):
        return f"{counted(len(event.tasks), 'task')} and a wait for {event.join}"
    if work is not None:
        return f"{event.to} got the work"
    return ""


# --- in words -------------------------------------------------------------------------------------


def sentences(why: Explanation) -> Iterator[str]:
    """Yield the reasons, one or two sentences per line. A quoted text never breaks its line."""
    for sentence in _sentences(why):
        yield one_line(sentence)


def _sentences(why: Explanation) -> Iterator[str]:
    asked = f"{why.move} to {why.to}" if why.to else why.move
    yield f"{why.request}, event {why.n} ({why.type}) at {when(why.at)}."
    if why.rerun_of is not None:
        yield f"It does {why.rerun_of} again."
    if why.forked_from is not None:
        yield f"It goes on from {why.forked_from}."
    move = f"{asked} ({why.summary})" if why.summary else asked
    yield f"{why.who}: {move}." if why.verdict == "recorded" else f"{why.who} asked for: {move}."
    if ran := code_of(why.version, why.build):
        yield f"The agent ran {ran}."
    yield from _verdict(why)
    for place, level in enumerate(why.channel):
        yield f"{'The task failed' if not place else 'It came from'}: {channel(level)}."
    for node in flat(why.tree):
        if node.join is not None:
            states = "; ".join(_state(task) for task in node.tasks if task.is_open)
            lead = f"{node.agent} (task {node.name})" if node.name else node.agent
            yield f"{lead} {waits(node)}. {states}."
    if why.path:
        hops = counted(why.depth, "hop") if why.depth else "no hop"
        far = f"{hops} of at most {why.policy['max_depth']}"
        if _is_tree(why.policy):
            far = f"level {len(why.path)} of at most {why.policy['max_levels']}"
        yield f"The path then: {' → '.join(why.path)}; {far}."
    if why.edges:
        taken = ", ".join(f"{giver} → {taker}" for giver, taker in why.edges)
        yield f"Handed over in this segment until then: {taken}."
    if why.grounds is not None:
        yield from _grounds(why.grounds)
    yield f"Policy {why.policy['name']!r}, version {why.policy['version']}: {_numbers_of(why.policy)}."
    if why.followed:
        yield f"What came of it: {why.followed}."


def _state(task: TreeNode) -> str:
    """Return why a task is not done."""
    state = _STATES.get(task.status, task.status).format(task.agent)
    return f"{task.name}: {state}, since {when(task.began)}"


_STATES = {
    "planned": "{} is not given it yet",
    "offered": "nobody has claimed it",
    "working": "{} works on it",
    "delegated": "{} waits for tasks of its own",
    "suspended": "{} has asked a question",
    "failed": "the turn of {} failed and is tried again",
    "refused": "the turn of {} has no round left",
    "doubted": "an effect of {} is in doubt",
}
"""Why an open task is not done, by its status."""


def _verdict(why: Explanation) -> Iterator[str]:
    if why.rule is not None:
        yield f"Refused by rule `{why.rule}`: {why.detail}."
        if why.numbers:
            numbers = ", ".join(f"{key} = {_shown(value)}" for key, value in why.numbers.items())
            yield f"Numbers: {numbers}."
        if why.hint:
            yield f"What would be allowed: {why.hint}."
    elif why.verdict == "admitted" and why.rules:
        yield f"Admitted: none of the rules that judge this move refused it ({', '.join(why.rules)})."
    elif why.verdict == "admitted":
        yield "Admitted."
    elif why.verdict == "deferred":
        yield "Deferred: the request is frozen. It is judged by every rule after the thaw."
    else:
        yield "Recorded; no rule judges this" + (f": {why.detail}." if why.detail else ".")
    if why.failure:
        yield f"The turn had failed: {why.failure.rstrip('.')}."


def _grounds(grounds: Grounds) -> Iterator[str]:
    yield f"It rested on fleet revision {grounds.fleet}" + (
        "; people read the human queue." if grounds.human else "; nobody reads a human queue."
    )
    if grounds.sender is not None:
        yield f"The sender, as the fleet file has it: {_entry(grounds.sender)}."
    if grounds.target is not None:
        yield f"The target: {_entry(grounds.target)}; its breaker was {grounds.breaker}."
    if grounds.candidates:
        yield f"Who could have had a task: {', '.join(map(_candidate, grounds.candidates))}."


def _candidate(one: Candidate) -> str:
    states = ["served" if one.served else "nobody serves it", f"breaker {one.breaker}"]
    states += ["took the offer and did not claim it"] if one.took else []
    return f"{one.entry.name} ({', '.join(states)})"


def _entry(entry: AgentEntry) -> str:
    parts = [f"{entry.name}"]
    parts.append("may hand to anybody" if entry.to is None else f"may hand to {_listed(entry.to)}")
    parts.append("takes every intent" if entry.intents is None else f"takes intents {_listed(entry.intents)}")
    parts.append("every action" if entry.actions is None else f"actions {_listed(entry.actions)}")
    parts.append(f"sees labels {_listed(entry.clearance)}")
    return ", ".join(parts)


def _listed(names: Sequence[str]) -> str:
    return "/".join(names) or "none"


def _numbers_of(policy: Mapping[str, Any]) -> str:
    shown = ("max_refusals", "max_retries", "max_asks", "max_escalations", "max_handoff_bytes")
    first = _TREE_NUMBERS if _is_tree(policy) else ("max_depth",)
    numbers = [f"{name} = {policy[name]}" for name in (*first, *shown)]
    if policy["budget"] is not None:
        numbers += [f"budget = {_granted(policy['budget'])}", f"on_budget = {policy['on_budget']}"]
    return ", ".join(numbers)


_TREE_NUMBERS = ("max_levels", "max_open_tasks", "max_tasks", "max_revisions", "keep_back")


def _is_tree(policy: Mapping[str, Any]) -> bool:
    return bool(policy["topology"] != "handoff")


def _granted(grant: Budget) -> str:
    amounts = [] if grant.nano_dollars is None else [f"{grant.nano_dollars / 1e9:.6f} dollars"]
    amounts += [] if grant.tokens is None else [counted(grant.tokens, "token")]
    amounts += [] if grant.model_calls is None else [counted(grant.model_calls, "model call")]
    return " and ".join(amounts) or "no limit"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " → ".join(map(str, value))
    return str(value)
