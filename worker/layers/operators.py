"""The fused operations between matrix products, as strategies: chosen once, when the model is built, by device."""

from collections.abc import Callable
from typing import Protocol

import torch

from ...core.errors import UnsupportedModelError
from ...kernels.gated_activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from ...kernels.numba import obstacle as numba_obstacle
from ...kernels.rms_norm import add_rms_norm, rms_norm

Activation = Callable[[torch.Tensor], torch.Tensor]
"""``act(gate) * up`` of [T, 2 * N], the gate half first. Returns [T, N]."""

_ACTIVATIONS: dict[str, Activation] = {
    "silu": silu_and_mul,
    "swish": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_new": gelu_tanh_and_mul,
    "gelu_pytorch_tanh": gelu_tanh_and_mul,
}
"""By the names that config.json uses."""


class Operators(Protocol):
    """What layers call. Shapes and rounding are those of the references in ``kernels``."""

    name: str

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``kernels.rms_norm.rms_norm``."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``kernels.rms_norm.add_rms_norm``."""
        ...

    def activation(self, name: str) -> Activation:
        """The gated activation that config.json calls ``name``. Raises ``UnsupportedModelError``."""
        ...


class TorchOperators:
    """torch's own operators: any device."""

    name = "torch"
    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)

    def activation(self, name: str) -> Activation:
        """The gated activation that config.json calls ``name``. Raises ``UnsupportedModelError``."""
        if name not in _ACTIVATIONS:
            raise UnsupportedModelError(f"hidden_act {name!r} is not supported; known are {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]


class NumbaOperators(TorchOperators):
    """Compiled kernels for a CPU; what has none there is torch's."""

    name = "numba"

    def __init__(self) -> None:
        from ...kernels.numba import gated_activation, rms_norm

        self.add_rms_norm = rms_norm.add_rms_norm
        self._silu_and_mul = gated_activation.silu_and_mul

    def activation(self, name: str) -> Activation:
        """The gated activation that config.json calls ``name``. Raises ``UnsupportedModelError``."""
        return self._silu_and_mul if name in ("silu", "swish") else super().activation(name)


class TritonOperators(TorchOperators):
    """Triton kernels for a CUDA GPU; what has none there is torch's."""

    name = "triton"

    def __init__(self) -> None:
        from ...kernels.triton import gated_activation, rms_norm

        # Instance attributes stand before the base's: each is the same operation with the same signature.
        self.rms_norm = rms_norm.rms_norm
        self.add_rms_norm = rms_norm.add_rms_norm
        self._silu_and_mul = gated_activation.silu_and_mul

    def activation(self, name: str) -> Activation:
        """The gated activation that config.json calls ``name``. Raises ``UnsupportedModelError``."""
        return self._silu_and_mul if name in ("silu", "swish") else super().activation(name)


def choose_operators(device: torch.device, dtype: torch.dtype) -> Operators:
    """The operators for a device and the dtype that the model computes in."""
    if device.type != "cpu":
        return TritonOperators()
    return NumbaOperators() if numba_obstacle(dtype) is None else TorchOperators()
