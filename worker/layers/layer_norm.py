"""The weights of layer normalization, as encoders have it: after the residual connection, with a bias."""

from collections.abc import Iterator

import torch

from .weights import WeightSlot


class LayerNorm:
    """Layer normalization over the hidden dimension."""

    __slots__ = ("bias", "eps", "weight")

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.bias = torch.empty(size, dtype=dtype, device=device)
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [T, N] into a new tensor."""
        return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def slots(self, name: str) -> Iterator[WeightSlot]:
        """``name`` + ``.weight`` and ``.bias``."""
        yield WeightSlot(f"{name}.weight", tuple(self.weight.shape), self.weight, dummy_center=1.0)
        yield WeightSlot(f"{name}.bias", tuple(self.bias.shape), self.bias, dummy_spread=0.1)
