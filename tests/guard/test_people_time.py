"""The time that people have, on a server: its end ends the request, and four fifths of it are logged."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mesh.ops import queue
from protocol.wire import events
from protocol.wire.ids import HUMAN
from tests.certain import is_
from tests.guard.stage import Stage
from tests.logs import captured_logs, said
from tests.system.office import Office


@pytest.fixture
def office(stage: Stage, tmp_path: Path) -> Office:
    return Office(stage, tmp_path)


async def test_a_guard_says_that_people_run_out_of_time_before_the_request_expires(
    stage: Stage, office: Office
) -> None:
    with captured_logs() as lines:
        await stage.guard("g1")
        request = await office.escalated(policy="attended")
        await said(lines, "people_urgent")
        expired = await stage.reached(request, events.RequestExpired)
    (line,) = [line for line in lines if line["event"] == "people_urgent"]
    assert (line["request"], line["agent"], line["tier"], line["log_level"]) == (request, HUMAN, 1, "warning")
    raised = is_((await stage.log(request))[-2], events.EscalationRaised)
    assert line["n"] == raised.n
    assert (expired.with_people, expired.deadline) == (True, raised.at + 2_000_000)


async def test_the_list_says_when_a_decision_is_due_and_whether_it_is_urgent(
    stage: Stage, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.guard("g1")
    request = await office.escalated(policy="weekend")
    raised, op = (await stage.log(request))[-1], await stage.bus("op")
    for after_s, urgent in ((2_879, False), (2_880, True)):
        now = raised.at + after_s * 1_000_000
        monkeypatch.setattr("mesh.ops.queue.time", SimpleNamespace(time_ns=lambda now=now: now * 1_000))
        waits = {each.request: each for each in (await queue.queue(op)).waiting}
        assert (waits[request].due, waits[request].urgent) == (raised.at + 3_600_000_000, urgent)
