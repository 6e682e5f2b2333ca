"""Strategies for matrix products: chosen once, when the model is loaded, by device, dtype and quantization."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigurationError
from ...kernels.int8_linear import INPUT_MULTIPLE, dequantize_int8, int8_linear, quantize_int8
from ...kernels.linear import linear, pack_weight, packed_linear, packing_supported
from ...kernels.numba import LANES
from ...kernels.numba import obstacle as numba_obstacle
from .norm import RMSNorm
from .operators import Activation

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Of x, a weight [N, K] and a bias: ``x @ weight.T + bias``."""


class LinearOperator(ABC):
    """One weight, ready to multiply."""

    __slots__ = ("num_bytes",)

    num_bytes: int
    """Memory that the prepared weight takes."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T + bias`` for x [T, K]; returns [T, N]."""

    def normed(self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
        """``(self(norm(x + residual)), x + residual)``; either input may be overwritten."""
        hidden, total = norm.add(x, residual)
        return self(hidden), total

    def gated(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm, activate: Activation
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``normed``, with the gated activation on its first result."""
        gate_up, total = self.normed(x, residual, norm)
        return activate(gate_up), total

    def shares(self, weight: torch.Tensor) -> bool:
        """True if the operator multiplies by this very tensor, so that this part of ``num_bytes`` is not its own."""
        return False


class LinearMethod(ABC):
    """Turns loaded weights into operators."""

    name: str

    @abstractmethod
    def prepare(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearOperator:
        """The operator for ``weight`` [N, K]. The caller gives up the weight unless it is used elsewhere too."""


class UnloadedLinear(LinearOperator):
    """Stands where a layer's operator will be, until its weights are loaded."""

    __slots__ = ()

    def __init__(self) -> None:
        self.num_bytes = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the model's weights are not loaded: call CausalLM.finish_loading first")


class PlainLinear(LinearOperator):
    """The weight as it was loaded, through torch's own product."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)

    def shares(self, weight: torch.Tensor) -> bool:
        return self.weight is weight


class PackedLinear(LinearOperator):
    """A bfloat16 weight in oneDNN's blocked order, and perhaps as it was loaded, for one row, whose product is all
    reading."""

    __slots__ = ("bias", "one_row", "packed", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, one_row: Product | None = None) -> None:
        """``one_row`` multiplies one row by the weight as it was loaded, which is kept for it."""
        self.packed = pack_weight(weight)
        self.bias = bias
        self.one_row = one_row
        self.weight = weight if one_row is not None else weight.new_empty(0)
        self.num_bytes = weight.nbytes + self.weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.one_row is None or x.shape[0] > 1:
            return packed_linear(x, self.packed, self.bias)
        return self.one_row(x, self.weight, self.bias)

    def shares(self, weight: torch.Tensor) -> bool:
        return self.weight is weight


class Int8Linear(LinearOperator):
    """An int8 weight for few rows and, for many, the operator of the same weight dequantized.

    The second copy is what the speed of prompts and batches costs: together the two take 1.5 times the memory of the
    bfloat16 weight alone. Dequantizing on the fly instead takes longer than the product of 32 rows that it serves.
    """

    __slots__ = ("bias", "few_rows", "many", "quantized", "scales")

    def __init__(
        self,
        quantized: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        many: LinearOperator,
        few_rows: int,
    ) -> None:
        self.quantized = quantized
        self.scales = scales
        self.bias = bias
        self.many = many
        self.few_rows = few_rows
        self.num_bytes = quantized.nbytes + scales.nbytes + many.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > self.few_rows:
            return self.many(x)
        return int8_linear(x, self.quantized, self.scales, self.bias)


class PlainLinearMethod(LinearMethod):
    """Keeps weights as they are: any device, any dtype."""

    name = "plain"

    def prepare(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearOperator:
        return PlainLinear(weight, bias)


class PackedLinearMethod(LinearMethod):
    """Packs bfloat16 weights for the CPU."""

    name = "packed bfloat16 (oneDNN)"

    SECOND_COPY_BYTES = 512 << 20
    """Most weights that are kept twice, so that one row takes a twentieth less time: all of a small model's."""

    def __init__(self, one_row: Product | None = None) -> None:
        """``one_row``: see ``PackedLinear``."""
        self._one_row = one_row
        self._left = self.SECOND_COPY_BYTES

    def prepare(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearOperator:
        if weight.nbytes > self._left or weight.shape[0] % 4 or weight.shape[1] % LANES:
            return PackedLinear(weight, bias)
        self._left -= weight.nbytes
        return PackedLinear(weight, bias, self._one_row)


class Int8LinearMethod(LinearMethod):
    """Rounds weights to int8 while loading; see ``Int8Linear``."""

    name = "int8 weights"

    FEW_ROWS = 8
    """Rows up to which int8 wins: a step of SmolLM2-135M takes 0.65 of packed bfloat16's time with one row, 0.7 with
    four, 0.97 with eight; with 32 rows its products take twice as long."""

    def __init__(self, many: LinearMethod) -> None:
        self._many = many

    def prepare(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearOperator:
        quantized, scales = quantize_int8(weight)
        many = self._many.prepare(dequantize_int8(quantized, scales), bias)
        if weight.shape[1] % INPUT_MULTIPLE:
            return many  # the same weights, through the one product that can take this width
        return Int8Linear(quantized, scales, bias, many, self.FEW_ROWS)


def choose_linear_method(config: EngineConfig, device: torch.device) -> LinearMethod:
    """The method for this device, dtype and quantization. Raises ``ConfigurationError`` where there is none."""
    on_cpu = device.type == "cpu"
    dense: LinearMethod = PlainLinearMethod()
    if on_cpu and config.model.dtype == "bfloat16" and packing_supported():
        one_row = None
        if config.model.quantization is None and numba_obstacle(torch.bfloat16) is None:
            from ...kernels.numba.matrix_vector import matrix_vector as one_row
        dense = PackedLinearMethod(one_row)
    if not on_cpu and config.model.dtype != "float32":
        from .one_row_linear import OneRowLinearMethod  # needs Triton

        dense = OneRowLinearMethod()
    if config.model.quantization is None:
        return dense
    if config.model.quantization != "int8":
        raise ConfigurationError(f"--quantization must be int8, not {config.model.quantization!r}")
    if not on_cpu:
        raise ConfigurationError("--quantization int8 works on the CPU only; leave it out or use --device cpu")
    return Int8LinearMethod(dense)
