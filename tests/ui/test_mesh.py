"""Agents and the mesh on the page: who is there, what is wrong, and what an operator can do about it."""

import re

import httpx
import pytest

from mesh.ops.dead_letters import letters
from mesh.ops.roster import mesh_freeze
from protocol.wire.moves import Transfer
from tests.servers import eventually
from tests.system.office import Office
from tests.ui.conftest import Serve, Visitor


async def test_agents_are_shown_with_who_is_there_and_what_passed(serve: Serve, office: Office) -> None:
    await office.stage.actor("b", served=True)
    request, work = await office.begun()
    giver = await office.stage.actor("a")
    await giver.propose(request, work, Transfer(to_agent="zoe", summary="there is no zoe"))  # type: ignore[arg-type]
    again = await giver.work(request, round_=1)
    await giver.propose(request, again, Transfer(to_agent="b", summary="then you"))  # type: ignore[arg-type]
    await office.stage.reaches(request, "handoff.admitted")
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:

        async def is_counted() -> bool:
            shown = (await browser.get("/agents")).text
            return all(
                re.search(rf'title="{pair}">{count}', shown)
                for pair, count in (("a to zoe", r' <span class="refused">✗1'), ("a to b", "<b>1</b>"))
            )

        await eventually(is_counted)
        piece = (await browser.get("/agents", headers={"hx-request": "true"})).text
        assert "<html" not in piece
        assert "alive" in piece
        assert "absent" in piece


async def test_the_mesh_is_looked_over(serve: Serve) -> None:
    async with serve() as address, httpx.AsyncClient(base_url=address) as browser:
        found = await browser.get("/mesh/findings")
        assert found.status_code == 200
        assert "nats-server" in found.text
        assert "nobody serves" in found.text


async def test_the_whole_mesh_is_frozen_and_thawed_with_a_reason(serve: Serve, office: Office) -> None:
    reader = await office.stage.bus("audit")
    async with serve(allow_write=True) as address, Visitor(address) as kim:
        unsaid = await kim.sends("/mesh", "/mesh/freeze", {"by": "Kim", "reason": " "})
        assert unsaid.status_code == 400
        assert not (await mesh_freeze(reader)).frozen
        assert (await kim.sends("/mesh", "/mesh/freeze", {"reason": "a fire"})).status_code == 303
        stands = await mesh_freeze(reader)
        assert (stands.frozen, stands.by, stands.reason) == (True, "Kim", "a fire")
        assert "a fire" in (await kim.browser.get("/mesh")).text
        assert (await kim.sends("/mesh", "/mesh/thaw", {"reason": "it is out"})).status_code == 303
        assert not (await mesh_freeze(reader)).frozen
        assert (await kim.sends("/mesh", "/mesh/melt", {"reason": "x"})).status_code == 400


async def test_a_request_is_frozen_thawed_and_cancelled_by_name(serve: Serve, office: Office) -> None:
    request = await office.escalated()
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim:
        page = f"/requests/{request}"
        for order, type_ in (("freeze", "frozen"), ("thaw", "thawed"), ("cancel", "cancelled")):
            answer = await kim.sends(page, f"{page}/order/{order}", {"reason": f"to {order} it"})
            assert answer.status_code == 303, answer.text
            last = await office.last(request)
            assert last.__struct_config__.tag == f"request.{type_}"
            assert (last.by, last.reason) == ("Kim", f"to {order} it")  # type: ignore[union-attr]
        late = await kim.posts(f"{page}/order/cancel", await kim.form("/me"))
        assert late.status_code == 409


@pytest.fixture
async def letter(office: Office) -> int:
    """A dead letter whose bytes could steer a terminal, and run in a browser."""
    bus = await office.stage.bus("c1")
    body = b'{"what": "\x1b[31mred <script>alert(1)</script>"'
    await bus.publish_durable("mesh.prop.c1.c1_01JZZZZZZZZZZZZZZZZZZZZZZZ", body, {})
    reader = await office.stage.bus("audit")

    async def there() -> bool:
        return [letter async for _, letter in letters(reader) if letter.original == body] != []

    await eventually(there)
    return max([seq async for seq, letter in letters(reader) if letter.original == body])


async def test_a_dead_letter_is_shown_and_put_back(serve: Serve, letter: int) -> None:
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim:
        page = f"/mesh/dead/{letter}"
        assert f'href="{page}"' in (await kim.browser.get("/mesh")).text
        shown = (await kim.browser.get(page)).text
        assert "\x1b" not in shown
        assert "<script>alert" not in shown
        assert "\\x1b[31mred" in shown
        again = await kim.sends(page, f"{page}/resend", {})
        assert again.status_code == 409  # it is malformed still: the guard keeps it again
        assert (await kim.browser.get("/mesh/dead/999999")).status_code == 404
