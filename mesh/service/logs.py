"""Structured logs: one line per event, bound to its request.

An exception's text may hold anything that its code was working on: a customer's address, a prompt, a key. So
a traceback is written without it, with only types, files, lines and functions.

Every module gets its logger here. structlog is loaded when the first line is written. A command logs nothing
unless asked to, and loading structlog would be a third of its work. structlog in turn loads rich, if it finds
it, for tracebacks that we do not use. That is a quarter of what a guard loads, so rich is hidden from it.
"""

import importlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mesh.service.printable import printable
from mesh.telemetry import tracing

if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, Processor

VALUES = "MESH_LOG_VALUES"
"""The variable that allows exceptions' own texts in the logs and in the messages of failures."""
_YES = ("1", "true", "yes", "on")
_silent = False


class Logger:
    """A structlog logger that is made on first use."""

    debug: Callable[..., None]
    info: Callable[..., None]
    warning: Callable[..., None]
    error: Callable[..., None]
    critical: Callable[..., None]
    exception: Callable[..., None]

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: Any = None

    @property
    def debugs(self) -> bool:
        """True if lines of level `debug` are written; else the caller need not build one."""
        return not _silent and bool(self._logger().is_enabled_for(logging.DEBUG))

    def __getattr__(self, method: str) -> Any:
        return _nothing if _silent else getattr(self._logger(), method)

    def _logger(self) -> Any:
        if self._made is None:
            structlog = _structlog()
            made = structlog.get_logger(self._name)
            # A proxy binds again for each line. If logging is configured for good, once is enough.
            self._made = made.bind() if structlog.get_config()["cache_logger_on_first_use"] else made
        return self._made


def _nothing(event: str, **values: Any) -> None:
    """Write no line."""


def bind(**values: object) -> None:
    """Put values into every later line of this task."""
    _structlog().contextvars.bind_contextvars(**values)


def _structlog() -> Any:
    """Return structlog; on first use it is loaded, without rich."""
    if (known := sys.modules.get("structlog")) is not None:
        return known
    if "rich" in sys.modules:
        return importlib.import_module("structlog")
    sys.modules["rich"] = None  # type: ignore[assignment] # as if it were not installed
    try:
        return importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]


def get_logger(name: str) -> Logger:
    """Return the logger of a module."""
    return Logger(name)


def shows_values() -> bool:
    """Return True if exceptions' own texts may be logged and reported: this machine has no private data."""
    return os.environ.get(VALUES, "").lower() in _YES


def silence() -> None:
    """Write no more log lines in this process."""
    global _silent
    _silent = True
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger("nats").setLevel(logging.CRITICAL)


_log = Logger("")


def configure_logging(style: str = "auto", level: str = "info", *, for_good: bool = False) -> None:
    """Send structlog's and the standard library's records to standard error.

    The text of an exception may hold private data. It is written only if MESH_LOG_VALUES allows it.

    Args:
        style: `console`, `json`, or `auto` (console on a terminal).
        level: a level's name in the standard library. Lines below it cost next to nothing.
        for_good: True if logging is not configured again in this process. Each line then costs less, and
            uncaught exceptions of any thread are logged, too.
    """
    structlog = _structlog()
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    as_console = style == "console" or (style == "auto" and sys.stderr.isatty())
    with_values = shows_values()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        tracing.add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exceptions(as_console, with_values),
    ]
    if as_console:
        shared.append(_harmless)  # JSON is escaped anyway
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if as_console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=for_good,
    )
    handler = logging.StreamHandler(sys.stderr)
    if not with_values:
        handler.addFilter(_without_reprs)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # `mesh.bus` logs what matters, once
    if for_good and not with_values:
        sys.excepthook, threading.excepthook = _uncaught, _uncaught_in_thread


def _harmless(_logger: Any, _method: str, line: "EventDict") -> "EventDict":
    """Write out what would steer a terminal: subjects, ids and texts in a line may be foreign."""
    return {
        printable(key): printable(value, lines=key == "exception") if isinstance(value, str) else value
        for key, value in line.items()
    }


# --- uncaught exceptions ----------------------------------------------------------------------------


def _uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Log what ends the process; an interrupt is left to Python."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        _log.critical("uncaught", exc_info=(kind, error, traceback))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    thread = None if args.thread is None else args.thread.name
    found = (args.exc_type, args.exc_value, args.exc_traceback)
    _log.critical("uncaught", thread=thread, exc_info=found)


def place_of(error: BaseException) -> str:
    """Return where an error was raised, as `file.py:12 in function`; empty if it was not."""
    found = traceback.extract_tb(error.__traceback__)
    return f"{found[-1].filename}:{found[-1].lineno} in {found[-1].name}" if found else ""


# --- tracebacks -----------------------------------------------------------------------------------


def _exceptions(as_console: bool, values: bool) -> "Processor":
    """Return how tracebacks are shown: never with locals, which hold prompts, facts and keys."""
    from structlog.processors import ExceptionRenderer, format_exc_info
    from structlog.tracebacks import ExceptionDictTransformer

    if values and as_console:
        return format_exc_info
    transform = ExceptionDictTransformer(show_locals=False)
    if values:
        return ExceptionRenderer(transform)

    def places(exc_info: "ExcInfo") -> Any:
        found = _placed(transform(exc_info))
        return "\n".join(_lines(found)) if as_console else found

    return ExceptionRenderer(places)


def _placed(stacks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an exception and its causes, newest first: types and places, without texts."""
    return [
        {
            "exc_type": stack["exc_type"],
            "is_cause": stack["is_cause"],
            "frames": [
                {key: frame[key] for key in ("filename", "lineno", "name")} for frame in stack["frames"]
            ],
            "is_group": stack["is_group"],
            "exceptions": [_placed(inner) for inner in stack["exceptions"]] if stack["is_group"] else [],
        }
        for stack in stacks
    ]


def _lines(stacks: list[dict[str, Any]], indent: str = "") -> Iterator[str]:
    """Yield the same for people, newest last as in every traceback."""
    for number, stack in enumerate(reversed(stacks), 1):
        yield f"{indent}Traceback (most recent call last):"
        for frame in stack["frames"]:
            place = f'File "{frame["filename"]}", line {frame["lineno"]}, in ' if frame["filename"] else ""
            yield f"{indent}  {place}{frame['name']}"
        yield f"{indent}{stack['exc_type']} (its text is not logged)"
        for inner in stack["exceptions"]:
            yield f"{indent}  | in it:"
            yield from _lines(inner, f"{indent}  | ")
        if number < len(stacks):
            led = "the direct cause of" if stack["is_cause"] else "being handled before"
            yield f"{indent}which was {led} this:"


def _without_reprs(record: logging.LogRecord) -> bool:
    """Remove the object from asyncio's own complaints: its repr has the text of an exception."""
    if record.name == "asyncio" and record.exc_info:
        record.msg = record.getMessage().partition("\n")[0].partition("(")[0]
        record.args = ()
    return True
