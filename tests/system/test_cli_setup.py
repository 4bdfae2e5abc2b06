"""`mesh setup` where an agent leaves the fleet file while it has work: listed, asked, and taken from it."""

from pathlib import Path

from mesh.cli.exits import Exit
from protocol.wire.events import TurnFailed
from tests.guard.stage import FLEET, Stage
from tests.system.office import Office


def fleet_file(path: Path, *leavers: str) -> None:
    """Write the stage's fleet without these agents."""
    members = {
        "agents": [name for name in FLEET.agents if name not in leavers],
        "clients": FLEET.clients,
        "operators": FLEET.operators,
        "viewers": FLEET.viewers,
    }
    sections = [f"[{kind}.{name}]" for kind, names in members.items() for name in names]
    (path / "mesh.toml").write_text("\n".join(['name = "stage"', 'entry = "a"', *sections, "[human]"]))


async def test_requests_of_agents_that_leave_are_listed_and_asked_about_before_anything_is_written(
    own_office: Office, own_stage: Stage, tmp_path: Path
) -> None:
    fleet_file(tmp_path)
    assert (await own_office.mesh("setup", who="admin")).status == Exit.DONE
    client = await own_stage.client()
    first, second, other = [await client.submit("hello", to=name) for name in "eed"]
    for request in (first, second, other):
        await own_stage.reaches(request, "request.opened")
    fleet_file(tmp_path, "e")

    planned = await own_office.mesh("setup", "--dry-run", "--json", who="admin")
    assert {each["request"] for each in planned.json["held"]} == {first, second}
    assert {each["agent"] for each in planned.json["held"]} == {"e"}

    refused = await own_office.process("setup", who="admin")
    assert refused.status == Exit.USAGE, refused
    assert "e leaves the fleet and holds 2 open requests" in refused.err
    assert first in refused.err
    assert "add --yes" in refused.err
    declined = await own_office.typed("n\n", "setup", who="admin")
    assert (declined.status, "nothing was changed" in declined.err) == (Exit.FAILED, True), declined
    assert (await own_office.mesh("setup", "--dry-run", "--json", who="admin")).json["held"]  # nothing was
    assert await own_stage.types(first) == ["request.opened"]

    done = await own_office.mesh("setup", "--yes", "--json", who="admin")
    assert done.status == Exit.DONE, done
    for request in (first, second):
        failed = await own_stage.reached(request, TurnFailed)
        assert failed.error.code == "agent_removed"
        await own_stage.reaches(request, "escalation.raised")
    assert await own_stage.types(other) == ["request.opened"]
    assert (await own_office.mesh("setup", "--json", who="admin")).json["held"] == []


async def test_an_agent_that_holds_nothing_leaves_without_a_question(
    own_office: Office, own_stage: Stage, tmp_path: Path
) -> None:
    fleet_file(tmp_path)
    assert (await own_office.mesh("setup", who="admin")).status == Exit.DONE
    fleet_file(tmp_path, "d", "e")
    done = await own_office.process("setup", who="admin")
    assert done.status == Exit.DONE, done
    assert "leaves the fleet" not in done.err


async def test_a_bus_that_was_never_set_up_is_said_to_have_no_mesh(
    own_office: Office, own_stage: Stage, tmp_path: Path
) -> None:
    """Nobody answers there, as where the log has no leader for a moment: only that is worth waiting for."""
    admin = await own_stage.bus("admin")
    await admin.api("STREAM.DELETE.LOG")
    for command in (("human", "ls"), ("request", "show", "app_01M8HA163MM43X50TTZVEKRZRC")):
        refused = await own_office.mesh(*command)
        assert refused.status == Exit.FAILED, refused
        assert "this bus has no mesh; run `mesh setup`" in refused.err, refused
    fleet_file(tmp_path)
    with (tmp_path / "mesh.toml").open("a") as file:
        file.writelines(f"\n[agents.new-{n}]" for n in range(6))
    looked = await own_office.mesh("doctor", "--json", who="admin")
    assert looked.status == Exit.FAILED, looked
    missing = looked.json
    [created] = [each["text"] for each in missing if each["text"].startswith("`mesh setup` would create ")]
    assert created.startswith("`mesh setup` would create stream "), created
    assert created.endswith(" more: see mesh setup --dry-run")
    assert (await own_office.mesh("setup", who="admin")).status == Exit.DONE
    assert (await own_office.mesh("human", "ls")).status == Exit.DONE
