"""How benchmark results are shown: a table for people, JSON for programs."""

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from ..environment import environment


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints ``rows`` under ``columns``; numbers are right-aligned and get three significant digits or more."""
    table = Table()
    for position, column in enumerate(columns):
        numeric = any(isinstance(row[position], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(format_value(value) for value in row))
    # A pipe has no width of its own; cutting figures off there would help nobody.
    console = Console() if sys.stdout.isatty() else Console(width=250)
    console.print(title, style="bold", highlight=False, markup=False)
    console.print(table)


def format_value(value: object) -> str:
    """``1234``, ``123.4``, ``1.23``; ``-`` for None."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def write_json(path: Path | None, kind: str, result: dict[str, Any]) -> None:
    """Writes ``result``, with the machine it was measured on, to ``path``; does nothing without one."""
    if path is None:
        return
    document = {
        "benchmark": kind,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load_average": os.getloadavg()[0],
        "environment": environment(),
        **result,
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def progress(text: str) -> None:
    """One line about what is being done, on stderr, so that stdout holds the results alone."""
    print(text, file=sys.stderr, flush=True)


def percentile(values: Sequence[float], percent: float) -> float:
    """The ``percent``-th percentile, linear between the two nearest values; NaN for no values."""
    import numpy as np  # here, so that the help need not wait for it

    return float(np.percentile(values, percent)) if values else math.nan


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN for no values."""
    return fmean(values) if values else math.nan
