"""`mesh replay --agent` over a bus: the code on this disk, against what really happened there."""

import pytest

from mesh.cli.exits import Exit
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
