"""The choice of an attention backend, with its reason in the log."""

import logging

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigurationError
from ..layers.dtypes import torch_dtype
from ..layers.weights import Shard
from .backend import AttentionBackend
from .torch_backend import TorchAttentionBackend
from .windows import layer_windows

logger = logging.getLogger(__name__)

KNOWN_BACKENDS = ("torch",)


def select_backend(
    config: EngineConfig,
    device: torch.device,
    shard: Shard = Shard(),  # noqa: B008 - frozen
) -> AttentionBackend:
    """The backend for this device and configuration; its cache is not allocated yet.

    Raises ``ConfigurationError`` for a backend that does not exist.
    """
    asked = config.device.attention_backend
    if asked not in ("auto", *KNOWN_BACKENDS):
        raise ConfigurationError(
            f"--attention-backend {asked!r} does not exist; choose auto or {', '.join(KNOWN_BACKENDS)}"
        )
    reason = "asked for" if asked != "auto" else f"the only one that runs on {device.type}"
    logger.info("attention backend: torch (%s)", reason)
    model = config.model
    return TorchAttentionBackend(
        num_heads=shard.cut(model.num_heads)[1],
        num_kv_heads=shard.cut(model.num_kv_heads)[1],
        head_dim=model.head_dim,
        block_size=config.cache.block_size,
        windows=layer_windows(model),
        dtype=torch_dtype(model.dtype),
        device=device,
    )
