"""Which layers see only a window of the sequence."""

from ...core.errors import CheckpointError
from ...core.model_config import ModelConfig

_WINDOWED_ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
_MAX_WINDOW_LAYERS = 28
"""What Qwen's configuration classes assume when config.json leaves ``max_window_layers`` out."""


def layer_windows(config: ModelConfig) -> tuple[int | None, ...]:
    """For each layer the number of tokens that a token sees, itself included; None where it sees all.

    A window no shorter than the context is no window. Raises ``UnsupportedModelError`` for a layer type without code.
    """
    everywhere: tuple[int | None, ...] = (None,) * config.num_layers
    if config.architecture not in _WINDOWED_ARCHITECTURES or not config.hf.get("use_sliding_window", False):
        return everywhere
    window = config.hf.get("sliding_window", 4096)
    if window is None:
        return everywhere
    if not isinstance(window, int) or window < 1:
        raise CheckpointError(f"config.json: sliding_window must be a positive integer, not {window!r}")
    if window >= config.max_model_len:
        return everywhere
    return tuple(window if sliding else None for sliding in _sliding_layers(config))


def _sliding_layers(config: ModelConfig) -> list[bool]:
    kinds = config.hf.get("layer_types")
    if kinds is None:
        first = int(config.hf.get("max_window_layers", _MAX_WINDOW_LAYERS))
        return [layer >= first for layer in range(config.num_layers)]
    if len(kinds) != config.num_layers:
        raise CheckpointError(f"config.json names {len(kinds)} layer types for {config.num_layers} layers")
    return [kind == "sliding_attention" for kind in kinds]
