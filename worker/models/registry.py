"""Which class runs which architecture of ``config.json``."""

import torch

from ...core.errors import UnsupportedModelError
from ...core.model_config import ModelConfig
from ..layers.weights import Shard
from .bert import BertCrossEncoder, BertModel
from .causal_lm import CausalLM
from .llama import LlamaForCausalLM
from .qwen2 import Qwen2ForCausalLM
from .qwen3 import Qwen3ForCausalLM
from .roberta import RobertaCrossEncoder, RobertaModel

MODELS: dict[str, type[CausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
}

ENCODERS: dict[str, type[BertModel]] = {
    "BertModel": BertModel,
    "BertForMaskedLM": BertModel,
    "BertForSequenceClassification": BertCrossEncoder,
    "RobertaModel": RobertaModel,
    "RobertaForMaskedLM": RobertaModel,
    "RobertaForSequenceClassification": RobertaCrossEncoder,
    "XLMRobertaModel": RobertaModel,
    "XLMRobertaForMaskedLM": RobertaModel,
    "XLMRobertaForSequenceClassification": RobertaCrossEncoder,
}


def build_encoder(config: ModelConfig, device: torch.device) -> BertModel:
    """The encoder of this configuration, its weights allocated and not filled. Raises ``UnsupportedModelError``."""
    return ENCODERS[config.architecture](config, device)


def build_model(
    config: ModelConfig,
    device: torch.device,
    shard: Shard = Shard(),  # noqa: B008 - frozen
) -> CausalLM:
    """The model of this configuration, its weights allocated and not filled.

    Raises ``UnsupportedModelError`` for an architecture or a feature without code.
    """
    if config.architecture not in MODELS:
        raise UnsupportedModelError(
            f"architecture {config.architecture!r} is not supported; known are {', '.join((*MODELS, *ENCODERS))}"
        )
    return MODELS[config.architecture](config, device, shard)
