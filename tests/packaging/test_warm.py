"""A warm start and a cold one are alike: to the program that runs, and to who starts it and waits."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.certain import known
from tests.servers import PATIENCE_S, ROOT, alive, until
from tests.system.terminal import parents
from tests.warm import ALL_COLD, COLD, is_warm_parent

# Where nothing starts warm (another system, or MESH_TEST_COLD for the whole run) there is nothing to compare.
pytestmark = pytest.mark.skipif(ALL_COLD, reason="every start of this run is cold")

PROBE = """
import gc, json, os, random, signal, sys, threading
from pathlib import Path
import helper

own = Path("/proc/self")
print("to standard error", file=sys.stderr)
json.dump({
    "alike": {
        "read": sys.stdin.read(), "helper": helper.__file__, "main": [__name__, __file__],
        "arguments": [sys.argv, sys.orig_argv], "path": sys.path, "flags": str(sys.flags),
        "folder": os.getcwd(), "environment": dict(os.environ),
        "shown": [(own / each).read_text().rstrip("\\0").split("\\0") for each in ("cmdline", "environ")],
        "handlers": {n: str(signal.getsignal(n)) for n in signal.valid_signals() if n < signal.SIGRTMIN},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "open": sorted(os.listdir(own / "fd")), "garbage": [gc.isenabled(), gc.get_threshold()],
        "threads": [threading.active_count(), threading.get_native_id() == os.getpid()],
        "streams": [
            [each.encoding, each.errors, each.line_buffering, each.write_through, each.isatty()]
            for each in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(),
        "tests": [each for each in sys.modules if each.partition(".")[0] in ("tests", "warm", "conftest")],
    },
    "warm": "mesh.testing" in sys.modules, "random": random.random(), "pid": os.getpid(),
}, sys.stdout)
"""
ENDS = {
    "print('the end', end='')": 0,
    "import atexit, sys; atexit.register(print, 'late'); sys.exit(3)": 3,
    "raise SystemExit('a word')": 1,
    "raise ValueError('a fault')": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "import os; os._exit(9)": 9,
    "import os; os.abort()": -signal.SIGABRT,
    "import os; os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "import asyncio; asyncio.run(asyncio.sleep(0.01)); print('ran')": 0,
    "import threading, time; threading.Timer(0.1, print, ['last']).start()": 0,
    "import sys; sys.stdout.close(); sys.stderr.write('only here')": 0,
}
"""Programs, and how each ends."""
PARENT = f"""
import subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from mesh.local.server import ParentDeath
from tests.system.terminal import parents
from tests.warm import warm_starts
with warm_starts():
    child = subprocess.Popen([sys.executable, "sleeper.py"], preexec_fn=ParentDeath().preexec)
    print(child.pid, flush=True)
    time.sleep(600)  # only a signal ends it
"""
# It says of its child what the child says.
LAUNCHER = """
import os, subprocess, sys
from functools import partial
around = os.environ | {"LAUNCHER": str(os.getpid())}
subprocess.run([sys.executable, "probe.py"], env=around, preexec_fn=partial(os.nice, 0))
"""
# It starts a process that is no clone, and says if the warm parent has loaded the libraries by then.
FIRST = f"""
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.system.terminal import parents
from tests.warm import warm_starts
with warm_starts():
    [child] = [pid for pid, parent in parents().items() if parent == os.getpid()]
    subprocess.run(["true"], check=True)
    print("msgspec" in Path(f"/proc/{{child}}/maps").read_text())
"""
LOADED = "import sys; print(*sorted(sys.modules))"
READERS = ("opentelemetry.sdk", "opentelemetry.exporter")
# It sleeps until a signal ends it.
SLEEPER = "import sys, time; print('mesh.testing' in sys.modules, flush=True); time.sleep(600)"


def run(folder: Path, *command: str, cold: bool, **added: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this command in a session of its own."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | added | ({COLD: "1"} if cold else {}),
        input="some words",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        start_new_session=True,
    )


def asked(folder: Path, *command: str, cold: bool, **added: str) -> dict[str, Any]:
    """Return what the probe says of itself."""
    ended = run(folder, *command, cold=cold, **added)
    assert (ended.returncode, ended.stderr) == (0, "to standard error\n")
    said: dict[str, Any] = json.loads(ended.stdout)
    assert said["warm"] is not cold
    said["alike"]["environment"].pop(COLD, None)
    said["alike"]["shown"][1].sort()
    if cold:
        said["alike"]["shown"][1].remove(f"{COLD}=1")
    return said


@pytest.mark.parametrize("command", [("-m", "tests.probe", "-x", "y"), ("tests/probe.py", "", "ü")])
def test_a_program_finds_itself_the_same(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "probe.py").write_text(PROBE)
    for each in ("one", "two"):
        (tmp_path / each).mkdir()
        (tmp_path / each / "helper.py").write_text("")
    around = {"OWN": "1", "PYTHONPATH": str(tmp_path / "one"), "TZ": "Asia/Tokyo"}
    warm, cold = (asked(tmp_path, *command, cold=each, **around) for each in (False, True))
    assert warm["alike"] == cold["alike"]
    other = asked(tmp_path, *command, cold=False, PYTHONPATH=str(tmp_path / "two"))
    assert Path(other["alike"]["helper"]).parent == tmp_path / "two"
    assert other["random"] != warm["random"]
    assert other["pid"] != warm["pid"]


@pytest.mark.parametrize("program", ENDS, ids=range(len(ENDS)))
def test_a_program_ends_the_same(tmp_path: Path, program: str) -> None:
    (tmp_path / "program.py").write_text(program)
    warm, cold = (run(tmp_path, "program.py", cold=each) for each in (False, True))
    assert warm.returncode == cold.returncode == ENDS[program]
    assert warm.stdout == cold.stdout
    assert warm.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


def test_what_an_import_reads_of_the_environment_is_read_anew(tmp_path: Path) -> None:
    (tmp_path / "armed.py").write_text("from mesh.service import failpoints; print(failpoints._armed)")
    for folder in ("one", "two"):
        assert run(tmp_path, "armed.py", cold=False, MESH_FAILPOINTS=folder).stdout == f"{folder}\n"
    assert run(tmp_path, "armed.py", cold=False).stdout == "None\n"


def test_what_reads_the_variables_of_telemetry_is_not_imported_yet(tmp_path: Path) -> None:
    """The SDK and its exporters read them as they are imported; with those of the API, starts are cold."""
    (tmp_path / "loaded.py").write_text(LOADED)
    loaded = run(tmp_path, "loaded.py", cold=False).stdout.split()
    assert "opentelemetry.trace" in loaded
    assert [name for name in loaded if name.startswith(READERS)] == []


@pytest.mark.parametrize(
    "command", [("-c", SLEEPER.partition("; time.")[0]), ("-I", "sleeper.py"), ("-m", "sleeper")]
)
def test_a_start_that_is_about_starting_is_cold(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER.partition("; time.")[0])
    assert run(tmp_path, *command, cold=False).stdout == "False\n"


def test_imports_are_waited_for_before_the_first_process_of_any_kind(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", FIRST, cold=False).stdout == "True\n"


def test_without_a_folder_a_program_runs_where_its_starter_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "where.py").write_text("import os; print(os.getcwd())")
    monkeypatch.chdir(tmp_path)
    said = subprocess.run([sys.executable, "where.py"], capture_output=True, text=True, check=True).stdout
    assert Path(said.strip()) == tmp_path


def test_what_a_launcher_starts_is_warm_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    said = {}
    for cold in (False, True):
        asked_for = asked(tmp_path, "launcher.py", "dev", cold=cold)
        launcher, said[cold] = asked_for["alike"].pop("environment").pop("LAUNCHER"), asked_for["alike"]
        assert said[cold].pop("parent") == int(launcher)
        said[cold]["shown"][1].remove(f"LAUNCHER={launcher}")
    assert said[False] == said[True]


async def test_a_launchers_warm_parent_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "sleeper.py", "dev"), cwd=tmp_path, stdout=PIPE
    )
    assert await known(process.stdout).readline() == b"True\n"
    [parent] = [pid for pid, parent in parents().items() if parent == process.pid]
    assert is_warm_parent(parent)
    process.kill()
    await process.wait()
    await until(lambda: not alive(parent))


def test_a_clone_is_there_with_its_session_when_its_start_returns(tmp_path: Path) -> None:
    """Who signals its group at once would find none, and then wait for ever."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = subprocess.Popen(
        [sys.executable, "sleeper.py"],
        cwd=tmp_path,
        stdout=PIPE,
        start_new_session=True,
        preexec_fn=partial(os.mkdir, tmp_path / "before"),
    )
    with process:
        was_ready = (tmp_path / "before").is_dir() and os.getsid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGKILL)
    assert was_ready


async def test_a_clone_is_stopped_continued_and_killed_like_any_process(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = await asyncio.create_subprocess_exec(sys.executable, "sleeper.py", cwd=tmp_path, stdout=PIPE)
    assert await known(process.stdout).readline() == b"True\n"
    stat = Path(f"/proc/{process.pid}/stat")
    process.send_signal(signal.SIGSTOP)
    await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    process.send_signal(signal.SIGCONT)
    await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def test_clones_and_their_parent_go_with_the_process_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT), cwd=tmp_path, stdout=PIPE, start_new_session=True
    )
    output = known(process.stdout)
    said = await output.readline() + await output.readline()  # of two processes, which may mix
    assert b"True" in said
    children = [pid for pid, parent in parents().items() if parent == process.pid]
    assert len(children) == 2  # the warm parent and its clone
    process.kill()
    await process.wait()
    await until(lambda: not any(map(alive, children)))
