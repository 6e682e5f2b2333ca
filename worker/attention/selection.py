"""The choice of an attention backend, with its reason in the log."""

import logging

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigurationError
from ...kernels.numba import LANES
from ...kernels.numba import obstacle as numba_obstacle
from ..layers.dtypes import torch_dtype
from ..layers.weights import Shard
from .backend import AttentionBackend, CacheShape
from .torch_backend import TorchAttentionBackend
from .windows import layer_windows

logger = logging.getLogger(__name__)

KNOWN_BACKENDS = ("numba", "torch", "triton", "flash")


def select_backend(
    config: EngineConfig,
    device: torch.device,
    shard: Shard = Shard(),  # noqa: B008 - frozen
) -> AttentionBackend:
    """The backend for this device and configuration; its cache is not allocated yet.

    Raises ``ConfigurationError`` for a backend that does not exist or cannot run here.
    """
    name, reason = _choose(config, device)
    logger.info("attention backend: %s (%s)", name, reason)
    model = config.model
    heads = shard.cut(model.num_heads)[1], shard.cut(model.num_kv_heads)[1], model.head_dim
    shape = CacheShape(layer_windows(model), *heads, config.cache.block_size, torch_dtype(model.dtype), device)
    if name == "torch":
        return TorchAttentionBackend(shape)
    if name == "numba":
        from .numba_backend import NumbaAttentionBackend

        return NumbaAttentionBackend(shape)
    if name == "triton":
        from .triton_backend import TritonAttentionBackend

        return TritonAttentionBackend(shape, config.scheduler.max_num_seqs)
    from .flash_backend import FlashAttentionBackend

    return FlashAttentionBackend(shape, config.scheduler.max_num_seqs)


def _choose(config: EngineConfig, device: torch.device) -> tuple[str, str]:
    """The backend's name and why it was taken."""
    asked = config.device.attention_backend
    if asked not in ("auto", *KNOWN_BACKENDS):
        raise ConfigurationError(
            f"--attention-backend {asked!r} does not exist; choose auto or {', '.join(KNOWN_BACKENDS)}"
        )
    if asked == "numba" or (asked == "auto" and device.type == "cpu"):
        obstacle = _obstacle_to_numba(config, device)
        if obstacle is None:
            return "numba", "asked for" if asked == "numba" else "the fastest on a CPU"
        if asked == "numba":
            raise ConfigurationError(f"--attention-backend numba: {obstacle}")
        return "torch", obstacle
    obstacle = _obstacle_to_kernels(config, device)
    if asked == "torch" or (asked == "auto" and obstacle is not None):
        return "torch", "asked for" if asked == "torch" else str(obstacle)
    if obstacle is not None:
        raise ConfigurationError(f"--attention-backend {asked}: {obstacle}")
    obstacle = _obstacle_to_flash(config, device)
    if asked == "triton" or (asked == "auto" and obstacle is not None):
        return "triton", "asked for" if asked == "triton" else str(obstacle)
    if obstacle is not None:
        raise ConfigurationError(f"--attention-backend flash: {obstacle}")
    return "flash", "the fastest here: FlashAttention-3 for prompts, Triton for decoding"


def _obstacle_to_numba(config: EngineConfig, device: torch.device) -> str | None:
    """Why the compiled CPU kernels cannot be used; None if they can."""
    if device.type != "cpu":
        return f"the compiled kernels are for CPUs, not {device.type}"
    if config.model.head_dim % LANES:
        return f"the compiled kernels need heads of a multiple of {LANES}, not {config.model.head_dim}"
    return numba_obstacle(torch_dtype(config.model.dtype))


def _obstacle_to_kernels(config: EngineConfig, device: torch.device) -> str | None:
    """Why the Triton kernels cannot be used; None if they can."""
    size = config.cache.block_size
    if device.type != "cuda":
        return f"the kernels need a CUDA GPU, and this runs on {device.type}"
    if size < 16 or size & (size - 1):
        return f"the kernels need a block size that is a power of two from 16, not {size}"
    return None


def _obstacle_to_flash(config: EngineConfig, device: torch.device) -> str | None:
    """Why FlashAttention-3 cannot be used; None if it can."""
    from .flash_backend import BLOCK_MULTIPLE, flash_attention_available

    if not flash_attention_available():
        return "fa3-fwd is not installed (extra flash-attn)"
    if torch.cuda.get_device_capability(device)[0] != 9:
        return "FlashAttention-3 is for Hopper GPUs"
    if config.cache.block_size % BLOCK_MULTIPLE:
        return f"FlashAttention-3 needs a block size that is a multiple of {BLOCK_MULTIPLE}"
    if config.model.dtype == "float32":
        return "FlashAttention-3 has no float32"
    if config.model.head_dim != 128:
        return f"fa3-fwd pages heads of 128 elements only, not {config.model.head_dim}"
    return None
