"""The gated MLP of a decoder layer."""

from collections.abc import Iterator

import torch

from ...core.model_config import ModelConfig
from .linear import InputCutLinear, MergedLinear, OutputPart
from .linear_method import LinearMethod
from .norm import RMSNorm
from .operators import Operators
from .weights import Shard, WeightSlot


class GatedMLP:
    """``down(act(gate(x)) * up(x))``, gate and up as one product."""

    __slots__ = ("_activate", "down", "gate_up")

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, operators: Operators, shard: Shard
    ) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        parts = [OutputPart("gate_proj", inner), OutputPart("up_proj", inner)]
        self.gate_up = MergedLinear(hidden, parts, config.mlp_bias, dtype, device, shard)
        self.down = InputCutLinear("down_proj", inner, hidden, config.mlp_bias, dtype, device, shard)
        self._activate = operators.activation(config.hidden_act)

    def __call__(
        self, change: torch.Tensor, residual: torch.Tensor, norm: RMSNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The MLP of ``norm(residual + change)``, and the residual stream with ``change`` in it; all [T, hidden]."""
        gated, residual = self.gate_up.operator.gated(change, residual, norm, self._activate)
        return self.down(gated), residual

    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        """The checkpoint tensors under ``prefix``, which ends with a dot."""
        yield from self.gate_up.slots(prefix)
        yield from self.down.slots(prefix)

    def finish(self, method: LinearMethod) -> int:
        """Prepare the products. Returns the bytes they take."""
        return self.gate_up.finish(method) + self.down.finish(method)
