"""Compiles, for a GPU that need not exist, exactly the kernels that launchers would run on given tensors.

``recorded`` replaces the launch itself: arguments are turned into the types, constants and alignments that Triton
would specialize on. It must run in a process without ``TRITON_INTERPRET``.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

HOPPER = GPUTarget("cuda", 90, 32)
_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What one launch would run."""

    name: str
    registers: int
    """For each thread."""
    stack: int
    """Bytes for each thread in local memory: above 0 if registers did not suffice."""
    shared: int
    """Bytes for each program."""
    ptx: str


def specialize(kernel: JITFunction, arguments: dict[str, Any]) -> ASTSource:
    """The source that a launch with these arguments compiles."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = _POINTERS[value.dtype]
            if value.data_ptr() % 16 == 0 and not parameter.do_not_specialize_on_alignment:
                attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = 1
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


def compile_launch(kernel: JITFunction, positional: tuple[Any, ...], named: dict[str, Any]) -> CompiledKernel:
    """Compile what ``kernel[grid](*positional, **named)`` would run on a Hopper GPU."""
    options = {name: value for name, value in named.items() if name in _OPTIONS}
    arguments = dict(zip(kernel.arg_names, positional, strict=False))
    arguments |= {name: value for name, value in named.items() if name not in _OPTIONS}
    compiled = triton.compile(specialize(kernel, arguments), target=HOPPER, options=options)
    registers, stack = _resources(compiled.asm["cubin"])
    return CompiledKernel(kernel.fn.__name__, registers, stack, compiled.metadata.shared, compiled.asm["ptx"])


def _resources(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if found is None:
        raise ValueError(f"cuobjdump said {report!r}")
    return int(found[1]), int(found[2])


@contextmanager
def recorded() -> Iterator[list[CompiledKernel]]:
    """Within it, launches on CPU tensors compile for Hopper instead of running; yields the growing list of results."""
    results: list[CompiledKernel] = []

    def run(kernel: JITFunction, *positional: Any, grid: Any, warmup: bool, **named: Any) -> None:
        early = {"EARLY": True, "launch_pdl": True} if "EARLY" in named else {}  # as on the target
        results.append(compile_launch(kernel, positional, named | early))

    original = JITFunction.run
    JITFunction.run = run
    try:
        yield results
    finally:
        JITFunction.run = original
