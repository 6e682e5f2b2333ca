"""Refuses models whose configuration asks for something that would change results and that has no code here."""

from ...core.errors import CheckpointError, UnsupportedModelError
from ...core.model_config import ModelConfig

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "quantization_config": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1.0,),
    "logits_scaling": (1.0,),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "qk_layernorm": (False,),
    "alibi": (False,),
    "kv_lora_rank": (),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "no_rope_layers": ([],),
    "rope_interleaved": (False,),
    "num_nextn_predict_layers": (0,),
}
"""Fields of config.json that change what a decoder computes, each with the values that change nothing (None too)."""


def check_features(config: ModelConfig) -> None:
    """Raise ``UnsupportedModelError`` or ``CheckpointError`` if this code would compute something else."""
    for name, neutral in _NEUTRAL.items():
        value = config.hf.get(name)
        if value is not None and value not in neutral:
            shown = value.get("quant_method", "?") if isinstance(value, dict) else value
            raise UnsupportedModelError(f"config.json: {name} = {shown!r} is not supported by {config.architecture}")
    if config.num_heads % config.num_kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads ({config.num_heads}) must be a multiple of "
            f"num_key_value_heads ({config.num_kv_heads})"
        )
    unknown = set(config.hf.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedModelError(f"layer types {', '.join(sorted(unknown))} are not supported")
