"""A child process that ends when its parent does, however the parent ends.

On Linux the kernel ends the child. Elsewhere a shell waits on a pipe, which closes with the parent, and then
ends the child.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Literal

Guard = Literal["signal", "pipe"]
"""How the parent's end is noticed: the kernel's parent-death signal, or a watched pipe."""

_PR_SET_PDEATHSIG = 1
_WATCH = 'read -r _; kill -s "$1" "$2"; sleep 5; kill -s KILL "$2"'


class ParentDeath:
    """Guards one child at a time against outliving this process.

    Args:
        number: what the child gets when this process ends. With the pipe, SIGKILL follows 5 s later.
        guard: by default the best that this machine has.
    """

    def __init__(self, number: signal.Signals = signal.SIGKILL, guard: Guard | None = None) -> None:
        self._number = number
        self._guard: Guard = guard or ("signal" if sys.platform == "linux" else "pipe")
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def preexec(self) -> Callable[[], None] | None:
        """The `preexec_fn` to start the child with. The kernel looks at the *thread* that starts it."""
        if self._guard == "pipe":
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        parent, number = os.getpid(), self._number

        def ask() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, number)
            if os.getppid() != parent:  # it died before we could ask
                os._exit(1)

        return ask

    def watch(self, pid: int) -> None:
        """Begin to guard a child that was started."""
        if self._guard == "pipe":
            self.release()
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "watch", self._number.name.removeprefix("SIG"), str(pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal must not end the watcher first
            )

    def release(self) -> None:
        """Stop guarding: the child has ended, and its process id may be another's soon. Idempotent."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.kill()  # before the pipe closes
            watcher.wait()
            if watcher.stdin is not None:
                watcher.stdin.close()
