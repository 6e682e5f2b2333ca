"""A CUDA GPU's products: cuBLAS, and a kernel of our own for one row."""

import torch

from ...kernels.linear import linear
from ...kernels.triton.gated_activation import silu_and_mul
from ...kernels.triton.matrix_vector import InputNorm, gated_matrix_vector, matrix_vector
from .linear_method import LinearMethod, LinearOperator, PlainLinear
from .norm import RMSNorm
from .operators import Activation


class OneRowLinear(PlainLinear):
    """A plain weight, with a kernel of our own for one row, where cuBLAS leaves memory bandwidth unused.

    It also takes in the normalization before and the activation after the product, which saves their launches.
    docs/performance.md has its times.
    """

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 1:
            return linear(x, self.weight, self.bias)
        return matrix_vector(x, self.weight, self.bias)

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
