"""Progress on stderr: a bar on a terminal, one plain line elsewhere, nothing when quiet."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
"""Takes the number of bytes done since the last call."""


class Progress:
    """How the preparation of a model is shown."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bars = not quiet and sys.stderr.isatty()

    def say(self, line: str) -> None:
        """One line, unless quiet."""
        if not self._quiet:
            print(f"octavo: {line}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Advance]:
        """A step of ``total`` bytes. Yields the function to call as they get done."""
        if not self._bars:
            self.say(f"{title} ({total / 1e6:.0f} MB)")
            yield lambda done: None
            return
        # Imported here: a start with a prepared model shows no bar and need not pay for it.
        from rich import progress
        from rich.console import Console

        what = progress.TextColumn("{task.description}")
        sizes = progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn()
        with progress.Progress(what, progress.BarColumn(), *sizes, console=Console(stderr=True)) as bars:
            task = bars.add_task(title, total=total)
            yield lambda done: bars.advance(task, done)
