"""Sound agents pass; each planted mistake is found by the check that is there for it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from mesh.conformance.checks import CHECKS, STARTS, Check, CheckResult, check_agent
from mesh.conformance.harness import COMES_S, Harness, Process
from tests.docs.pages import DOCS, section
from tests.servers import PATIENCE_S, ROOT, alive, until


def behind_a_shell(module: str, fault: str = "") -> str:
    """Return a command whose shell stays the agent's parent: none execs what is not the last."""
    return f"{sys.executable} -m tests.conformance.{module} {fault}; exit $?"


RAW, OURS = "raw_process", "agent_process"

FAULTS = {
    "answers no ping": "answers pings",
    "leaves out the round": "proposes once, then acknowledges",
    "acknowledges first": "proposes once, then acknowledges",
    "proposes twice": "proposes once, then acknowledges",
    "waits for no acknowledgement": "waits until its proposal is stored",
    "drops its report": "reports earlier rounds",
    "takes five at once": "takes only what it can work on",
    "pulls for thirty seconds": "lets pulls end before the lease",
    "believes a smuggled delivery": "trusts only its consumer",
    "hears no refusal": "learns of a refusal",
    "takes the turn that ended": "goes on when the work comes back",
    "hears no reply": "asks, and gets the reply",
    "dies of what is withheld": "works with withheld facts",
    "says nothing of what is too large": "reports a move that is too large",
    "says nothing of a bug": "fails a turn whose code breaks",
    "sends no heartbeat": "keeps its lease while it works",
    "goes on after the end": "stops when the turn is over",
    "looks only when it is told": "checks if the turn is over",
    "knows everything": "gives an event of an unknown type back",
    "gives back at once": "gives an event of an unknown type back",
    "reads every form": "gives an event of another form back",
    "keeps no dead letter": "dead-letters what it cannot read",
    "ignores a second delivery": "survives a second delivery",
    "waits for a lost pull": "survives a server restart",
    "does not end": "ends in good order",
}


async def found(tmp_path: Path, command: str, only: str = "") -> list[CheckResult]:
    chosen = [check for check in CHECKS if not only or check.name == only]
    patience_s = COMES_S if only else PATIENCE_S  # a mistake is waited for in vain; a sound agent may be late
    run = check_agent("front", command, tmp_path, checks=chosen, patience_s=patience_s)
    return [finding async for finding in run]


_AT_ONCE = asyncio.Semaphore(4)
"""Scratch meshes side by side: an agent that is tried waits most of the time."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[CheckResult]]:
    """Findings of the sound agents and of each planted mistake, by name."""

    async def run(name: str, command: str, only: str = "") -> tuple[str, list[CheckResult]]:
        async with _AT_ONCE:
            return name, await found(tmp_path_factory.mktemp("tried"), command, only)

    runs = [run("our-runtime", behind_a_shell(OURS)), run("by-the-page-alone", behind_a_shell(RAW))]
    runs += [run(fault, behind_a_shell(RAW, fault), only) for fault, only in FAULTS.items()]
    return dict(await asyncio.gather(*runs))


@pytest.mark.timeout(600)  # whichever is first waits for all of them
@pytest.mark.parametrize("who", ["our-runtime", "by-the-page-alone"])
def test_a_sound_agent_passes(who: str, tried: dict[str, list[CheckResult]]) -> None:
    assert [finding.check for finding in tried[who]] == [STARTS.name, *(check.name for check in CHECKS)]
    assert [finding for finding in tried[who] if not finding.ok] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_mistake_is_found(fault: str, tried: dict[str, list[CheckResult]]) -> None:
    started, *findings = tried[fault]
    assert started.ok
    assert [finding.check for finding in findings if not finding.ok] == [FAULTS[fault]], findings


@pytest.mark.timeout(600)
def test_what_is_wrong_quotes_the_failures_of_the_turn(tried: dict[str, list[CheckResult]]) -> None:
    (wrong,) = [finding.wrong for finding in tried["dies of what is withheld"] if not finding.ok]
    assert wrong.endswith("; seen: turn.failed by front: bug")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_the_agent_ends_with_the_command_whatever_ends_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    noted = tmp_path / "process"
    run = f"sleep 1000 & echo $! > {noted}; wait"
    command = [sys.executable, "-m", "mesh", "check-agent", "front", "--run", run]
    where = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed check leaves its mesh there
    check = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.DEVNULL, env=where)
    try:
        await until(lambda: noted.exists() and noted.read_text().endswith("\n"))
    finally:
        check.send_signal(number)
        await check.wait()
    await until(lambda: not alive(int(noted.read_text())))


async def test_the_agent_ends_when_its_check_raises(tmp_path: Path) -> None:
    async def breaks(harness: Harness) -> None:
        assert harness.process.running
        processes.append(harness.process)
        raise RuntimeError("a check that is wrong itself")

    processes: list[Process] = []
    checks = [Check("breaks", STARTS.section, breaks)]
    with pytest.raises(RuntimeError, match="wrong itself"):
        async for _ in check_agent("front", behind_a_shell(RAW), tmp_path, checks=checks):
            pass
    (process,) = processes
    assert not process.running


async def test_a_command_that_ends_takes_no_work(tmp_path: Path) -> None:
    (finding,) = await found(tmp_path, "exit 3")
    assert (finding.check, finding.ok) == (STARTS.name, False)
    assert "ended" in finding.wrong


def test_every_check_names_a_section_of_the_page() -> None:
    page = (DOCS / "wire" / "agent.md").read_text()
    assert all(section(page, check.section) for check in (STARTS, *CHECKS))


@pytest.mark.parametrize(("command", "status"), [("exit 3", 1)])
def test_the_command_says_it_by_its_exit_status_and_as_json(command: str, status: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mesh", "check-agent", "front", "--run", command, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    (finding,) = json.loads(ran.stdout)
    assert (finding["check"], finding["ok"], finding["section"]) == (STARTS.name, False, STARTS.section)
