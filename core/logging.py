"""Log lines of every process: one line each, with time, level and the process that speaks.

``OCTAVO_LOGGING_LEVEL`` sets the level (DEBUG, INFO, WARNING, ERROR; INFO without it). An exception is logged as its
one-line message; only DEBUG shows tracebacks. ``OCTAVO_LOGGING_FORMAT=json`` makes each line a JSON object.
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from .errors import ConfigurationError
from .function_trace import start_function_trace_if_asked

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMATS = ("text", "json")
FIELDS = "octavo_fields"
"""Key of ``extra`` under which a log call gives numbers by name; they become members of the JSON object."""


def configure_logging(process_name: str) -> None:
    """Sets up the ``octavo`` loggers of this process; ``process_name`` (``api``, ``engine-0``) marks its lines.

    Called once by each process's entry function, never on import: a program that uses Octavo as a library keeps its
    own log configuration. Starts the function trace too, where ``OCTAVO_TRACE_FUNCTION`` asks for it.
    Raises ``ConfigurationError`` for an unknown level or format.
    """
    level = log_level()
    handler = logging.StreamHandler(sys.stderr)
    tracebacks = level <= logging.DEBUG
    formatter = JsonFormatter if log_format() == "json" else LineFormatter
    handler.setFormatter(formatter(process_name, tracebacks=tracebacks))
    logger = logging.getLogger("octavo")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    start_function_trace_if_asked(process_name)


def adopt_logger(name: str) -> None:
    """Let a library's logger write as Octavo's do, where they were configured: one format for the whole log."""
    ours, theirs = logging.getLogger("octavo"), logging.getLogger(name)
    if ours.handlers:
        theirs.handlers[:] = ours.handlers
        theirs.propagate = False


def log_level() -> int:
    """The level that ``OCTAVO_LOGGING_LEVEL`` names. Raises ``ConfigurationError`` if there is none of that name."""
    name = os.environ.get("OCTAVO_LOGGING_LEVEL", "INFO").upper()
    if name not in LEVELS:
        raise ConfigurationError(f"OCTAVO_LOGGING_LEVEL is {name!r}; use one of {', '.join(LEVELS)}")
    return logging.getLevelNamesMapping()[name]


def log_format() -> str:
    """``text`` or ``json``, as ``OCTAVO_LOGGING_FORMAT`` says. Raises ``ConfigurationError`` for anything else."""
    name = os.environ.get("OCTAVO_LOGGING_FORMAT", "text").lower()
    if name not in FORMATS:
        raise ConfigurationError(f"OCTAVO_LOGGING_FORMAT is {name!r}; use one of {', '.join(FORMATS)}")
    return name


class LineFormatter(logging.Formatter):
    """``2026-11-30 10:30:01.123 INFO    [api] message``, on one line unless tracebacks are wanted."""

    def __init__(self, process_name: str, tracebacks: bool = False) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s [{process_name.replace('%', '%%')}] %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )
        self.tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """The record as text; an exception as ``: Type: message`` behind it, or in full under DEBUG."""
        if self.tracebacks or not record.exc_info:
            return super().format(record)
        # The record is shared by all handlers: what is left out here must stay for the others.
        exc_info, exc_text, stack = record.exc_info, record.exc_text, record.stack_info
        record.exc_info = record.exc_text = record.stack_info = None
        try:
            line = super().format(record)
        finally:
            record.exc_info, record.exc_text, record.stack_info = exc_info, exc_text, stack
        error = exc_info[1]
        return line if error is None else f"{line}: {type(error).__name__}: {' '.join(str(error).split())}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, process, logger, message, error and traceback, and the call's fields."""

    def __init__(self, process_name: str, tracebacks: bool = False) -> None:
        super().__init__()
        self.process_name = process_name
        self.tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """The record as a JSON object; what JSON does not know is written as text."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": self.process_name,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = f"{type(error).__name__}: {error}"
            if self.tracebacks:
                line["traceback"] = self.formatException(record.exc_info)
        for name, value in record.__dict__.get(FIELDS, {}).items():
            line.setdefault(name, value)
        return json.dumps(line, default=str)
