"""`mesh schedule …`: what ticks next, and a person who stops it or does not wait for it."""

import msgspec

from mesh import ops
from mesh.cli.exits import Exit
from protocol.wire import subjects
from protocol.wire.ids import is_request_id
from protocol.wire.schedule import ScheduleEntry
from tests.guard.stage import Stage
from tests.guard.test_schedules import came_of, plan, scheduled
from tests.system.office import Office


async def test_schedules_are_listed_with_their_next_and_their_last_tick(office: Office, stage: Stage) -> None:
    assert (await office.mesh("schedule", "ls", "--json", who="audit")).json == []
    async with scheduled(stage, "often", plan()), scheduled(stage, "rare", plan(cron="@yearly")):
        (done,) = await came_of(stage, "often", "submitted")
        await came_of(stage, "often", "skipped")
        often, rare = (await office.mesh("schedule", "ls", "--json", who="audit")).json
        assert (often["name"], often["client"], often["to"], often["overlap"]) == ("often", "c1", "a", "skip")
        assert (often["tick"]["outcome"], often["tick"]["last"]) == ("skipped", done.request)
        assert often["due"] > often["tick"]["at"]
        assert (rare["name"], rare["tick"], rare["paused"]) == ("rare", None, False)
        lines = (await office.mesh("schedule", "ls", who="op")).out.splitlines()
        assert [line.split("\t")[0] for line in lines] == ["schedule", "often", "rare"]
        assert f"{done.request} is open" in lines[1]
    assert (await office.mesh("schedule", "ls", "--json", who="audit")).json == []


async def test_a_schedule_is_paused_run_and_resumed(office: Office, stage: Stage) -> None:
    async with scheduled(stage, "rare", plan(cron="@yearly")):
        paused = await office.mesh("schedule", "pause", "rare", "--by", "ada", who="admin")
        assert (paused.status, paused.out) == (Exit.DONE, "the schedule rare is paused\n")
        newest, *_ = (await office.mesh("conf", "log", "--json")).json
        assert (newest["what"], newest["by"]) == ("pause rare", "ada")
        assert "rare\tpaused" in (await office.mesh("schedule", "ls")).out
        assert (await office.mesh("schedule", "pause", "rare", who="admin")).status == Exit.FAILED
        ran = await office.mesh("schedule", "run-now", "rare", "--json", who="admin")
        assert is_request_id(ran.json["request"])
        await stage.reaches(ran.json["request"], "request.opened")
        resumed = await office.mesh("schedule", "resume", "rare", "--json", who="admin")
        assert (resumed.json["paused"], resumed.json["due"] is None) == (False, False)
        assert (await office.mesh("schedule", "resume", "rare", who="admin")).status == Exit.FAILED


async def test_only_the_admin_changes_what_a_schedule_does(office: Office, stage: Stage) -> None:
    async with scheduled(stage, "rare", plan(cron="@yearly")):
        for verb, admin_too in (("pause", True), ("resume", True), ("run-now", False)):
            refused = await office.mesh("schedule", verb, "rare", who="op")
            assert refused.status == Exit.USAGE, refused
            if admin_too:
                assert (await office.mesh("schedule", verb, "rare", who="admin")).status == Exit.DONE
            assert (await office.mesh("schedule", verb, "nowhere", who="admin")).status == Exit.FAILED


async def test_a_request_is_submitted_for_a_time_listed_and_cancelled(office: Office, stage: Stage) -> None:
    asked = ("request", "submit", "remind them", "--to", "a", "--as", "c1")
    later = await office.mesh(*asked, "--at", "+2h", "--json", who="admin")
    name, request = later.json["schedule"], later.json["request"]
    assert later.json["client"] == "c1"
    assert is_request_id(request)
    assert f"mesh schedule cancel {name} cancels it" in later.err
    (listed,) = (await office.mesh("schedule", "ls", "--json")).json
    assert (listed["name"], listed["due"], listed["at"]) == (name, later.json["at"], later.json["at"])
    assert f"{name}\t" in (await office.mesh("schedule", "ls")).out
    assert (await office.mesh("schedule", "run-now", name, who="admin")).status == Exit.FAILED
    assert (await office.mesh("schedule", "cancel", name, who="op")).status == Exit.USAGE
    cancelled = await office.mesh("schedule", "cancel", name, "--by", "ada", who="admin")
    assert (cancelled.status, cancelled.out) == (Exit.DONE, f"{name} is cancelled\n")
    assert (await office.mesh("schedule", "cancel", name, who="admin")).status == Exit.FAILED
    assert await stage.types(request) == []
    await ops.schedules._forget(await stage.bus("admin"), [name])
    for wrong in (("--at", "2h"), ("--at", "soon"), ("--at", "+2h", "--id", request)):
        assert (await office.mesh(*asked, *wrong, who="admin")).status == Exit.USAGE, wrong
    assert (await office.mesh(*asked, "--at", "2001-01-01", who="admin")).status == Exit.FAILED
    assert (await office.mesh(*asked[:-2], "--at", "+2h", who="admin")).status == Exit.FAILED


async def test_doctor_and_the_list_name_a_schedule_that_cannot_be_read(office: Office, stage: Stage) -> None:
    admin = await stage.bus("admin")
    for body in (b"{", b'{"schedule":{"client":"c1","cron":"@daily","submit":{"text":""}}}'):
        await admin.publish_durable(subjects.schedule("broken"), body)
        found = (await office.mesh("doctor", "--json", who="admin")).json
        broken = [each["text"] for each in found if each["check"] == "documents"]
        assert [subjects.schedule("broken") in text for text in broken] == [True]
        (listed,) = (await office.mesh("schedule", "ls", "--json")).json
        assert (listed["name"], listed["due"]) == ("broken", None)
        assert listed["unreadable"]
        assert (await office.mesh("schedule", "run-now", "broken", who="admin")).status == Exit.FAILED
    await admin.publish_durable(subjects.schedule("broken"), msgspec.json.encode(ScheduleEntry()))


async def test_doctor_tells_of_schedules_and_finds_what_is_overdue_or_refused(
    office: Office, stage: Stage
) -> None:
    async def found() -> dict[str, str]:
        """Return the state of each schedule, by the last word of what doctor says of it first."""
        told = (await office.mesh("doctor", "--json", who="admin")).json
        return {each["text"]: each["state"] for each in told if each["check"] == "schedules"}

    assert set((await found()).values()) == {"ok"}
    admin = await stage.bus("admin")
    async with (
        scheduled(stage, "rare", plan(cron="@yearly")),
        scheduled(stage, "wrong", plan(policy="nowhere")),
        scheduled(stage, "paused", plan(cron="@yearly")),
    ):
        await ops.schedules.pause(admin, "paused", by="ada")
        await came_of(stage, "wrong", "refused")
        texts = await found()
        (refused,) = (text for text, state in texts.items() if state == "found")
        assert refused.startswith("the last request of the schedule wrong was refused: known_policy: ")
        assert any(text.startswith("the schedule rare ticks next at 20") for text in texts)
        assert "the schedule paused is paused" in texts
