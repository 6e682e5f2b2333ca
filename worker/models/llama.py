"""Llama 1 to 3, and the many models that share its architecture (SmolLM2, TinyLlama, Yi, ...)."""

from ...core.model_config import ModelConfig
from ..layers.attention import AttentionOptions
from .causal_lm import CausalLM


class LlamaForCausalLM(CausalLM):
    """The plain decoder; biases as config.json says."""

    def attention_options(self, config: ModelConfig) -> AttentionOptions:
        return AttentionOptions(qkv_bias=config.attention_bias, out_bias=config.attention_out_bias)
