"""The safetensors files of a model folder, read tensor by tensor."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ...core.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_LFS_POINTER = b"version https://git-lfs"


def checkpoint_files(folder: Path) -> list[Path]:
    """The files that hold the weights, each once. Raises ``CheckpointError`` that names what is missing."""
    index = folder / INDEX_NAME
    if index.exists():
        files = [folder / name for name in _indexed_names(index)]
    elif (folder / SINGLE_NAME).exists():
        files = [folder / SINGLE_NAME]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; {others[0]} is not read, convert it to safetensors" if others else ""
        raise CheckpointError(f"{folder} has no {SINGLE_NAME} and no {INDEX_NAME}{hint}")
    for path in files:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, but {INDEX_NAME} names it; download the model again")
    return files


def read_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, one at a time, mapped from the file rather than read at once.

    Raises ``CheckpointError`` for a file that is empty, cut short or no safetensors file.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(_complaint(path, error)) from error


def _complaint(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as file:
            pointer = file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError as unread:
        return f"{path} cannot be read: {unread.strerror}"
    if pointer:
        return f"{path} is not the weights but a pointer to them; fetch them with: git lfs pull"
    return f"{path} ({path.stat().st_size} bytes) is empty, cut short or no safetensors file: {error}"


def _indexed_names(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no index of safetensors files: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index} names {name!r}, which is no file of its folder")
    return names
