"""What a client may have of the log: open requests and bytes, counted by each guard, forgotten by none."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from mesh.client import SubmitRejected
from protocol.wire.config import Quota
from protocol.wire.ids import AgentName, RequestId
from protocol.wire.moves import Complete
from tests.guard.stage import FLEET, Stage, furnished_mesh, staged
from tests.servers import PATIENCE_S, eventually, until

MOST = 3


@contextlib.asynccontextmanager
async def stage_with(directory: Path, *, guards: int = 1, **quota: float) -> AsyncIterator[Stage]:
    """Yield a stage on a mesh of its own, where `c1` has this quota and `c2` the usual one."""
    fleet = msgspec.structs.replace(FLEET, quotas={AgentName("c1"): Quota(**quota)})  # type: ignore[arg-type]
    async with furnished_mesh(directory, fleet) as mesh, staged(mesh, guards=guards) as stage:
        yield stage


async def opened(stage: Stage, count: int, client: str = "c1") -> list[RequestId]:
    own = await stage.client(client)
    requests = [await own.submit("Where?") for _ in range(count)]
    for request in requests:
        await stage.reaches(request, "request.opened")
        await eventually(partial(is_scheduled, stage, request))
    return requests


async def is_scheduled(stage: Stage, request: str) -> bool:
    return await stage.schedule(request) is not None


async def rejected(stage: Stage, client: str = "c1") -> str:
    """Submit what is refused; return why. Nothing of it may be in the log."""
    own, before = await stage.client(client), await stage.last_seq("LOG")
    request = await own.submit("Where?")
    with pytest.raises(SubmitRejected) as wrong:
        await own.wait(request, timeout_s=PATIENCE_S)
    assert wrong.value.reason == "over_quota"
    letter = await stage.buried("over_quota", request=request)
    assert await stage.last_seq("LOG") == before
    return letter.detail


async def test_a_client_has_so_many_open_requests_and_more_when_one_is_over(tmp_path: Path) -> None:
    async with stage_with(tmp_path, open_requests=MOST) as stage:
        first, *_ = await opened(stage, MOST)
        told = await rejected(stage)
        assert "c1 has 3 open requests of at most 3 (quota.open_requests)" in told
        await opened(stage, MOST + 1, "c2")
        await (await stage.client()).cancel(first)
        await stage.reaches(first, "request.cancelled")
        await opened(stage, 1)
        await rejected(stage)


async def test_a_guard_that_starts_knows_what_is_open(tmp_path: Path) -> None:
    async with stage_with(tmp_path, open_requests=MOST) as stage:
        await opened(stage, MOST)
        for guard in list(stage._guards):
            await stage.dismiss(guard)
        await stage.ready(await stage.guard("later"))
        assert "quota.open_requests" in await rejected(stage)


async def test_what_is_over_counts_no_more_though_its_schedule_stands(tmp_path: Path) -> None:
    async with stage_with(tmp_path, open_requests=MOST) as stage:
        actor = await stage.actor("a")
        for request in await opened(stage, MOST):
            await actor.propose(request, await actor.work(request), Complete(answer="here"))
            await stage.reaches(request, "request.completed")
            assert await is_scheduled(stage, request)
        for guard in list(stage._guards):
            await stage.dismiss(guard)
        await stage.ready(await stage.guard("later"))
        await opened(stage, MOST)
        await rejected(stage)


async def test_a_guard_that_counts_knows_what_another_opened(tmp_path: Path) -> None:
    async with stage_with(tmp_path, guards=2, open_requests=MOST) as stage:
        for guard in stage._guards:  # whichever of them hears the next submit has counted before
            await guard._context.quotas.counted("c1")
        await opened(stage, MOST)
        for guard in stage._guards:
            guard._context.quotas._client("c1").count_again_at = None
            assert (await guard._context.quotas.counted("c1")).open_requests == MOST


async def test_a_client_has_so_many_bytes_an_hour_and_more_as_it_passes(tmp_path: Path) -> None:
    async with stage_with(tmp_path, mib_per_hour=0.0001) as stage:
        (guard,) = stage._guards
        quotas, passed = guard._context.quotas, 0.0
        clock = quotas._clock
        quotas._clock = lambda: clock() + passed
        await opened(stage, 1)
        told = await rejected(stage)
        assert "0.0001 MiB an hour (quota.mib_per_hour)" in told
        await opened(stage, 2, "c2")
        passed = 1000 * 3600.0
        await opened(stage, 1)
        await rejected(stage)


async def test_a_refused_submit_may_be_sent_again_as_it_is(tmp_path: Path) -> None:
    async with stage_with(tmp_path, open_requests=1) as stage:
        client = await stage.client()
        (first,) = await opened(stage, 1)
        again = client.new_id()
        await client.submit("Where?", request=again)
        await stage.buried("over_quota", request=again)
        await client.cancel(first)
        await stage.reaches(first, "request.cancelled")
        await until(lambda: client.rejection(again) is not None)
        await client.submit("Where?", request=again)
        await stage.reaches(again, "request.opened")
        assert client.rejection(again) is None
        await client.cancel(again)
        assert (await client.wait(again, timeout_s=PATIENCE_S)).status == "cancelled"


async def test_what_was_decided_before_is_no_new_request(tmp_path: Path) -> None:
    async with stage_with(tmp_path, open_requests=1) as stage:
        client = await stage.client()
        (first,) = await opened(stage, 1)
        notices = await stage.notices("c1")
        await client.submit("Where?", request=first)

        async def told() -> bool:
            return any(each.request == first and each.ended is not None for each in notices)

        await eventually(told)
        assert (await stage.types(first))[0] == "request.opened"
