"""`mesh conf …`: which fleet and policies stood when, who wrote them, and an earlier one again."""

import msgspec

from mesh.bus.reader import last
from mesh.bus.stores import write_revision
from mesh.cli.exits import Exit
from protocol.wire import subjects
from protocol.wire.config import Policy
from tests.guard.stage import Stage
from tests.system.office import Office

TRIED = subjects.policy("tried")


async def written(stage: Stage, *depths: int) -> list[int]:
    """Write a policy so often; return its revisions."""
    admin, found = await stage.bus("admin"), list[int]()
    stands = await last(admin, "CONF", TRIED, leader=True)
    after = 0 if stands is None else stands.seq
    for depth in depths:
        body = msgspec.json.encode(Policy(name="tried", max_depth=depth))
        after = await write_revision(admin, TRIED, body, by=f"ada {depth}", after=after)
        found.append(after)
    return found


async def test_a_policy_has_a_history_of_revisions_that_can_be_compared(office: Office, stage: Stage) -> None:
    first, second = await written(stage, 3, 9)
    listed = (await office.mesh("conf", "log", "--json", who="audit")).json
    own = [each for each in listed if each["what"] == "policy tried"]
    assert [(each["rev"], each["by"], each["current"]) for each in own[:2]] == [
        (second, "ada 9", True),
        (first, "ada 3", False),
    ]
    assert {"fleet"} <= {each["what"] for each in listed}
    assert (await office.mesh("conf", "show", first)).json["max_depth"] == 3
    assert "max_depth: 3 → 9" in (await office.mesh("conf", "diff", first, second)).out
    fleet = next(each["rev"] for each in listed if each["what"] == "fleet")
    assert (await office.mesh("conf", "diff", first, fleet)).status == Exit.USAGE
    assert (await office.mesh("conf", "show", 10**6)).status == Exit.FAILED


async def test_an_earlier_revision_stands_again_and_says_who_wrote_it(office: Office, stage: Stage) -> None:
    first, second = await written(stage, 3, 9)
    done = await office.mesh("conf", "rollback", first, "--by", "kim", who="admin")
    assert done.status == Exit.DONE, done
    newest, *_ = (await office.mesh("conf", "log", "--json")).json
    assert (newest["what"], newest["by"], newest["current"]) == ("policy tried", "kim", True)
    assert newest["rev"] > second
    assert (await office.mesh("conf", "show", newest["rev"])).json["max_depth"] == 3
    again = await office.mesh("conf", "rollback", first, who="admin")
    assert (again.status, "stands as in revision" in again.err) == (Exit.FAILED, True)
    assert (await office.mesh("conf", "rollback", second, who="op")).status == Exit.USAGE


async def test_the_newest_64_revisions_are_kept(office: Office, stage: Stage) -> None:
    revisions = await written(stage, *range(1, 71))
    listed = (await office.mesh("conf", "log", "--json")).json
    own = [each["rev"] for each in listed if each["what"] == "policy tried"]
    assert own == revisions[:-65:-1]


async def test_an_export_with_steps_holds_the_revisions_that_verdicts_name(
    office: Office, stage: Stage
) -> None:
    revisions = await written(stage, 3, 9)
    request = await (await stage.client()).submit("hello")
    await stage.reaches(request, "request.opened")
    said = await office.mesh("log", "export", request, "--with-steps")
    lines = [msgspec.json.decode(line) for line in said.out.splitlines()]
    kept = {line["rev"]: line for line in lines if line.get("step", "").startswith("mesh.conf.")}
    assert set(revisions) <= set(kept)
    assert (kept[revisions[0]]["by"], kept[revisions[0]]["body"]["max_depth"]) == ("ada 3", 3)
    opened = next(line for line in lines if line.get("type") == "request.opened")
    assert opened["grounds"]["fleet"] in kept
