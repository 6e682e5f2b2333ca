"""A GGUF file as a Hugging Face folder: config, generation config, tokenizer and safetensors, without loss."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .cache import require_space
from .gguf_file import GGUFFile
from .gguf_model import GGUFModel
from .gguf_tokenizer import write_tokenizer
from .progress import Progress
from .safetensors_writer import SafetensorsWriter

WEIGHTS_NAME = "model.safetensors"


def convert(path: Path, folder: Path, progress: Progress, sampling: Mapping[str, float]) -> None:
    """Write the model in the GGUF file ``path`` into the empty ``folder``, with these defaults of sampling.

    F16 and BF16 tensors keep their type, all others become float32, which holds every quantized value exactly.
    Raises ``CheckpointError`` or ``UnsupportedModelError``.
    """
    with GGUFFile(path) as file:
        model = GGUFModel(file)
        _write_json(folder / "config.json", model.config())
        _write_json(folder / "generation_config.json", model.generation_config() | dict(sampling))
        write_tokenizer(file, folder)
        tensors = list(model.tensors())
        entries = [(name, tensor.stored_dtype, tensor.shape) for name, tensor in tensors]
        with SafetensorsWriter(folder / WEIGHTS_NAME, entries) as writer:
            require_space(folder, writer.total_bytes)
            with progress.step(f"Converting {path.name}", writer.total_bytes) as advance:
                for name, tensor in tensors:
                    advance(writer.write(name, model.read(tensor)))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), "utf-8")
