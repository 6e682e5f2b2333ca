"""What kernels ask about the machine, and the product that also works under Triton's interpreter."""

import functools

import torch
import triton
import triton.language as tl
from triton.runtime import driver

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""True if ``TRITON_INTERPRET=1`` was set before the first import: kernels then run in Python, on CPU tensors."""

_HOPPER = 90
_INTERPRETED_PROCESSORS = 3
"""Few, so that tests on tiny shapes see a program work through several items."""


# Plain functions of the host: Triton's own, made for kernels as well, cost a launcher microseconds a call.


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The next power of two from ``n`` on."""
    return 1 << (n - 1).bit_length()


@functools.cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device."""
    if device.type != "cuda":
        return _INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def early_start(device: torch.device) -> dict[str, bool]:
    """Arguments for the launch of a kernel with the constant ``EARLY``: it may start before the one before it is done.

    That is programmatic dependent launch, from Hopper on; CUDA graphs keep it. Every program of such a kernel calls
    ``gdc_wait`` before it reads what any other kernel may have written and before it writes anything; before that it
    reads constants only. So each kernel is done only after all before it are, whatever comes next.
    """
    if device.type == "cpu":
        return {"EARLY": False}
    target = driver.active.get_current_target()
    if target.backend != "cuda" or int(target.arch) < _HOPPER:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


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
