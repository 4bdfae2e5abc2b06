"""Where the kernel has no parent-death signal, a child watches a pipe."""

import subprocess
import sys

from mesh.service.parent_death import VARIABLE
from tests.servers import ROOT

CHILD = (
    "from mesh.service.parent_death import hold; hold(); print('held', flush=True); "
    "import time; time.sleep(600)"
)


def test_a_child_on_a_pipe_ends_when_the_pipe_closes() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        env={VARIABLE: "pipe"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"held\n"
        assert child.poll() is None
        child.stdin.close()  # as the kernel does for a parent that was killed
        assert child.wait(30) == 1
