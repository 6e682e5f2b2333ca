"""Angles of the rotary position embedding: each scaling kind, as Hugging Face's models define them."""

import math
from collections.abc import Callable
from typing import Any

import torch

from ...core.errors import CheckpointError, UnsupportedModelError
from ...core.model_config import ModelConfig

_COMMON = {"factor", "original_max_position_embeddings", "partial_rotary_factor"}
_KNOWN: dict[str, set[str]] = {
    "default": _COMMON,
    "linear": _COMMON,
    "dynamic": _COMMON,
    "llama3": _COMMON | {"low_freq_factor", "high_freq_factor"},
    "yarn": _COMMON | {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
}
"""Parameters that each kind takes. Another one would change results in a way that nothing here knows."""


class RotaryEmbedding:
    """A table of cosines and sines for every position of the context."""

    __slots__ = ("_half", "table")

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        frequencies, magnitude = rotary_frequencies(config)
        positions = torch.arange(config.max_model_len, dtype=torch.float32).unsqueeze(1)
        angles = positions * frequencies  # [P, R / 2]
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        self._half = angles.shape[1]
        # Halves only, [P, R]: the second half of each row would repeat the first, and contexts are long.
        self.table = torch.cat((cos, sin), 1).to(dtype).to(device)
        """[P, R]: cosines, then sines, of each position."""

    @property
    def num_bytes(self) -> int:
        """Memory of the table."""
        return self.table.nbytes

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(cos, sin)`` for int64 positions [T], each [T, 1, R], as ``kernels.rotary.apply_rotary`` takes them."""
        rows = torch.index_select(self.table, 0, positions).unsqueeze(1)
        cos, sin = rows[..., : self._half], rows[..., self._half :]
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def rotary_dim(config: ModelConfig) -> int:
    """Elements of each head that turn: all of them unless the model has a ``partial_rotary_factor``."""
    factor = config.rope.parameters.get("partial_rotary_factor") or config.hf.get("partial_rotary_factor") or 1.0
    size = int(config.head_dim * float(factor))
    if size % 2 or not 2 <= size <= config.head_dim:
        raise CheckpointError(
            f"partial_rotary_factor {factor} of head size {config.head_dim} gives {size} rotary elements; "
            "an even number from 2 to the head size is needed"
        )
    return size


def rotary_frequencies(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """Radians per position: float32 [R / 2], or [P, R / 2] where they depend on the position; and the factor that
    cosines and sines are multiplied by.

    Raises ``UnsupportedModelError`` for a kind or parameter without code, ``CheckpointError`` for a missing one.
    """
    kind, parameters = config.rope.kind, config.rope.parameters
    if kind not in _KINDS:
        raise UnsupportedModelError(f"rope kind {kind!r} is not supported; known are {', '.join(_KINDS)}")
    unknown = sorted(set(parameters) - _KNOWN[kind])
    if unknown:
        raise UnsupportedModelError(f"rope kind {kind!r} with {', '.join(unknown)} in config.json is not supported")
    return _KINDS[kind](config, rotary_dim(config))


def _number(config: ModelConfig, name: str, default: float | None = None) -> float:
    value: Any = config.rope.parameters.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise CheckpointError(f"rope kind {config.rope.kind!r} needs a positive number {name}, not {value!r}")
    return float(value)


def _steps(dim: int) -> torch.Tensor:
    return torch.arange(0, dim, 2, dtype=torch.float32) / dim


def _default(config: ModelConfig, dim: int) -> tuple[torch.Tensor, float]:
    return 1.0 / config.rope.theta ** _steps(dim), 1.0


def _linear(config: ModelConfig, dim: int) -> tuple[torch.Tensor, float]:
    return _default(config, dim)[0] / _number(config, "factor"), 1.0


def _dynamic(config: ModelConfig, dim: int) -> tuple[torch.Tensor, float]:
    """The base grows with the sequence once that is longer than the model's own positions.

    Transformers takes the length that each forward pass reaches, so keys cached by earlier passes keep the smaller
    base. A cache shared between requests needs keys that depend on their position alone: here a token at position p
    always has the base of length p + 1. Results equal Transformers' generation with its cache whenever the prompt
    fits the model's own positions, and do not depend on chunks, prefix hits or preemption. Only a longer prompt
    differs: Transformers gives all its tokens the base of the whole prompt's length.
    """
    if dim <= 2:
        raise CheckpointError("rope kind 'dynamic' needs more than 2 rotary elements in a head")
    factor = _number(config, "factor")
    lengths = torch.arange(1, config.max_model_len + 1, dtype=torch.float32).clamp_(min=config.max_position)
    growth = factor * lengths / config.max_position - (factor - 1)
    base = config.rope.theta * growth ** (dim / (dim - 2))
    return 1.0 / base.unsqueeze(1) ** _steps(dim), 1.0


def _llama3(config: ModelConfig, dim: int) -> tuple[torch.Tensor, float]:
    """Long waves are stretched by the factor, short ones are kept, and those between are blended."""
    factor = _number(config, "factor")
    low, high = _number(config, "low_freq_factor"), _number(config, "high_freq_factor")
    original = _number(config, "original_max_position_embeddings", config.max_position)
    if low == high:
        raise CheckpointError("rope kind 'llama3' needs low_freq_factor and high_freq_factor to differ")
    frequencies = _default(config, dim)[0]
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - low) / (high - low)
    mixed = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / factor, frequencies)
    between = (wavelengths >= original / high) & (wavelengths <= original / low)
    return torch.where(between, mixed, stretched), 1.0


def _yarn(config: ModelConfig, dim: int) -> tuple[torch.Tensor, float]:
    """Dimensions that turn often are kept, those that hardly turn are stretched, with a ramp between."""
    parameters = config.rope.parameters
    original = _number(config, "original_max_position_embeddings", config.max_position)
    factor = _number(config, "factor", config.max_position / original)
    low = _yarn_dimension(config, dim, _number(config, "beta_fast", 32), original)
    high = _yarn_dimension(config, dim, _number(config, "beta_slow", 1), original)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001  # the ramp must not have width 0
    kept = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp_(0, 1)
    waves = config.rope.theta ** _steps(dim)
    frequencies = 1.0 / (factor * waves) * (1 - kept) + 1.0 / waves * kept
    return frequencies, _yarn_magnitude(config, factor)


def _yarn_dimension(config: ModelConfig, dim: int, turns: float, original: float) -> float:
    """The (fractional) dimension whose angle makes this many turns over the original context."""
    return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.rope.theta))


def _yarn_magnitude(config: ModelConfig, factor: float) -> float:
    parameters = config.rope.parameters
    if parameters.get("attention_factor") is not None:
        return _number(config, "attention_factor")

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return magnitude(_number(config, "mscale")) / magnitude(_number(config, "mscale_all_dim"))
    return magnitude(1.0)


_KINDS: dict[str, Callable[[ModelConfig, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
