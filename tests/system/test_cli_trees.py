"""A supervised request on a real mesh, as an operator sees it and steps into it."""

import json

from mesh.cli.exits import Exit
from protocol.wire.commands import Doubt, ReportInDoubt
from protocol.wire.events import EscalationResolved, RequestOpened
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Delegate, Deliver, Escalate, Fail, Task
from tests.certain import is_
from tests.guard.stage import Stage
from tests.system.office import Office

ONE = Task(name="one", summary="find one", to_agent=AgentName("b"))


async def test_a_tree_whose_worker_nobody_serves_is_found_drawn_and_explained(
    office: Office, stage: Stage
) -> None:
    request = await office.delegated()
    shown = (await office.mesh("request", "show", request)).out
    assert "led by a, 2 tasks" in shown
    assert "├─ one (b)  " in shown
    assert "└─ two (e)  " in shown
    assert "its task two of a is not done; nobody serves e" in shown
    listed = json.loads((await office.mesh("request", "ls", "--json")).out)
    assert [row["holder"] for row in listed if row["request"] == request] == ["e"]

    why = (await office.mesh("why")).out  # the newest that is stuck
    assert f"{request}, event 1 (turn.delegated)" in why
    assert "a waits for all of: two. two: e works on it, since " in why

    by_lead = json.loads((await office.mesh("cost", request, "--by", "lead", "--json")).out)
    assert [(row["name"], row["model_calls"]) for row in by_lead["rows"]] == [("a", 2)]
    assert (await office.mesh("replay", request)).status == Exit.DONE
    assert (await office.mesh("log", "verify", request)).status == Exit.DONE

    assert (await office.mesh("request", "cancel", request)).status == Exit.DONE
    shown = (await office.mesh("request", "show", request)).out
    assert "the request is over" in shown
    assert "waits for" not in shown
    assert (await office.mesh("replay", request)).status == Exit.DONE


async def test_people_settle_a_tasks_doubt_take_up_its_lead_and_begin_it_again(
    office: Office, stage: Stage
) -> None:
    """A task waits for a person alone; its lead goes on with its result; the whole can be done again."""
    lead, worker = await stage.actor("a"), await stage.actor("b")
    request, work = await office.begun(policy="tree")
    await lead.propose(request, work, Delegate(tasks=(ONE,)))
    task = await worker.work(request)
    doubt = Doubt(step="0-3", action="pay", key="k7")
    await worker.say(request, ReportInDoubt(turn=task.turn, round=0, effect=doubt))
    await stage.reaches(request, "effect.doubted")
    assert [each["request"] for each in (await office.mesh("doubt", "ls", "--json")).json] == [request]
    assert (await office.mesh("doubt", "settle", request, "--done", "--by", "Ada")).status == Exit.DONE
    settled = await worker.work(request, round_=1)
    assert (settled.task, settled.past[-1].settled) == ("one", "done")
    await worker.propose(request, settled, Deliver(summary="one is found"))

    joined = await lead.work(request, round_=1)
    await lead.propose(request, joined, Escalate(summary="is one enough?"))
    await stage.reaches(request, "escalation.raised")
    assert (await office.mesh("human", "assign", request, "Ada")).status == Exit.DONE
    resolved = await office.mesh("human", "resolve", request, "--again", "--note", "two, as well")
    assert resolved.status == Exit.DONE
    await stage.reaches(request, "escalation.resolved")
    again = is_(await office.last(request), EscalationResolved).work
    used = Task(name="two", summary="find two", to_agent=AgentName("c"), uses=("one",))
    await lead.propose(request, again, Delegate(tasks=(used,)))
    other = await stage.actor("c")
    given = await other.work(request)
    assert [(result.name, result.summary) for result in given.results] == [("one", "one is found")]
    await other.propose(request, given, Fail(reason="two is nowhere"))
    await stage.reaches(request, "turn.resumed", 2)
    last = (await stage.log(request))[-1].work
    assert last is not None
    await lead.propose(request, last, Complete(answer="one"))
    await stage.reaches(request, "request.completed")
    shown = (await office.mesh("request", "show", request)).out
    assert "error: failed (a → c, 1 attempt): two is nowhere" in shown
    assert (await office.mesh("replay", request)).status == Exit.DONE

    begun = await office.mesh("request", "rerun", request, "--yes")
    new = begun.out.strip()
    await stage.reaches(new, "request.opened")
    event = is_((await stage.log(new))[0], RequestOpened)
    assert (event.to, event.rerun_of, event.policy.topology) == ("a", request, "supervised")
    assert event.work.results == ()
