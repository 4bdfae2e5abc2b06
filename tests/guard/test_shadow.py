"""A guard judges by shadows, too: it counts and stores what comes of it, and no verdict is another for it."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mesh.bus.reader import every
from mesh.bus.streams import SHADOW
from mesh.guard.service import Guard
from protocol.domain import rules
from protocol.domain.case import Case
from protocol.wire import events, subjects
from protocol.wire.config import Policy, policy_hash
from protocol.wire.handoff import Refusal, Rule
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Move, Transfer
from protocol.wire.shadow import Disagreement, ShadowCounts, ShadowEntry
from tests.guard.actor import Actor
from tests.guard.stage import Stage
from tests.logs import captured_logs, said
from tests.servers import PATIENCE_S, eventually, until

DONE = Complete(answer="done")
TO_B = Transfer(to_agent=AgentName("b"), summary="take it")
TO_C = Transfer(to_agent=AgentName("c"), summary="take it, you")
TIGHT = Policy(name="strict", max_refusals=0, max_retries=0, max_depth=1)
"""Admits one handoff; the policy of its name admits more."""


async def begin(stage: Stage, shadow: Policy | None, *guards: Guard) -> int:
    """Write a shadow of the policy `strict`; return its revision, once the guards have read it."""
    body = msgspec.json.encode(ShadowEntry(policy=shadow))
    seq = (await (await stage.bus("admin")).publish_durable(subjects.shadow("strict"), body)).seq

    def is_read() -> bool:
        read = [guard._context.shadows.get("strict") for guard in guards]
        return all((None if each is None else each.rev) == (seq if shadow else None) for each in read)

    await until(is_read)
    return seq


async def counted(stage: Stage, rev: int) -> list[ShadowCounts]:
    """Return the newest counts of each guard."""
    found: dict[str, ShadowCounts] = {}
    async for each in every(await stage.bus("op"), SHADOW, "mesh.shadow.strict.counts.*.*"):
        counts = msgspec.json.decode(each.data, type=ShadowCounts)
        if counts.rev == rev:
            found[counts.guard] = counts
    return list(found.values())


async def disagreements(stage: Stage, rev: int) -> list[Disagreement]:
    stored = every(await stage.bus("op"), SHADOW, "mesh.shadow.strict.differs.*.*")
    found = [msgspec.json.decode(each.data, type=Disagreement) async for each in stored]
    return [each for each in found if each.rev == rev]


async def adds_up(stage: Stage, rev: int, **wanted: int) -> None:
    """Wait until the counts of all guards add up to these."""

    async def there() -> bool:
        counts = await counted(stage, rev)
        return all(sum(getattr(each, name) for each in counts) == number for name, number in wanted.items())

    await eventually(there, PATIENCE_S)


async def handed_over(stage: Stage, policy: str = "strict") -> str:
    """Do a request of two handoffs; return its id. It takes four commands."""
    client = await stage.client()
    moves: dict[Actor, Move] = {
        await stage.actor("a"): TO_B,
        await stage.actor("b"): TO_C,
        await stage.actor("c"): DONE,
    }
    request = await client.submit("hello", policy=policy)
    for actor, move in moves.items():
        await actor.propose(request, await actor.work(request), move)
    assert (await client.wait(request, timeout_s=PATIENCE_S)).status == "completed"
    return request


async def test_what_a_shadow_would_have_decided_otherwise_is_stored_with_its_numbers(stage: Stage) -> None:
    guard = await stage.guard()
    rev = await begin(stage, TIGHT, guard)
    request = await handed_over(stage)
    await handed_over(stage, "default")  # it is of no shadow
    await adds_up(stage, rev, agreed=3, disagreed=1, dropped=0, failed=0)
    (found,) = await disagreements(stage, rev)
    log = await stage.log(request)
    _, event = [each for each in log if isinstance(each, events.HandoffAdmitted)]
    assert (found.request, found.n, found.at) == (request, event.n, event.at)
    assert (found.client, found.agent, found.to, found.digest) == ("c1", "b", "c", policy_hash(TIGHT))
    assert (found.was.type, found.would.type, found.would.rule) == (
        "handoff.admitted",
        "move.refused",
        "depth",
    )
    assert (found.numbers["depth"], found.numbers["max_depth"]) == (2, 1)
    await begin(stage, None, guard)
    await handed_over(stage)
    assert not guard.shadow._waiting
    await adds_up(stage, rev, agreed=3, disagreed=1)


def circle(*_: Any) -> None:
    for _number in itertools.count():
        pass


def broken(*_: Any) -> None:
    raise AssertionError("a rule that fails")


@pytest.mark.parametrize(
    ("wrong", "line", "failed", "stopped"),
    [
        (broken, "shadow_failed", 3, ""),  # later commands of the request rest on this one
        (circle, "shadow_stopped", 1, "guard.verdict_too_long"),
    ],
)
async def test_a_shadow_that_fails_or_goes_in_circles_is_counted_and_no_verdict_is_another(
    stage: Stage,
    wrong: Callable[..., Any],
    line: str,
    failed: int,
    stopped: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    depth = rules.RULES[Rule.DEPTH]

    def planted(case: Case) -> Refusal | None:
        if case.policy.max_depth == 1:
            wrong(case)
        return depth(case)

    monkeypatch.setitem(rules.RULES, Rule.DEPTH, planted)
    guard = await stage.guard()
    rev = await begin(stage, TIGHT, guard)
    with captured_logs() as lines:
        request = await handed_over(stage)
        await said(lines, line)
    await adds_up(stage, rev, failed=failed, disagreed=0)
    assert [each.stopped for each in await counted(stage, rev)] == [stopped]
    admitted = ["handoff.admitted"] * 2
    assert await stage.types(request) == ["request.opened", *admitted, "request.completed"]
    await handed_over(stage)  # the guard goes on
    assert stage.alive(guard)
    await begin(stage, None, guard)


async def test_a_shadow_that_lags_drops_and_counts_while_verdicts_go_on(stage: Stage) -> None:
    guard = await stage.guard()
    rev = await begin(stage, TIGHT, guard)
    guard.shadow._most_waiting = 2
    with guard.shadow.at_work:  # as if there was always something in hand
        await handed_over(stage)
        await adds_up(stage, rev, agreed=0, disagreed=0)
        assert len(guard.shadow._waiting) == 2
    await adds_up(stage, rev, agreed=2, disagreed=0, dropped=2)
    guard.shadow._most_waiting = 1_000
    await handed_over(stage)
    await adds_up(stage, rev, agreed=5, disagreed=1, dropped=2)
    await begin(stage, None, guard)


async def test_guards_judge_what_each_decides_also_of_a_request_that_another_began(stage: Stage) -> None:
    first = await stage.guard("first")
    rev = await begin(stage, TIGHT, first)
    client, a = await stage.client(), await stage.actor("a")
    request = await client.submit("hello", policy="strict")
    work = await a.work(request)
    await adds_up(stage, rev, agreed=1)
    await stage.dismiss(first)
    second = await stage.guard("second")
    await stage.ready(second)
    await a.propose(request, work, TO_B)
    for name, move in (("b", TO_C), ("c", DONE)):
        actor = await stage.actor(name)
        await actor.propose(request, await actor.work(request), move)
    await client.wait(request, timeout_s=PATIENCE_S)
    await adds_up(stage, rev, agreed=3, disagreed=1, dropped=0, failed=0)
    assert sorted(each.agreed for each in await counted(stage, rev)) == [1, 2]
    await begin(stage, None, second)


async def test_a_guard_that_leaves_counts_what_it_never_judged_as_dropped(stage: Stage) -> None:
    guard = await stage.guard("leaver")
    rev = await begin(stage, TIGHT, guard)
    with guard.shadow.at_work:
        await handed_over(stage)
        await stage.dismiss(guard)
        await adds_up(stage, rev, agreed=0, dropped=4)
    await begin(stage, None)
