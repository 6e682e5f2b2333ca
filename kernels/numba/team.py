"""Compiled kernels, and the threads they run on: the OpenMP team that torch's operators use."""

import ctypes
import functools
import hashlib
import logging
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from llvmlite import binding
from numba import cfunc, njit, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from . import openmp_library

FAST_MATH = {"reassoc", "contract", "nsz"}
"""Sums and products may be reordered, which vector units need; infinities and NaN keep their meaning."""

_OPTIONS: dict[str, Any] = {"fastmath": FAST_MATH, "error_model": "numpy"}

inlined: Callable[[Callable[..., Any]], Any] = njit(inline="always", **_OPTIONS)
"""Decorates a function that kernels call."""
instruction: Callable[[Callable[..., Any]], Any] = intrinsic
"""Decorates a function that writes down what a call in a kernel compiles to; its first parameter is the compiler's."""

logger = logging.getLogger(__name__)


@functools.cache
def _openmp() -> ctypes.CDLL:
    path = openmp_library()
    if path is None:
        raise RuntimeError("this build of torch does not use GNU OpenMP: its own operators must do")
    library = ctypes.CDLL(str(path))
    library.GOMP_parallel.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint)
    library.GOMP_parallel.restype = None
    for name in ("omp_get_thread_num", "omp_get_num_threads"):
        binding.add_symbol(name, ctypes.cast(library[name], ctypes.c_void_p).value)
    return library


thread_number = types.ExternalFunction("omp_get_thread_num", types.int32())
"""Called by a kernel: which of ``team_size()`` threads runs it."""
team_size = types.ExternalFunction("omp_get_num_threads", types.int32())

_SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()


class Words(types.CPointer):
    """A kernel's argument: 64-bit words, typed as pointers to ``element``.

    All kernels' sources are part of the type's identity. Numba finds compiled code by it and by the kernel's own file,
    and would go on using code whose parts in other files have changed.
    """

    def __init__(self, element: types.Type) -> None:
        super().__init__(types.CPointer(element))

    @property
    def key(self) -> Any:
        return (super().key, _SOURCES)


register_model(Words)(models.PointerModel)

_ELEMENTS = {torch.bfloat16: types.uint16, torch.float32: types.float32}
"""Element types of kernels; see ``elements``."""
SMALL_WORK = 16 * 1024
"""Work (elements to touch) below which waking the team takes longer than it saves."""


_KERNELS: list["Kernel"] = []


class Kernel:
    """A function of one argument, an array of 64-bit words, that every thread of the team runs at once.

    The words are typed as pointers to elements, so that one source serves each element type: the compiler's function
    for bfloat16 tensors takes pointers to their bits, the one for float32 pointers to floats. Other words are read by
    ``elements.integer`` and its like. The function divides the work by ``thread_number()`` and ``team_size()``.
    """

    def __init__(self, function: Callable[..., None], layout: str) -> None:
        """``layout`` is the format, as in ``struct``, of the words that callers give."""
        self._function = function
        self._words = struct.Struct(layout)
        self._compiled: dict[torch.dtype, tuple[int, Callable[[bytes], None]]] = {}
        self._kept: list[object] = []  # what owns the compiled code
        _KERNELS.append(self)

    def __call__(self, dtype: torch.dtype, work: int, *words: float) -> None:
        """Run for tensors of ``dtype``; ``work`` decides whether one thread does it alone."""
        address, alone = self._compiled.get(dtype) or self.compile(dtype)
        if work < SMALL_WORK:
            alone(self._words.pack(*words))
        else:
            _openmp().GOMP_parallel(address, self._words.pack(*words), torch.get_num_threads(), 0)

    def compile(self, dtype: torch.dtype) -> tuple[int, Callable[[bytes], None]]:
        """Compile for ``dtype``, or load what was compiled before. Returns the code's address and how to call it."""
        if dtype in self._compiled:
            return self._compiled[dtype]
        _openmp()  # names the compiled code asks for
        signature = types.void(Words(_ELEMENTS[dtype]))
        try:
            compiled: Any = cfunc(signature, cache=True, **_OPTIONS)(self._function)
        except RuntimeError as error:  # no folder to keep it in
            logger.warning("a compiled CPU kernel cannot be kept, so each start compiles it anew: %s", error)
            compiled = cfunc(signature, **_OPTIONS)(self._function)
        alone = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(compiled.address)
        self._kept.append(compiled)
        self._compiled[dtype] = compiled.address, alone
        return self._compiled[dtype]


def kernel(layout: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorates a kernel's function; see ``Kernel``."""
    return lambda function: Kernel(function, layout)


def compile_kernels(dtype: torch.dtype) -> None:
    """Compile every kernel imported so far for ``dtype``: some seconds on the first start, later ones find the code."""
    started = time.monotonic()
    for each in _KERNELS:
        each.compile(dtype)
    logger.info("CPU kernels compiled or loaded in %.2f s", time.monotonic() - started)
