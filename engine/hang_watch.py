"""Ends an engine's process whose step loop stands still: a hang is no better than a death, and nobody would see it."""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable

_LOOKS = 4
"""Looks at the loop within the time that a step may take."""


def watch_for_hangs(seconds: float, turns: Callable[[], int | None], give_up: Callable[[str], None]) -> None:
    """Watch the loop from a thread of its own, from now on.

    The thread is watched itself: should a step that hangs hold the interpreter's lock, so that the thread cannot run,
    it no longer puts off a timer that needs no interpreter, and that ends the process. Either way standard error gets
    the stacks of all threads.

    ``seconds`` is the longest that a step may take; 0: however long. ``turns`` counts what the loop has done, None
    while it waits for work. ``give_up`` gets the cause, and ends the process.
    """
    if seconds > 0:
        threading.Thread(target=_watch, args=(seconds, turns, give_up), name="octavo-watch-loop", daemon=True).start()


def _watch(seconds: float, turns: Callable[[], int | None], give_up: Callable[[str], None]) -> None:
    last, still = turns(), 0
    while still <= _LOOKS:
        faulthandler.dump_traceback_later(2 * seconds, exit=True)
        time.sleep(seconds / _LOOKS)
        count = turns()
        still = still + 1 if count == last and count is not None else 0
        last = count
    faulthandler.dump_traceback(sys.stderr)
    give_up(f"no step was finished for {seconds:g} s (--engine-hang-timeout); the stacks are in the log")
