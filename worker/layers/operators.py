"""The fused operations between matrix products, as strategies: chosen once, when the model is built, by device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...core.errors import UnsupportedModelError
from ...kernels.gated_activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from ...kernels.numba import obstacle as numba_obstacle
from ...kernels.rms_norm import add_rms_norm, rms_norm

Activation = Callable[[torch.Tensor], torch.Tensor]
"""``act(gate) * up`` of [T, 2 * N], the gate half first. Returns [T, N]."""

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": gelu_and_mul,
    "gelu_new": gelu_tanh_and_mul,
    "gelu_pytorch_tanh": gelu_tanh_and_mul,
}
"""Those without kernels of our own, by the names that config.json uses."""


@dataclass(frozen=True, slots=True)
class Operators:
    """What layers call. Shapes and rounding are those of the references in ``kernels``."""

    name: str
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    """``kernels.rms_norm.rms_norm``; so is ``add_rms_norm``."""
    add_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
    silu_and_mul: Activation

    def activation(self, name: str) -> Activation:
        """The gated activation that config.json calls ``name``. Raises ``UnsupportedModelError``."""
        if name in ("silu", "swish"):
            return self.silu_and_mul
        if name not in _ACTIVATIONS:
            known = ", ".join(("silu", "swish", *_ACTIVATIONS))
            raise UnsupportedModelError(f"hidden_act {name!r} is not supported; known are {known}")
        return _ACTIVATIONS[name]


def choose_operators(device: torch.device, dtype: torch.dtype) -> Operators:
    """The operators for a device and the dtype that the model computes in."""
    if device.type != "cpu":
        from ...kernels.triton import gated_activation as gated
        from ...kernels.triton import rms_norm as fused

        return Operators("triton", fused.rms_norm, fused.add_rms_norm, gated.silu_and_mul)
    if numba_obstacle(dtype) is None:
        from ...kernels.numba import gated_activation as gated
        from ...kernels.numba import rms_norm as compiled

        return Operators("numba", rms_norm, compiled.add_rms_norm, gated.silu_and_mul)
    return Operators("torch", rms_norm, add_rms_norm, silu_and_mul)
