"""The oracle's opinion on a submit: the rule that refuses it, or what the entry agent is given."""

from typing import TypeVar

import msgspec

from protocol.wire import events as ev
from protocol.wire.commands import Submit
from protocol.wire.config import AgentEntry, Policy
from protocol.wire.event_parts import Grounds
from protocol.wire.handoff import Artifact, Budget, Constraints, Fact, Handoff
from tests.unit.protocol.oracle.account import DIMENSIONS, canonical, same
from tests.unit.protocol.oracle.giving import as_shown, differing, ends_at, shown_budget
from tests.unit.protocol.oracle.guardrails import Given, is_against

SUMMARY_CHARS = 200
T = TypeVar("T", Fact, Artifact)


def submit_complaints(
    submit: Submit,
    event: ev.RequestOpened | ev.RequestRefused,
    grounds: Grounds | None,
    memory: tuple[Fact, ...] = (),
) -> list[str]:
    """Return what is wrong with the verdict on a submit; nothing if it is right.

    Args:
        memory: what the event says that its conversation remembers.
    """
    if grounds is None:
        return [f"{type(event).__name__} says not what it rests on"]
    rule = _rule(submit, event.policy, grounds, event.at, event.client)
    if rule is None and memory and event.policy is not None and grounds.target is not None:
        begun = _whole(submit, event.policy, grounds.target, grounds, event.at, event.client, memory)
        if len(memory) > 64 or len(canonical(begun)) > event.policy.max_handoff_bytes:
            rule = "memory"
    if isinstance(event, ev.RequestRefused):
        if rule is None:
            return [f"refused by {event.refusal.rule}, though no rule forbids it"]
        if rule != event.refusal.rule:
            return [f"refused by {event.refusal.rule}, though {rule} comes first"]
        return [] if same(event.submit, submit) else ["refuses another submit"]
    if rule is not None:
        return [f"opened, though {rule} forbids it"]
    target = event.grounds.target
    assert target is not None  # else known_agent forbids it
    whole = _whole(submit, event.policy, target, event.grounds, event.at, event.client, memory)
    expected, given = as_shown(whole, target.clearance), event.work.handoff
    found = [] if same(given, expected) else [f"hands over another {differing(given, expected)}"]
    if event.deadline != whole.constraints.deadline:
        found.append("has another deadline")
    if (event.to, list(event.work.path), event.work.depth) != (target.name, [target.name], 0):
        found.append("begins elsewhere")
    return found


def _rule(submit: Submit, policy: Policy | None, grounds: Grounds, at: int, client: str) -> str | None:
    target = grounds.target
    if policy is None:
        return "known_policy"
    if submit.to == "human" or target is None or submit.to not in (None, target.name):
        return "known_agent"
    if submit.intent is not None and target.intents is not None and submit.intent not in target.intents:
        return "known_agent"
    if grounds.breaker == "open":
        return "agent_available"
    if _asks_too_much(submit, policy, grounds, at):
        return "constraints"
    whole = _whole(submit, policy, target, grounds, at, client)
    if len(canonical(whole)) > policy.max_handoff_bytes:
        return "size"
    given = Given("submit", target.name, None, whole.facts, (), whole.facts)
    return "guardrail" if any(is_against(each, given) for each in policy.guardrails) else None


def _asks_too_much(submit: Submit, policy: Policy, grounds: Grounds, at: int) -> bool:
    asked = submit.constraints
    end = ends_at(asked, at)
    if end is not None and (end <= at or _is_beyond(end, grounds, at)):
        return True
    given, wanted = policy.budget or Budget(), asked.budget or Budget()
    for name in DIMENSIONS:
        most, want = getattr(given, name), getattr(wanted, name)
        if most is not None and want is not None and want > most:
            return True
    return not set(asked.must_carry) <= {"text", *(fact.key for fact in submit.facts)}


def _is_beyond(end: int, grounds: Grounds, at: int) -> bool:
    return grounds.longest_s is not None and end > at + int(grounds.longest_s * 1e6)


def _whole(
    submit: Submit,
    policy: Policy,
    target: AgentEntry,
    grounds: Grounds,
    at: int,
    client: str,
    memory: tuple[Fact, ...] = (),
) -> Handoff:
    """Return the whole handoff that a submit stands for, nothing withheld."""
    asked, given = submit.constraints, policy.budget or Budget()
    longest = [policy.deadline_s, *([] if grounds.longest_s is None else [grounds.longest_s])]
    end = ends_at(asked, at)
    wanted = asked.budget or Budget()
    granted = Budget(
        **{
            name: getattr(given, name) if getattr(wanted, name) is None else getattr(wanted, name)
            for name in DIMENSIONS
        }
    )
    first = submit.text.strip().splitlines()[0]
    facts = {fact.key: fact for fact in (*memory, Fact(key="text", value=submit.text), *submit.facts)}
    things: dict[str, Artifact] = {item.name: item for item in submit.artifacts}
    return Handoff(
        move="submit",
        from_agent=client,  # type: ignore[arg-type]
        to_agent=target.name,
        summary=first if len(first) <= SUMMARY_CHARS else first[: SUMMARY_CHARS - 1] + "…",
        intent=submit.intent,
        facts=tuple(_sorted_labels(facts[key]) for key in sorted(facts)),
        artifacts=tuple(_sorted_labels(things[name]) for name in sorted(things)),
        constraints=Constraints(
            deadline=at + int(min(longest) * 1e6) if end is None else end,
            allowed_actions=asked.allowed_actions,
            budget=shown_budget(granted),
            must_carry=tuple(sorted(set(asked.must_carry))),
        ),
    )


def _sorted_labels(item: T) -> T:
    return msgspec.structs.replace(item, labels=tuple(sorted(set(item.labels))))
