"""Loading a model: allocate, stream each tensor to its place, check that none is missing, prepare the products."""

import logging
import time
import zlib
from pathlib import Path

import torch

from ...core.config import EngineConfig
from ...core.errors import CheckpointError, ConfigurationError
from ..layers.linear_method import choose_linear_method
from ..layers.weights import Shard, WeightSlot
from ..models.causal_lm import CausalLM
from ..models.registry import build_model
from .checkpoint import checkpoint_files, read_tensors
from .heap import keep_freed_memory

logger = logging.getLogger(__name__)

_MOST_NAMES = 5
"""Tensor names that one message lists."""


def load_model(
    config: EngineConfig,
    device: torch.device,
    shard: Shard = Shard(),  # noqa: B008 - frozen
) -> CausalLM:
    """The model of ``config.model.path``, ready to run.

    Raises ``CheckpointError`` if files or tensors are missing, broken or of another shape than config.json promises,
    and ``UnsupportedModelError`` for an architecture or a feature without code.
    """
    started = time.perf_counter()
    method = choose_linear_method(config, device)
    with torch.inference_mode():
        model = build_model(config.model, device, shard)
        slots = list(model.slots())
        if config.device.load_format == "dummy":
            fill_dummy(slots, config.device.seed)
        elif config.device.load_format in ("auto", "safetensors"):
            fill_from_folder(slots, Path(config.model.path), config.model.tie_word_embeddings)
        else:
            raise ConfigurationError(f"--load-format {config.device.load_format!r} does not exist")
        slots.clear()  # they hold views of weights that are about to be replaced
        model.finish_loading(method)
    if device.type == "cpu":
        keep_freed_memory()  # only now: what the weights were read into is to go back to the kernel
    logger.info(
        "loaded %s: %.0f MB of weights, %s, in %.2f s",
        config.model.architecture,
        model.weight_bytes / 1e6,
        method.name,
        time.perf_counter() - started,
    )
    return model


def fill_from_folder(slots: list[WeightSlot], folder: Path, tied: bool) -> None:
    """Fill each slot from the folder's safetensors files. Raises ``CheckpointError``; extra tensors are a warning."""
    waiting = {slot.name: slot for slot in slots}
    extra: list[str] = []
    for path in checkpoint_files(folder):
        for name, tensor in read_tensors(path):
            slot = waiting.pop(name, None)
            if slot is None:
                if not _expected_extra(name, tied):
                    extra.append(name)
                continue
            if tuple(tensor.shape) != slot.shape:
                raise CheckpointError(
                    f"{path}: {name} has shape {tuple(tensor.shape)}, but config.json makes it {slot.shape}"
                )
            if not tensor.is_floating_point():
                raise CheckpointError(f"{path}: {name} holds {tensor.dtype}; quantized checkpoints are not supported")
            slot.fill(tensor)
    if extra:
        logger.warning("%s has tensors that the model does not use: %s", folder, _listed(extra))
    if waiting:
        hint = ""
        if "lm_head.weight" in waiting and not tied:
            hint = " (config.json says that the head is not tied to the embedding; is tie_word_embeddings wrong?)"
        raise CheckpointError(f"{folder} lacks {_listed(list(waiting))}{hint}")


def fill_dummy(slots: list[WeightSlot], seed: int) -> None:
    """Fill each slot with random values that keep activations of order 1.

    The same seed gives the same weights on the same kind of device, where they are drawn. Each tensor has its own
    stream, keyed by its name, so a rank draws the same numbers that the whole model would.
    """
    device = slots[0].destination.device
    generator = torch.Generator(device)
    for slot in slots:
        tensor = torch.full(slot.shape, slot.dummy_center, device=device)
        if slot.dummy_spread:
            generator.manual_seed(seed ^ zlib.crc32(slot.name.encode()))
            low, high = slot.dummy_center - slot.dummy_spread, slot.dummy_center + slot.dummy_spread
            tensor.uniform_(low, high, generator=generator)
        slot.fill(tensor)


def _expected_extra(name: str, tied: bool) -> bool:
    """True for tensors that are rightly ignored: stored rotary tables, and a tied head stored as well."""
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
