"""A CUDA GPU's products: cuBLAS, and a kernel of our own for one row."""

import torch

from ...kernels.linear import linear
from ...kernels.triton.gated_activation import silu_and_mul
from ...kernels.triton.matrix_vector import InputNorm, gated_matrix_vector, matrix_vector
from .linear_method import LinearMethod, LinearOperator, PlainLinear
from .norm import RMSNorm
from .operators import Activation

_LIGHT_ROWS = range(33, 113)
"""Rows for which cublasLt's own choice of kernels is up to 5 % quicker on an H200 than cuBLAS's; for prompts it is up
to 10 % slower. torch takes it for a product with a bias."""


class OneRowLinear(PlainLinear):
    """A plain weight, with a kernel of our own for one row, where cuBLAS leaves memory bandwidth unused.

    It also takes in the normalization before and the activation after the product, which saves their launches.
    docs/performance.md has its times.
    """

    __slots__ = ("_no_bias",)

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._no_bias = weight.new_zeros(weight.shape[0])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return matrix_vector(x, self.weight, self.bias)
        bias = self._no_bias if self.bias is None and x.shape[0] in _LIGHT_ROWS else self.bias
        return linear(x, self.weight, bias)

    def normed(self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
        if x.shape[0] > 1:
            return super().normed(x, residual, norm)
        total = torch.empty_like(residual)
        fused = InputNorm(norm.weight, norm.eps, residual, total)
        return matrix_vector(x, self.weight, self.bias, fused), total

    def gated(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RMSNorm, activate: Activation
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x.shape[0] > 1 or self.bias is not None or activate is not silu_and_mul:
            return super().gated(x, residual, norm, activate)
        total = torch.empty_like(residual)
        fused = InputNorm(norm.weight, norm.eps, residual, total)
        return gated_matrix_vector(x, self.weight, fused), total


class OneRowLinearMethod(LinearMethod):
    """Keeps weights as they are, for a CUDA GPU."""

    name = "plain, own kernel for one row"

    def prepare(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearOperator:
        return OneRowLinear(weight, bias)
