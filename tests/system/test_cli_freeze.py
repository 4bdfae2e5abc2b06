"""Freezing and thawing from the command line: one request, and the whole mesh."""

import asyncio

from mesh.agent import Move, Turn, agent, tool
from mesh.cli.exits import Exit
from protocol.wire import subjects
from protocol.wire.events import type_of
from protocol.wire.moves import Complete, Transfer
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, eventually, until
from tests.system.office import Office

TO_B = Transfer(to_agent="b", summary="please")  # type: ignore[arg-type]


async def test_a_frozen_request_goes_on_where_it_was_and_others_are_not_touched(
    office: Office, stage: Stage
) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    (one, work), (other, others_work) = await office.begun(), await office.begun()
    done = await office.mesh("request", "freeze", one, "--reason", "look first", "--by", "kim")
    assert (done.status, done.out) == (Exit.DONE, f"{one} is frozen (event 1)\n"), done
    await a.propose(one, work, TO_B)
    await a.propose(other, others_work, TO_B)
    await stage.reaches(one, "move.deferred")
    await b.work(other)

    told = (await office.mesh("request", "show", one)).out
    assert "waits for thaw since" in told
    assert "kim (op) froze it: look first" in told
    listed = {each["request"]: each for each in (await office.mesh("request", "ls", "--json")).json}
    assert (listed[one]["frozen"]["by"], listed[other]["frozen"]) == ("kim", None)
    frozen = await office.mesh("request", "ls", "--status", "frozen", "--json")
    assert [each["request"] for each in frozen.json] == [one]

    done = await office.mesh("request", "thaw", one, "--by", "kim")
    assert (done.status, done.out) == (Exit.DONE, f"{one} goes on (event 3)\n"), done
    await b.work(one)
    expected = ["request.opened", "request.frozen", "move.deferred", "request.thawed", "handoff.admitted"]
    assert await stage.types(one) == expected
    assert (await office.mesh("request", "ls", "--status", "frozen")).out.count("\n") == 1  # the heading


async def test_what_is_so_already_or_over_is_refused(office: Office, stage: Stage) -> None:
    request, work = await office.begun()
    thawed = await office.mesh("request", "thaw", request)
    assert thawed.status == Exit.REFUSED, thawed
    assert "not_frozen" in thawed.err
    assert (await office.mesh("request", "freeze", request)).status == Exit.DONE
    again = await office.mesh("request", "freeze", request)
    assert again.status == Exit.REFUSED
    assert "frozen" in again.err
    assert (await office.mesh("request", "thaw", request)).status == Exit.DONE
    await (await stage.actor("a")).propose(request, work, Complete(answer="done"))
    await stage.reaches(request, "request.completed")
    over = await office.mesh("request", "freeze", request)
    assert over.status == Exit.REFUSED
    assert "completed" in over.err


async def test_only_an_operator_freezes(office: Office) -> None:
    request, _ = await office.begun()
    refused = await office.mesh("request", "freeze", request, who="c1")
    assert refused.status == Exit.REFUSED, refused
    assert "not_allowed" in refused.err
    assert (await office.mesh("request", "freeze", "nothing")).status == Exit.USAGE
    assert (await office.mesh("freeze", who="c1")).status == Exit.USAGE  # it may not even look


