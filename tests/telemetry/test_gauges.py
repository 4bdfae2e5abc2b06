"""The state of the mesh as gauges: what they say is what doctor, the list of requests and the roster say."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from mesh.bus import reader
from mesh.bus.connection import Bus
from mesh.bus.reader import StoredMessage
from mesh.errors import NotFound
from mesh.ops import control, health, queue, requests, roster
from mesh.ops.gauges import _STATUSES, MOST_VERSIONS, LogTally, MeshGauges
from mesh.ops.health import Look
from mesh.ops.log import ENDS, EventHeader
from mesh.ops.where import Filter
from mesh.telemetry import gauges
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Complete
from tests.guard.stage import FLEET, Stage
from tests.servers import until
from tests.system.office import Office
from tests.telemetry.seen import Readings


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    return Office(stage, tmp_path)


def seen(request: str, type_: str, to: str = "a") -> EventHeader:
    return EventHeader(request=request, n=0, at=0, type=type_, to=to)


def taken(*headers: EventHeader | None, first: int = 1) -> LogTally:
    tally = LogTally()
    for seq, header in enumerate(headers, first):
        tally.take(StoredMessage(seq, "mesh.evt.a.x", b""), header)
    return tally


def test_every_way_in_which_a_request_ends_is_a_status() -> None:
    assert {f"request.{status}" for status in _STATUSES} - {"request.open"} == ENDS
    tally = taken(*(seen(end, end) for end in sorted(ENDS)), seen("still", "request.opened"))
    assert tally.by_status() == dict.fromkeys(_STATUSES, 1)


def test_a_request_that_the_log_has_no_longer_is_not_counted() -> None:
    tally = taken(
        seen("old", "request.opened"),
        seen("done", "request.opened"),
        seen("done", "request.completed"),
        None,
        seen("new", "request.opened"),
    )
    assert (tally.by_status()["open"], tally.by_status()["completed"]) == (2, 1)
    tally.trim(4)
    assert (list(tally.open), tally.by_status()["completed"]) == (["new"], 0)
    tally.trim(99)
    assert set(tally.by_status().values()) == {0}


def test_what_waits_for_people_and_what_is_frozen_is_known_until_it_ends() -> None:
    began = (seen("r", "request.opened"), seen("r", "escalation.raised", HUMAN), seen("r", "request.frozen"))
    tally = taken(*began)
    assert (tally.asked, tally.frozen) == ({"r"}, {"r"})
    assert taken(*began, seen("r", "request.thawed")).frozen == set()
    ended = taken(*began, seen("r", "request.cancelled"))
    assert (ended.asked, ended.frozen, ended.open) == (set(), set(), {})


async def test_gauges_say_what_doctor_the_list_and_the_roster_say(
    office: Office, stage: Stage, readings: Readings
) -> None:
    escalated, _asked, doubted = await office.escalated(), await office.asked(), await office.doubted()
    done, work = await office.begun()
    await (await stage.actor("a")).propose(done, work, Complete(answer="yes"))
    await stage.reaches(done, "request.completed")
    left, _ = await office.begun()
    await office.delegated()
    op = await stage.bus("op")
    await control.freeze(op, left, by="kim", reason="wait")
    looking = MeshGauges(await stage.bus("guard", "gauges"), lambda: True)
    await looking.probe()

    listed = await requests.from_index(
        op, lambda index: index.page(Filter(), limit=10_000, by_change=True), folder=None
    )
    statuses = Counter(each.status for each in listed)
    shown = {labels["mesh.status"]: value for labels, value in readings.points("mesh.requests")}
    assert shown == {status: statuses[status] for status in _STATUSES}
    assert readings.value("mesh.requests.frozen") == sum(each.frozen is not None for each in listed)

    waiting = (await queue.queue(op)).waiting
    assert {escalated, doubted} <= {each.request for each in waiting}
    kinds = Counter((each.what, each.tier_name) for each in waiting)
    people = {
        (labels["mesh.kind"], labels["mesh.tier"]): value
        for labels, value in readings.points("mesh.people.waiting")
    }
    assert {key: value for key, value in people.items() if value} == kinds
    assert ("escalation", "lead") in people, "a tier without work is a series, too"
    assert readings.value("mesh.people.oldest") > 0

    for entry in await roster.roster(op):
        assert readings.value("mesh.agent.waiting", gen_ai__agent__name=entry.name) == entry.waiting
        served = readings.value("mesh.agent.instances", gen_ai__agent__name=entry.name)
        assert served == len(entry.instances or ())
        oldest = readings.value("mesh.agent.oldest", gen_ai__agent__name=entry.name)
        assert (oldest > 0) == (entry.waiting > 0)
    assert readings.value("mesh.agent.waiting", gen_ai__agent__name="e") == 1, "nobody serves it"
    assert readings.value("mesh.fleet.revision") == (await roster.fleet_of(op)).revision
    assert readings.value("mesh.frozen") == 0
    used = {labels["mesh.stream"]: value for labels, value in readings.points("mesh.stream.used")}
    there = await reader.listing(op)
    queues = [each.share for name in there.streams if name.startswith("PROP-") for each in there.used(name)]
    assert used["PROP"] == max(queues), "the fullest of all members' queues"
    assert 0 < used["STEPS"] < 1, "an effect in doubt has a step"
    assert "LOG" not in used, "it has no limit here"
    assert [each.state for each in await health.run("freeze", Look(op))] == ["ok"]
    named = {
        label for table in gauges.OF_MESH for labels, _ in readings.points(table.name) for label in labels
    }
    assert named <= {
        "gen_ai.agent.name",
        "mesh.version",
        "mesh.kind",
        "mesh.tier",
        "mesh.status",
        "mesh.stream",
    }
    agents = {labels["gen_ai.agent.name"] for labels, _ in readings.points("mesh.agent.instances")}
    assert agents == set(FLEET.agents)


async def test_a_later_look_reads_on_where_the_last_one_ended(
    office: Office, stage: Stage, readings: Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mesh.ops import gauges as looked

    read = list[int]()

    async def batch(bus: Bus, stream: str, subject: str | None, from_seq: int, most: int = 100) -> object:
        part = await reader.batch(bus, stream, subject, from_seq, most)
        if subject is None and most > 1:
            read.extend(each.seq for each in part)
        return part

    monkeypatch.setattr(looked, "batch", batch)
    looking = MeshGauges(await stage.bus("guard", "gauges"), lambda: True)
    await looking.probe()
    before = readings.value("mesh.requests", mesh__status="open")
    await office.begun()
    await looking.probe()
    assert readings.value("mesh.requests", mesh__status="open") == before + 1
    assert len(read) == len(set(read)), "each event is read once"


async def test_agents_are_looked_at_while_a_long_log_is_read(
    stage: Stage, readings: Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mesh.ops import gauges as looked

    may_go_on = asyncio.Event()

    async def batch(bus: Bus, stream: str, subject: str | None, from_seq: int, most: int = 100) -> object:
        if subject is None and most > 1:
            await may_go_on.wait()
        return await reader.batch(bus, stream, subject, from_seq, most)

    def waiting() -> float:
        return float(readings.value("mesh.agent.waiting", gen_ai__agent__name="e"))

    for table in gauges.OF_MESH:
        table.clear()
    monkeypatch.setattr(looked, "batch", batch)
    looking = MeshGauges(await stage.bus("guard", "gauges"), lambda: True, every_s=0.05)
    keeping = asyncio.create_task(looking.keep())
    await until(lambda: bool(readings.points("mesh.agent.waiting")))
    before = waiting()
    await (await stage.client()).submit("hello", to="e")  # nobody serves it
    await until(lambda: waiting() == before + 1)
    assert not readings.points("mesh.requests")
    may_go_on.set()
    await until(lambda: bool(readings.points("mesh.requests")))
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert not readings.points("mesh.requests")


async def test_a_guard_that_is_not_elected_shows_nothing(stage: Stage, readings: Readings) -> None:
    elected = True
    looking = MeshGauges(await stage.bus("guard", "gauges"), lambda: elected)
    assert await looking.probe_if_elected()
    assert readings.points("mesh.requests")
    elected = False
    assert not await looking.probe_if_elected()
    assert not any(readings.points(table.name) for table in gauges.OF_MESH)


async def test_a_look_that_fails_shows_nothing_and_is_logged_once(
    stage: Stage, readings: Readings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mesh.ops import gauges as looked

    looking = MeshGauges(await stage.bus("guard", "gauges"), lambda: True)
    await looking.probe_if_elected()
    with monkeypatch.context() as patch:

        async def gone(bus: object) -> None:
            raise NotFound("the bus has no fleet document")

        patch.setattr(looked, "fleet_of", gone)
        assert await looking.probe_if_elected()
        assert not any(readings.points(table.name) for table in gauges.OF_MESH)
        await looking.probe_if_elected()
    assert "".join(capfd.readouterr()).count("gauges_not_shown") == 1
    await looking.probe_if_elected()
    assert readings.points("mesh.agent.instances"), "what is looked at seldom is shown at once, too"


async def test_accounts_of_an_earlier_build_are_named_and_stop_no_guard(
    stage: Stage, readings: Readings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from mesh.ops import gauges as looked

    async def denied(*_: object) -> None:
        return None

    monkeypatch.setattr(looked, "instances", denied)
    await MeshGauges(await stage.bus("guard", "gauges"), lambda: True).probe_if_elected()
    assert not any(readings.points(table.name) for table in gauges.OF_MESH)
    assert "run `mesh setup`, and reload the server" in "".join(capfd.readouterr())


async def test_an_agent_that_reports_ever_new_versions_makes_few_series(stage: Stage) -> None:
    looking = MeshGauges(await stage.bus("guard", "gauges"), lambda: True)
    reported = [roster.Instance(id=str(n), version=f"v{n}" * 40) for n in range(100)]
    shown = {looking._version("a", each) for each in reported}
    assert len(shown) == MOST_VERSIONS + 1
    assert max(map(len, shown)) == 64
