"""Qwen2 and Qwen2.5."""

from ...core.model_config import ModelConfig
from ..layers.attention import AttentionOptions
from .causal_lm import CausalLM


class Qwen2ForCausalLM(CausalLM):
    """Llama with biases on q, k and v, always, and sliding windows on some layers where config.json turns them on."""

    def attention_options(self, config: ModelConfig) -> AttentionOptions:
        return AttentionOptions(qkv_bias=True, out_bias=False)
