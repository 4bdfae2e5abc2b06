"""A watchdog over decisions: one that takes too long is ended by an exception, wherever its code is.

A decision is plain Python in the guard's event loop. One that goes in circles would stop every other request,
and the next guard after this one. A thread looks at each decision's own CPU time, so that a machine that is
slow or a process that was stopped ends nothing. Code in C that keeps the interpreter to itself cannot be
ended so: `end_with_the_process` lets the kernel end the process then.
"""

import contextlib
import ctypes
import signal
import threading
import time
import weakref
from collections.abc import Iterator

from mesh.errors import MeshError

VERDICT_S = 2.0
"""CPU seconds that one step of a decision may take. A lease of the guards' queues lasts longer."""
PROCESS_S = 30.0
"""CPU seconds of the process after which the kernel ends it, unless the watchdog's thread ran meanwhile."""
_TICK_S = 0.1


class VerdictTooLong(MeshError, code="guard.verdict_too_long"):
    """A decision took longer than it may; its traceback says where it was."""


class VerdictWatchdog:
    """Watches the decisions of one guard, of which one at most is under way.

    Args:
        within_s: CPU seconds that a decision may take between two of its steps.
    """

    def __init__(self, within_s: float = VERDICT_S) -> None:
        self._within_s = within_s
        self._lock = threading.Lock()
        self._number = 0
        self._running = False
        self._thread = 0
        self._seen: tuple[int, float] = (0, 0.0)
        """The decision that the last look found under way, and its thread's CPU time then."""
        _watch(self)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Raise VerdictTooLong in what is done within, once it takes too long."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        self._number += 1
        self._thread = threading.get_ident()
        self._running = True

    def end(self) -> None:
        """Stop watching. An exception that is on its way is raised in here, and never later."""
        try:
            with self._lock:
                self._running = False
        finally:
            self._running = False
            _checkpoint()

    def look(self) -> None:
        """End the decision that is under way if it has been for too long. Called by the watching thread."""
        with self._lock:
            if not self._running:
                return
            try:
                spent = time.clock_gettime(time.pthread_getcpuclockid(self._thread))
            except OSError:  # the thread is gone
                return
            number, since = self._seen
            if number != self._number:
                self._seen = (self._number, spent)
            elif spent - since >= self._within_s:
                self._seen = (
                    self._number,
                    spent,
                )  # it gets another chance to be caught, if it swallowed this
                raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
                raise_in(ctypes.c_ulong(self._thread), ctypes.py_object(VerdictTooLong))


def _checkpoint() -> None:
    """Let the interpreter raise what was sent to this thread: it does so as a function begins."""


# --- the thread that looks ---------------------------------------------------------------------------

_all: "weakref.WeakSet[VerdictWatchdog]" = weakref.WeakSet()
_guarding = threading.Lock()
_thread: threading.Thread | None = None
_kernel_s = 0.0


def _watch(dog: VerdictWatchdog) -> None:
    global _thread
    with _guarding:
        _all.add(dog)
        if _thread is None:
            _thread = threading.Thread(target=_look_again_and_again, name="watchdog", daemon=True)
            _thread.start()


def _look_again_and_again() -> None:
    while True:
        time.sleep(_TICK_S)
        if _kernel_s:
            signal.setitimer(signal.ITIMER_VIRTUAL, _kernel_s)
        with _guarding:
            dogs = list(_all)
        for dog in dogs:
            dog.look()
        del dogs


def end_with_the_process(after_s: float = PROCESS_S) -> None:
    """Have the kernel end this process if its interpreter is kept for so long that nothing else runs.

    What it was doing is written to the standard error as it ends. Call it in the main thread.

    Args:
        after_s: CPU seconds.
    """
    import faulthandler

    global _kernel_s
    faulthandler.register(signal.SIGVTALRM, chain=True)
    _kernel_s = after_s
    signal.setitimer(signal.ITIMER_VIRTUAL, after_s)
