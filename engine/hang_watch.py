"""Ends an engine's process whose step loop stands still: a hang is no better than a death, and nobody would see it."""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable

_LOOKS = 4
"""Looks at the loop within the time that a step may take."""


class HangWatch:
    """Watches from a thread, and is watched itself: a timer that needs no interpreter ends the process when the thread
    does not put it off, as when a step that hangs holds the interpreter's lock. Either way standard error gets the
    stacks of all threads."""

    def __init__(self, seconds: float, turns: Callable[[], int | None], give_up: Callable[[str], None]) -> None:
        """``seconds`` is the longest that a step may take; 0: however long. ``turns`` counts what the loop has done,
        None while it waits for work. ``give_up`` gets the cause, and ends the process."""
        self._seconds = seconds
        self._turns = turns
        self._give_up = give_up

    def start(self) -> None:
        """From here on."""
        if self._seconds > 0:
            threading.Thread(target=self._watch, name="octavo-watch-loop", daemon=True).start()

    def _watch(self) -> None:
        last, still = self._turns(), 0
        while still <= _LOOKS:
            faulthandler.dump_traceback_later(2 * self._seconds, exit=True)
            time.sleep(self._seconds / _LOOKS)
            turns = self._turns()
            still = still + 1 if turns == last and turns is not None else 0
            last = turns
        faulthandler.dump_traceback(sys.stderr)
        self._give_up(
            f"no step was finished for {self._seconds:g} s (--engine-hang-timeout); the stacks are in the log"
        )
