"""SIGTERM, rolling restarts, two versions at once: nothing is lost, nothing done twice."""

import asyncio
import signal
from pathlib import Path

import pytest

from mesh.agent import _executor
from tests.servers import PATIENCE_S, until
from tests.trouble.crew import STEADY, Crew, Service, crew
from tests.trouble.wired import Wired


async def begun(own: Crew, agent: str, request: str, times: int = 1) -> list[str]:
    """Wait until an agent began a request's turn so often; return the versions that did."""

    def found() -> list[str]:
        return [line.split()[-1] for line in own.world() if line.startswith(f"began {agent} {request}")]

    await until(lambda: len(found()) >= times)
    return found()


async def test_sigterm_finishes_what_is_in_hand_and_takes_nothing_new(tmp_path: Path) -> None:
    async with crew(tmp_path, fleet=STEADY) as own:
        await own.guard("g1")
        a = await own.agent("a")
        await own.all_ready()
        client = await own.client()
        go = tmp_path / "go"
        request = await client.submit("please", facts={"wait": str(go)})
        await begun(own, "a", request)
        a.signal(signal.SIGTERM)
        await a.stands(lambda status, codes: status == 503 and "draining" in codes)
        later = await client.submit("please")
        go.touch()
        assert await a.ended() == 0
        assert [line for line in own.world() if line.startswith("ended a")] == [f"ended a {request} 1"]
        assert not any(later in line for line in own.world())
        await own.agent("a", "a-2")
        await own.agent("b")
        outcomes = [await client.wait(each, timeout_s=PATIENCE_S) for each in (request, later)]
        await own.drained()
        assert await begun(own, "a", request) == ["1"], "it was acknowledged, and does not come again"
        await own.audit(outcomes)


async def test_what_takes_longer_than_the_grace_goes_on_elsewhere_at_once(tmp_path: Path) -> None:
    async with crew(tmp_path, fleet=STEADY) as own:
        await own.guard("g1")
        reference = "tests.trouble.agents:a"
        first = await own.start("a", "a-1", ("agent", "run", reference, "--grace", "0.2"))
        await own.agent("b")
        await own.all_ready()
        client = await own.client()
        go = tmp_path / "go"
        request = await client.submit("please", facts={"wait": str(go)})
        await begun(own, "a", request)
        await own.paid(request)
        second = await own.agent("a", "a-2")
        await second.ready()
        first.signal(signal.SIGTERM)
        assert await first.ended() == 0
        await begun(own, "a", request, 2)
        assert not any(line.startswith("ended") for line in own.world())
        go.touch()
        outcome = await client.wait(request, timeout_s=PATIENCE_S)
        await own.drained()
        await own.audit([outcome])  # paid once: the second instance replayed the journal


async def test_a_rolling_restart_of_everything_under_load_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with crew(tmp_path) as own:
        own.environment["PACE_S"] = "0.3"

        async def start(name: str, identity: str) -> Service:
            return await (own.guard(identity) if name == "guard" else own.agent(name, identity))

        everybody = [(name, f"{name}-{number}") for name in ("guard", "a", "b") for number in (1, 2)]
        await asyncio.gather(*(start(*each) for each in everybody))
        await own.all_ready()
        client = await own.client()
        async with own.load(client, callers=6) as load:
            await load.reaches(6)
            for name, identity in everybody:
                old = own.services[identity]
                old.signal(signal.SIGTERM)
                assert await old.ended() == 0
                await (await start(name, identity)).ready()
                await load.reaches(6)
        await own.drained()
        await own.audit(load.outcomes)


async def test_two_versions_at_once_each_finish_what_they_began(tmp_path: Path) -> None:
    async with crew(tmp_path, fleet=STEADY) as own:
        own.environment["PACE_S"] = "0.02"
        await own.guard("g1")
        await own.agent("a", "a-old", VERSION="1")
        await own.agent("a", "a-new", VERSION="2")
        await own.agent("b")
        await own.all_ready()
        client = await own.client()
        async with own.load(client) as load:
            await load.reaches(40)
        await own.audit(load.outcomes)
        versions = {
            request: {line.split()[-1] for line in own.world() if f" a {request} " in line}
            for request in load.submitted
        }
        assert all(len(each) == 1 for each in versions.values()), versions
        assert {each for found in versions.values() for each in found} == {"1", "2"}


@pytest.mark.parametrize("wired", [STEADY], ids=["steady"], indirect=True)
async def test_a_turn_waits_for_its_own_version_and_for_no_longer_than_the_grace(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_executor, "VERSION_AGAIN_S", 0.05)
    await wired.guard("g1")
    await wired.agent("b")
    old = await wired.agent("a", "1")
    await wired.ready()
    client = await wired.client()
    wired.go.clear()
    request = await client.submit("please")
    await until(lambda: len(wired.deeds) == 1)
    new = await wired.agent("a", "2", version_grace_s=600)
    await wired.ready()
    await wired.dismiss(old)
    await until(lambda: len(new._executor._foreign) == 1)  # it has seen whose turn that is, and gives it back
    again = await wired.agent("a", "1")
    await until(lambda: len(wired.began) == 2)
    await wired.agent("a", "3", version_grace_s=0)
    await wired.ready()
    await wired.dismiss(again)
    await until(lambda: len(wired.began) == 3)
    wired.go.set()
    await wired.audit([await client.wait(request, timeout_s=PATIENCE_S)])
    assert wired.began == ["1", "1", "3"]
