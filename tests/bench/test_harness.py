"""The harness runs: small sizes, a real server, real processes, and no judgement of any figure."""

import json
from pathlib import Path

import pytest

import bench
from bench.backup import backups
from bench.command import QUICK, UNSYNCED, Amount
from bench.crew import Crew, MemberFailed
from bench.figures import Figure, Report, spread
from bench.growth import Sizes, growth, memory
from bench.guards import Shared, guards
from bench.members import members
from bench.page import pages
from bench.peers import __main__ as peers
from bench.place import FLEET, place
from bench.reading import cold_reads, first_decisions, whole_log
from bench.recovery import recovery
from bench.replicas import replicas
from bench.rounds import Plan, compare
from bench.stories import fill, history
from bench.tree import CALL_S, Trees, trees
from mesh.bus.roles import ADMIN
from mesh.fleet.file import LeaseSection
from mesh.fleet.setup import apply
from tests.logs import kept_logging

SMALL = Plan(rounds=2, alone=3, crowded=8, workers=1)  # each imports LangGraph


async def test_mesh_ring_and_langgraph_are_measured_in_the_same_rounds(tmp_path: Path) -> None:
    figures, use, note = await compare(tmp_path, SMALL, UNSYNCED, sync_always=False)
    assert [figure.unit for figure in figures] == ["ms", "ms", "1/s", "ms", "1/s"]
    assert [figure.target is not None for figure in figures] == [True, False, True, False, False]
    assert all(figure.ratio is not None and figure.yardstick is not None for figure in figures)
    ours = {
        (side, member)
        for side in ("mesh", "ring")
        for member in ("nats-server", "guard", "agents (5)", "driver")
    }
    assert {(each.side, each.member) for each in use} == ours | {("LangGraph", "langgraph")}
    assert "14 durable publishes" in note


async def test_a_whole_log_is_folded_from_jetstream_and_from_a_file(tmp_path: Path) -> None:
    figures = await whole_log(tmp_path, events=3000, rounds=1)
    assert [figure.target is not None for figure in figures] == [True, False, True, True]


async def test_a_backup_and_a_restore_are_measured_beside_a_reader_of_the_same_log(tmp_path: Path) -> None:
    figures = await backups(tmp_path, events=1000, rounds=1)
    assert [figure.target is not None for figure in figures] == [True, True, False, False]
    assert [figure.ratio is not None for figure in figures] == [False, False, True, True]
    assert all(figure.value.low > 0 for figure in figures)


async def test_a_request_is_read_cold_at_every_size_of_the_log(tmp_path: Path) -> None:
    figures = await cold_reads(tmp_path, sizes=[4000, 12_000], rounds=1, reads=10)
    assert sum(figure.target is not None for figure in figures) == 2
    assert sum(figure.ratio is not None for figure in figures) == 1


async def test_trees_of_tasks_are_measured_by_their_logs(tmp_path: Path) -> None:
    figures = await trees(tmp_path, Trees(plans=1, levels=1, tasks=(8, 16), rounds=1, below=3))
    assert [figure.unit for figure in figures] == ["ms", "ms", "ms", "µs", "%"]
    assert [figure.target is not None for figure in figures] == [True, False, True, True, True]
    assert "13 turns" in figures[-1].name
    assert figures[1].value.median > 3 * CALL_S * 1e3, "the calls alone take three in a row at least"


async def test_what_was_killed_is_gone_on_with_elsewhere(tmp_path: Path) -> None:
    brisk = LeaseSection(agent_s=1.0, guard_s=1.0)
    figures = await recovery(tmp_path, rounds=1, file=FLEET.model_copy(update={"lease": brisk}))
    assert [figure.target.value for figure in figures if figure.target is not None] == [10.0, 5.0, 5.0]


async def test_guards_share_the_chain_and_come_and_go(tmp_path: Path) -> None:
    amount = Shared(guards=(1, 2), partitions=(4,), requests=64, rounds=1, gone_s=1.0)
    figures = await guards(tmp_path, amount)
    shares = [each.value.median for each in figures if each.name.startswith("share of the busiest")]
    assert shares[0] == pytest.approx(100)
    assert 50 <= shares[1] < 100
    assert {each.unit for each in figures} == {"1/s", "ms", "%", "s"}


