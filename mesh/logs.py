"""Structured logs: one line an event, with the request it is about. Configured by `main` alone."""

import logging
import sys

import structlog

from mesh.telemetry import tracing


def configure_logging(style: str = "auto", level: str = "info", *, for_good: bool = False) -> None:
    """Send structlog's and the standard library's records to standard error.

    Args:
        style: `console`, `json`, or `auto` (console on a terminal).
        level: a name of the standard library's levels. Lines below it cost next to nothing.
        for_good: nobody configures it again in this process; each line then costs less.
    """
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    as_console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        tracing.add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exceptions(as_console),
    ]
    renderer: structlog.typing.Processor = (
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
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    logging.getLogger("nats").setLevel(logging.CRITICAL)  # `mesh.bus` says what is worth saying, once


def _exceptions(as_console: bool) -> structlog.typing.Processor:
    """Return how tracebacks are shown: never with locals, which hold prompts, facts and keys."""
    if as_console:
        return structlog.processors.format_exc_info
    return structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
