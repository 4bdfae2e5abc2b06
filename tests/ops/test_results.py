"""What the operator's API returns, on a real bus: typed results, and typed errors that say what to do."""

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.bus.connection import Bus
from mesh.bus.stores import write_revision
from mesh.errors import ControlRefused, NotFound, OutcomeUnknown, UsageWrong
from mesh.ops import control, decisions, fleet_checks, health, log, queue, requests, roster, spending
from mesh.ops.health import CHECKS, Look
from mesh.ops.rows import Listed
from mesh.ops.where import Filter
from protocol.wire import events, subjects
from protocol.wire.commands import Resolve
from protocol.wire.config import AgentEntry, Fleet
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete
from tests.certain import is_
from tests.guard.stage import FLEET, Stage, furnished_mesh, staged
from tests.servers import until
from tests.system.office import Office

NOT_THERE = "c1_01KA0000000000000000000000"


async def op(stage: Stage) -> Bus:
    return await stage.bus("op")


async def newest(bus: Bus) -> list[Listed]:
    return await requests.from_index(
        bus, lambda index: index.page(Filter(), limit=100, by_change=True), folder=None
    )


async def test_many_requests_are_read_side_by_side_and_ended_ones_left_out_if_asked(
    office: Office, stage: Stage
) -> None:
    waits, (done, work) = await office.escalated(), await office.begun()
    await (await stage.actor("a")).propose(done, work, Complete(answer="yes"))
    await stage.reaches(done, "request.completed")
    bus = await op(stage)
    every = await log.read_each(bus, [waits, done, waits])
    assert every == {request: await stage.log(request) for request in (waits, done)}
    opened = await log.read_each(bus, [done, NOT_THERE, waits], skip_ended=True)
    assert [bool(happened) for happened in opened.values()] == [False, False, True]


async def test_what_waits_is_typed_the_oldest_first_and_can_be_only_doubts(
    office: Office, stage: Stage
) -> None:
    escalated, asked, doubted = await office.escalated(), await office.asked(), await office.doubted()
    found = await queue.queue(await op(stage))
    mine = [each for each in found.waiting if each.request in (escalated, asked, doubted)]
    assert [(each.request, each.what) for each in mine] == [
        (escalated, "escalation"),
        (asked, "ask"),
        (doubted, "doubt"),
    ]
    assert [each.reason for each in mine] == ["asked", "asked", "in doubt"]
    assert mine[0].summary == "a person, please"
    assert (mine[2].action, mine[2].step, mine[2].key) == ("pay", "0-3", "k7")
    doubts = (await queue.queue(await op(stage), "doubt")).waiting
    assert {each.what for each in doubts} == {"doubt"}
    assert doubted in {each.request for each in doubts}


async def test_a_decision_that_is_not_the_one_that_waits_names_the_command_that_is(
    office: Office, stage: Stage
) -> None:
    asked = await office.asked()
    with pytest.raises(NotFound, match=f"no escalation in it waits .*: mesh human reply {asked}"):
        await decisions.assign(await op(stage), asked, "kim", by="kim")
    with pytest.raises(UsageWrong, match="'nobody' is no agent of this fleet"):
        await decisions.resolve(await op(stage), await office.escalated(), by="kim", to="nobody")
    settled = await decisions.settle(await op(stage), await office.doubted(), by="kim", done=True, result=1)
    assert isinstance(settled, events.EffectSettled)


async def test_an_order_returns_the_event_that_obeyed_it_and_a_late_one_is_refused(
    office: Office, stage: Stage
) -> None:
    request, bus = await office.escalated(), await op(stage)
    is_(await control.freeze(bus, request, by="kim", reason="wait"), events.RequestFrozen)
    [listed] = [each for each in await newest(bus) if each.request == request]
    assert (listed.status, listed.holder) == ("open", "human")
    assert listed.frozen is not None
    assert (listed.frozen.by, listed.frozen.sender, listed.frozen.reason) == ("kim", "op", "wait")
    cancelled = control.obeyed(await control.cancel(bus, request, by="kim"))
    assert (cancelled.request, cancelled.type, cancelled.to) == (request, "request.cancelled", "c1")
    with pytest.raises(ControlRefused):
        await control.thaw(bus, request, by="kim")


