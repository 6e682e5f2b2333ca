"""BERT: an encoder with learned positions, token types, and norms after the residual connections (arXiv 1810.04805)."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ...core.errors import CheckpointError, UnsupportedModelError
from ...core.model_config import ModelConfig
from ...core.pooling_config import first_position
from ..attention.encoder_attention import encoder_attention
from ..attention.padded_groups import PaddedGroup
from ..layers.dtypes import torch_dtype
from ..layers.embedding import VocabEmbedding
from ..layers.layer_norm import LayerNorm
from ..layers.linear import InputCutLinear, MergedLinear, OutputPart
from ..layers.linear_method import LinearMethod
from ..layers.weights import WeightSlot

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""What norms were called in the checkpoints of the first years."""


class BertLayer:
    """Attention, then the MLP, each added to what it was given and normalized."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner, eps = config.hidden_size, config.intermediate_size, _epsilon(config)
        parts = [OutputPart(f"self.{name}", config.num_heads, config.head_dim) for name in ("query", "key", "value")]
        self._heads = (3, config.num_heads, config.head_dim)
        self.qkv = MergedLinear(hidden, parts, True, dtype, device)
        self.out = InputCutLinear("output.dense", hidden, hidden, True, dtype, device)
        self.attention_norm = LayerNorm(hidden, eps, dtype, device)
        self.up = MergedLinear(hidden, [OutputPart("intermediate.dense", inner)], True, dtype, device)
        self.down = InputCutLinear("output.dense", inner, hidden, True, dtype, device)
        self.norm = LayerNorm(hidden, eps, dtype, device)
        name = config.hf.get("hidden_act", "gelu")
        if name not in _ACTIVATIONS:
            raise UnsupportedModelError(f"hidden_act {name!r} is not supported; known are {', '.join(_ACTIVATIONS)}")
        self._activate = _ACTIVATIONS[name]

    def __call__(self, x: torch.Tensor, groups: list[PaddedGroup]) -> torch.Tensor:
        """[T, hidden] to [T, hidden]."""
        mixed = encoder_attention(self.qkv(x).view(x.shape[0], *self._heads), groups)
        x = self.attention_norm(self.out(mixed) + x)
        return self.norm(self.down(self._activate(self.up(x))) + x)

    def slots(self, prefix: str) -> Iterator[WeightSlot]:
        """The checkpoint tensors under ``prefix``, which ends with a dot."""
        yield from self.qkv.slots(f"{prefix}attention.")
        yield from self.out.slots(f"{prefix}attention.")
        yield from self.attention_norm.slots(f"{prefix}attention.output.LayerNorm")
        yield from self.up.slots(prefix)
        yield from self.down.slots(prefix)
        yield from self.norm.slots(f"{prefix}output.LayerNorm")

    def finish(self, method: LinearMethod) -> int:
        """Prepare the products. Returns the bytes of the layer."""
        norms = 2 * (self.norm.weight.nbytes + self.norm.bias.nbytes)
        return norms + sum(dense.finish(method) for dense in (self.qkv, self.out, self.up, self.down))


class BertModel:
    """Hidden states of whole prompts. Build it, fill its ``slots()``, call ``finish_loading()`` once."""

    unused = ("embeddings.position_ids", "pooler.", "cls.")
    """Beginnings of the names of tensors that checkpoints have and that make no vector."""
    prefix = "bert."
    """Before the names of all tensors where a checkpoint has a head as well."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        """Allocate the (unfilled) weights. Raises ``UnsupportedModelError`` for a feature without code."""
        if config.hf.get("position_embedding_type", "absolute") != "absolute" or config.hf.get("is_decoder"):
            raise UnsupportedModelError("of BERT models only encoders with absolute positions are supported")
        if config.hidden_size != config.num_heads * config.head_dim:
            raise CheckpointError("config.json: hidden_size must be a multiple of num_attention_heads")
        self.config = config
        self.device = device
        self.weight_bytes = 0
        """Bytes of all weights and tables, once loaded."""
        dtype = torch_dtype(config.dtype)
        self._first_position = first_position(config.architecture, config.hf)
        positions = self._first_position + config.max_position
        sizes = (config.vocab_size, positions, int(config.hf.get("type_vocab_size", 2)))
        self.words, self.positions, self.types = (
            VocabEmbedding(size, config.hidden_size, dtype, device) for size in sizes
        )
        self.norm = LayerNorm(config.hidden_size, _epsilon(config), dtype, device)
        self.layers = [BertLayer(config, dtype, device) for _ in range(config.num_layers)]

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, types: torch.Tensor, groups: list[PaddedGroup]
    ) -> torch.Tensor:
        """Hidden states [T, hidden] of whole sequences; ids, positions and token types are int64 [T]."""
        x = self.norm(self.words(input_ids) + self.positions(positions + self._first_position) + self.types(types))
        for layer in self.layers:
            x = layer(x, groups)
        return x

    def head(self, pooled: torch.Tensor) -> torch.Tensor:
        """The answer, float32 [R, D], to pooled states float32 [R, hidden]: here they are it."""
        return pooled

    def slots(self) -> Iterator[WeightSlot]:
        """Every checkpoint tensor that the model needs, with the place it goes to."""
        yield from self.words.slots("embeddings.word_embeddings")
        yield from self.positions.slots("embeddings.position_embeddings")
        yield from self.types.slots("embeddings.token_type_embeddings")
        yield from self.norm.slots("embeddings.LayerNorm")
        for index, layer in enumerate(self.layers):
            yield from layer.slots(f"encoder.layer.{index}.")

    def own_name(self, name: str) -> str:
        """A checkpoint tensor's name as ``slots`` has it: without the prefix of models with a head."""
        name = name.removeprefix(self.prefix)
        stem, dot, last = name.rpartition(".")
        return stem + _OLD_NAMES.get(dot + last, dot + last)

    def finish_loading(self, method: LinearMethod) -> None:
        """Turn the filled weights into operators."""
        tables = (self.words.weight, self.positions.weight, self.types.weight, self.norm.weight, self.norm.bias)
        self.weight_bytes = sum(table.nbytes for table in tables) + sum(layer.finish(method) for layer in self.layers)