async def test_the_mesh_is_frozen_until_the_thaw_and_everybody_is_told(office: Office, stage: Stage) -> None:
    a, b = await stage.actor("a"), await stage.actor("b")
    begun = [await office.begun() for _ in range(3)]
    done = await office.mesh("freeze", "--reason", "it burns", "--by", "kim")
    assert done.status == Exit.DONE, done
    assert done.out.startswith("the mesh is frozen by kim (op) since 2")
    guard = next(iter(stage._guards))
    await guard._context.frozen.wait()
    for request, work in begun:
        await a.propose(request, work, TO_B)
    fresh = await (await stage.client()).submit("hello")
    for command in (("request", "show"), ("why",), ("log", "export")):
        unknown = await office.mesh(*command, fresh)
        assert unknown.status == Exit.FAILED
        assert f"there is no request {fresh} in the log; it may wait in its queue: the whole" in unknown.err
        assert "mesh is frozen by kim (op) since 2" in unknown.err

    said = "the whole mesh is frozen by kim (op) since 2"
    looked = await office.mesh("doctor")
    assert looked.status == Exit.FAILED
    assert f"FOUND    freeze: {said}" in looked.out
    assert "ok       guards: every queue is served" in looked.out
    assert said in (await office.mesh("request", "ls")).err
    for command in (("request", "show"), ("why",)):
        assert said in (await office.mesh(*command, begun[0][0])).err
    again = await office.mesh("freeze")
    assert (again.status, again.out) == (Exit.DONE, "")
    assert "frozen already, by kim" in again.err
    assert [await stage.types(request) for request, _ in begun] == [["request.opened"]] * 3
    assert await stage.types(fresh) == []

    async with office.running("request", "watch", begun[0][0], until=said):
        pass
    queued = f"there is no request {fresh} in the log; it may wait in its queue"
    async with office.running("request", "watch", fresh, until=queued) as watch:
        done = await office.mesh("thaw", "--by", "kim")
        assert done.status == Exit.DONE, done
        assert "the mesh goes on; it was frozen by kim (op)" in done.out
        for request, _ in begun:
            await b.work(request)
        await a.work(fresh)
        await asyncio.to_thread(watch.wait_for, "submit  admitted")
    missing = await office.mesh("request", "show", f"{fresh[:-1]}{'0' if fresh[-1] != '0' else '1'}")
    assert "in the log [" in missing.err  # and nothing of a freeze
    assert "ok       freeze: the mesh is not frozen" in (await office.mesh("doctor")).out
    assert "nothing to do" in (await office.mesh("thaw")).err


async def test_an_order_to_a_mesh_without_guards_is_kept(office: Office, stage: Stage) -> None:
    for guard in tuple(stage._guards):
        await stage.dismiss(guard)

    async def is_kept() -> bool:
        return await stage.waiting("CTL") > 0

    async with office.running("freeze", "--by", "kim", until="") as freezing:
        await eventually(is_kept)
        guard = await stage.guard("late")
        assert await asyncio.to_thread(freezing.ended) == Exit.DONE
        assert "frozen by kim (op)" in freezing.said
    await guard._context.frozen.wait()
    assert (await office.mesh("thaw")).status == Exit.DONE


async def test_cancelling_stops_the_running_turn_before_its_next_model_call(
    office: Office, stage: Stage
) -> None:
    begun, may_go_on, steps = asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def wait() -> None:
        begun.set()
        await may_go_on.wait()
        steps.append("waited")

    async def reply() -> str:
        steps.append("model")
        return "done"

    @agent(name="d")
    async def slow(turn: Turn) -> Move:
        await turn.call(wait)
        answer, _ = await turn.model("m", turn.request, reply, str)
        return turn.complete(answer)

    runtime = await stage.runtime(slow)
    client = await stage.client()
    request = await client.submit("slow", to="d")
    await begun.wait()
    done = await office.mesh("request", "cancel", request, "--reason", "never mind", "--by", "kim")
    assert done.status == Exit.DONE, done
    cancelled = (await office.mesh("request", "show", request, "--json")).json["moves"][-1]
    assert (cancelled["from"], cancelled["sender"]) == ("kim", "op"), "whose credentials they were"
    why = (await office.mesh("why", request, 1)).out
    assert "kim (op): cancel (never mind)." in why
    op, end = await stage.bus("op"), subjects.end("d", request, (await stage.log(request))[0].id)

    async def is_told() -> bool:  # the guard writes the turn's end where its agent looks
        return not (await op.request(f"$JS.API.DIRECT.GET.ENDS.{end}")).status

    await eventually(is_told)
    may_go_on.set()
    other = await client.submit("slow", to="d")
    assert (await client.wait(other, timeout_s=PATIENCE_S)).answer == "done"
    await until(lambda: steps.count("model") == 1)
    assert stage.runs(runtime)
    await stage.inbox_drained("d")
    assert steps.count("model") == 1, steps  # the other one's
    assert type_of((await stage.log(request))[-1]) == "request.cancelled"
