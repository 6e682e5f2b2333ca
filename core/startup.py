"""When the steps of a start were done, in every process, for ``octavo bench startup`` and for one line in the log."""

import json
import logging
import os
import time
from pathlib import Path

logger = logging.getLogger(__name__)


class StartupTimeline:
    """Names of start-up steps and the times at which they ended, in seconds of ``time.time()``.

    Processes of one machine share that clock, so the engine sends its ``marks`` with its ready message and the API
    process merges them. Names are free text: ``imports``, ``spawn``, ``load weights``.
    """

    def __init__(self, process_name: str) -> None:
        self.process_name = process_name
        self.marks: dict[str, float] = {}
        """``process: step`` to the time at which the step ended."""

    def mark(self, step: str) -> None:
        """Notes that ``step`` has just ended."""
        self.marks[f"{self.process_name}: {step}"] = time.time()

    def merge(self, marks: dict[str, float]) -> None:
        """Takes over another process's marks."""
        self.marks |= marks

    def finish(self) -> None:
        """Logs the whole start in one line and writes it, as JSON, to the path in ``OCTAVO_STARTUP_JSON``."""
        steps = sorted(self.marks.items(), key=lambda item: item[1])
        if not steps:
            return
        began = process_start_time()
        logger.info("startup: %s", " | ".join(f"{name} {when - began:.2f} s" for name, when in steps))
        path = os.environ.get("OCTAVO_STARTUP_JSON")
        if path:
            # Written beside and renamed, so that a reader never sees half a file.
            partial = Path(f"{path}.partial")
            try:
                partial.write_text(json.dumps({"process_start": began, "marks": dict(steps)}), encoding="utf-8")
                partial.replace(path)
            except OSError as error:
                logger.warning("OCTAVO_STARTUP_JSON=%s cannot be written: %s", path, error.strerror)


def process_start_time() -> float:
    """When this process began, in seconds of ``time.time()``, to the kernel's 10 ms; now, where no /proc tells."""
    try:
        # Field 22 counts clock ticks since boot; the name in field 2 may hold spaces, hence the split behind it.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
