"""An agent asks by a schema that nobody can judge, so that any reply would be let through unchecked."""

import pytest

from mesh.agent import _reply_schema as judging
from mesh.agent._reply_schema import ReplyUnjudged
from tests.system.office import Office
from tests.ui.conftest import Serve, Visitor

ENDLESS = {"type": "string", "pattern": "^(a+)+$"}
REPLY = "a" * 60 + "!"


@pytest.fixture(autouse=True)
def _a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "CPU_S", 1)


async def test_nobody_at_the_page_sends_a_reply_that_was_not_judged(serve: Serve, office: Office) -> None:
    request = await office.asked(schema=ENDLESS)
    before = await office.last(request)
    async with serve(allow_write=True, by="Kim") as address, Visitor(address) as kim:
        page = f"/people/{request}"
        answer = await kim.sends(page, f"{page}/reply", {"value": REPLY})
        assert answer.status_code == 400
        assert "nothing was sent" in answer.text
        assert await office.last(request) == before


async def test_nobody_at_a_terminal_does(office: Office) -> None:
    request = await office.asked(schema=ENDLESS)
    before = await office.last(request)
    said = await office.mesh("human", "reply", request, REPLY, "--by", "Kim")
    assert said.status != 0
    assert "nothing was sent" in said.err
    assert await office.last(request) == before


async def test_no_client_does(office: Office) -> None:
    client = await office.stage.client()
    request = await office.asked("c1", schema=ENDLESS)
    before = await office.last(request)
    (question,) = await client.questions(request)
    with pytest.raises(ReplyUnjudged):
        await client.reply(question, REPLY)
    assert await office.last(request) == before
    await client.reply(question, "aaa")
    await office.stage.reaches(request, "turn.resumed")
