"""Structured logs: one line an event, with the request it is about. Configured by `main` alone."""

import logging
import sys

import structlog


def configure_logging(style: str = "auto", level: str = "info") -> None:
    """Send structlog's and the standard library's records to standard error.

    Args:
        style: `console`, `json`, or `auto` (console on a terminal).
        level: a name of the standard library's levels.
    """
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    as_console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Locals are left out of tracebacks: they hold prompts, facts and keys.
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        )
        if not as_console
        else structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if as_console else structlog.processors.JSONRenderer()
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
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
