"""Drills of three servers: who is struck and how, what each holds in the end, what a machine must allow."""

import asyncio
import random
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from mesh.cli.exits import Exit
from mesh.local.fleet import LocalFleet
from tests.drill import damage
from tests.drill.check import check
from tests.drill.cluster import SERVERS, Cluster
from tests.drill.command import COMMAND
from tests.drill.damage import DAMAGES
from tests.drill.evidence import SERVER, DrillImpossible, Fault, Held
from tests.drill.faults import AWAY_S, OF_CLUSTERS, SORTS, plan, usual_sorts
from tests.drill.findings import Findings
from tests.drill.fleet import drill_fleet
from tests.drill.keep import load, save
from tests.drill.network import Network
from tests.drill.processes import NotCurrent, Processes
from tests.drill.report import lines
from tests.drill.tests.scene import changed, clean
from tests.drill.tests.test_drill import WAIT_S, command
from tests.servers import alive, child, eventually, until

NODES = ("nats-1", "nats-2", "nats-3")
REFUSED = "a partition needs network namespaces, which this machine does not allow here ("
REQUESTS, FAULTS, SEED = 30, 8, 34


_REFUSED: list[str] = []


async def refusal() -> str:
    """Return the sentence with which this machine refuses a network; empty if it makes one.

    It is asked once: what makes and ends namespaces has the kernel's network to itself for a moment.
    """
    if not _REFUSED:
        try:
            async with Network(1):
                _REFUSED.append("")
        except DrillImpossible as refused:
            _REFUSED.append(str(refused))
    return _REFUSED[0]


# --- what is drawn ------------------------------------------------------------------------------------


def test_each_fault_of_a_server_names_one_of_the_cluster_and_what_is_done_to_it() -> None:
    planned = plan(400, random.Random(1), ("a", "b"), tuple(SORTS), servers=NODES)
    struck = [each for each in planned if each.sort.startswith("server") or each.sort in OF_CLUSTERS]
    assert {each.sort for each in planned} == set(SORTS)
    for sort in {each.sort for each in struck}:
        assert {each.whom for each in struck if each.sort == sort} == set(NODES)
    assert all(AWAY_S[0] <= each.for_s <= AWAY_S[1] for each in struck)
    assert {each.how for each in struck if each.sort == "disk-damaged"} == set(DAMAGES)
    assert {each.how for each in struck if each.sort == "partition"} == {"servers", "everything"}
    assert {each.whom for each in planned if each not in struck} == {"", "a", "b"}


def test_a_damaged_store_that_is_started_as_it_is_comes_only_if_it_is_named() -> None:
    assert set(SORTS) - set(usual_sorts(SERVERS)) == {"disk-damaged-raw"}
    assert set(usual_sorts(1)) == set(SORTS) - OF_CLUSTERS


class Behind(Cluster):
    """A cluster of which one server never gets what the others have."""

    def __init__(self, directory: Path) -> None:
        super().__init__("", directory)
        self.nodes = self._make()

    async def current(self) -> list[str]:
        return ["nats-1 is behind in LOG"]


async def test_no_second_server_is_struck_while_one_is_behind(tmp_path: Path) -> None:
    fleet = LocalFleet(drill_fleet(), tmp_path / "mesh")
    processes = Processes(fleet, tmp_path, Behind(tmp_path))
    for strike in (processes.kill_server, processes.restart_server):
        with pytest.raises(NotCurrent):
            await strike("nats-2")
    assert processes.faults == []
    assert processes.not_current == [
        f"before {kind} of nats-2: nats-1 is behind in LOG" for kind in ("kill", "restart")
    ]


# --- damage -------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for stream, size in (("LOG", 1000), ("DEAD", 0)):
        block = tmp_path / "jetstream" / "CORE" / "streams" / stream / "msgs" / "1.blk"
        block.parent.mkdir(parents=True)
        block.write_bytes(bytes(size))
    (tmp_path / "jetstream" / "SYS" / "_js_" / "_meta_").mkdir(parents=True)
    return tmp_path


def test_a_damage_is_what_it_is_called_and_says_where_it_is(store: Path) -> None:
    block = store / "jetstream" / "CORE" / "streams" / "LOG" / "msgs" / "1.blk"
    rng = random.Random(3)
    said = damage.flip(store, rng)
    assert 1 <= sum(byte != 0 for byte in block.read_bytes()) <= damage.FLIPS
    assert said.startswith("CORE/streams/LOG/msgs/1.blk: bits flipped at ")
    assert damage.truncate(store, rng) == "CORE/streams/LOG/msgs/1.blk: 500 of 1000 bytes left"
    assert block.stat().st_size == 500
    assert damage.lose_stream(store, rng) == "CORE/streams/LOG: deleted"
    assert not block.exists()
    assert damage.lose_raft(store, rng) == "SYS/_js_: 1 groups deleted"
    assert not (store / "jetstream" / "SYS" / "_js_").exists()
    damage.empty(store)
    assert not store.exists()


# --- what each server holds ---------------------------------------------------------------------------


def held(server: str, digests: Sequence[str], *, last: int = 4) -> Held:
    messages = sum(map(bool, digests))
    return Held(server, "LOG", messages, 1, last, last - messages, digests)


