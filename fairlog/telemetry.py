"""The node's log lines: structlog, to stderr, as text for people or as JSON lines for machines.

One canonical line per transaction at info and per request at debug, with fields instead of prose. Code logs through
`structlog.get_logger()` and puts figures and ids into keyword arguments. stdout is reserved for the one line that says
that the node is ready.

An exception is logged with its frames and without their local variables: those contain clients' records, and whole
batches of them. structlog would write them, in JSON and (with `rich` installed) for people.

structlog's filtering logger makes a suppressed level cost one call that does nothing.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from fairlog.config import LogSettings

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def set_up(settings: LogSettings) -> None:
    """Make `structlog.get_logger()` write to stderr as the settings say. Once, before the node starts.

    All processes of a node write to one stderr. What belongs to one of several shards has it as a field: a context
    variable, for a process may serve several shards.
    """
    for_people = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not for_people),
    ]
    if for_people:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        processors.append(renderer)
    else:
        processors += [
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(default=str),
        ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[settings.level]),
        # A line and its end in one call: where Python buffers nothing, the lines of several processes stay apart.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
