"""Doctor and `mesh requeue` beside a mesh at work: they find nothing, and nothing that goes on is touched."""

from pathlib import Path

from mesh.ops import health
from mesh.ops.health import Look
from mesh.ops.requeue import requeue
from tests.trouble.crew import STEADY, Crew, crew
from tests.trouble.test_broker import everybody

CHECKS = ("queues", "guards", "lane", "agents", "limits", "dead letters")
LEASES = 0.02
"""So long (1.2 s) requeue waits for what is in hand."""


async def created(own: Crew, consumer: str) -> str:
    """Return when a consumer of the log was made."""
    info = await (await own.bus("admin")).api(f"CONSUMER.INFO.LOG.{consumer}")
    return str(info["created"])


async def test_who_looks_at_a_mesh_at_work_finds_nothing_and_harms_nothing(tmp_path: Path) -> None:
    async with crew(tmp_path, fleet=STEADY) as own:
        own.environment["PACE_S"] = "0.05"
        await everybody(own)
        client, admin = await own.client(), await own.bus("admin")
        made = {name: await created(own, name) for name in ("in-a", "in-b")}
        async with own.load(client, callers=24) as load:
            await load.reaches(10)
            for _ in range(8):
                done = await requeue(admin, leases=LEASES)
                assert (done.turns, done.queues, done.unreadable) == ((), (), {})
                for check in CHECKS:
                    found = await health.run(check, Look(admin))
                    assert [each for each in found if each.state == "found"] == [], check
                await load.reaches(10)
        await own.drained()
        await own.audit(load.outcomes)
        assert {name: await created(own, name) for name in made} == made, "no consumer was made anew"
        assert (await admin.api("STREAM.INFO.ENDS"))["state"]["messages"] == 0
