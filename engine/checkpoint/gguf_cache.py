"""Converted GGUF files in the cache. Finding one that is there takes a millisecond and imports no reader."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from ...core.errors import CheckpointError
from .cache import build_once, cache_folder
from .progress import Progress

_CONVERSION = 2
"""Raised when the converter writes something else for the same file."""
_MARK = "octavo.json"
_SAMPLE_BYTES = 1 << 20


def converted_gguf(path: Path, progress: Progress) -> Path:
    """The folder made from the GGUF file ``path``, converting it on first use.

    The key holds the file's size, time of change, and first and last bytes: reading a large file whole at each start
    to hash it would take longer than loading it.
    """
    return converted_under(f"{path.stem}-{_fingerprint(path)}", lambda: path, progress)


def converted_under(
    key: str, obtain: Callable[[], Path], progress: Progress, sampling: Mapping[str, float] = MappingProxyType({})
) -> Path:
    """The converted folder named ``key``. If it is not there, ``obtain()`` is asked for the GGUF file.

    ``sampling``: defaults of sampling that ``generation_config.json`` names.
    """

    def build(partial: Path) -> None:
        # Imported here: numpy, gguf and tokenizers are not needed when the folder is there.
        from .gguf_conversion import WEIGHTS_NAME, convert

        source = obtain()
        convert(source, partial, progress, sampling)
        mark = {"source": source.name, "weights": WEIGHTS_NAME, "bytes": (partial / WEIGHTS_NAME).stat().st_size}
        (partial / _MARK).write_text(json.dumps(mark), "utf-8")

    return build_once(cache_folder() / "converted" / f"{key}-v{_CONVERSION}", _is_complete, build, progress)


def _is_complete(folder: Path) -> bool:
    """True if the conversion was finished and its weights have kept their size (a full disk, a lost write)."""
    try:
        mark = json.loads((folder / _MARK).read_bytes())
        return (folder / str(mark["weights"])).stat().st_size == mark["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fingerprint(path: Path) -> str:
    try:
        status = path.stat()
        with path.open("rb") as file:
            head = file.read(_SAMPLE_BYTES)
            file.seek(max(0, status.st_size - _SAMPLE_BYTES))
            tail = file.read(_SAMPLE_BYTES)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns} ".encode())
    digest.update(head)
    digest.update(tail)
    return digest.hexdigest()[:16]
