"""A leash: a child process that ends when its parent does, however the parent ends.

On Linux the kernel ends the child. Elsewhere the child holds the reading end of a pipe, and a thread of
its own ends it when the pipe closes; such a child must call `hold`.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Literal

Leash = Literal["signal", "pipe"]

VARIABLE = "MESH_LEASH"
"""`pipe` in the environment of a child that has to watch its standard input itself."""
_PR_SET_PDEATHSIG = 1


def leash_here() -> Leash:
    return "signal" if sys.platform == "linux" else "pipe"


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return what a child on Linux runs before it becomes the program: `preexec_fn` of its start.

    The kernel sends `number` when the *thread* that started the child ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return ask


def hold() -> None:
    """End this process when its standard input closes, if it was started on a pipe."""
    if os.environ.pop(VARIABLE, "") == "pipe":
        threading.Thread(target=_until_closed, daemon=True).start()


def _until_closed() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)
