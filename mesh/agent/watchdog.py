"""A blocked event loop, named: which line holds it, while it does.

A loop that is blocked sends no heartbeats, so its turns are delivered elsewhere when their lease ends.
The guard keeps that correct; this says whose fault it was.
"""

import asyncio
import sys
import threading
import traceback
from types import TracebackType
from typing import Self

from mesh.service.logger import get_logger

_log = get_logger(__name__)

BLOCKED_S = 1.0
"""Half of the heartbeat's period: there is still time to notice before a lease is lost."""


class Watchdog:
    """`with Watchdog():` inside a running loop. Logs `loop_blocked` once for each time it is blocked."""

    def __init__(self, blocked_s: float = BLOCKED_S) -> None:
        self._blocked_s = blocked_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.found = 0
        """How often the loop was blocked."""

    def __enter__(self) -> Self:
        loop, watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(loop, watched), name="loop-watchdog", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        while not self._stop.is_set():
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not answered.wait(self._blocked_s) and not self._stop.is_set():
                self.found += 1
                frame = sys._current_frames().get(watched)
                stack = traceback.format_stack(frame)[-4:] if frame is not None else []
                _log.error("loop_blocked", for_s=self._blocked_s, stack="".join(stack))
                while not answered.wait(0.1) and not self._stop.is_set():
                    pass
            self._stop.wait(self._blocked_s)
