"""The verdict on a submit: `request.opened` (the first agent's inbox message) or `request.refused`."""

import math

from protocol.domain import budget
from protocol.domain.admission import Rejected
from protocol.domain.case import passed, too_large
from protocol.domain.envelope import Draft, World
from protocol.domain.guardrails import guardrail_of_submit
from protocol.domain.ledger import Ledger
from protocol.domain.memory import Begun, begun, recalled_for, too_much
from protocol.domain.rules import breaker_open
from protocol.domain.steps import ClientUse
from protocol.wire.codec import encode
from protocol.wire.commands import Command, Submit
from protocol.wire.config import Policy, policy_hash
from protocol.wire.events import AnyEvent, FactsWithheld, RequestOpened, RequestRefused
from protocol.wire.handoff import TEXT_FACT, Constraints, Handoff, Refusal, Rule
from protocol.wire.ids import HUMAN, AgentName, submitted_ms

MIB = 1 << 20
AHEAD_S = 5 * 60
"""How far in the future a submitter's clock may be."""
MAX_SUMMARY_CHARS = 200
"""Longest summary: one line that a person can read at a glance."""


def stale_id(command: Command, world: World) -> Rejected | None:
    """Reject a new request whose id is from the future, or too old to be sure that it is new.

    An id may be half as old as the longest deadline, which is a quarter of the log's retention. So a first
    run under it would still be in the log. If the log has the request, the age of its id does not matter.
    """
    longest = world.grounds.longest_s
    if longest is None:
        return None
    age_s = (world.now - submitted_ms(command.request) * 1000) / 1e6
    if not -AHEAD_S <= age_s <= longest / 2:
        return Rejected("stale_id", "the ULID's time is too old or too far ahead; make a new id")
    return None


def over_quota(command: Command, use: ClientUse | None) -> Rejected | None:
    """Reject a new request of a client that has used up its quota of the log.

    This makes no event: a check that protects the log must not fill it.
    """
    if use is None:
        return None
    quota, who = use.quota, command.sender
    if use.open_requests >= quota.open_requests:
        reason = f"{who} has {use.open_requests} open requests of at most {quota.open_requests}"
        return Rejected(
            "over_quota",
            f"{reason} (quota.open_requests): wait until some are over, or cancel some; then submit",
        )
    most = quota.mib_per_hour * MIB
    if use.spent_bytes >= most:
        reason = f"{who}'s requests took more of the log than {quota.mib_per_hour:g} MiB an hour"
        wait_s = math.ceil((use.spent_bytes - most) / most * 3600) + 1
        return Rejected("over_quota", f"{reason} (quota.mib_per_hour): submit again in {wait_s} s")
    return None


def decide_submit(ledger: Ledger, command: Command, submit: Submit, world: World) -> AnyEvent:
    """Return the first event of a request, or the `facts.withheld` that must precede it."""
    policy, memory = world.policy, world.memory
    begins = begun(submit, ())
    handoff = _handoff(command.sender, submit, policy or Policy(), world, begins)
    refusal = _refusal(submit, policy, world, handoff)
    if memory and refusal is None and handoff is not None and policy is not None:
        begins = begun(submit, memory)
        handoff = _handoff(command.sender, submit, policy, world, begins) or handoff
        refusal = too_much(memory, len(encode(handoff)), policy.max_handoff_bytes)
    draft = Draft(ledger, world, command.cause, command.request)
    if refusal is not None or policy is None or handoff is None:
        rests_on_memory = refusal is not None and refusal.rule == Rule.MEMORY
        first = draft.withhold_from_client(command.sender, facts=memory if rests_on_memory else ())
        if first is not None:
            return first
        assert refusal is not None  # a missing policy or target has been refused
        return RequestRefused(
            **draft.envelope(RequestRefused, command.sender),
            client=command.sender,
            submit=submit,
            refusal=refusal,
            digest=command.digest,
            policy=policy,
        )
    opening = draft.opening(
        RequestOpened,
        handoff,
        begins.carried,
        path=(handoff.to_agent,),
        policy=policy,
        prices=world.prices or {},
        forked_from=submit.forked_from,
    )
    if isinstance(opening, FactsWithheld):
        return opening
    deadline = handoff.constraints.deadline
    assert deadline is not None  # by default the policy's
    return RequestOpened(
        **opening.envelope,
        work=opening.work,
        remembered=tuple(sorted(begins.remembered)),
        client=command.sender,
        asked=submit.constraints,
        digest=command.digest,
        policy=policy,
        policy_hash=policy_hash(policy),
        deadline=deadline,
        prices=world.prices or {},
        conversation=submit.conversation,
        grounds=world.grounds,
        rerun_of=submit.rerun_of,
        forked_from=submit.forked_from,
        continue_with=submit.continue_with,
        continued=world.continued,
    )


