"""A picture of a load test: when each request was sent, spoke first and ended, and how latencies are distributed."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..config_file import UsageError

if TYPE_CHECKING:
    from .load import RequestRecord

_SIZE_INCHES = (11.0, 4.5)


def check_plot(path: Path | None) -> None:
    """Raises ``UsageError`` if no picture could be written to ``path``; said before the load, not after it."""
    if path is None:
        return
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise UsageError("--plot needs matplotlib; pip install 'octavo[plot]'") from error
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise UsageError(f"--plot {path}: the name must end with one of {', '.join(sorted(known))}")


def draw_load(good: "list[RequestRecord]", latencies: dict[str, list[float]], title: str, path: Path) -> None:
    """Write the picture of all requests that succeeded, and of their latencies in ms."""
    from matplotlib.figure import Figure

    good = sorted(good, key=lambda record: record.sent)
    began = min((record.sent for record in good), default=0.0)
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    timeline, shares = figure.subplots(1, 2)
    rows = range(len(good))
    sent, first, ended = ([at - began for at in column] for column in zip(*map(_moments, good), strict=True))
    timeline.hlines(rows, sent, first, color="0.7", label="until the first text")
    timeline.hlines(rows, first, ended, color="tab:blue", label="until the end")
    timeline.set(title=title, xlabel="seconds", ylabel="request")
    for name, values in latencies.items():
        if values:
            shares.ecdf(values, label=name.upper())
    shares.set(title="Latency", xlabel="ms", ylabel="share at most this long", xscale="log")
    for axes in (timeline, shares):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path)


def _moments(record: "RequestRecord") -> tuple[float, float, float]:
    return record.sent, record.chunks[0], record.finished
