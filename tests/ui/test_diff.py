"""Two requests side by side on the page: what `mesh diff` says of them, and how one gets there."""

import httpx

from mesh.ops.diff import CourseEntry, CoursePair
from mesh.ui.diff import part_of
from protocol.wire.moves import Complete, Transfer
from tests.servers import eventually
from tests.system.office import Office
from tests.ui.conftest import Serve


async def walked(office: Office, to: str, answer: str = "done") -> str:
    """Return a request that `a` hands to an agent, which completes it."""
    request, work = await office.begun()
    give = Transfer(to_agent=to, summary="<b>you</b>")  # type: ignore[arg-type]
    await (await office.stage.actor("a")).propose(request, work, give)
    taker = await office.stage.actor(to)
    await taker.propose(request, await taker.work(request), Complete(answer=answer))
    await office.stage.reaches(request, "request.completed")
    return request


async def test_it_says_what_the_command_says(serve: Serve, office: Office) -> None:
    one, other = await walked(office, "b"), await walked(office, "c")
    said = await office.mesh("diff", one, other)
    assert said.status == 1
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        shown = (await browser.get(f"/requests/{one}/diff/{other}")).text
        assert "target at event 1: b → c" in said.out
        assert "<strong>target at event 1: b → c</strong>" in shown
        assert "target: <del>b</del>" in shown
        assert "target: <ins>c</ins>" in shown
        assert f"mesh diff {one} {other}</code>" in shown
        for part in (f"/requests/{one}/events/1", f"/requests/{other}/events/1"):
            assert f'href="{part}"' in shown
        same = (await browser.get(f"/requests/{one}/diff/{one}")).text
        assert "The same: 3 places" in same
        assert 'class="differs"' not in same


async def test_texts_and_earlier_ends_are_compared_if_asked_for(serve: Serve, office: Office) -> None:
    one, other = await walked(office, "b"), await walked(office, "b", answer="<i>42</i>")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        whole = (await browser.get(f"/requests/{one}/diff/{other}")).text
        assert "answer at event 3: done → &lt;i&gt;42&lt;/i&gt;" in whole
        assert "<i>" not in whole
        early = {"a": 1, "b": 1}
        assert "The same: 2 places" in (await browser.get(f"/requests/{one}/diff/{other}", params=early)).text
        lopsided = (await browser.get(f"/requests/{one}/diff/{other}", params={"b": 1, "texts": "yes"})).text
        assert "move at event 3 of A and the end of B: complete → nothing" in lopsided
        assert "not in B" in lopsided
        assert f"mesh diff {one} {other}@1 --texts" in lopsided
        for wrong, status in (({"a": 7}, 404), ({"a": "x"}, 400)):
            answer = await browser.get(f"/requests/{one}/diff/{other}", params=wrong)
            assert answer.status_code == status
        assert (await browser.get(f"/requests/{one}/diff/nonsense")).status_code == 400


async def test_the_other_request_is_typed_or_begins_so(serve: Serve, office: Office) -> None:
    one, other = await walked(office, "b"), await walked(office, "c")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        assert f'href="/requests/{one}/diff"' in (await browser.get(f"/requests/{one}")).text
        for typed in (other, other[:-2]):
            led = await browser.get(f"/requests/{one}/diff", params={"with": typed})
            assert (led.status_code, led.headers["location"]) == (303, f"/requests/{one}/diff/{other}")
        for typed, status in (("two words", 400), (f"{one[:-4]}0000", 404)):
            led = await browser.get(f"/requests/{one}/diff", params={"with": typed}, follow_redirects=True)
            assert led.status_code == status


async def test_a_rerun_leads_to_the_comparison_with_its_request(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    await office.mesh("request", "cancel", request)
    new = (await office.mesh("request", "rerun", request, "--yes")).out.strip()
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:

        async def leads() -> bool:
            answer = await browser.get(f"/requests/{new}")
            return f'href="/requests/{request}/diff/{new}"' in answer.text

        await eventually(leads)
        chosen = (await browser.get(f"/requests/{new}/diff")).text
        assert f'href="/requests/{new}/diff/{request}"' in chosen


def test_long_requests_are_shown_in_parts() -> None:
    entry = CourseEntry(n=0, move="fail", giver="a", verdict="admitted")
    same, only = CoursePair(a=entry, b=entry), CoursePair(a=entry, b=None)
    first = part_of((same, same, same, only), 0, size=2)
    assert (first.rows, first.part, first.last, first.parted) == ((same, same), 0, 1, 1)
    assert part_of((same, same, same, only), 9, size=2).rows == (same, only)
    assert part_of((), 1) == ((), 0, 0, None)