def _handoff(sender: str, submit: Submit, policy: Policy, world: World, begins: Begun) -> Handoff | None:
    """Return the handoff that a submit asks for, with nothing withheld; None without a target."""
    target = world.grounds.target
    if target is None:
        return None
    asked, fork = submit.constraints, submit.forked_from
    deadline = asked.ends_at(world.now)
    return Handoff(
        move="submit",
        from_agent=AgentName(sender),
        to_agent=target.name,
        summary=("" if fork is None else fork.summary) or _first_line(submit.text),
        intent=submit.intent,
        facts=begins.carried.fact_tuple,
        artifacts=begins.carried.artifact_tuple,
        constraints=Constraints(
            deadline=_default_deadline(policy, world) if deadline is None else deadline,
            allowed_actions=asked.allowed_actions,
            budget=budget.public(budget.grant(asked.budget, policy.budget or budget.UNLIMITED)),
            must_carry=tuple(sorted(set(asked.must_carry))),
            read_only=asked.read_only,
        ),
    )


def submit_of(ledger: Ledger, event: RequestOpened | RequestRefused) -> Submit:
    """Return the submit that `event` answers.

    Args:
        ledger: the request as it was before `event`, including what was withheld for it.
    """
    if isinstance(event, RequestRefused):
        return event.submit
    carried, handoff = ledger.carried_after(event), event.work.handoff
    memory = recalled_for(event, ledger.kept_back(event.cause))
    own = {TEXT_FACT, *(fact.key for fact in memory)}
    return Submit(
        text=carried.facts[TEXT_FACT].value,
        to=handoff.to_agent if event.continued is None else None,
        intent=handoff.intent,
        facts=tuple(fact for fact in carried.fact_tuple if fact.key not in own),
        artifacts=carried.artifact_tuple,
        constraints=event.asked,
        policy=event.policy.name,
        conversation=event.conversation,
        rerun_of=event.rerun_of,
        forked_from=event.forked_from,
        continue_with=event.continue_with,
    )


def _first_line(text: str) -> str:
    """Return the first line of a request's text as its summary. The whole text is a fact."""
    line = text.strip().splitlines()[0]
    return line if len(line) <= MAX_SUMMARY_CHARS else line[: MAX_SUMMARY_CHARS - 1] + "…"


def _default_deadline(policy: Policy, world: World) -> int:
    longest = world.grounds.longest_s
    span = policy.deadline_s if longest is None else min(policy.deadline_s, longest)
    return world.now + int(span * 1e6)


def _refusal(submit: Submit, policy: Policy | None, world: World, handoff: Handoff | None) -> Refusal | None:
    if policy is None:
        return Refusal(
            rule=Rule.KNOWN_POLICY,
            detail=f"there is no policy {submit.policy!r}",
            numbers={"policy": submit.policy},
            hint="leave `policy` out for `default`",
        )
    return (
        _unknown_agent(submit, world)
        or _unavailable(world)
        or _beyond(submit, policy, world)
        or (_against(handoff, policy) if handoff is not None else None)
    )


def _against(handoff: Handoff, policy: Policy) -> Refusal | None:
    """Refuse what is too large, or what the policy's guardrails forbid."""
    return too_large(handoff, policy) or guardrail_of_submit(policy, handoff)


def _unknown_agent(submit: Submit, world: World) -> Refusal | None:
    target = world.grounds.target
    if submit.to == HUMAN:
        detail = "a request begins with an agent; `human` is reached by `escalate` and `ask` only"
    elif target is None:
        detail = f"{submit.to!r} is not in the fleet"
    elif not target.takes(submit.intent):
        detail = f"{target.name} does not take the intent {submit.intent!r}"
    else:
        return None
    return Refusal(
        rule=Rule.KNOWN_AGENT,
        detail=detail,
        numbers={"target": submit.to},
        hint="leave `to` out for the entry agent",
    )


def _unavailable(world: World) -> Refusal | None:
    if world.grounds.breaker != "open":
        return None
    name = None if world.grounds.target is None else world.grounds.target.name
    return breaker_open(name, world.grounds, "submit again later")


def _beyond(submit: Submit, policy: Policy, world: World) -> Refusal | None:
    """Refuse a deadline that has passed or is too far ahead, a budget above the policy's, missing facts."""
    deadline = submit.constraints.ends_at(world.now)
    longest = world.grounds.longest_s
    if deadline is not None and deadline <= world.now:
        return passed(deadline, world.now)
    if deadline is not None and longest is not None and deadline > world.now + int(longest * 1e6):
        return Refusal(
            rule=Rule.CONSTRAINTS,
            detail=f"a request may take {longest:.0f} s at most, half of what the log keeps",
            numbers={"deadline": deadline, "longest_s": longest},
            hint="an earlier deadline",
        )
    over = budget.excess(submit.constraints.budget, policy.budget or budget.UNLIMITED)
    if over:
        return Refusal(
            rule=Rule.CONSTRAINTS,
            detail=f"more budget is asked for than policy {policy.name!r} gives: {', '.join(over)}",
            numbers={name: {"asked": want, "policy": have} for name, (want, have) in over.items()},
            hint="ask for less, or leave the budget out",
        )
    present = {TEXT_FACT, *(fact.key for fact in submit.facts)}
    missing = [key for key in submit.constraints.must_carry if key not in present]
    if missing:
        return Refusal(
            rule=Rule.CONSTRAINTS,
            detail=f"`must_carry` names facts that the request does not bring: {', '.join(missing)}",
            numbers={"keys": missing},
            hint="bring the facts, or leave their keys out",
        )
    return None
