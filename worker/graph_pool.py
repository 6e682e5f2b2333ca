"""Records what a function launches as a CUDA graph."""

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


class GraphPool:
    """CUDA graphs that are replayed one after another on one stream, and so may share the memory they work in.

    Recorded largest first, all others work in the memory that the first one took. What each returns is its own.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, launches: Callable[[], Result]) -> tuple[torch.cuda.CUDAGraph, Result]:
        """The graph of ``launches``, and what it returned: tensors that each replay fills anew.

        It is run once before, so that no kernel is compiled, and nothing allocated for a first use, while it is
        recorded. Waits for the device.
        """
        launches()
        torch.cuda.synchronize()
        self._stream = self._stream or torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which collects garbage and empties the allocator's cache for each graph.
        with torch.cuda.stream(self._stream):
            pool = None if self._first is None else self._first.pool()
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                result = launches()
            finally:
                graph.capture_end()
        self._first = self._first or graph
        return graph, result
