"""`mesh replay --agent` over a bus: the code on this disk, against what really happened there."""

import pytest

from mesh.cli.exits import Exit
from mesh.model import Reply
from mesh.testing import StrictModel, calls, driven_by
from protocol.wire.events import HandoffAdmitted
from tests.guard.stage import Stage
from tests.servers import PATIENCE_S, ROOT
from tests.system import replayed_code
from tests.system.office import Office

CODE = "a=tests.system.replayed_code"


async def test_code_is_replayed_over_what_the_bus_holds(
    own_office: Office, own_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    await own_stage.runtime(replayed_code.as_it_ran)
    client = await own_stage.client()
    requests = [await client.submit("hello") for _ in range(2)]
    for request in requests:
        await client.wait(request, timeout_s=PATIENCE_S)
    for source in ((requests[0],), ("--all",), ("--all", "--since", "1h")):
        same = await own_office.mesh("replay", *source, "--agent", f"{CODE}:as_it_ran", who="audit")
        assert (same.status, "same" in same.out) == (Exit.DONE, True), same
    other = await own_office.mesh("replay", "--all", "--agent", f"{CODE}:changed", "--json", who="audit")
    assert other.status == Exit.FAILED, other
    assert {each["request"] for each in other.json["different"]} == set(requests)
    assert {(each["kind"], each["version"]) for each in other.json["different"]} == {("move", "1")}


async def test_what_code_made_of_a_round_is_replayed_and_changed_code_is_found(
    own_office: Office, own_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A form, a condition and made instructions: the model's mistake and its second try are in the record."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def refund(cents: object) -> Reply:
        return calls(("refund", {"summary": "pay back", "facts": {"cents": cents}}))

    with driven_by(StrictModel(refund("25"), refund(25))):
        await own_stage.runtime(replayed_code.with_edges)
        client = await own_stage.client()
        request = await client.submit("hello", facts={"customer": "Ada", "order": "O-1"})
        admitted = await own_stage.reached(request, HandoffAdmitted)
        assert {fact.key: fact.value for fact in admitted.work.handoff.facts}["cents"] == 25
    same = await own_office.mesh("replay", request, "--agent", f"{CODE}:with_edges", who="audit")
    assert (same.status, "same" in same.out) == (Exit.DONE, True), same
    for changed in ("other_instructions", "other_condition"):
        other = await own_office.mesh(
            "replay", request, "--agent", f"{CODE}:{changed}", "--json", who="audit"
        )
        assert other.status == Exit.FAILED, other
        assert [each["kind"] for each in other.json["different"]] == ["prompt"], other


async def test_a_turn_of_the_bus_is_run_again_in_this_process(own_office: Office, own_stage: Stage) -> None:
    await own_stage.runtime(replayed_code.as_it_ran)
    client = await own_stage.client()
    request = await client.submit("hello")
    await client.wait(request, timeout_s=PATIENCE_S)
    opened = (await own_stage.log(request))[0]
    end = len(await own_stage.log(request)) - 1
    for turn in (end, opened.id[:10]):
        code = "tests.system.replayed_code:as_it_ran"
        same = await own_office.mesh("attach", request, code, "--turn", turn, who="audit")
        assert (same.status, "same" in same.out) == (Exit.DONE, True), same
    code = "tests.system.replayed_code:changed"
    other = await own_office.mesh("attach", request, code, "--turn", end, "--json", who="audit")
    assert other.status == Exit.FAILED, other
    assert [(each["n"], each["difference"]["kind"]) for each in other.json] == [(end, "move")]
