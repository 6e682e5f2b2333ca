"""Loading a model: allocate, stream each tensor to its place, check that none is missing, prepare the products."""

import logging
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from ...core.config import EngineConfig
from ...core.errors import CheckpointError, ConfigurationError
from ..layers.linear_method import LinearMethod, choose_linear_method
from ..layers.weights import Shard, WeightSlot
from ..models.bert import BertModel
from ..models.causal_lm import CausalLM
from ..models.registry import build_encoder, build_model
from .checkpoint import checkpoint_files, read_tensors
from .heap import keep_freed_memory

logger = logging.getLogger(__name__)

_MOST_NAMES = 5
"""Tensor names that one message lists."""


class Loadable(Protocol):
    """What the loader asks of a model."""

    weight_bytes: int

    @property
    def unused(self) -> tuple[str, ...]:
        """Beginnings of the names of tensors that are rightly left in the checkpoint."""
        ...

    def slots(self) -> Iterator[WeightSlot]:
        """Every tensor that the model needs, by the name it has for it."""
        ...

    def own_name(self, name: str) -> str:
        """The model's name for what a checkpoint calls ``name``."""
        ...

    def finish_loading(self, method: LinearMethod) -> None:
        """Turn the filled weights into operators."""


M = TypeVar("M", bound=Loadable)


def load_model(
    config: EngineConfig,
    device: torch.device,
    shard: Shard = Shard(),  # noqa: B008 - frozen
) -> CausalLM:
    """The decoder of ``config.model.path``, ready to run. Raises as ``_load`` does."""
    return _load(lambda: build_model(config.model, device, shard), config, device)


def load_encoder(config: EngineConfig, device: torch.device) -> BertModel:
    """The encoder of ``config.model.path``, ready to run. Raises as ``_load`` does."""
    return _load(lambda: build_encoder(config.model, device), config, device)


def _load(build: Callable[[], M], config: EngineConfig, device: torch.device) -> M:
    """Build a model and fill it.

    Raises ``CheckpointError`` if files or tensors are missing, broken or of another shape than config.json promises,
    and ``UnsupportedModelError`` for an architecture or a feature without code.
    """
    started = time.perf_counter()
    method = choose_linear_method(config, device)
    with torch.inference_mode():
        model = build()
        slots = list(model.slots())
        if config.device.load_format == "dummy":
            fill_dummy(slots, config.device.seed)
        elif config.device.load_format in ("auto", "safetensors"):
            fill_from_folder(slots, Path(config.model.path), model)
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


def fill_from_folder(slots: list[WeightSlot], folder: Path, model: Loadable) -> None:
    """Fill each slot from the folder's safetensors files. Raises ``CheckpointError``; extra tensors are a warning."""
    waiting = {slot.name: slot for slot in slots}
    extra: list[str] = []
    for path in checkpoint_files(folder):
        for name, tensor in read_tensors(path):
            own_name = model.own_name(name)
            slot = waiting.pop(own_name, None)
            if slot is None:
                if not own_name.startswith(model.unused) and not own_name.endswith("rotary_emb.inv_freq"):
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
        if "lm_head.weight" in waiting:
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


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"
