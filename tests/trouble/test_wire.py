"""Connections that are cut, stall and lose single messages: nothing is lost, nothing done twice."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from mesh.client import Client, Outcome
from tests.logs import captured_logs
from tests.servers import PATIENCE_S, until
from tests.trouble.crew import PATIENT
from tests.trouble.proxy import Frame
from tests.trouble.wired import Wired, finish


def about(start: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.subject.startswith(start)


def said_to_server(start: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.towards == "server" and frame.subject.startswith(start)


async def staffed(wired: Wired, *guards: str) -> Client:
    """Start these guards and both agents, each on a wire of its own; return a client once all are ready."""
    for identity in guards:
        await wired.guard(identity)
    for name in ("a", "b"):
        await wired.agent(name)
    await wired.ready()
    return await wired.client()


@pytest.mark.parametrize("wired", [PATIENT], ids=["patient"], indirect=True)
async def test_an_answer_that_is_lost_is_not_taken_for_a_no_and_nothing_happens_twice(wired: Wired) -> None:
    client = await staffed(wired, "g1")
    guard, a, b = wired.wires["g1"], wired.wires["a"], wired.wires["b"]
    guard.lose_answer(about("mesh.evt.a."))  # the verdict is stored, and the guard does not hear of it
    guard.lose_answer(about("mesh.evt.b."))
    guard.lose_answer(about("mesh.evt.c1."))
    guard.lose_answer(about("mesh.timer.at."))
    guard.lose_answer(about("$JS.API.STREAM.MSG.GET.LOG"))
    guard.swallow(said_to_server("$JS.ACK.PROP-a."))  # decided, and the server does not hear of it
    a.lose_answer(about("mesh.step.a."))  # an intent
    a.lose_answer(lambda frame: frame.subject.startswith("mesh.step.a.") and frame.subject.endswith("d"))
    a.lose_answer(about("mesh.prop.a."))
    b.lose_answer(about("mesh.prop.b."))
    b.swallow(said_to_server("$JS.ACK.LOG.in-b"))
    with captured_logs() as lines:
        outcomes = await finish(client, 12)
    await wired.audit(outcomes)
    for wire, least in ((guard, 5), (a, 3), (b, 2)):
        assert len(wire.swallowed) >= least, [frame.subject for frame in wire.swallowed]
    assert max(Counter(line["event"] for line in lines if line["log_level"] == "warning").values()) <= 3


async def test_connections_that_break_all_the_time_cost_nothing_but_time(wired: Wired) -> None:
    client = await staffed(wired, "g1", "g2")
    outcomes: list[Outcome] = []
    cuts = 0
    with captured_logs() as lines:
        while cuts <= 8:  # a wire that takes long to come back leaves the others time to do it all
            work = asyncio.ensure_future(finish(client, 60))
            while not work.done():
                wire = list(wired.wires.values())[cuts % len(wired.wires)]
                cuts += 1
                before = wire.connections
                wire.cut_after(15)
                await until(lambda: wire.connections > before or work.done())  # noqa: B023
            outcomes += await work
    await wired.audit(outcomes)
    said = Counter((line["event"], line.get("name")) for line in lines if line["log_level"] == "warning")
    assert max(said.values()) <= cuts, said  # two guards have one name


async def test_a_guard_whose_wire_stalls_loses_its_work_to_another_and_wakes_harmlessly(wired: Wired) -> None:
    client = await staffed(wired, "g1", "g2")
    outcomes: list[Outcome] = []
    for stalled in ("g1", "g2"):
        requests = [await client.submit("please") for _ in range(10)]
        wired.wires[stalled].stall()  # in the middle of them, with whatever it holds
        outcomes += await asyncio.gather(*(client.wait(each, timeout_s=PATIENCE_S) for each in requests))
        wired.wires[stalled].flow()
    outcomes += await finish(client, 5)
    await wired.audit(outcomes)


@pytest.mark.parametrize("said", [1, 4, 12, 40])
async def test_whoever_loses_the_bus_while_starting_waits_and_starts(wired: Wired, said: int) -> None:
    await wired.guard("g1")
    wired.wires["g1"].cut_after(said)
    for name in ("a", "b"):
        await wired.agent(name)
        wired.wires[name].cut_after(said)
    await wired.ready()
    await wired.audit(await finish(await wired.client(), 3))
