"""Qwen3, dense."""

from ...core.model_config import ModelConfig
from ..layers.attention import AttentionOptions
from .causal_lm import CausalLM


class Qwen3ForCausalLM(CausalLM):
    """Llama with a norm on each query and key head."""

    def attention_options(self, config: ModelConfig) -> AttentionOptions:
        return AttentionOptions(qkv_bias=config.attention_bias, out_bias=config.attention_out_bias, head_norm=True)
