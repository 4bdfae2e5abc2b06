"""The machine's stalls are written down by the processes that they hit."""

import asyncio
import signal
import sys
from pathlib import Path

from tests.drill import ledger, stalls
from tests.servers import ROOT, until

PROCESS = """
import time
from tests.drill import stalls

stalls.watch("a")
print("watched", flush=True)
while True:
    time.sleep(60)
"""


async def test_a_process_that_stood_still_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROCESS),
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), ledger.VARIABLE: str(path)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"watched\n"
        before = len(ledger.stalls(path))
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4 * stalls.LEAST_S)
        process.send_signal(signal.SIGCONT)
        await until(lambda: len(ledger.stalls(path)) > before)
        long = [each for each in ledger.stalls(path) if each.until - each.at >= 3e6 * stalls.LEAST_S]
        assert {(each.kind, each.name, each.pid) for each in long} == {(stalls.KIND, "a", process.pid)}
    finally:
        process.kill()
        await process.wait()
