"""One action for many requests on the page: what is shown first, that exactly this is done, and by whom."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.ops import bulk
from mesh.ops.batch import batch_of, new_batch, rerun_id
from mesh.ops.bulk import Chosen
from mesh.ui import Keys, Options, serving
from mesh.ui.batches import ACTIONS, MOST_KEPT, KeptBatch, KeptBatches
from protocol.wire import events
from protocol.wire.commands import Cancel, Report
from protocol.wire.events import type_of
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Ask, Complete, Fail
from tests.certain import is_
from tests.guard.stage import FLEET, Stage
from tests.servers import eventually
from tests.system.test_cli_bulk import Desk
from tests.ui.conftest import Serve, Visitor


@pytest.fixture
def desk(stage: Stage, tmp_path: Path) -> Desk:
    return Desk(stage, tmp_path)


@asynccontextmanager
async def visiting(serve: Serve, **options: object) -> AsyncIterator[Visitor]:
    async with serve(allow_write=True, **options) as address, Visitor(address) as visitor:
        yield visitor


async def chooses(visitor: Visitor, do: str, where: str, **said: str) -> str:
    """Choose what to do, and return the view that asks for a confirmation."""
    answer = await visitor.sends("/batches/new", "/batches", {"do": do, "where": where, **said})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def confirms(visitor: Visitor, view: str) -> str:
    """Confirm a batch, and return what is shown once it is done."""
    assert (await visitor.sends(view, view, {})).status_code == 303

    async def is_done() -> bool:
        return "Under way" not in (await visitor.browser.get(view)).text

    await eventually(is_done)
    return (await visitor.browser.get(view)).text


async def test_what_was_shown_is_done_and_nothing_else(serve: Serve, desk: Desk, stage: Stage) -> None:
    over, work = await desk.begun(desk.word)
    await (await stage.actor("a")).propose(over, work, Complete(answer="done"))
    await stage.reaches(over, "request.completed")
    found, where = await desk.several(5), f"text={desk.word}"
    async with visiting(serve) as kim:

        async def is_offered() -> bool:
            listed = (await kim.browser.get("/requests", params={"where": where})).text
            return f'href="/batches/new?where=text%3D{desk.word}"' in listed

        await eventually(is_offered)
        view = await chooses(kim, "cancel", where, reason="circle", by="Kim")
        shown = (await kim.browser.get(view)).text
        assert "5 requests to cancel" in shown
        assert "Cancel 5 requests" in shown
        assert len(re.findall(r'<li data-row><a class="id" href="/requests/', shown)) == bulk.SHOWN
        assert "and 2 more" in shown
        assert "<dt>reason</dt><dd>circle</dd>" in shown
        assert [await stage.types(each) for each in found] == [["request.opened"]] * 5
        late = (await desk.several(1))[0]
        done = await confirms(kim, view)
        assert "5 of 5 cancelled" in done
        batch = view.rpartition("/")[2]
        for request in found:
            event = is_(await desk.last(request), events.RequestCancelled)
            assert (event.by, event.reason, batch_of(event)) == ("Kim", "circle", batch)
        assert type_of(await desk.last(late)) == "request.opened"
        again = await kim.posts(view, await kim.form("/me"))  # it is over: nothing more is sent
        assert again.status_code == 303
        link = f"/requests?where=batch%3D{batch}"
        assert f'href="{link}"' in done

        async def is_listed() -> bool:
            listed = (await kim.browser.get(link)).text
            return all(each in listed for each in found)

        await eventually(is_listed)
        nothing = (await kim.browser.get(await chooses(kim, "thaw", where))).text
        assert "There is nothing to thaw" in nothing


async def test_freeze_passes_over_what_is_frozen_and_takes_so_many_at_most(
    serve: Serve, desk: Desk, stage: Stage
) -> None:
    first, *others = await desk.several(3)
    assert (await desk.mesh("request", "freeze", first)).status == 0
    async with visiting(serve, by="Kim") as kim:
        view = await chooses(kim, "freeze", f"text={desk.word}", limit="1")
        shown = (await kim.browser.get(view)).text
        assert "1 request to freeze" in shown
        assert "1 request passed over: frozen already" in shown
        assert "1 of 1 frozen" in await confirms(kim, view)
        thawing = await chooses(kim, "thaw", f"text={desk.word}")
        assert "2 of 2 thawed" in await confirms(kim, thawing)
    types = [type_of(await desk.last(each)) for each in others]
    assert sorted(types) == ["request.opened", "request.thawed"]


async def test_a_choice_that_is_none_is_named_and_kept_in_the_form(serve: Serve, desk: Desk) -> None:
    async with visiting(serve, by="Kim") as kim:
        for said, told in (
            ({"do": "cancel", "where": " "}, "every request of the mesh is too many"),
            ({"do": "cancel", "where": "agnt=a"}, "character 1, &#39;agnt=a&#39;: there is no such name"),
            ({"do": "explode", "where": "agent=a"}, "choose what to do"),
            ({"do": "cancel", "where": "agent=a", "limit": "0"}, "1 to 10,000"),
            ({"do": "cancel", "where": "agent=a", "limit": "many"}, "limit is a whole number"),
            ({"do": "resolve", "where": "agent=a"}, "choose how to continue"),
            (
                {"do": "resolve", "where": "agent=a", "how": "assign", "person": "Ada"},
                "choose how to continue",
            ),
            ({"do": "resolve", "where": "agent=a", "how": "complete"}, "enter the answer"),
        ):
            answer = await kim.sends("/batches/new", "/batches", said)
            assert answer.status_code == 400, said
            assert told in answer.text
            assert f'value="{said["where"].strip()}"' in answer.text
        for path, status in ((f"/batches/{new_batch()}", 404), ("/batches/mine", 400)):
            assert (await kim.browser.get(path)).status_code == status


async def test_nobody_else_confirms_it_and_a_page_that_only_shows_does_nothing(
    serve: Serve, desk: Desk
) -> None:
    (request,) = await desk.several(1)
    async with visiting(serve) as kim, Visitor(str(kim.browser.base_url)) as lee:
        view = await chooses(kim, "cancel", f"text={desk.word}", by="Kim")
        shown = (await lee.browser.get(view)).text
        assert "Kim chose this, and alone can confirm it" in shown
        assert "<form" not in shown.partition("<main")[2].partition("</main>")[0]
        form = await lee.form("/me") | {"by": "Kim"}
        refused = await lee.posts(view, form)
        assert refused.status_code == 409
        assert "nothing was done" in refused.text
    async with serve() as address, Visitor(address) as reader:
        listed = (await reader.browser.get("/requests", params={"where": f"text={desk.word}"})).text
        assert "/batches/new" not in listed
        assert "read-only" in (await reader.browser.get("/batches/new")).text
        form = await reader.form("/me") | {"do": "cancel", "where": f"text={desk.word}", "by": "Lee"}
        assert (await reader.posts("/batches", form)).status_code == 403
    assert type_of(await desk.last(request)) == "request.opened"


async def test_every_escalation_is_resolved_and_questions_are_passed_over(
    serve: Serve, desk: Desk, stage: Stage
) -> None:
    waiting = [await desk.escalated(desk.word), await desk.escalated(desk.word)]
    asked, work = await desk.begun(desk.word)
    await (await stage.actor("a")).propose(asked, work, Ask(to_agent=HUMAN, question="which one?"))
    await stage.reaches(asked, "turn.suspended")
    async with visiting(serve, by="Kim") as kim:
        assert 'href="/batches/new?do=resolve&amp;' in (await kim.browser.get("/people")).text
        form = (await kim.browser.get("/batches/new", params={"do": "resolve"})).text
        assert 'name="how"' in form
        assert 'value="assign"' not in form
        view = await chooses(kim, "resolve", f"text={desk.word}", how="to", to="b", note="look")
        shown = (await kim.browser.get(view)).text
        assert "waits for something else than an escalation" in shown
        assert "<dt>to</dt><dd>b</dd><dt>note</dt><dd>look</dd></dl>" in shown
        assert "2 of 2 resolved" in await confirms(kim, view)
    for request in waiting:
        event = is_(await desk.last(request), events.EscalationResolved)
        assert (event.to, event.work.handoff.summary, event.by) == ("b", "look", "Kim")
    assert type_of(await desk.last(asked)) == "turn.suspended"


async def test_a_rerun_tells_of_effects_first_and_of_the_new_requests_last(
    serve: Serve, desk: Desk, stage: Stage
) -> None:
    old, work = await desk.begun(desk.word)
    report = Report(effects=("pay",))
    await (await stage.actor("a")).propose(old, work, Fail(reason="the bank is down"), report=report)
    await stage.reaches(old, "request.failed")
    async with visiting(serve, by="Kim") as kim:
        view = await chooses(kim, "rerun", f"text={desk.word}")
        shown = (await kim.browser.get(view)).text
        assert "1 request reported the effect <code>pay</code>: it can happen again, under a new key" in shown
        done = await confirms(kim, view)
        new = rerun_id(view.rpartition("/")[2], "op", old)
        assert f'href="/requests/{new}"' in done
    assert is_((await stage.log(new))[0], events.RequestOpened).rerun_of == old


async def test_a_batch_that_stopped_says_so_and_goes_on_without_doing_anything_twice(
    desk: Desk, stage: Stage
) -> None:
    found = await desk.several(2)
    await stage.dismiss(next(iter(stage._guards)))
    bus = await stage.bus("op")
    chosen = await bulk.choose(bus, bulk.cancelling(by="kim"), desk.wanted)
    batch = KeptBatch(ACTIONS["cancel"], "text=x", chosen, session="s", by="kim")
    batch.begin(bus, quiet_s=0.1)
    await batch.run()
    assert (batch.state, [each.outcome for each in batch.came]) == ("stopped", ["waits", "waits"])
    assert "2 messages" in batch.trouble
    await stage.ready(await stage.guard("later"))
    batch.begin(bus)
    await batch.run()
    assert (batch.state, batch.trouble) == ("done", "")
    assert {each.outcome for each in batch.came} <= {"done", "before"}
    assert [await stage.types(each) for each in found] == [["request.opened", "request.cancelled"]] * 2


async def test_dead_letters_are_put_back_together(serve: Serve, desk: Desk, stage: Stage) -> None:
    found = await desk.several(3)
    guard = next(iter(stage._guards))
    guard._context.fleet = replace(guard._context.fleet, operators=())
    for request in found:
        await stage.control(request, Cancel(id="x", by="lee"))
        await stage.buried("not_allowed", request=request)
    guard._context.fleet = replace(guard._context.fleet, operators=FLEET.operators)
    async with visiting(serve, by="Kim") as kim:
        assert 'href="/batches/new?do=resend"' in (await kim.browser.get("/mesh")).text
        view = await chooses(kim, "resend", f"text={desk.word}", code="not_allowed", limit="2")
        shown = (await kim.browser.get(view)).text
        assert "2 letters to put back" in shown
        assert 'href="/mesh/dead/' in shown
        done = await confirms(kim, view)
        assert "2 of 2 decided" in done
        assert "What it did" not in done
        rest = (await kim.browser.get(await chooses(kim, "resend", f"text={desk.word}"))).text
        assert "1 letter to put back" in rest
        assert "2 letters passed over: decided since" in rest
    types = [type_of(await desk.last(each)) for each in found]
    assert sorted(types) == ["request.cancelled", "request.cancelled", "request.opened"]


async def test_letters_take_the_admins_key(serve: Serve, desk: Desk, keys: Keys, tmp_path: Path) -> None:
    without = keys._replace(of=lambda name: None if name == "admin" else keys.of(name))
    options = Options(allow_write=True, by="Kim", store=tmp_path / "own")
    async with serving(without, options) as address, Visitor(address) as kim:
        refused = await kim.sends("/batches/new?do=resend", "/batches", {"do": "resend", "where": "agent=a"})
        assert refused.status_code == 403
        assert "--admin-key" in refused.text


async def test_a_page_that_ends_forgets_the_batch_and_what_was_sent_is_done(
    serve: Serve, desk: Desk, stage: Stage
) -> None:
    found = await desk.several(2)
    await stage.dismiss(next(iter(stage._guards)))
    async with visiting(serve, by="Kim") as kim:
        view = await chooses(kim, "cancel", f"text={desk.word}")
        assert (await kim.sends(view, view, {})).status_code == 303
        await stage.drained("CTL", to=2)
        assert "Under way" in (await kim.browser.get(view)).text
    async with visiting(serve, by="Kim") as kim:
        forgotten = await kim.browser.get(view)
        assert forgotten.status_code == 404
        assert "What it did is in the list of requests" in forgotten.text
    await stage.ready(await stage.guard("later"))
    for request in found:
        await stage.reaches(request, "request.cancelled")
        assert batch_of(await desk.last(request)) == view.rpartition("/")[2]


def test_the_oldest_batch_that_does_not_run_is_forgotten() -> None:
    kept = KeptBatches()

    def added() -> KeptBatch:
        chosen = Chosen(batch=new_batch(), orders=(), shown=(), requests=0, passed_over={}, effects={})
        batch = KeptBatch(ACTIONS["cancel"], "agent=a", chosen, session="s", by="kim")
        kept.add(batch)
        return batch

    first = added()
    first.state = "running"
    others = [added() for _ in range(MOST_KEPT)]
    assert kept.get(first.chosen.batch) is first
    with pytest.raises(Exception, match="does not remember"):
        kept.get(others[0].chosen.batch)
    assert kept.get(others[1].chosen.batch) is others[1]
    for batch in others:
        batch.state = "running"
    with pytest.raises(Exception, match="too many batches"):
        added()