class BertCrossEncoder(BertModel):
    """One number for a pair of texts: a classifier with one label on the first token's state."""

    unused = ("embeddings.position_ids", "cls.")
    head_layers = ("pooler.dense", "classifier")
    """Names of the layers before and after the tanh."""
    least_types = 2

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        super().__init__(config, device)
        labels = config.hf.get("num_labels", len(config.hf.get("id2label", (0, 1))))
        if labels != 1:
            raise UnsupportedModelError(f"cross-encoders with one label are supported, and this one has {labels}")
        if self.types.vocab_size < self.least_types:
            raise UnsupportedModelError("a cross-encoder without a second token type is not supported")
        dtype = torch_dtype(config.dtype)
        self._activate = _score_activation(config.hf)
        hidden, (before, after) = config.hidden_size, self.head_layers
        self.dense = InputCutLinear(before, hidden, hidden, True, dtype, device)
        self.classifier = InputCutLinear(after, hidden, 1, True, dtype, device)

    def head(self, pooled: torch.Tensor) -> torch.Tensor:
        """Scores float32 [R, 1] of the first tokens' states."""
        states = pooled.to(self.norm.weight.dtype)
        return self._activate(self.classifier(torch.tanh(self.dense(states))).float())

    def slots(self) -> Iterator[WeightSlot]:
        yield from super().slots()
        yield from self.dense.slots("")
        yield from self.classifier.slots("")

    def finish_loading(self, method: LinearMethod) -> None:
        super().finish_loading(method)
        self.weight_bytes += self.dense.finish(method) + self.classifier.finish(method)


def _epsilon(config: ModelConfig) -> float:
    return float(config.hf.get("layer_norm_eps", 1e-12))


def _score_activation(hf: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """What sentence-transformers puts behind a classifier with one label: as configured, or a sigmoid."""
    name = (hf.get("sentence_transformers") or {}).get("activation_fn") or hf.get(
        "sbert_ce_default_activation_function"
    )
    kinds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Sigmoid": torch.sigmoid, "Identity": torch.clone}
    kind = str(name or "Sigmoid").rpartition(".")[2]
    if kind not in kinds:
        raise UnsupportedModelError(f"config.json: the activation {name!r} of a cross-encoder is not supported")
    return kinds[kind]
