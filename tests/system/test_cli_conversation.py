"""A conversation from the command line: its requests are listed together, and each says which it is in."""

from mesh.cli.exits import Exit
from protocol.wire.commands import Complete
from tests.guard.stage import Stage
from tests.system.office import Office


async def test_requests_are_listed_by_conversation_open_or_ended(office: Office, stage: Stage) -> None:
    client, a = await stage.client(), await stage.actor("a")
    ended = await client.submit("one", conversation="c-1")
    await a.propose(ended, await a.work(ended), Complete(answer="done"))
    await stage.reaches(ended, "request.completed")
    open_ = await client.submit("two", conversation="c-1")
    other = await client.submit("three", conversation="c-2")
    refused = await client.submit("four", conversation="c-1", to="nobody")
    for request, last in ((open_, "request.opened"), (other, "request.opened"), (refused, "request.refused")):
        await stage.reaches(request, last)
    listed = await office.mesh("request", "ls", "--conversation", "c-1", "--json")
    assert listed.status == Exit.DONE, listed
    assert {each["request"] for each in listed.json} == {ended, open_, refused}
    assert {each["conversation"] for each in listed.json} == {"c-1"}
    shown = await office.mesh("request", "ls", "--conversation", "c-1", "--status", "open")
    assert (open_ in shown.out, ended in shown.out, "c-1" in shown.out) == (True, False, True)
    assert (await office.mesh("request", "show", refused, "--json")).json["conversation"] == "c-1"
    assert "in conversation c-2" in (await office.mesh("request", "show", other)).out
