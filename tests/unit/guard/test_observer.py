"""The watchdog ends what goes on for too long, and nothing else."""

import contextlib
import itertools
import signal
import subprocess
import sys
import threading
import time

import pytest

from mesh.guard.observer import VerdictTooLong, VerdictWatchdog
from tests.servers import PATIENCE_S


def spin(seconds: float) -> None:
    """Use up CPU time in this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_goes_in_circles_is_ended_where_it_is() -> None:
    dog = VerdictWatchdog(0.2)
    with pytest.raises(VerdictTooLong) as ended, dog.watching():
        for _ in itertools.count():
            pass
    assert ended.traceback[-1].name == "test_what_goes_in_circles_is_ended_where_it_is"


def test_it_does_so_in_a_thread_of_its_own() -> None:
    dog, found = VerdictWatchdog(0.2), list[str]()

    def decide() -> None:
        try:
            with dog.watching():
                spin(60)
        except VerdictTooLong:
            found.append("ended")

    thread = threading.Thread(target=decide)
    thread.start()
    thread.join(60)
    assert found == ["ended"]


def test_one_that_swallows_its_end_is_ended_again() -> None:
    dog = VerdictWatchdog(0.2)

    def stubborn() -> None:
        with dog.watching():
            with contextlib.suppress(VerdictTooLong):
                spin(60)
            spin(60)

    with pytest.raises(VerdictTooLong):
        stubborn()


def test_time_that_a_decision_does_not_use_itself_does_not_count() -> None:
    """A machine that is slow, or a process that is stopped, ends no decision."""
    dog = VerdictWatchdog(0.2)
    with dog.watching():
        time.sleep(1.0)


def test_what_is_done_after_a_decision_is_never_ended() -> None:
    """Decisions that take about as long as they may, while the watchdog looks all the time."""
    dog, ended, over = VerdictWatchdog(0.01), 0, threading.Event()

    def look() -> None:
        while not over.is_set():
            dog.look()

    looking = threading.Thread(target=look)
    looking.start()
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for number in range(300):
            try:
                with dog.watching():
                    spin(0.008 + number % 10 / 2500)
            except VerdictTooLong:
                ended += 1
            spin(0.0005)
    finally:
        sys.setswitchinterval(switching)
        over.set()
        looking.join()
    assert 0 < ended < 300


STUCK = """
import re
from mesh.guard import observer as watchdog
dog = watchdog.VerdictWatchdog(0.2)
watchdog.end_with_the_process(1.0)

def decide_for_ever():
    with dog.watching():
        re.match("(a+)+$", "a" * 60 + "b")

decide_for_ever()
"""


def test_code_that_keeps_the_interpreter_to_itself_ends_with_its_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == -signal.SIGVTALRM
    assert "in decide_for_ever" in ended.stderr
