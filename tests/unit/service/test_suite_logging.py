"""The suite's own logging: what is captured, and what is put back."""

import logging
import sys
import threading
from collections.abc import Callable

import pytest
import structlog

from mesh.service.logs import configure_logging
from tests.logs import captured_logs, kept_logging, log_state, plain_logs, put_back

CHANGES: dict[str, Callable[[], object]] = {
    "level": lambda: configure_logging("json", "error"),
    "for good": lambda: configure_logging("json", "critical", for_good=True),
    "processors": lambda: structlog.get_config()["processors"].clear(),
    "root": lambda: logging.getLogger().addHandler(logging.NullHandler()),
    "hook": lambda: setattr(threading, "excepthook", sys.excepthook),
}


@pytest.mark.parametrize("level", [logging.ERROR, logging.CRITICAL])
def test_lines_are_captured_that_the_level_at_the_time_would_drop(level: int) -> None:
    with plain_logs(level), captured_logs() as lines:
        structlog.get_logger().info("said", x=1)
    assert lines == [{"event": "said", "x": 1, "log_level": "info"}]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_logging_is_seen_and_put_back(change: Callable[[], object]) -> None:
    before = log_state()
    change()
    assert log_state() != before
    put_back(before)
    assert log_state() == before


def test_cached_loggers_are_not_put_back_in_silence() -> None:
    with pytest.raises(AssertionError, match="cached"), kept_logging():
        structlog.configure(cache_logger_on_first_use=True)
