"""A broker that is late, dies, hangs or is full slows things down and is said once; nothing is lost."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import msgspec
import pytest

from mesh.bus.streams import Storage, queue_consumers
from mesh.errors import StreamFull
from protocol.wire.subjects import step
from tests.servers import PATIENCE_S, eventually
from tests.trouble.crew import FLEET, Crew, crew, furnish

FILLER = bytes(60_000)


async def everybody(own: Crew) -> None:
    """Start a guard and both agents, and wait until they take work."""
    await own.guard("g1")
    await own.agent("a")
    await own.agent("b")
    await own.all_ready()


async def test_services_that_are_there_before_the_broker_wait_for_it(tmp_path: Path) -> None:
    async with crew(tmp_path, provision=False) as own:
        await own.mesh.server.start()  # for its port and the keys; it goes before anybody comes
        await own.mesh.server.kill()
        for start in (own.guard("g1"), own.agent("a"), own.agent("b")):
            service = await start
            await service.says("bus_awaited")
            assert await service.probe("/healthz") == (200, {"alive": True})
            assert await service.reasons() == ["bus_awaited"]
        await own.mesh.server.start()  # without a stream in it
        for service in own.services.values():
            await service.says("bus_found")
            await service.stands(lambda status, codes: status == 503 and "nobody_answers" in codes)
        await own.mesh.server.kill()  # while they wait for the fleet: they begin to wait anew
        for service in own.services.values():
            await service.stands(lambda status, codes: "bus_disconnected" in codes)
        await own.mesh.start()
        await furnish(own.mesh)
        await own.all_ready()
        client = await own.client()
        await own.audit([await client.wait(await client.submit("please"), timeout_s=PATIENCE_S)])
        for service in own.services.values():
            assert len(service.said("bus_awaited")) == len(service.said("bus_found")) == 1
            assert set(service.conditions().values()) == {1}, service.conditions()


async def test_a_broker_that_is_killed_and_comes_back_costs_nothing_but_time(tmp_path: Path) -> None:
    async with crew(tmp_path, sync_always=True) as own:
        await everybody(own)
        client = await own.client()
        restarts = 3
        async with own.load(client) as load:
            await load.reaches(10)
            for _ in range(restarts):
                await own.mesh.server.kill()
                for service in own.services.values():
                    await service.stands(lambda status, codes: status == 503)
                    assert "bus_disconnected" in await service.reasons()
                await own.mesh.server.start()
                await own.all_ready()
                await load.reaches(10)
        await own.drained()
        await own.audit(load.outcomes)
        for service in own.services.values():
            await service.says("bus_reconnected")
            said = service.conditions()
            assert 1 <= said["bus_disconnected"] <= restarts
            assert max(said.values()) <= restarts, said
            assert service.said("bus_reconnected")[0]["lasted_s"] > 0


async def test_a_broker_that_hangs_for_longer_than_any_call_waits_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path) as own:
        own.environment["PACE_S"] = "0.2"
        await everybody(own)
        client = await own.client()
        pid = own.mesh.server.pid
        held = []
        async with own.load(client, callers=16) as load:
            await load.reaches(10)
            for number in range(2):
                go = tmp_path / f"go-{number}"
                held.append(await client.submit("please", facts={"wait": str(go)}))
                await own.paid(held[-1])
                os.kill(pid, signal.SIGSTOP)
                go.touch()  # now `a` hands on for certain; the callers' requests may all be between two turns
                await eventually(own.has_waited)
                for service in own.services.values():
                    await service.stands(lambda status, codes: status == 503)
                os.kill(pid, signal.SIGCONT)
                await load.reaches(20)
            await own.all_ready()
        await own.drained()
        outcomes = [await client.wait(each, timeout_s=PATIENCE_S) for each in held]
        await own.audit([*load.outcomes, *outcomes])
        for service in own.services.values():
            assert max(service.conditions().values()) <= 2, service.conditions()


async def fill(own: Crew, stream: str, subject: str) -> None:
    """Store until the stream takes no more, then leave room for nothing that anybody says."""
    async with own.mesh.connected_as("admin") as admin:
        for body in (FILLER, bytes(100)):
            with contextlib.suppress(StreamFull):
                for number in range(10_000):
                    await admin.publish_durable(subject.format(f"{len(body)}-{number}"), body)
        assert [each.text for each in admin.conditions.reasons()] == [f"{stream} is full"]


async def limit(own: Crew, stream: str, max_bytes: int) -> None:
    async with own.mesh.connected_as("admin") as admin:
        config = (await admin.api(f"STREAM.INFO.{stream}"))["config"]
        await admin.api(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": max_bytes})


async def given_back(own: Crew, queue: str, count: int) -> None:
    """Wait until so many messages of a queue came again: each of them was tried, and given back."""
    admin = await own.bus("admin")

    async def all_of_them() -> bool:
        names = queue_consumers(own.mesh.fleet.partitions)
        infos = [await admin.api(f"CONSUMER.INFO.{queue}.{name}") for name in names]
        return bool(sum(info["num_redelivered"] for info in infos) >= count)

    await eventually(all_of_them)


async def test_full_streams_hold_everything_up_until_there_is_room(tmp_path: Path) -> None:
    fleet = msgspec.structs.replace(FLEET, lane=False)  # what guards are asked fills no queue
    async with crew(tmp_path, fleet=fleet, storage=Storage(log_max_bytes=300_000)) as own:
        await limit(own, "STEPS-a", 300_000)
        await everybody(own)
        guard, a, b = (own.services[name] for name in ("g1", "a", "b"))
        client = await own.client()
        outcomes = [await client.wait(await client.submit("please"), timeout_s=PATIENCE_S)]

        await fill(own, "LOG", "mesh.evt._.filler-{}")
        requests = [await client.submit("please") for _ in range(5)]
        await guard.stands(lambda status, codes: status == 503 and codes == ["stream_full"])
        assert (await guard.probe())[1]["reasons"][0]["text"] == "LOG is full"
        assert not any(request in line for line in own.world() for request in requests)
        await given_back(own, "PROP-c1", len(requests))
        await limit(own, "LOG", -1)
        outcomes += [await client.wait(request, timeout_s=PATIENCE_S) for request in requests]
        await own.all_ready()

        await fill(own, "STEPS-a", step("a", "filler", "turn", "x") + "{}")
        request = await client.submit("please")
        await a.stands(lambda status, codes: status == 503 and codes == ["stream_full"])
        assert not any(line.startswith(f"pay {request}") for line in own.world()), "no intent, no effect"
        await limit(own, "STEPS-a", -1)
        outcomes.append(await client.wait(request, timeout_s=PATIENCE_S))
        await own.all_ready()

        go = tmp_path / "go"
        request = await client.submit("please", facts={"wait": str(go)})
        await own.paid(request)
        await own.drained_of_proposals()
        await limit(own, "PROP-a", 1)
        await limit(own, "PROP-c1", 1)
        with pytest.raises(StreamFull, match="PROP-c1 is full"):
            await client.submit("please")
        go.touch()
        await a.stands(lambda status, codes: status == 503 and codes == ["stream_full"])
        await limit(own, "PROP-a", -1)
        await limit(own, "PROP-c1", -1)
        outcomes.append(await client.wait(request, timeout_s=PATIENCE_S))
        await own.all_ready()

        await own.audit(outcomes)
        said = {service.identity: service.said("stream_full") for service in (guard, a, b)}
        assert [line["about"] for line in said["g1"]] == ["LOG"]
        assert [line["about"] for line in said["a"]] == ["STEPS-a", "PROP-a"]
        assert said["b"] == []
        assert (await guard.says("stream_has_room"))[0]["held_up"] == 5
        await a.says("stream_has_room", 2)
        for service in (guard, a, b):
            assert set(service.conditions()) <= {"stream_full"}, service.conditions()


async def test_a_client_with_no_room_for_its_submit_can_repeat_it(tmp_path: Path) -> None:
    async with crew(tmp_path) as own:
        await limit(own, "PROP-c1", 1)
        client = await own.client()
        request = client.new_id()
        with pytest.raises(StreamFull):
            await client.submit("please", request=request)
        await limit(own, "PROP-c1", -1)
        await everybody(own)
        await client.submit("please", request=request)
        await own.audit([await client.wait(request, timeout_s=PATIENCE_S)])


async def test_an_address_for_probes_that_is_none_is_wrong_use(tmp_path: Path) -> None:
    async with crew(tmp_path) as own:
        service = await own.start("guard", "g1", ("guard", "run", "--health", "8081"))
        assert await service.ended() == 2


async def test_a_service_that_is_told_to_end_while_the_broker_is_away_ends(tmp_path: Path) -> None:
    async with crew(tmp_path) as own:
        await everybody(own)
        await own.mesh.server.kill()
        for service in own.services.values():
            await service.stands(lambda status, codes: "bus_disconnected" in codes)
            service.signal(signal.SIGTERM)
        assert await asyncio.gather(*(service.ended() for service in own.services.values())) == [0, 0, 0]
