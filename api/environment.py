"""``octavo collect-env``: the machine and the versions, for a bug report."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from .. import __version__
from ..core.engine_args import cpu_has_bfloat16

PACKAGES = (
    "torch transformers tokenizers safetensors gguf triton fa3-fwd pyzmq msgspec fastapi uvicorn uvloop numpy numba"
).split()


def collect_env() -> None:
    """Print the machine and the versions of what Octavo uses, for a bug report. Imports none of them."""
    for name, value in environment().items():
        print(f"{name}: {value}")


def environment() -> dict[str, str]:
    """What ``octavo collect-env`` prints, by name."""
    facts = {
        "octavo": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "native bfloat16": "yes" if cpu_has_bfloat16() else "no",
        "nvidia driver": _nvidia_driver(),
    }
    for package in PACKAGES:
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "not installed"
    facts |= {name: value for name, value in sorted(os.environ.items()) if _worth_telling(name)}
    return facts


def _worth_telling(variable: str) -> bool:
    """Settings of ours and of the device, but nothing whose name smells of a secret: reports are public."""
    secret = any(word in variable for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))
    return variable.startswith(("OCTAVO_", "OMP_", "CUDA_")) and not secret


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _nvidia_driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return "none"