async def test_a_story_says_once_why_nothing_happens(office: Office, stage: Stage) -> None:
    bus, said = await op(stage), list[str]()
    story = requests.story_so_far(bus, NOT_THERE, on_held_up=said.append)
    task = asyncio.ensure_future(anext(story))
    await until(lambda: bool(said))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert said == [f"there is no request {NOT_THERE} in the log yet; waiting"]


async def test_a_freeze_of_the_mesh_is_found_by_its_check_and_told_by_the_story(
    office: Office, stage: Stage
) -> None:
    request, bus, said = await office.escalated(), await op(stage), list[str]()
    stands = await control.set_mesh_freeze(bus, True, by="kim", reason="it burns")
    try:
        assert (stands.frozen, stands.by, stands.sender, stands.reason) == (True, "kim", "op", "it burns")
        [finding] = await health.run("freeze", Look(bus))
        assert (finding.state, finding.text) == ("found", stands.notice)
        await anext(requests.story_so_far(bus, request, on_held_up=said.append))
        assert said == [stands.notice]
    finally:
        await control.set_mesh_freeze(bus, False, by="kim")
    assert [each.state for each in await health.run("freeze", Look(bus))] == ["ok"]


async def test_every_check_answers_an_operator_and_is_unknown_to_a_client(stage: Stage) -> None:
    for check in CHECKS:
        found = await health.run(check, Look(await op(stage)))
        assert found, check
        assert {each.check for each in found} == {check}
        assert all(each.text for each in found)
    denied = await health.run("dead letters", Look(await stage.bus("c1")))
    assert [each.state for each in denied] == ["unknown"]


