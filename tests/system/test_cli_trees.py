"""A supervised request on a real mesh, as an operator sees it while one of its workers is missing."""

import json

from mesh.cli.exits import Exit
from tests.guard.stage import Stage
from tests.system.office import Office


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
