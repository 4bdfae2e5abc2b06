"""`scale` of an agent: the manifest that KEDA reads, and processes that come and go by what it says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships none
import promql_parser
import pytest
import pytest_asyncio
from ruamel.yaml import YAML

from mesh.bus.event_log import JetStreamLog
from mesh.cli.exits import Exit
from mesh.client import Client, Outcome
from mesh.fleet.file import FleetFileError, parse_fleet
from mesh.fleet.scaling import query_of
from mesh.ops import health
from mesh.ops.health import Look
from protocol.wire import codec
from protocol.wire.events import type_of
from protocol.wire.ids import RequestId
from tests.deploy.scaler import NothingShown, ScaledAgent, Scaler, value_of
from tests.deploy.validator import DEPLOY
from tests.docs.pages import blocks
from tests.servers import PATIENCE_S, until
from tests.system.terminal import Folder
from tests.trouble.crew import STEADY, Crew, crew

SCHEMA = json.loads(Path(__file__).with_name("keda.json").read_text())
FLEET = """
name = "trouble"
entry = "a"
[agents.a]
module = "tests.deploy.scaled_agents:a"
scale = { min = 0, max = 3, waiting = 2 }
[agents.b]
module = "tests.deploy.scaled_agents:b"
scale = { max = 2, waiting = 4 }
[agents.fixed]
module = "tests.deploy.scaled_agents:b"
[clients.c1]
[scale]
prometheus = "http://prometheus.monitoring:9090/"
"""


def written(folder: Path, fleet: str = FLEET) -> dict[str, list[dict[str, Any]]]:
    """Write the manifests of a fleet file, and return them by kind."""
    (folder / "mesh.toml").write_text(fleet)
    done = Folder(folder).mesh("setup", "--out", "out", "--for", "kubernetes")
    assert done.status == Exit.DONE, done
    found: dict[str, list[dict[str, Any]]] = {}
    for name in YAML(typ="safe").load(folder / "out" / "kustomization.yaml")["resources"]:
        for each in YAML(typ="safe").load_all(folder / "out" / name):
            found.setdefault(each["kind"], []).append(each)
    return found


# --- the manifests ----------------------------------------------------------------------------------


def test_each_agent_that_is_scaled_has_an_object_that_kedas_schema_takes(tmp_path: Path) -> None:
    found = written(tmp_path)
    for each in found["ScaledObject"]:
        jsonschema.validate(each, SCHEMA)
    assert [each["spec"]["scaleTargetRef"]["name"] for each in found["ScaledObject"]] == ["mesh-a", "mesh-b"]
    spec = found["ScaledObject"][0]["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 3)
    (trigger,) = spec["triggers"]
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus.monitoring:9090",
        "query": 'max(mesh_agent_waiting{gen_ai_agent_name="a"})',
        "threshold": "2",
        "ignoreNullValues": "false",
    }


def test_the_schema_finds_a_misspelt_field(tmp_path: Path) -> None:
    manifest = written(tmp_path)["ScaledObject"][0]
    metadata = manifest["spec"]["triggers"][0]["metadata"]
    metadata["treshold"] = metadata.pop("threshold")
    with pytest.raises(jsonschema.ValidationError, match="treshold"):
        jsonschema.validate(manifest, SCHEMA)


def test_a_deployment_that_is_scaled_says_no_number_itself(tmp_path: Path) -> None:
    """Each `kubectl apply` would set it back."""
    numbers = {
        each["metadata"]["name"]: each["spec"].get("replicas") for each in written(tmp_path)["Deployment"]
    }
    assert numbers == {"mesh-guard": 2, "mesh-a": None, "mesh-b": None, "mesh-fixed": 1}


def test_a_fleet_that_scales_nothing_has_no_such_object(tmp_path: Path) -> None:
    unscaled = "\n".join(line for line in FLEET.splitlines() if not line.startswith("scale ="))
    assert "ScaledObject" not in written(tmp_path, unscaled)
    assert not (tmp_path / "out" / "kubernetes" / "scaling.yaml").exists()


def test_what_the_page_says_is_a_fleet_file() -> None:
    (example,) = [each for each in blocks((DEPLOY / "README.md").read_text()) if each.kind == "scale"]
    scale = parse_fleet(f'name = "shop"\nentry = "billing"\n{example.text}').agents["billing"].scale
    assert scale is not None
    assert (scale.min, scale.max, scale.waiting) == (0, 10, 5)


@pytest.mark.parametrize("labels", [{}, {"namespace": 'sh"op\\'}])
def test_prometheus_reads_the_expression(labels: dict[str, str]) -> None:
    promql_parser.parse(query_of("a", labels))


def test_of_two_guards_that_show_the_mesh_the_higher_value_counts_and_of_none_nothing() -> None:
    page = 'mesh_agent_waiting{gen_ai_agent_name="%s"} %d\n'
    query = query_of("a", {})
    assert value_of(query, page % ("a", 3) + page % ("b", 7)) == 3
    with pytest.raises(NothingShown):
        value_of(query, page % ("b", 7))


@pytest.mark.parametrize(
    ("changed", "mistake"),
    [
        (('prometheus = "http://prometheus.monitoring:9090/"', ""), "scale.prometheus: say the URL"),
        (("http://prom", "prom"), "scale.prometheus: not a URL"),
        (("min = 0, max = 3", "min = 4, max = 3"), "agents.a.scale: `min` is more than `max`"),
        (("[scale]", "[policies.brisk]\nunattended_after_s = 30\n[scale]"), "30 is too short for a, b"),
        (
            ("[agents.b]", '[policies.many]\ntopology = "swarm"\n[agents.b]\nintents = ["look"]'),
            "agents.b.scale: it reads offers",
        ),
        (
            ("[agents.a]", '[agents.a]\nfallback = "b"'),
            "agents.b.scale: as the fallback of a it gets work only",
        ),
        (("[scale]", '[scale]\nlabels = { "a-b" = "c" }'), "scale.labels: not a label"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_could_not_work_is_a_mistake_of_the_fleet_file(changed: tuple[str, str], mistake: str) -> None:
    with pytest.raises(FleetFileError) as found:
        parse_fleet(FLEET.replace(*changed))
    assert mistake in str(found.value)


# --- a simulation: real processes, and what KEDA does ------------------------------------------------


@pytest_asyncio.fixture
async def own(tmp_path: Path) -> AsyncIterator[Crew]:
    async with crew(tmp_path, fleet=STEADY) as made:
        yield made


class Play:
    """A mesh whose agents are scaled by the manifests of `FLEET`."""

    def __init__(self, own: Crew, client: Client, folder: Path, scaled: list[ScaledAgent]) -> None:
        self.crew, self.client, self._folder = own, client, folder
        self.a, self.b = scaled
        self.requests: list[RequestId] = []

    async def submit(self, *gates: str) -> list[RequestId]:
        """Submit a request for each gate: a file that its turn at `a` waits for."""
        facts = [{"wait": str(self._folder / gate)} for gate in gates]
        made = [await self.client.submit("please", facts=each) for each in facts]
        self.requests += made
        return made

    def open(self, *gates: str) -> None:
        for gate in gates:
            (self._folder / gate).touch()

    async def ends(self, requests: list[RequestId]) -> list[Outcome]:
        waits = (self.client.wait(each, timeout_s=PATIENCE_S) for each in requests)
        return list(await asyncio.gather(*waits))

    def said(self, word: str) -> list[tuple[str, int]]:
        """Return which request was at this point, and in which process."""
        lines = [line.split() for line in self.crew.world()]
        return [(line[1], int(line[2])) for line in lines if line[0] == word]

    async def types(self) -> set[str]:
        """Return the types of all events: what waited at zero must not have been failed or escalated."""
        log = JetStreamLog(await self.crew.bus("admin"))
        stored = [each for request in self.requests for each in await log.read(request)]
        return {type_of(codec.decode_event(each.data)) for each in stored} - {"facts.withheld"}

    async def to_zero(self) -> None:
        await until(lambda: not self.a.replicas and not self.b.replicas, PATIENCE_S)
        assert not [*await self.a.unruly(), *await self.b.unruly()], "each ended as SIGTERM asks"


@pytest_asyncio.fixture
async def play(own: Crew, tmp_path: Path) -> AsyncIterator[Play]:
    folder = tmp_path / "kubernetes"
    folder.mkdir()
    found = await asyncio.to_thread(written, folder)
    objects = {each["spec"]["scaleTargetRef"]["name"]: each for each in found["ScaledObject"]}
    pods = {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in found["Deployment"]}
    scaled = [
        ScaledAgent(
            own,
            name,
            objects[f"mesh-{name}"],
            [*pods[f"mesh-{name}"]["containers"][0]["args"], "--grace", "0.5"],
        )
        for name in "ab"
    ]
    command = ("guard", "run", "--health", "127.0.0.1:0")
    guard = await own.start("guard", "g1", command, module="tests.deploy.quick_guard")
    await guard.ready()
    made = Play(own, await own.client(), folder, scaled)
    keeping = asyncio.create_task(Scaler(guard, scaled).keep())
    yield made
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


async def test_agents_come_from_zero_with_the_work_and_go_to_zero_when_it_is_done(play: Play) -> None:
    first = await play.submit(*(f"one-{n}" for n in range(6)))
    await until(lambda: len({request for request, _ in play.said("paid")}) == 6, PATIENCE_S)
    await until(lambda: len(play.a.replicas) == 3, PATIENCE_S)  # six wait, two for each
    assert len(play.b.replicas) == 0, "nothing waits for it yet"

    # Four are let through. The two others are paid for, and the processes that hold them are ended.
    kept = first[4:]
    held = [{pid for one, pid in play.said("paid") if one == request} for request in kept]
    play.a.leaves_first = lambda service: any(service.pid in pids for pids in held)
    play.open(*(f"one-{n}" for n in range(4)))
    done = await play.ends(first[:4])
    await until(lambda: len(play.a.replicas) == 1, PATIENCE_S)
    (left,) = play.a.replicas
    await until(lambda: {(request, left.pid) for request in kept} <= set(play.said("paid")), PATIENCE_S)
    assert not any(left.pid in pids for pids in held), "each went on in another process than it began in"
    play.open("one-4", "one-5")
    done += await play.ends(kept)
    await play.to_zero()

    # What comes at zero wakes them again.
    play.open("two")
    second = await play.submit(*["two"] * 5)
    done += await play.ends(second)
    await play.to_zero()
    assert max(play.a.counts) == 3
    assert play.a.counts.count(0) >= 3, "at first, between the two bursts, and in the end"
    look = Look(await play.crew.bus("guard"), may_sleep=("a", "b"))
    assert [(each.state, each.text) for each in await health.run("agents", look)] == [
        ("ok", "all are served: a (0), b (0)")
    ]
    await play.crew.audit(done)  # each request is completed, and each effect happened once
    assert await play.types() == {"request.opened", "handoff.admitted", "request.completed"}
