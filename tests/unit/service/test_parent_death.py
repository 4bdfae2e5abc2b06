"""A child ends when its parent does, on a kernel with a parent-death signal and on one without."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE

import pytest

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
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert alive(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(child))
