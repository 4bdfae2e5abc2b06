"""`mesh policy …`: what decides, and a shadow that judges beside it."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from mesh import ops
from mesh.cli.exits import Exit
from mesh.errors import Impossible
from mesh.ops.shadows import ShadowReport
from protocol.wire import events, subjects
from protocol.wire.config import Policy, policy_hash
from protocol.wire.shadow import ShadowCounts
from tests.guard.stage import POLICIES, Stage
from tests.guard.test_shadow import TO_B, TO_C, handed_over
from tests.servers import PATIENCE_S, eventually, until
from tests.system.office import Office

TIGHT = Policy(name="tiered", escalation_sla_s=0.25, max_retries=0, max_depth=2)


@pytest.fixture
def tight(tmp_path: Path) -> Path:
    path = tmp_path / "tight.toml"
    path.write_text("max_depth = 2\nmax_retries = 0\nescalation_sla_s = 0.25\n")
    return path


async def test_policies_are_listed_with_their_revision_and_digest(office: Office, stage: Stage) -> None:
    listed = {each["name"]: each for each in (await office.mesh("policy", "ls", "--json", who="audit")).json}
    assert set(POLICIES) <= set(listed)
    strict = listed["strict"]
    assert (strict["digest"], strict["shadow"]) == (policy_hash(POLICIES["strict"]), None)
    assert strict["rev"] > 0
    shown = (await office.mesh("policy", "show", "strict", "--json")).json
    assert (shown["policy"]["max_refusals"], shown["standing"]["rev"]) == (0, strict["rev"])
    assert [each["rev"] for each in shown["history"]] == [strict["rev"]]
    lines = (await office.mesh("policy", "show", "strict")).out.splitlines()
    assert "max_refusals\t0\t" in lines
    assert (await office.mesh("policy", "show", "nowhere")).status == Exit.FAILED


async def test_a_shadow_stands_beside_its_policy_until_it_is_stopped(
    office: Office, stage: Stage, tight: Path
) -> None:
    begun = await office.mesh("policy", "shadow", "tiered", tight, "--by", "ada", "--json", who="admin")
    assert begun.status == Exit.DONE, begun
    assert begun.json["shadow"]["digest"] == policy_hash(TIGHT)
    assert begun.json["shadow"]["differs"] == {"max_depth": [5, 2]}
    assert begun.json["digest"] == policy_hash(POLICIES["tiered"])
    ls = await office.mesh("policy", "ls")
    assert "max_depth 5 → 2" in next(line for line in ls.out.splitlines() if line.startswith("tiered\t"))
    shown = await office.mesh("policy", "show", "tiered")
    assert "max_depth\t5\t2" in shown.out.splitlines()
    newest, *_ = (await office.mesh("conf", "log", "--json")).json
    assert (newest["what"], newest["by"], newest["current"]) == ("shadow tiered", "ada", True)
    done = await office.mesh("policy", "shadow", "tiered", "--stop", "--json", who="admin")
    assert done.json["shadow"] is None
    again = await office.mesh("policy", "shadow", "tiered", "--stop", who="admin")
    assert (again.status, "has no shadow" in again.err) == (Exit.FAILED, True)


async def test_a_shadow_is_checked_as_any_policy_is(
    office: Office, stage: Stage, tmp_path: Path, tight: Path
) -> None:
    wrong, same, fleet = tmp_path / "wrong.toml", tmp_path / "same.toml", tmp_path / "mesh.toml"
    wrong.write_text("max_depth = -1\nmax_width = 3\n")
    same.write_text("max_retries = 0\nescalation_sla_s = 0.25\n")
    fleet.write_text("[policies.tiered]\nmax_asks = 9\n")
    refused = await office.mesh("policy", "shadow", "tiered", wrong, who="admin")
    assert refused.status == Exit.USAGE
    assert all(part in refused.err for part in (str(wrong), "max_depth", "max_width"))
    for file in (tmp_path / "missing.toml", tmp_path):
        assert (await office.mesh("policy", "shadow", "tiered", file, who="admin")).status == Exit.USAGE
    for words in (("tiered",), ("tiered", tight, "--stop")):
        assert (await office.mesh("policy", "shadow", *words, who="admin")).status == Exit.USAGE
    assert (await office.mesh("policy", "shadow", "default", fleet, who="admin")).status == Exit.USAGE
    assert (await office.mesh("policy", "shadow", "tiered", tight, who="op")).status == Exit.USAGE
    assert (await office.mesh("policy", "shadow", "tiered", same, who="admin")).status == Exit.FAILED
    assert (await office.mesh("policy", "shadow", "nowhere", tight, who="admin")).status == Exit.FAILED
    done = await office.mesh("policy", "shadow", "tiered", fleet, "--json", who="admin")
    assert done.json["shadow"]["policy"]["max_asks"] == 9
    assert (await office.mesh("policy", "shadow", "tiered", "--stop", who="admin")).status == Exit.DONE


async def test_doctor_names_a_shadow_that_cannot_be_read(office: Office, stage: Stage) -> None:
    admin = await stage.bus("admin")
    for body in (b'{"policy":{"max_depth":-1}}', b'{"policies":{}}', b"{"):
        await admin.publish_durable(subjects.shadow("strict"), body)
        found = (await office.mesh("doctor", "--json", who="admin")).json
        broken = [each["text"] for each in found if each["check"] == "documents"]
        assert [subjects.shadow("strict") in text for text in broken] == [True]
        listed = (await office.mesh("policy", "ls", "--json")).json
        assert next(each for each in listed if each["name"] == "strict")["shadow"] is None
    await admin.publish_durable(subjects.shadow("strict"), msgspec.json.encode({}))


STRICTER = "max_depth = 1\nmax_refusals = 0\nmax_retries = 0\n"


@pytest_asyncio.fixture
async def judged(office: Office, stage: Stage, tmp_path: Path) -> AsyncIterator[ShadowReport]:
    """Four commands under a policy whose shadow admits one handoff; and no shadow afterwards."""
    (guard,) = stage._guards
    (tmp_path / "stricter.toml").write_text(STRICTER)
    begun = await office.mesh("policy", "shadow", "strict", tmp_path / "stricter.toml", who="admin")
    assert begun.status == Exit.DONE, begun
    await until(lambda: "strict" in guard._context.shadows)
    await handed_over(stage)
    yield await reported(stage, judged=4)
    await office.mesh("policy", "shadow", "strict", "--stop", who="admin")


async def reported(stage: Stage, judged: int) -> ShadowReport:
    """Wait until guards have counted so many commands; return the report."""
    found: list[ShadowReport] = []

    async def there() -> bool:
        found[:] = [await ops.shadows.report(await stage.bus("audit"), "strict")]
        return found[0].judged == judged

    await eventually(there, PATIENCE_S)
    return found[0]


async def test_a_report_says_how_often_a_shadow_disagrees_and_where(
    office: Office, stage: Stage, judged: ShadowReport
) -> None:
    assert (judged.agreed, judged.disagreed, judged.dropped, judged.failed) == (3, 1, 0, 0)
    assert (judged.by_rule, judged.by_agent, judged.by_edge) == ({"depth": 1}, {"b": 1}, {"b → c": 1})
    (example,) = judged.examples
    assert (example.would.rule, example.numbers["max_depth"]) == ("depth", 1)
    assert judged.digest == ops.shadows.digest_of(judged)
    said = (await office.mesh("policy", "report", "strict", "--json", who="audit")).json
    assert (said["digest"], said["judged"], said["guards"]) == (judged.digest, 4, 1)
    told = (await office.mesh("policy", "report", "strict")).out
    assert all(part in told for part in ("4 judged", "1 disagreed", "by rule: depth 1", example.request))
    late = (await office.mesh("policy", "report", "strict", "--since", "2100-01-01", "--json")).json
    assert (late["judged"], late["kept"], late["examples"]) == (0, 0, [])
    assert late["digest"] != judged.digest
    assert (await office.mesh("policy", "report", "eager")).status == Exit.FAILED
    found = (await office.mesh("doctor", "--json", who="audit")).json
    (running,) = [each for each in found if each["check"] == "shadows"]
    assert (running["state"], "4 commands judged, 1 disagreed" in running["text"]) == ("ok", True)


async def test_doctor_finds_a_shadow_that_drops_what_it_should_judge(
    office: Office, stage: Stage, judged: ShadowReport
) -> None:
    counts = ShadowCounts(rev=judged.rev, digest=judged.shadow, guard="other/1", since=1, at=2, dropped=7)
    subject = subjects.shadow_counts("strict", "1", 0)
    await (await stage.bus("guard")).publish_durable(subject, msgspec.json.encode(counts))
    found = (await office.mesh("doctor", "--json", who="audit")).json
    (dropping,) = [each for each in found if each["check"] == "shadows"]
    assert (dropping["state"], "7 dropped" in dropping["text"]) == ("found", True)
    assert (await office.mesh("policy", "report", "strict", "--json")).json["guards"] == 2


async def test_a_promoted_shadow_is_the_policy_and_its_revision_names_the_report(
    office: Office, stage: Stage, judged: ShadowReport
) -> None:
    before = (await office.mesh("policy", "show", "strict", "--json")).json["standing"]
    assert (await office.mesh("policy", "promote", "strict", who="admin")).status == Exit.USAGE
    refused = await office.typed("n\n", "policy", "promote", "strict", who="admin")
    assert refused.status == Exit.FAILED
    assert (await office.mesh("policy", "show", "strict", "--json")).json["standing"] == before
    assert (await office.mesh("policy", "promote", "strict", "--yes", who="op")).status == Exit.USAGE
    done = await office.mesh("policy", "promote", "strict", "--yes", "--by", "ada", "--json", who="admin")
    assert (done.json["report"], done.json["digest"]) == (judged.digest, judged.shadow)
    ended, policy, *_ = (await office.mesh("conf", "log", "--json")).json
    assert (ended["what"], policy["what"]) == ("shadow strict", "policy strict")
    assert (policy["rev"], policy["by"], policy["report"]) == (done.json["rev"], "ada", judged.digest)
    kept = (await office.mesh("conf", "show", ended["rev"])).json
    assert kept["report"]["digest"] == judged.digest
    now = (await office.mesh("policy", "show", "strict", "--json")).json
    assert (now["standing"]["digest"], now["standing"]["shadow"]) == (judged.shadow, None)
    assert (await office.mesh("policy", "report", "strict", "--json")).json["stands"] is False
    assert (await office.mesh("policy", "promote", "strict", "--yes", who="admin")).status == Exit.FAILED

    request = await (await stage.client()).submit("hello", policy="strict")
    for name, move in (("a", TO_B), ("b", TO_C)):
        actor = await stage.actor(name)
        await actor.propose(request, await actor.work(request), move)
    assert (await stage.reached(request, events.MoveRefused)).refusal.rule == "depth"
    rolled = await office.mesh("conf", "rollback", before["rev"], who="admin")
    assert rolled.status == Exit.DONE, rolled


async def test_a_promotion_of_a_shadow_that_was_replaced_meanwhile_changes_nothing(
    office: Office, stage: Stage, judged: ShadowReport, tmp_path: Path
) -> None:
    (tmp_path / "other.toml").write_text(STRICTER + "max_asks = 1\n")
    await office.mesh("policy", "shadow", "strict", tmp_path / "other.toml", who="admin")
    admin = await stage.bus("admin")
    with pytest.raises(Impossible):
        await ops.shadows.promote(admin, judged, by="ada")
    assert (await ops.policies.standing(admin, "strict")).digest == policy_hash(POLICIES["strict"])