async def test_a_guard_decides_first_at_every_size_of_the_log(tmp_path: Path) -> None:
    figures = await first_decisions(tmp_path, sizes=[2000, 4000], rounds=1)
    assert sum(figure.ratio is not None for figure in figures) == 1
    assert all(figure.value.median > 0 for figure in figures)


async def test_a_browser_is_measured_as_it_waits_for_a_long_request(tmp_path: Path) -> None:
    painted, answered = await pages(tmp_path, events=40, rounds=1)
    assert (painted.unit, answered.unit) == ("ms", "ms")
    assert "40 events" in painted.name
    assert painted.target is not None
    assert 0 < answered.value.median <= painted.value.median


async def test_an_event_is_measured_along_every_axis_of_growth(tmp_path: Path) -> None:
    sizes = Sizes(events=(4, 8), facts=(3, 6), open=(4, 8), agents=(5, 6), requests=4, rounds=1)
    figures, curves = await growth(tmp_path, sizes)
    assert [(curve.axis, curve.member) for curve in curves] == [
        (axis, member)
        for axis in ("events of a request", "facts in a handoff", "agents", "open requests")
        for member in ("guard", "server")
    ]
    assert [point.size for point in curves[0].points] == [4, 8]
    assert all(curve.points[0].value.median == 1 for curve in curves)
    assert [figure.unit for figure in figures] == ["µs"] * 8 + ["bytes"] * 2
    assert all(figure.value.median > 0 for figure in figures)


def test_more_events_of_a_request_take_more_of_a_guards_memory() -> None:
    few, many = memory(20, requests=4), memory(80, requests=4)
    assert many[1].value.median > 2 * few[1].value.median


async def test_the_server_of_every_number_of_members_is_started_and_reloaded(tmp_path: Path) -> None:
    figures = await members(tmp_path, sizes=[1, 3], rounds=1)
    assert [figure.unit for figure in figures] == ["KB", "s", "s", "MB", "s", "s", "MB"] * 2
    assert figures[7].value.median > figures[0].value.median


async def test_three_servers_are_measured_at_rest_and_without_one_of_them(tmp_path: Path) -> None:
    figures = await replicas(tmp_path, sizes=[1], rounds=1, rest_s=1.0)
    assert len(figures) == 9
    assert all(each.value.median > 0 for each in figures)


async def test_a_fill_that_does_not_arrive_as_it_should_is_noticed(tmp_path: Path) -> None:
    async with place(tmp_path, sync_always=False) as at, await at.connect_as(ADMIN) as admin:
        await apply(admin, FLEET)
        lines = list(history(30))
        await fill(admin, lines)
        with pytest.raises(RuntimeError, match="60 events"):
            await fill(admin, lines, already=7)


async def test_a_member_that_cannot_begin_fails_the_measurement(tmp_path: Path) -> None:
    async with Crew(tmp_path) as crew:
        with pytest.raises(MemberFailed, match="guard ended"):
            await crew.start("guard", "bench.chain", "guard", "nats://127.0.0.1:1", str(tmp_path))


def test_json_is_one_object_printed_or_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measured(directory: Path, amount: Amount, parts: tuple[str, ...]) -> Report:
        return Report({"cores": "2"}, [Figure("it", "ms", spread([1.0]))], [], [])

    monkeypatch.setattr("bench.command.measure", measured)
    file = tmp_path / "figures.json"
    for form in (("--json",), ("-o", "json"), ("-o", "json", "--out", str(file))):
        with kept_logging():
            assert bench.main(["--quick", *form]) == 0
        printed = capsys.readouterr().out
        said = file.read_text() if file.exists() else printed
        assert [figure["name"] for figure in json.loads(said)["figures"]] == ["it"]
    assert printed == ""


def test_a_result_that_could_not_be_written_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--out", "--plot"):
        with kept_logging(), pytest.raises(SystemExit) as left:
            bench.main([option, str(tmp_path / "gone" / "figures.json")])
        assert (left.value.code, "there is no such folder" in capsys.readouterr().err) == (2, True)


def test_a_quick_run_prints_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.command.QUICK", QUICK._replace(fold_events=1000, fold_rounds=1))
    with kept_logging():
        assert bench.main(["--quick", "--only", "fold", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("fold of 1,000 events") == 3


def test_peers_that_were_not_fetched_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.peers.place.PEERS", tmp_path / "peers")
    with pytest.raises(SystemExit) as ended:
        peers.main(["--only", "restate"])
    assert ended.value.code == 2
    assert "python -m bench.peers --install" in capsys.readouterr().err
