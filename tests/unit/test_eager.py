"""Work that begins at once runs up to its first wait, and is a task from there on."""

import asyncio

import pytest

from mesh.tasks import eager


class Work:
    """Waits once or not at all, and says what it has done."""

    def __init__(self, awaited: "asyncio.Future[int] | None" = None) -> None:
        self.awaited = awaited
        self.did: list[str] = []

    async def run(self) -> int:
        self.did.append("began")
        try:
            got = 0 if self.awaited is None else await self.awaited
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.did.append("cancelled")
            raise
        self.did.append("ended")
        return got


async def test_it_has_run_up_to_its_first_wait_and_goes_on_by_itself() -> None:
    awaited = asyncio.get_running_loop().create_future()
    work = Work(awaited)
    result = eager(work.run())
    assert work.did == ["began"]
    awaited.set_result(7)
    assert await result == 7
    assert work.did == ["began", "ended"]


async def test_work_that_waits_for_nothing_is_done_at_once() -> None:
    async def at_once() -> int:
        return 7

    result = eager(at_once())
    assert result.done()
    assert await result == 7


async def test_what_it_waited_for_may_be_done_before_its_task_begins() -> None:
    awaited = asyncio.get_running_loop().create_future()
    result = eager(Work(awaited).run())
    awaited.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await result


async def test_it_hears_of_being_cancelled_before_its_task_begins() -> None:
    work = Work(asyncio.get_running_loop().create_future())
    result = eager(work.run())
    result.cancel()
    with pytest.raises(asyncio.CancelledError):
        await result
    assert work.did == ["began", "cancelled"]


async def test_an_error_of_its_first_part_is_the_results() -> None:
    async def breaks() -> int:
        raise ValueError("no")

    result = eager(breaks())
    with pytest.raises(ValueError, match="no"):
        await result


async def test_it_can_be_cancelled_where_it_waits_first() -> None:
    awaited = asyncio.get_running_loop().create_future()
    work = Work(awaited)
    result = eager(work.run())
    await asyncio.sleep(0)
    result.cancel()
    with pytest.raises(asyncio.CancelledError):
        await result
    assert work.did == ["began", "cancelled"]
    assert awaited.cancelled()


async def test_nothing_is_said_of_an_error_that_nobody_asks_for(caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(waits: bool) -> int:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("no")

    for waits in (False, True):
        result = eager(breaks(waits))
        await asyncio.wait([result])
        del result
    assert not caplog.records
