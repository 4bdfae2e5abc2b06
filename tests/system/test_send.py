"""What `mesh send` says of a request that did not end in time: whether a person has it."""

from mesh.cli.exits import Exit
from mesh.cli.options import Where
from mesh.cli.send import _somebody
from tests.guard.stage import Stage
from tests.system.office import Office


async def test_a_person_who_has_it_is_named_as_what_it_waits_for(stage: Stage, office: Office) -> None:
    audit = await stage.bus("audit")
    request = await office.escalated()
    told = await _somebody(audit, request, Where(), "c1")
    assert told.startswith(
        "a person has it (asked: a person, please); it goes on when they have decided: mesh request show"
    )
    assert request in told
    assert (await _somebody(audit, await office.asked(), Where(), "c1")).startswith("a person was asked; ")
    assert (await _somebody(audit, await office.doubted(), Where(), "c1")).startswith(
        "a person has to say what became of"
    )


async def test_what_no_person_has_is_not_said_to_be_a_persons(stage: Stage, office: Office) -> None:
    audit = await stage.bus("audit")
    request, _ = await office.begun()
    assert not await _somebody(audit, request, Where(), "c1")
    client = await stage.client()
    assert not await _somebody(audit, client.new_id(), Where(), "c1")


async def test_who_cannot_look_is_told_where_to(stage: Stage, office: Office) -> None:
    done = await office.mesh("send", "hello", "--timeout", "0", who="c1")
    assert done.status == Exit.TIMED_OUT
    assert "has not ended within 0 s; it goes on: mesh request show c1_" in done.err