ALL = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("digests", "said"),
    [
        (ALL, []),
        (("a", "", "", "d"), ["counts 2 messages from 1 to 4, 2 deleted of LOG", "lacks 2 of 4 in LOG: 2-3"]),
        (("a", "x", "c", "x"), ["has another event at 2 of 4 in LOG: 2, 4"]),
        (("a", "b"), ["counts 2 messages from 1 to 4, 2 deleted of LOG", "lacks 2 of 4 in LOG: 3-4"]),
    ],
)
def test_a_server_that_holds_something_else_is_named(digests: tuple[str, ...], said: list[str]) -> None:
    evidence = changed(clean(), held=(held("nats-1", ALL), held("nats-2", digests), held("nats-3", ALL)))
    found = [each for each in check(evidence).breaches if each.promise == "replicas_agree"]
    assert len(found) == len(said)
    for breach, part in zip(found, said, strict=True):
        assert breach.detail.startswith("nats-2 ")
        assert part in breach.detail


def test_what_each_server_holds_is_kept_and_faults_are_counted_by_their_kinds(tmp_path: Path) -> None:
    kinds = ("kill", "pause", "disk-damaged", "partition")
    faults = [Fault(kind, "nats-2", SERVER, 1, 2, detail="so") for kind in kinds]
    evidence = changed(clean(), held=tuple(held(name, ALL) for name in NODES), faults=faults)
    save(evidence, tmp_path)
    assert check(load(tmp_path)) == check(evidence)
    told = " ".join(" ".join(lines(check(evidence))).split())
    assert "4 (1 disk-damaged, 1 partition, 1 server-kill, 1 server-pause)" in told


# --- the network --------------------------------------------------------------------------------------


def _links() -> str:
    return subprocess.run(["ip", "link"], capture_output=True, text=True, check=False).stdout


async def test_where_namespaces_are_forbidden_one_sentence_says_so() -> None:
    if said := await refusal():
        assert said.startswith(REFUSED)
        assert said.endswith("run as root on Linux, or leave `partition` out of --kinds")
    assert "\n" not in said


async def test_nothing_is_left_of_a_network_whose_process_was_killed() -> None:
    if await refusal():
        return
    async with child("tests.drill.tests.network_process") as process:
        link, *held_by = (await process.line("drill-")).split()
        assert link in _links()
        process.signal(signal.SIGKILL)
        await process.ended()
        await until(lambda: link not in _links() and not any(alive(int(pid)) for pid in held_by))


@pytest.mark.parametrize(
    ("hold", "why"),
    [
        (("sh", "-c", "echo unshare: not permitted >&2; exit 1"), "(unshare: not permitted)"),
        (("no-such-unshare",), "no-such-unshare"),
    ],
)
async def test_a_machine_that_allows_no_namespaces_is_told_what_is_needed(
    hold: Sequence[str], why: str
) -> None:
    with pytest.raises(DrillImpossible) as refused:
        async with Network(1, hold):
            pass
    said = str(refused.value)
    assert said.startswith(REFUSED)
    assert why in said
    assert "\n" not in said


# --- three servers ------------------------------------------------------------------------------------


async def test_a_server_that_is_away_is_missed_and_what_keeps_it_away_is_undone(tmp_path: Path) -> None:
    network = None if await refusal() else Network(SERVERS)
    async with Cluster("", tmp_path, network) as cluster:
        assert await cluster.current() == []
        node = cluster.nodes["nats-2"]

        async def missed() -> bool:
            return any("nats-2" in each for each in await cluster.behind())

        if network is not None:
            assert network.link in _links()
            await cluster.cut("nats-2", clients=False)
            await eventually(missed)
            await cluster.mend("nats-2")
            assert await cluster.current() == []
        await node.end(signal.SIGKILL)
        assert await cluster.behind() == ["nats-2 is not healthy"]
        damage.empty(node.store)
        await cluster.mend("nats-2")
        assert await cluster.current() == []
        pids = [each.pid for each in cluster.nodes.values()]
        pids += [] if network is None else network.holders
    assert not any(map(alive, pids))
    assert network is None or network.link not in _links()


@pytest.mark.timeout(WAIT_S + 20)
def test_a_short_drill_of_three_servers_breaks_no_promise(tmp_path: Path) -> None:
    parted = [] if asyncio.run(refusal()) else ["partition"]
    kinds = ["failpoint", "kill", "server-kill", "disk-damaged", *parted]
    kept = tmp_path / "kept"
    said = command(
        *("--servers", str(SERVERS), "--requests", str(REQUESTS), "--faults", str(FAULTS)),
        *("--seed", str(SEED), "--lease", "1.5", "--kinds", ",".join(kinds), "--json", "--keep", str(kept)),
    )
    assert said.returncode == Exit.DONE, said.stdout + said.stderr
    assert said.stderr.startswith(f"{COMMAND} --seed {SEED}\n")
    found = msgspec.json.decode(said.stdout, type=Findings)
    assert found.breaches == ()
    assert (found.lost, found.duplicated) == (0, 0)
    assert set(kinds) - {"failpoint", "kill"} <= set(found.faults)
    evidence = load(kept / "evidence")
    logs = [each for each in evidence.held if each.stream == "LOG"]
    assert {each.server for each in logs} == set(NODES)
    assert {tuple(each.digests or ()) for each in logs} == {tuple(logs[0].digests or ())} != {()}


def test_kinds_that_one_server_does_not_survive_are_refused_for_it() -> None:
    said = command("--kinds", "kill,partition")
    assert said.returncode == Exit.USAGE
    assert f"--kinds: partition: only a cluster survives that; add --servers {SERVERS}" in said.stderr
