"""What kernels ask about the machine, and the product that also works under Triton's interpreter."""

import functools

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""True if ``TRITON_INTERPRET=1`` was set before the first import: kernels then run in Python, on CPU tensors."""

_INTERPRETED_PROCESSORS = 3
"""Few, so that tests on tiny shapes see a program work through several items."""


@functools.cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device."""
    if device.type != "cuda":
        return _INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    """``acc + a @ b`` with float32 sums; float32 operands are not rounded to tf32.

    The interpreter computes 16-bit products wrongly, so it gets them widened, which changes nothing: products of
    16-bit numbers are exact in float32.
    """
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
