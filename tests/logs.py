"""The suite's logging: one place configures it, and everything that configures it puts it back."""

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.servers import until

_NATS = "nats"


class LogState(NamedTuple):
    """How this process logs, and what it does with errors that nobody catches."""

    configured: bool
    config: dict[str, Any]
    processors: tuple[Any, ...]
    """What was in structlog's own list, which is changed in place: loggers that are bound keep it."""
    root_handlers: list[logging.Handler]
    root_level: int
    nats_level: int
    hooks: tuple[Any, Any]


def log_state() -> LogState:
    """Return how this process logs now."""
    root = logging.getLogger()
    config = structlog.get_config()
    return LogState(
        configured=structlog.is_configured(),
        config=config,
        processors=tuple(config["processors"]),
        root_handlers=[each for each in root.handlers if not _is_pytests(each)],
        root_level=root.level,
        nats_level=logging.getLogger(_NATS).level,
        hooks=(sys.excepthook, threading.excepthook),
    )


def put_back(state: LogState) -> None:
    """Log as at the time of `state` again."""
    state.config["processors"][:] = state.processors
    structlog.configure(**state.config)
    if not state.configured:
        structlog.reset_defaults()
    root = logging.getLogger()
    root.handlers[:] = [*filter(_is_pytests, root.handlers), *state.root_handlers]
    root.setLevel(state.root_level)
    logging.getLogger(_NATS).setLevel(state.nats_level)
    sys.excepthook, threading.excepthook = state.hooks


@contextmanager
def kept_logging() -> Iterator[None]:
    """Put logging back after code that configures it.

    AssertionError if loggers were cached: what was logged through one stays as it was, whatever is put back.
    """
    before = log_state()
    try:
        yield
        assert not structlog.get_config()["cache_logger_on_first_use"], "cached loggers outlive the test"
    finally:
        put_back(before)


@contextmanager
def plain_logs(level: int = logging.INFO) -> Iterator[None]:
    """Log a line an event: structlog's own traceback, in colour and with every local, costs half a second."""
    with kept_logging():
        structlog.configure(
            processors=[
                structlog.processors.format_exc_info,
                structlog.processors.KeyValueRenderer(key_order=["event"]),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(level),
        )
        yield


@contextmanager
def captured_logs() -> Iterator[list[EventDict]]:
    """Collect every line that is logged, of every level, instead of printing it."""
    with kept_logging():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
        with capture_logs() as lines:
            yield lines


async def said(lines: Sequence[EventDict], event: str) -> None:
    """Wait until a captured log has a line of an event."""
    await until(lambda: any(line["event"] == event for line in lines))


def _is_pytests(handler: logging.Handler) -> bool:
    """Return True for the handlers that pytest adds for the time of each phase of a test."""
    return type(handler).__module__ == "_pytest.logging"
