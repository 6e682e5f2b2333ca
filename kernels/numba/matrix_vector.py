"""The product of one row with a weight as it was loaded: as fast as the weight can be read."""

import numpy as np
import torch

from . import LANES
from .elements import Pointer, integer, rounded_like, widen
from .lanes import add_product, load_lanes, sum_lanes, zero_lanes
from .team import kernel, team_size, thread_number


@kernel("qqqqqqq")
def _matrix_vector(words: Pointer) -> None:
    x, weight, bias, out = words[0], words[1], words[2], words[3]
    outputs, inputs, biased = integer(words[4]), integer(words[5]), integer(words[6])
    thread, threads, groups = np.int64(thread_number()), np.int64(team_size()), outputs // 4
    for first in range(groups * thread // threads * 4, groups * (thread + 1) // threads * 4, 4):
        row = first * inputs
        a, b, c, d = zero_lanes(), zero_lanes(), zero_lanes(), zero_lanes()
        for i in range(0, inputs, LANES):
            value = load_lanes(x, i)
            a = add_product(a, load_lanes(weight, row + i), value)
            b = add_product(b, load_lanes(weight, row + inputs + i), value)
            c = add_product(c, load_lanes(weight, row + 2 * inputs + i), value)
            d = add_product(d, load_lanes(weight, row + 3 * inputs + i), value)
        for at, total in enumerate((sum_lanes(a), sum_lanes(b), sum_lanes(c), sum_lanes(d))):
            shift = widen(bias[first + at]) if biased != 0 else np.float32(0)
            out[first + at] = rounded_like(out, total + shift)


def matrix_vector(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x @ weight.T + bias`` for x [1, K] and ``weight`` [N, K], contiguous, N a multiple of 4 and K of ``LANES``;
    returns [1, N]. Sums are float32."""
    assert x.is_contiguous() and weight.is_contiguous()
    outputs, inputs = weight.shape
    out = torch.empty((1, outputs), dtype=x.dtype)
    _matrix_vector(
        x.dtype, outputs * inputs, x.data_ptr(), weight.data_ptr(), (weight if bias is None else bias).data_ptr(),
        out.data_ptr(), outputs, inputs, int(bias is not None),
    )  # fmt: skip
    return out
