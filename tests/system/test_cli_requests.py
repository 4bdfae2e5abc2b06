"""Requests from the command line: submitted, listed, shown and watched to their end."""

import asyncio
import datetime as dt
import time
from pathlib import Path

import msgspec
import pytest

from mesh.agent import Turn, tool
from mesh.agent.definition import Agent
from mesh.bus.stores import JetStreamSteps
from mesh.cli.exits import Exit
from mesh.errors import Unreachable
from mesh.model.loop import drive
from mesh.ops.requests import story_so_far
from protocol.wire.events import RequestOpened
from protocol.wire.handoff import Artifact, Budget, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Fail, Move, Transfer
from protocol.wire.records import Record
from tests.certain import is_
from tests.guard.stage import Stage
from tests.servers import until
from tests.system.office import Office
from tests.system.test_cli_cost import Halting, costing

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]


async def test_watching_a_request_outlives_the_broker(own_stage: Stage, tmp_path: Path) -> None:
    office = Office(own_stage, tmp_path)
    a, b = await own_stage.actor("a"), await own_stage.actor("b")
    request, work = await office.begun()
    async with office.running("request", "watch", request, until="submit  admitted") as watch:
        await own_stage.mesh.server.kill()
        await own_stage.mesh.server.start()
        await own_stage.back()
        await a.propose(request, work, TO_B)
        await asyncio.to_thread(watch.wait_for, "transfer  admitted")
        await b.propose(request, await b.work(request), Complete(answer="all is well"))
        assert await asyncio.to_thread(watch.ended) == Exit.DONE
        said = watch.said
    assert said.count("submit  admitted") == said.count("transfer  admitted") == 1
    assert said.endswith("answer: all is well\n")


async def test_a_broker_that_is_away_is_waited_for_unless_it_was_never_there(
    own_stage: Stage, tmp_path: Path
) -> None:
    request, work = await Office(own_stage, tmp_path).begun()
    a, bus = await own_stage.actor("a"), await own_stage.bus("op")
    story = story_so_far(bus, request)
    assert len(await anext(story)) == 1
    await own_stage.mesh.server.kill()
    await until(lambda: not bus.connected)

    async def goes_on() -> None:
        await own_stage.mesh.server.start()
        await own_stage.back()
        await a.propose(request, work, TO_B)

    bodies, _ = await asyncio.gather(anext(story), goes_on())  # it looks before the broker is there again
    assert len(bodies) == 2
    await story.aclose()  # type: ignore[attr-defined]
    await own_stage.mesh.server.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(Unreachable):
        await anext(story_so_far(bus, request))
    await own_stage.mesh.server.start()
    await own_stage.back()


async def test_limits_and_artifacts_of_a_request_arrive_as_they_were_said(
    stage: Stage, office: Office
) -> None:
    said = ("--artifact", "scan=s3://b/scan.pdf", "--budget", "dollars=0.5", "--budget", "tokens=900")
    more = ("--allow", "look", "--must-carry", "order", "--fact", "order:=7", "--conversation", "c-1")
    done = await office.mesh("request", "submit", "hello", *said, *more, "--within", "10m", who="c1")
    assert done.status == Exit.DONE, done
    opened = is_((await stage.reaches(done.out.strip(), "request.opened"))[0], RequestOpened)
    handoff = opened.work.handoff
    assert handoff.artifacts == (Artifact(name="scan", uri="s3://b/scan.pdf"),)
    assert handoff.constraints.budget == Budget(nano_dollars=500_000_000, tokens=900)
    assert (handoff.constraints.allowed_actions, handoff.constraints.must_carry) == (("look",), ("order",))
    assert handoff.constraints.deadline == opened.at + 600_000_000


async def test_a_deadline_is_a_time(stage: Stage, office: Office) -> None:
    at = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).replace(microsecond=0)
    done = await office.mesh("request", "submit", "hello", "--deadline", at.isoformat(), who="c1")
    assert done.status == Exit.DONE, done
    opened = is_((await stage.reaches(done.out.strip(), "request.opened"))[0], RequestOpened)
    assert opened.work.handoff.constraints.deadline == int(at.timestamp() * 1e6)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(("--deadline", "10m"), "--within 10m", id="a span for a time"),
        pytest.param(("--within", "soon"), "not a span of time", id="no span"),
        pytest.param(("--budget", "euros=5"), "not a budget", id="no budget"),
        pytest.param(("--artifact", "scan"), "not an artifact", id="no artifact"),
    ],
)
async def test_what_cannot_be_read_is_wrong_usage_and_nothing_is_sent(
    said: tuple[str, ...], why: str, stage: Stage, office: Office
) -> None:
    before = await stage.last_seq("PROP")
    done = await office.mesh("request", "submit", "hello", *said, who="c1")
    assert (done.status, why in done.err) == (Exit.USAGE, True), done
    assert await stage.last_seq("PROP") == before


