"""`mesh log export --cloudevents`: each event of a request, with the fleet as its source."""

import json
import re

from mesh.bus.stores import rfc3339
from mesh.cli.exits import Exit
from protocol.wire import subjects
from tests.guard.stage import FLEET, Stage
from tests.ops.test_cloudevents import read
from tests.system.office import Office


async def test_events_are_exported_one_a_line(office: Office, stage: Stage) -> None:
    request = await office.asked()
    exported = await office.mesh("log", "export", request, "--cloudevents", who="audit")
    assert (exported.status, exported.err) == (Exit.DONE, "")
    shown = [read(line.encode()) for line in exported.out.splitlines()]
    stored = await stage.log(request)
    assert [(each["subject"], each["id"]) for each in shown] == [(request, event.id) for event in stored]
    assert [each["time"] for each in shown] == [rfc3339(event.at) for event in stored]
    assert {each["source"] for each in shown} == {f"urn:handoff-mesh:{FLEET.name}"}
    hidden = await office.mesh("log", "export", request, "--cloudevents", "--redact", "0", who="audit")
    assert "redacted" in json.loads(hidden.out.splitlines()[0])["data"]


async def test_what_cannot_be_read_is_left_out_and_counted(office: Office, stage: Stage) -> None:
    spoiled = await office.asked()
    stage.spoiled.add(spoiled)
    await (await stage.bus("admin")).publish_durable(subjects.evt("op", spoiled), b"{}")
    request, _ = await office.begun()  # the log's newest event can be read
    exported = await office.mesh("log", "export", "--all", "--cloudevents", who="audit")
    shown = [read(line.encode()) for line in exported.out.splitlines()]
    assert {request, spoiled} <= {each["subject"] for each in shown}
    assert re.search(r"\d+ events? left out", exported.err)
