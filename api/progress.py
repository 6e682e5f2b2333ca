"""A bar on stderr for work of many equal parts."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(what: str, total: int, wanted: bool = True) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, if it is ``wanted``; nothing elsewhere. Yields what to call for each part that is done."""
    # Imported here: the command line's help must not wait for it.
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    columns = progress.TextColumn(what), progress.BarColumn(), progress.MofNCompleteColumn(), *times
    with progress.Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)
