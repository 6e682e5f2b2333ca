"""The decoder that all architectures here share: embedding, layers of attention and MLP, norm, head."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

from ...core.errors import CheckpointError, UnsupportedModelError
from ...core.model_config import ModelConfig
from ..attention.backend import AttentionBackend, AttentionPlan
from ..layers.attention import Attention, AttentionOptions
from ..layers.dtypes import torch_dtype
from ..layers.embedding import VocabEmbedding, prepare_head
from ..layers.linear_method import LinearMethod, LinearOperator, UnloadedLinear
from ..layers.mlp import GatedMLP
from ..layers.norm import RMSNorm
from ..layers.operators import Operators, choose_operators
from ..layers.rotary import RotaryEmbedding
from ..layers.weights import Shard, WeightSlot
from .features import check_features


class DecoderLayer:
    """One layer: attention and MLP, each after a norm and added to the residual stream."""

    __slots__ = ("attention", "attention_norm", "mlp", "mlp_norm")

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        options: AttentionOptions,
        dtype: torch.dtype,
        device: torch.device,
        operators: Operators,
        shard: Shard,
    ) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device, operators)
        self.attention = Attention(index, config, options, dtype, device, shard)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device, operators)
        self.mlp = GatedMLP(config, dtype, device, operators, shard)

    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        """The checkpoint tensors under ``prefix``, which ends with a dot."""
        yield from self.attention_norm.slots(f"{prefix}input_layernorm")
        yield from self.attention.slots(f"{prefix}self_attn.")
        yield from self.mlp_norm.slots(f"{prefix}post_attention_layernorm")
        yield from self.mlp.slots(f"{prefix}mlp.")


class CausalLM(ABC):
    """A decoder-only language model on a flat batch of tokens.

    Build it, fill its ``slots()``, call ``finish_loading()`` once; then ``forward`` and ``compute_logits`` work.
    Callers run them under ``torch.inference_mode()``.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        shard: Shard = Shard(),  # noqa: B008 - frozen
    ) -> None:
        """Allocate the (unfilled) weights. Raises ``UnsupportedModelError`` for a feature without code."""
        if shard.size > 1:
            raise UnsupportedModelError("tensor parallelism is not supported yet: run one device per server")
        check_features(config)
        self.config = config
        self.device = device
        dtype = torch_dtype(config.dtype)
        options = self.attention_options(config)
        operators = choose_operators(device, dtype)
        self.embedding = VocabEmbedding(config.vocab_size, config.hidden_size, dtype, device, shard)
        self.layers = [
            DecoderLayer(index, config, options, dtype, device, operators, shard) for index in range(config.num_layers)
        ]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, device, operators)
        self.rotary = RotaryEmbedding(config, dtype, device)
        self.head_table = (
            self.embedding
            if config.tie_word_embeddings
            else VocabEmbedding(config.vocab_size, config.hidden_size, dtype, device, shard)
        )
        self.unused = ("lm_head.weight",) if config.tie_word_embeddings else ()
        """Beginnings of the names of tensors that checkpoints have and that are not needed."""
        self.weight_bytes = 0
        """Bytes of all weights and tables, once loaded."""
        self._head: LinearOperator = UnloadedLinear()

    @abstractmethod
    def attention_options(self, config: ModelConfig) -> AttentionOptions:
        """What this architecture's attention has: biases, head norms."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionBackend,
        plan: AttentionPlan,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Normalized hidden states [S, hidden] of the tokens ``input_ids`` at ``positions``, both int64 [T].

        Of all tokens, or of those whose places are ``wanted``, int64 [S]: behind the last layer's attention nobody
        needs the others.
        """
        residual = self.embedding(input_ids)
        rotation = attention.rotation(self.rotary, positions)
        change: torch.Tensor | None = None  # what the layer before adds to the residual stream
        for layer in self.layers:
            mixed, residual = layer.attention(change, residual, layer.attention_norm, rotation, attention, plan)
            if wanted is not None and layer is self.layers[-1]:
                mixed, residual = mixed[wanted], residual[wanted]
            change, residual = layer.mlp(layer.attention.out(mixed), residual, layer.mlp_norm)
        return self.norm(residual) if change is None else self.norm.add(change, residual)[0]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [S, vocab] of hidden states [S, hidden] that ``forward`` returned."""
        return self.raw_logits(hidden).float()

    def raw_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same in the dtype that the model computes in: half the bytes, for kernels that widen as they read."""
        return self._head(hidden)

    def slots(self) -> Iterator[WeightSlot]:
        """Every checkpoint tensor that the model needs, with the place it goes to."""
        yield from self.embedding.slots("model.embed_tokens")
        for index, layer in enumerate(self.layers):
            yield from layer.slots(f"model.layers.{index}.")
        yield from self.norm.slots("model.norm")
        if not self.config.tie_word_embeddings:
            yield from self.head_table.slots("lm_head")

    def own_name(self, name: str) -> str:
        """A checkpoint tensor's name as ``slots`` has it. Embedding models are often stored without their head, and
        then without the prefix."""
        return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"

    def finish_loading(self, method: LinearMethod) -> None:
        """Turn the filled weights into operators. Slots of the model are not to be used afterwards."""
        if self.weight_bytes:
            raise CheckpointError("the model is loaded already; build another to load again")
        total = self.embedding.weight.nbytes + self.norm.weight.nbytes + self.rotary.num_bytes
        for layer in self.layers:
            total += layer.attention.finish(method) + layer.mlp.finish(method)
            total += layer.attention_norm.weight.nbytes + layer.mlp_norm.weight.nbytes
        self._head = prepare_head(self.head_table, method)
        total += self._head.num_bytes
        if self._head.shares(self.embedding.weight):
            total -= self.embedding.weight.nbytes
        self.head_table = self.embedding  # an untied table is no longer needed
        self.weight_bytes = total
