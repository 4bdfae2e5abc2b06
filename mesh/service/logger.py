"""The logger of every module: structlog's, loaded with the first line that is written.

A command logs nothing unless asked to, and loading structlog would be a third of its work.
"""

import logging
from typing import Any

_silent = False


def silence() -> None:
    """Write no log line of this process."""
    global _silent
    _silent = True
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger("nats").setLevel(logging.CRITICAL)


class Logger:
    """A structlog logger that is made when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: Any = None

    def debug(self, event: str, **values: Any) -> None:
        self._write("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        self._write("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._write("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        self._write("error", event, values)

    def exception(self, event: str, **values: Any) -> None:
        self._write("exception", event, values)

    def _write(self, method: str, event: str, values: dict[str, Any]) -> None:
        if _silent:
            return
        if self._made is None:
            import structlog

            self._made = structlog.get_logger(self._name)
        getattr(self._made, method)(event, **values)


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(name)
