"""Submitting from the command line: all that a submit can say arrives in the handoff as it was said."""

import datetime as dt

import pytest

from mesh.cli.exits import Exit
from protocol.wire.events import RequestOpened
from protocol.wire.handoff import Artifact, Budget
from tests.guard.stage import Stage
from tests.system.office import Office


async def test_limits_and_artifacts_of_a_request_arrive_as_they_were_said(
    stage: Stage, office: Office
) -> None:
    said = ("--artifact", "scan=s3://b/scan.pdf", "--budget", "dollars=0.5", "--budget", "tokens=900")
    more = ("--allow", "look", "--must-carry", "order", "--fact", "order:=7", "--conversation", "c-1")
    done = await office.mesh("request", "submit", "hello", *said, *more, "--within", "10m", who="c1")
    assert done.status == Exit.DONE, done
    opened = (await stage.reaches(done.out.strip(), "request.opened"))[0]
    assert isinstance(opened, RequestOpened)
    handoff = opened.work.handoff
    assert handoff.artifacts == (Artifact(name="scan", uri="s3://b/scan.pdf"),)
    assert handoff.constraints.budget == Budget(nano_dollars=500_000_000, tokens=900)
    assert (handoff.constraints.allowed_actions, handoff.constraints.must_carry) == (("look",), ("order",))
    assert handoff.constraints.deadline == opened.at + 600_000_000


async def test_a_deadline_is_a_time(stage: Stage, office: Office) -> None:
    at = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).replace(microsecond=0)
    done = await office.mesh("request", "submit", "hello", "--deadline", at.isoformat(), who="c1")
    assert done.status == Exit.DONE, done
    opened = (await stage.reaches(done.out.strip(), "request.opened"))[0]
    assert isinstance(opened, RequestOpened)
    assert opened.work.handoff.constraints.deadline == int(at.timestamp() * 1e6)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(("--deadline", "10m"), "--within 10m", id="a span for a time"),
        pytest.param(("--within", "soon"), "not a span of time", id="no span"),
        pytest.param(("--budget", "euros=5"), "not a budget", id="no budget"),
        pytest.param(("--artifact", "scan"), "not an artifact", id="no artifact"),
    ],
)
async def test_what_cannot_be_read_is_wrong_usage_and_nothing_is_sent(
    said: tuple[str, ...], why: str, stage: Stage, office: Office
) -> None:
    before = await stage.last_seq("PROP")
    done = await office.mesh("request", "submit", "hello", *said, who="c1")
    assert (done.status, why in done.err) == (Exit.USAGE, True), done
    assert await stage.last_seq("PROP") == before
