"""What a model's or a tokenizer's name means: a local folder, a GGUF file, a hub id, or the embedded default."""

import difflib
import re
from pathlib import Path

from ...core.errors import CheckpointError
from .default_model import default_model
from .gguf_cache import converted_gguf
from .hub import hub_snapshot
from .progress import Progress

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
_TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "tokenizer.model")
_TOKENIZER_NAMES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def resolve_model(model: str | None, *, quiet: bool = False) -> Path:
    """The folder with ``config.json``, weights and tokenizer that ``model`` names.

    ``model`` is a local folder, a ``.gguf`` file (converted once into the cache), a hub id (downloaded once by
    huggingface_hub) or None, the embedded default. Progress goes to stderr unless ``quiet``. Raises
    ``CheckpointError`` or ``UnsupportedModelError``.
    """
    progress = Progress(quiet)
    if model is None:
        return default_model(progress)
    folder = _locate(model, _MODEL_FILES, progress)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} has no config.json{_gguf_hint(folder)}")
    return folder


def resolve_tokenizer(tokenizer: str | None, model: Path, *, quiet: bool = False) -> Path:
    """The folder of the tokenizer: ``tokenizer`` located as a model is, or without one the ``model`` folder."""
    if tokenizer is None:
        return model
    folder = _locate(tokenizer, _TOKENIZER_FILES, Progress(quiet))
    if not any((folder / name).is_file() for name in _TOKENIZER_NAMES):
        raise CheckpointError(f"--tokenizer {tokenizer}: {folder} holds none of {', '.join(_TOKENIZER_NAMES)}")
    return folder


def _locate(name: str, hub_files: tuple[str, ...], progress: Progress) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return converted_gguf(path.absolute(), progress)
        raise CheckpointError(f"{path} is a file, but no .gguf file; name a folder with config.json, or a .gguf file")
    near = _near_miss(path)
    looks_local = name.startswith((".", "/", "~")) or name.lower().endswith(".gguf")
    if near or looks_local or not _HUB_ID.fullmatch(name):
        raise CheckpointError(f"there is nothing at {path}{near}")
    return hub_snapshot(name, hub_files, progress)


def _near_miss(path: Path) -> str:
    """`` (did you mean ...?)`` for the model folders and GGUF files beside ``path`` whose name is close to its own."""
    try:
        names = [
            entry.name
            for entry in path.parent.iterdir()
            if entry.suffix.lower() == ".gguf" or (entry / "config.json").is_file()
        ]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f" (did you mean {path.parent / close[0]}?)" if close else ""


def _gguf_hint(folder: Path) -> str:
    files = sorted(folder.glob("*.gguf"))
    return f"; to load the GGUF file in it, name {files[0]}" if files else "; it is not a model folder"
