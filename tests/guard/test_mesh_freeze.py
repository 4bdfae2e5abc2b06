"""A freeze of the whole mesh throws no finished work away: no clock but a deadline runs meanwhile."""

import msgspec

from protocol.wire import events, subjects
from protocol.wire.commands import Freeze, OfferClaimed, Thaw
from protocol.wire.config import Policy
from protocol.wire.moves import Complete, Delegate, Task
from tests.guard.stage import Stage, wall_clock_us
from tests.guard.test_swarm import FURNISHED  # noqa: F401  # the server is furnished with it
from tests.servers import PATIENCE_S, until

HASTY_S = 2.0


async def write(stage: Stage, policy: Policy) -> None:
    admin = await stage.bus("admin")
    await admin.publish_durable(subjects.policy(policy.name), msgspec.json.encode(policy))


async def frozen(stage: Stage) -> None:
    await stage.control(subjects.MESH_WIDE, Freeze(id="stop"))
    for guard in stage._guards:
        await guard._context.frozen.wait()


async def thawed(stage: Stage) -> None:
    await stage.control(subjects.MESH_WIDE, Thaw(id="go-on"))
    for guard in stage._guards:
        await guard._context.thawed.wait()


async def test_moves_that_were_made_during_a_freeze_longer_than_a_round_count_after_it(stage: Stage) -> None:
    await write(stage, Policy(name="hasty", turn_timeout_s=HASTY_S))
    for name in ("one", "two"):
        await stage.ready(await stage.guard(name))
    client, a = await stage.client(), await stage.actor("a", served=True)
    requests = [await client.submit(f"job {n}", policy="hasty") for n in range(20)]
    works = [await a.work(request) for request in requests]
    await frozen(stage)
    for request, work in zip(requests, works, strict=True):
        await a.propose(request, work, Complete(answer="done"))
    over = wall_clock_us() + round(2 * HASTY_S * 1e6)
    await until(lambda: wall_clock_us() > over)
    await thawed(stage)
    for request in requests:
        assert (await client.wait(request, timeout_s=PATIENCE_S)).answer == "done"
        assert await stage.types(request) == ["request.opened", "request.completed"]
        (span,) = [span for event in await stage.log(request) for span in event.stood]
        assert span.until - span.since >= 2 * HASTY_S * 1e6


async def test_an_offer_stands_while_the_mesh_is_frozen_between_it_and_its_claim(
    stage: Stage,
) -> None:
    await write(stage, Policy(name="claimed", topology="swarm", claim_within_s=5.0))
    await stage.ready(await stage.guard("one"))
    client, a = await stage.client(), await stage.actor("a", served=True)
    await stage.actor("b", served=True)
    request = await client.submit("hello", policy="claimed")
    task = Task(name="one", summary="one", intent="read")
    await a.propose(request, await a.work(request), Delegate(tasks=(task,)))
    offered = await stage.reached(request, events.TaskOffered)
    await frozen(stage)
    await until(lambda: wall_clock_us() > offered.claim_by + 1_000_000)
    await thawed(stage)
    b = await stage.actor("b")
    await b.say(request, OfferClaimed(turn=offered.offer.turn, round=0))
    assert (await stage.reached(request, events.TaskOpened)).to == "b"
