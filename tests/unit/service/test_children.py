"""A child ends when its parent does, on a kernel with a parent-death signal and on one without."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE

import pytest

from mesh.local.service import next_try
from tests.certain import known
from tests.servers import ROOT, alive, until

PARENT = """
import subprocess, sys, time
from mesh.local.server import ParentDeath
guard = ParentDeath(guard=sys.argv[1])
child = subprocess.Popen(["sleep", "600"], preexec_fn=guard.preexec)
guard.watch(child.pid)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("guard", ["signal", "pipe"])
async def test_a_child_ends_when_its_parent_is_killed(guard: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, guard, cwd=ROOT, env=os.environ, stdout=PIPE
    )
    child = int(await known(parent.stdout).readline())
    assert alive(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(child))


@pytest.mark.parametrize(("tries", "pause_s"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 5.0), (4, 15.0), (9, 15.0)])
def test_one_that_dies_at_once_waits_longer_each_time(tries: int, pause_s: float) -> None:
    assert next_try(tries, ran_s=0.1) == (tries + 1, pause_s)


def test_one_that_ran_for_long_is_started_again_at_once() -> None:
    assert next_try(4, ran_s=3600.0) == (1, 0.5)
