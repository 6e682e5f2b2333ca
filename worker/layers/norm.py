"""The weights of RMS normalization."""

from collections.abc import Iterator

import torch

from ...kernels.rms_norm import rms_norm
from .operators import Operators
from .weights import WeightSlot


class RMSNorm:
    """RMS normalization over the hidden dimension."""

    __slots__ = ("_add_rms_norm", "_rms_norm", "eps", "weight")

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device, operators: Operators) -> None:
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.eps = eps
        self._rms_norm = operators.rms_norm
        self._add_rms_norm = operators.add_rms_norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [T, N] into a new tensor."""
        return self._rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(norm(x + residual), x + residual)``; either input may be overwritten."""
        return self._add_rms_norm(x, residual, self.weight, self.eps)

    def slots(self, name: str) -> Iterator[WeightSlot]:
        """The one checkpoint tensor, called ``name`` + ``.weight``."""
        yield WeightSlot(f"{name}.weight", tuple(self.weight.shape), self.weight, dummy_center=1.0)


class HeadNorm:
    """RMS normalization of each query and key head on its own (Qwen3), both in one pass over the joined heads."""

    __slots__ = ("eps", "num_heads", "weight")

    def __init__(
        self, num_heads: int, num_kv_heads: int, head_dim: int, eps: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = torch.empty(num_heads + num_kv_heads, head_dim, dtype=dtype, device=device)
        self.num_heads = num_heads
        self.eps = eps

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Normalize ``heads`` [T, H + KH, D], queries first, into a new tensor."""
        return rms_norm(heads, self.weight, self.eps)

    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        """One weight for all query heads and one for all key heads, repeated over the rows."""
        shape = (self.weight.shape[1],)
        for name, rows in (("q_norm", self.weight[: self.num_heads]), ("k_norm", self.weight[self.num_heads :])):
            yield WeightSlot(f"{prefix}{name}.weight", shape, rows, dummy_center=1.0)