async def test_of_many_dead_letters_none_is_read_to_count_them(
    office: Office, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.control(await office.escalated(), Resolve(id="x", turn="nothing"))  # type: ignore[arg-type]
    await stage.buried("unknown_turn")
    monkeypatch.setattr(health, "MOST_LETTERS", 0)
    monkeypatch.setattr(health, "letters", None)
    [finding] = await health.run("dead letters", Look(await op(stage)))
    assert (finding.state, finding.text) == ("found", "there is 1 dead letter: mesh dead ls")


async def test_a_request_that_spent_nothing_costs_nothing_and_one_that_is_not_there_is_named(
    office: Office, stage: Stage
) -> None:
    found = await spending.spent_on_bus(await op(stage), await office.escalated(), by="agent")
    assert (found.report.rows, found.report.total.tokens, found.missing) == ([], 0, 0)
    with pytest.raises(NotFound, match=f"there is no request {NOT_THERE} in the log"):
        await spending.spent_on_bus(await op(stage), NOT_THERE, by="agent")


async def test_a_guard_between_two_pulls_is_not_missed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await stage.bus("audit")
    truth, asked = bus.api, set[str]()

    async def between(verb: str, *rest: Any) -> dict[str, Any]:
        """Answer as the server does; the first time, as while nobody pulls."""
        first = verb not in asked
        asked.add(verb)
        return await truth(verb, *rest) | ({"num_waiting": 0} if first else {})

    monkeypatch.setattr(bus, "api", between)
    [finding] = await health.run("guards", Look(bus))
    assert finding.state == "ok"
    assert any(verb.startswith("CONSUMER.INFO.") for verb in asked)


@pytest.mark.parametrize("step", [0, 1])
async def test_a_guard_with_full_hands_waits_for_nothing_and_is_there(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    bus = await stage.bus("audit")
    truth, looks = bus.api, Counter[str]()

    async def busy(verb: str, *rest: Any) -> dict[str, Any]:
        """Answer as the server does while nobody waits, and from look to look more is delivered, or not."""
        looks[verb] += step
        return await truth(verb, *rest) | {"num_waiting": 0, "delivered": {"consumer_seq": looks[verb]}}

    monkeypatch.setattr(bus, "api", busy)
    [finding] = await health.run("guards", Look(bus))
    assert finding.state == ("ok" if step else "found")


async def test_a_list_is_read_again_while_a_busy_bus_does_not_answer(
    stage: Stage, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [await office.escalated(), await office.doubted()]
    bus = await op(stage)
    tries, request, collect = list[str](), bus.request, bus.collect

    def not_every_one(ask: Any) -> Any:
        async def asked(subject: str, *rest: Any, **more: Any) -> Any:
            tries.extend([subject] * ("DIRECT.GET" in subject))
            if "DIRECT.GET" in subject and len(tries) % 3 == 1:
                raise OutcomeUnknown("no answer in time")
            return await ask(subject, *rest, **more)

        return asked

    monkeypatch.setattr(bus, "request", not_every_one(request))
    monkeypatch.setattr(bus, "collect", not_every_one(collect))
    listed = await newest(bus)
    assert set(wanted) <= {each.request for each in listed}
    assert set(wanted) <= {each.request for each in (await queue.queue(bus)).waiting}


async def test_what_waits_for_people_is_found_without_reading_what_is_addressed_to_nobody(
    stage: Stage, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the log is: a list of what waits costs as much as people were ever asked."""
    wanted = {await office.escalated(), await office.asked(), await office.doubted()}
    bus = await op(stage)
    collect, read = bus.collect, list[dict[str, Any]]()

    async def collected(subject: str, body: bytes, **more: Any) -> Any:
        read.append(msgspec.json.decode(body))
        return await collect(subject, body, **more)

    monkeypatch.setattr(bus, "collect", collected)
    assert wanted <= {each.request for each in (await queue.queue(bus)).waiting}
    inboxes = {each["next_by_subj"] for each in read if each["next_by_subj"].endswith(".*")}
    assert inboxes == {"mesh.evt.human.*"}


def test_agents_that_may_do_everything_are_named() -> None:
    named: dict[str, Any] = {"a": {}, "b": {"to": ()}, "c": {"actions": ("look",)}, "d": {}}
    entries = {name: AgentEntry(name=AgentName(name), **limits) for name, limits in named.items()}
    fleet = Fleet(name="x", entry=AgentName("a"), agents=entries)
    assert fleet_checks.unlimited_in_words(fleet).startswith(
        "a, d may give work to every agent and call every tool"
    )
    limited = {name: entries[name] for name in "bc"}
    assert fleet_checks.unlimited_in_words(msgspec.structs.replace(fleet, agents=limited)) == ""


async def test_doctor_names_agents_that_may_do_everything(stage: Stage) -> None:
    found = [each async for each in fleet_checks.permissions(await op(stage))]
    ((status, words),) = found
    assert status == "ok"
    assert words.startswith("a, b, c, d may give work")


async def test_a_change_of_the_fleet_is_logged_by_a_guard_and_told_by_its_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with furnished_mesh(tmp_path / "mesh") as mesh, staged(mesh, guards=1) as stage:
        admin, bus = await stage.bus("admin"), await op(stage)
        assert [each.state for each in await health.run("changes", Look(bus))] == ["ok"]
        entry = msgspec.structs.replace(FLEET.agents[AgentName("b")], clearance=("secret-label",))
        after = msgspec.structs.replace(FLEET, agents={**FLEET.agents, AgentName("b"): entry})
        stands = await roster.fleet_of(bus)
        body = msgspec.json.encode(after)
        rev = await write_revision(admin, subjects.FLEET, body, by="kim", after=stands.revision)
        logged = ""

        def is_logged() -> bool:
            nonlocal logged
            logged += "".join(capfd.readouterr())
            return "fleet_changed" in logged

        await until(is_logged)
        (line,) = [line for line in logged.splitlines() if "fleet_changed" in line]
        assert f"revision={rev}" in line
        assert "by='kim'" in line
        assert "agents.b.clearance" in line
        assert "secret-label" not in line, "places alone"
        [finding] = await health.run("changes", Look(bus))
        assert finding.state == "ok"
        assert re.search(
            rf"fleet was changed at \S+ by kim \(revision {rev}\): agents.b.clearance", finding.text
        )


async def test_many_agents_that_nobody_serves_are_one_line_and_those_with_work(tmp_path: Path) -> None:
    names = [AgentName(f"n{number}") for number in range(20)]
    more = {name: AgentEntry(name=name) for name in names}
    fleet = msgspec.structs.replace(FLEET, agents={**FLEET.agents, **more})
    async with furnished_mesh(tmp_path / "mesh", fleet) as mesh, staged(mesh, guards=1) as stage:
        idle = await health.run("agents", Look(await op(stage)))
        assert [each.text for each in idle] == [
            "nobody serves 25 of 25 agents (a, b, c and 22 more); no work waits"
        ]
        request = await (await stage.client()).submit("hello", to="n7")
        await stage.reaches(request, "request.opened")
        first, second = await health.run("agents", Look(await op(stage)))
        assert first.text.endswith("; work waits for 1 of them")
        assert second.text.startswith("nobody serves n7; 1 handoff waits for it")
