"""What loggers write while a test runs, whatever other tests did to their levels."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def logging_to(handler: logging.Handler, level: int, name: str = "octavo") -> Iterator[None]:
    """Everything from ``level`` on that the logger and those below it write goes to ``handler`` alone."""
    logger = logging.getLogger(name)
    before = logger.level, logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)  # not by the attribute: loggers remember what they are enabled for
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[1], before[2]
        logger.setLevel(before[0])
