"""CPU kernels in Python that Numba compiles: one file per fused operation, named after its torch reference.

Importing a file needs the ``numba`` package and a torch that brings GNU OpenMP. With few rows, what torch's operators
cost is mostly the call; here a call is one structure of numbers and one jump, and the threads are torch's own. Each
row's result depends on that row alone. Compiled code is kept beside the source (or in the user's cache folder), so
that only the first start compiles.
"""

import importlib.util
from pathlib import Path

import torch

LANES = 16
"""Numbers that attention handles side by side: the size of a head must be a multiple."""


def obstacle(dtype: torch.dtype) -> str | None:
    """Why these kernels cannot run here on tensors of ``dtype``; None if they can. Imports nothing."""
    if dtype not in (torch.bfloat16, torch.float32):
        return f"no compiled CPU kernels for {dtype}"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    if openmp_library() is None:
        return "this build of torch does not use GNU OpenMP"
    return None


def openmp_library() -> Path | None:
    """GNU OpenMP as torch has loaded it: another copy would have threads of its own, which wait for the same cores."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else ()
    loaded = {line.split(maxsplit=5)[-1] for line in lines if "/libgomp" in line}  # the path may hold spaces
    # Other packages may bring a copy, too; torch's is in one of its own folders, or there is only the system's.
    return min((Path(path) for path in loaded), key=lambda path: "torch" not in str(path), default=None)
