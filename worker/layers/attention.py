"""The attention layer: projections, head norms and rotation around an ``AttentionBackend``."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...core.model_config import ModelConfig
from ..attention.backend import AttentionBackend, AttentionPlan, Rotation
from .linear import InputCutLinear, MergedLinear, OutputPart
from .linear_method import LinearMethod
from .norm import HeadNorm, RMSNorm
from .weights import Shard, WeightSlot


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What differs between architectures."""

    qkv_bias: bool
    out_bias: bool
    head_norm: bool = False
    """Queries and keys are normalized per head before they are rotated."""


class Attention:
    """Grouped-query attention of one layer. q, k and v are one product; q and k rotate together."""

    __slots__ = ("_head_dim", "_layer", "_norm", "_num_kv_heads", "out", "qkv")

    def __init__(
        self,
        layer: int,
        config: ModelConfig,
        options: AttentionOptions,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard,
    ) -> None:
        heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
        parts = [
            OutputPart("q_proj", heads, width),
            OutputPart("k_proj", kv_heads, width),
            OutputPart("v_proj", kv_heads, width),
        ]
        self.qkv = MergedLinear(config.hidden_size, parts, options.qkv_bias, dtype, device, shard)
        self.out = InputCutLinear("o_proj", heads * width, config.hidden_size, options.out_bias, dtype, device, shard)
        local_heads, local_kv_heads = shard.cut(heads)[1], shard.cut(kv_heads)[1]
        self._norm = (
            HeadNorm(local_heads, local_kv_heads, width, config.rms_norm_eps, dtype, device)
            if options.head_norm
            else None
        )
        self._layer = layer
        self._head_dim = width
        self._num_kv_heads = local_kv_heads

    def __call__(
        self,
        change: torch.Tensor | None,
        residual: torch.Tensor,
        norm: RMSNorm,
        rotation: Rotation,
        attention: AttentionBackend,
        plan: AttentionPlan,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend over ``norm(residual + change)``. Returns the heads' mixtures [T, H * D], from which ``out`` makes
        what is to be added to the residual stream, and the stream [T, hidden] with ``change`` (None in the first
        layer) in it."""
        if change is None:
            qkv = self.qkv(norm(residual))
        else:
            qkv, residual = self.qkv.operator.normed(change, residual, norm)
        heads = qkv.view(qkv.shape[0], -1, self._head_dim)  # [T, H + 2 KH, D]
        mixed = attention.forward(self._layer, heads, self._num_kv_heads, self._norm, rotation, plan)
        return mixed, residual

    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        """The checkpoint tensors under ``prefix``, which ends with a dot."""
        yield from self.qkv.slots(prefix)
        yield from self.out.slots(prefix)
        if self._norm is not None:
            yield from self._norm.slots(prefix)

    def finish(self, method: LinearMethod) -> int:
        """Prepare the products. Returns the bytes they take."""
        return self.qkv.finish(method) + self.out.finish(method)