async def test_requests_are_listed_by_conversation_open_or_ended(office: Office, stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    ended = await client.submit("one", conversation="talk-1")
    await a.propose(ended, await a.work(ended), Complete(answer="done"))
    await stage.reaches(ended, "request.completed")
    open_ = await client.submit("two", conversation="talk-1")
    other = await client.submit("three", conversation="talk-2")
    refused = await client.submit("four", conversation="talk-1", to="nobody")
    for request, last in ((open_, "request.opened"), (other, "request.opened"), (refused, "request.refused")):
        await stage.reaches(request, last)
    listed = await office.mesh("request", "ls", "--conversation", "talk-1", "--json")
    assert listed.status == Exit.DONE, listed
    assert {each["request"] for each in listed.json} == {ended, open_, refused}
    assert {each["conversation"] for each in listed.json} == {"talk-1"}
    shown = await office.mesh("request", "ls", "--conversation", "talk-1", "--status", "open")
    assert (open_ in shown.out, ended in shown.out, "talk-1" in shown.out) == (True, False, True)
    both = await office.mesh(
        "request", "ls", "--where", "conversation=talk-1 status=completed since=1h", "--json"
    )
    assert [each["request"] for each in both.json] == [ended]
    wrong = await office.mesh("request", "ls", "--where", "status=open agnt=a")
    assert (wrong.status, "character 13" in wrong.err) == (Exit.USAGE, True), wrong
    assert (await office.mesh("request", "show", refused, "--json")).json["conversation"] == "talk-1"
    assert "in conversation talk-2" in (await office.mesh("request", "show", other)).out


@pytest.mark.parametrize(
    ("whom", "said"),
    [
        pytest.param("c1", "it is given under c1's own key: mesh human reply {} '…' --as c1", id="client"),
        pytest.param("human", "it is given under an operator's key: mesh human reply {} '…'", id="people"),
    ],
)
async def test_whoever_looks_sees_who_has_to_reply_and_how(office: Office, whom: str, said: str) -> None:
    request = await office.asked(whom)
    last = (await office.mesh("request", "show", request)).out.splitlines()[-1]
    assert last.startswith(f"waits for {whom} since ")
    assert last.endswith(f": a question waits for its reply; {said.format(request)}")


async def test_every_request_of_the_log_is_compared_with_another_policy(office: Office) -> None:
    request, work = await office.begun()
    a, b = await office.stage.actor("a"), await office.stage.actor("b")
    move = Transfer(to_agent=AgentName("b"), summary="yours", facts=(Fact(key="long", value="x" * 2_000),))
    await a.propose(request, work, move)
    await b.propose(request, await b.work(request), Complete(answer="done"))
    await office.stage.reaches(request, "request.completed")
    (office.folder.path / "strict.toml").write_text("max_handoff_bytes = 1024\n")
    tried = ("replay", "--all", "--policy", "strict.toml")
    whole = await office.mesh(*tried)
    assert whole.status == Exit.FAILED, whole
    assert (
        f"{request} event 1: was handoff.admitted, would be move.refused (rule size, next round)" in whole.out
    )
    found = await office.mesh(*tried, "--where", "agent=b status=completed", "--json")
    assert request in {each["request"] for each in found.json[0]["found"]}
    none = await office.mesh(*tried, "--where", "conversation=none")
    assert (none.status, "0 requests" in none.out) == (Exit.DONE, True)
    assert (await office.mesh("replay", "--all", "--where", "since=1h")).status == Exit.DONE
    assert (await office.mesh("replay", "--policy", "strict.toml")).status == Exit.USAGE


async def test_why_begins_with_what_an_open_request_waits_for(office: Office) -> None:
    doubted, asked, (working, _) = await office.doubted(), await office.asked("c1"), await office.begun()
    for request, waits in ((doubted, "human"), (asked, "c1"), (working, "a")):
        first, second = (await office.mesh("why", request)).out.splitlines()[:2]
        assert first.startswith(f"waits for {waits} since ")
        assert second.startswith(f"{request}, event ")
    assert "an effect is in doubt" in (await office.mesh("why", doubted)).out.splitlines()[0]


@tool
async def look() -> str:
    """Look."""
    return "secret value"


@tool(effect="idempotent")
async def pay(idempotency_key: str = "") -> str:
    """Pay."""
    return "paid"


async def test_a_request_that_is_not_there_is_said_to_be_awaited_once(office: Office, stage: Stage) -> None:
    client = await stage.client()
    request = client.new_id()
    remark = f"mesh: there is no request {request} in the log yet; waiting\n"
    async with office.running("request", "watch", request, until=remark, who="audit") as watch:
        await client.submit("hello", request=request)
        await asyncio.to_thread(watch.wait_for, "submit  admitted")
        assert watch.said.count("mesh:") == 1
    await office.mesh("request", "cancel", request)


async def test_follow_shows_the_steps_so_far_and_those_to_come(office: Office, stage: Stage) -> None:
    model = Halting(costing("let me see", "look"))

    async def first(turn: Turn) -> Move:
        await turn.call(look)
        await turn.call(pay)
        return turn.transfer("b", summary="please")

    async def second(turn: Turn) -> Move:
        return await drive(turn, model, instructions="B", tools=(look,))

    await stage.runtime(Agent("a", first, tools=(look, pay)))
    await stage.runtime(Agent("b", second, tools=(look,)))
    request = await (await stage.client()).submit("hello")
    await model.halts.wait()
    watching = ("request", "watch", "--follow", request)
    async with office.running(*watching, until="b: [look]", who="audit") as watch:
        so_far = watch.said
        assert "secret" not in so_far
        lines = ["submit  admitted", "a: [look]", "a: [pay …]", "a: [pay]", "transfer  admitted"]
        places = [so_far.index(line) for line in [*lines, "b: let me see", "b: [look]"]]
        assert places == sorted(places)
        done = await office.mesh("request", "cancel", request)
        assert done.status == Exit.DONE, done
        assert await asyncio.to_thread(watch.ended) == Exit.FAILED
        assert watch.said.count("b: [look]") == 1


async def test_an_agent_whose_clock_is_ahead_has_its_steps_before_what_they_led_to(
    office: Office, stage: Stage
) -> None:
    request, work = await office.begun()
    ahead = time.time_ns() // 1_000 + 60_000_000
    step = Record(kind="call", name="look", nonce="n", at=ahead, arguments={})
    steps = JetStreamSteps(await stage.bus("a"), "a")
    await steps.put(request, work.journal_id, "0-0", msgspec.json.encode(step))
    await (await stage.actor("a")).propose(request, work, Fail(reason="no"))
    await stage.reaches(request, "request.failed")
    seen = (await office.mesh("request", "watch", "--follow", request, who="audit")).out
    assert 0 < seen.index("a: [look]") < seen.index("fail  ")


async def test_steps_that_come_later_are_shown_as_they_are_journaled(office: Office, stage: Stage) -> None:
    may_go_on = asyncio.Event()

    async def slow(turn: Turn) -> Move:
        await turn.call(look)
        await may_go_on.wait()
        await turn.call(pay)
        return turn.complete("done")

    await stage.runtime(Agent("a", slow, tools=(look, pay)))
    request = await (await stage.client()).submit("hello")
    watching = ("request", "watch", "--follow", request)
    async with office.running(*watching, until="a: [look]", who="op") as watch:
        assert "a: [pay" not in watch.said
        may_go_on.set()
        assert await asyncio.to_thread(watch.ended) == Exit.DONE
        assert watch.said.index("a: [pay]") < watch.said.index("answer: done")


async def test_what_makes_no_sense_together_is_a_matter_of_usage(office: Office) -> None:
    request, _ = await office.begun()
    done = await office.mesh("request", "watch", request, "--follow", "--json")
    assert done.status == Exit.USAGE
    assert "one of --follow and --json" in done.err


async def test_it_is_told_and_found_which_code_ran(
    office: Office, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_BUILD", "4f2a91c")

    async def done(turn: Turn) -> Move:
        return turn.complete("done")

    await stage.runtime(Agent("a", done, version="2 beta"))
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "request.completed")
    ran = "version 2 beta, build 4f2a91c"
    assert ran in (await office.mesh("request", "show", request)).out
    assert f"The agent ran {ran}." in (await office.mesh("why", request)).out
    for version, found in (("a=2 beta", True), ("a=2", False), ("b=2 beta", False)):
        listed = (await office.mesh("request", "ls", "--version", version, "--json")).json
        assert (request in {each["request"] for each in listed}) is found
    assert (await office.mesh("request", "ls", "--version", "a")).status == Exit.USAGE
    said = await asyncio.to_thread(office.folder.process, "--version", MESH_BUILD="4f2a91c")
    assert "(build 4f2a91c)" in said.out
