"""Softmax of a prompt's scores over the keys that each query can see, in place."""

import numpy as np
import torch

from .elements import Pointer, exponential, floats, integer, larger, rounded_like, shifted, widen
from .team import kernel, team_size, thread_number


@kernel("qqqqqq")
def _causal_softmax(words: Pointer) -> None:
    scores, memory = words[0], floats(words[1])
    rows, queries, keys, window = integer(words[2]), integer(words[3]), integer(words[4]), integer(words[5])
    thread, threads = np.int64(thread_number()), np.int64(team_size())
    wide = shifted(memory, thread * keys)
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        line = shifted(scores, row * keys)
        stop = keys - queries + row % queries + 1
        start = max(stop - window, 0)
        largest = np.float32(-np.inf)
        for i in range(start, stop):
            largest = larger(largest, widen(line[i]))
        total = np.float32(0)
        for i in range(start, stop):
            weight = exponential(widen(line[i]) - largest)
            wide[i] = weight
            total += weight
        factor = np.float32(1) / total
        for i in range(start):
            line[i] = rounded_like(line, np.float32(0))
        for i in range(start, stop):
            line[i] = rounded_like(line, wide[i] * factor)
        for i in range(stop, keys):
            line[i] = rounded_like(line, np.float32(0))


def causal_softmax(scores: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """``kernels.prompt_attention.causal_softmax`` for contiguous scores [..., N, K]."""
    assert scores.is_contiguous()
    queries, keys = scores.shape[-2:]
    memory = torch.empty(torch.get_num_threads(), keys)
    _causal_softmax(
        scores.dtype, 4 * scores.numel(), scores.data_ptr(), memory.data_ptr(), scores.numel() // keys, queries, keys,
        keys if window is None else window,
    )  # fmt: skip
    return scores
