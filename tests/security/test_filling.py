"""Attacks by what is allowed: valid messages without an end. Each is tried without its bound, too."""

from pathlib import Path

import msgspec
import pytest

from protocol.wire import subjects
from protocol.wire.commands import FactsPost
from protocol.wire.config import Policy
from protocol.wire.handoff import Fact
from protocol.wire.ids import TurnId
from tests.guard.stage import Stage
from tests.guard.test_quotas import stage_with

MOST, TRIED = 5, 12
"""A bound, and how often it is tried."""


@pytest.mark.parametrize("bound", [MOST, 10_000])
async def test_a_client_that_submits_without_an_end_fills_no_log(tmp_path: Path, bound: int) -> None:
    async with stage_with(tmp_path, open_requests=bound) as stage:
        attacker, other = await stage.client("c1"), await stage.client("c2")
        requests = []
        for _ in range(TRIED):
            requests.append(await attacker.submit("x" * 1000))
            await stage.drained("PROP")
        assert len([each for each in requests if await stage.types(each)]) == min(bound, TRIED)
        assert await stage.reaches(await other.submit("hello"), "request.opened")


@pytest.mark.parametrize("bound", [MOST, 1_000])
async def test_a_turn_that_posts_without_an_end_fills_no_log(tmp_path: Path, bound: int) -> None:
    async with stage_with(tmp_path) as stage:
        await write(stage, Policy(name="posting", topology="swarm", max_posts=bound))
        attacker, client = await stage.actor("a"), await stage.client("c1")
        request = await client.submit("hello", policy="posting")
        work = await attacker.work(request)
        for number in range(TRIED):
            fact = Fact(key=f"k{number}", value="x" * 1000)
            await attacker.say(
                request, FactsPost(turn=TurnId(work.turn), round=0, post=number, facts=(fact,))
            )
        await stage.drained("PROP")
        assert (await stage.types(request)).count("facts.posted") == min(bound, TRIED)


async def write(stage: Stage, policy: Policy) -> None:
    admin = await stage.bus("admin")
    await admin.publish_durable(subjects.policy(policy.name), msgspec.json.encode(policy))
