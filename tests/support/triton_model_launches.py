"""Compiles every Triton kernel as models launch it, for a Hopper GPU; prints what each takes as JSON."""

import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def find_package() -> None:
    """Make ``octavo`` importable where it is not installed: the checkout's root is the package."""
    try:
        import octavo  # noqa: F401
    except ImportError:
        folder = tempfile.mkdtemp()
        os.symlink(ROOT, Path(folder) / "octavo")
        sys.path.insert(0, folder)


find_package()
sys.path.insert(0, str(ROOT / "tests" / "support"))

import torch  # noqa: E402
from triton_launches import CompiledKernel, recorded  # noqa: E402

from octavo.kernels.triton import decode_attention as decode  # noqa: E402
from octavo.kernels.triton import decode_inputs as inputs  # noqa: E402
from octavo.kernels.triton import gated_activation as activation  # noqa: E402
from octavo.kernels.triton import matrix_vector as vector  # noqa: E402
from octavo.kernels.triton import prompt_attention as prompt  # noqa: E402
from octavo.kernels.triton import rms_norm as norm  # noqa: E402
from octavo.kernels.triton import rope_and_cache as rope  # noqa: E402
from octavo.kernels.triton import sampling  # noqa: E402

MODELS = {"Qwen3-0.6B": (16, 8, 128, 1024, 3072), "Llama-3.1-8B": (32, 8, 128, 4096, 14336)}
SMALL = {"SmolLM2-135M": (9, 3, 64, 576, 1536)}
"""Query heads, KV heads, head size, hidden and inner size."""


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def launch_attention(heads: int, kv_heads: int, dim: int, block: int, dtype: torch.dtype) -> None:
    query = torch.zeros(256, heads, dim, dtype=dtype)
    cache = torch.zeros(4, block, kv_heads, dim, dtype=dtype)
    scratch = decode.allocate_scratch(256, heads, kv_heads, dim, torch.device("cpu"))
    for batch in (1, 256):
        few = query[:batch]
        decode.decode_attention(few, cache, cache, integers(batch, 8), integers(batch), few, scratch, 0.1)
    prompt.prompt_attention(query, cache, cache, integers(3), integers(2), integers(2, 8), query, 0.1)


def launch_layers(heads: int, kv_heads: int, dim: int, hidden: int, inner: int, dtype: torch.dtype) -> None:
    cache = torch.zeros(4, 16, kv_heads, dim, dtype=dtype)
    weight = torch.zeros(heads + kv_heads, dim, dtype=dtype)
    table = torch.zeros(64, dim, dtype=dtype)
    for tokens in (1, 256):
        qkv = torch.zeros(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
        places = integers(tokens, dtype=torch.int64)
        for norm_weight in (None, weight):
            out = torch.zeros(tokens, heads, dim, dtype=dtype)
            rope.rope_and_cache(qkv, places, table, places, cache, cache, out, norm_weight)
    x, scale = torch.zeros(8, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    norm.rms_norm(x, scale, 1e-5)
    norm.add_rms_norm(x, x, scale, 1e-5)
    activation.silu_and_mul(torch.zeros(8, 2 * inner, dtype=dtype))
    qkv_size = (heads + 2 * kv_heads) * dim
    for outputs, width in ((qkv_size, hidden), (hidden, heads * dim), (hidden, inner)):
        vector.matrix_vector(torch.zeros(1, width, dtype=dtype), torch.empty(outputs, width, dtype=dtype))
    row, gate_up = torch.zeros(1, hidden, dtype=dtype), torch.empty(2 * inner, hidden, dtype=dtype)
    vector.gated_matrix_vector(row, gate_up)
    vector.gated_matrix_vector(row, gate_up, vector.InputNorm(scale, 1e-5, row, row.clone()))
    qkv_weight = torch.empty(qkv_size, hidden, dtype=dtype)
    vector.matrix_vector(row, qkv_weight, None, vector.InputNorm(scale, 1e-5, row, row.clone()))


def launch_step(dtype: torch.dtype) -> None:
    slots, long = integers(8), integers(8, dtype=torch.int64)
    inputs.decode_inputs(slots, slots, long, integers(8, 4), 16, long, long, slots, long, integers(8, 4))
    numbers = torch.zeros(8)
    rows = sampling.SamplingRows(numbers, long, numbers.double(), numbers, long, long)
    logits = torch.zeros(8, 151936, dtype=dtype)
    sampling.sample(logits, rows, True, True)
    sampling.sample(logits, rows, True, False)
    sampling.sample(logits, rows, False, False)


def compile_all() -> list[tuple[str, CompiledKernel]]:
    """Every kernel for every model, with the case it belongs to."""
    found: list[tuple[str, CompiledKernel]] = []
    with recorded() as kernels:
        for case, dtype, models in (("bf16", torch.bfloat16, MODELS), ("fp32", torch.float32, SMALL)):
            for heads, kv_heads, dim, hidden, inner in models.values():
                for block in (16, 128) if heads == 32 else (16,):
                    launch_attention(heads, kv_heads, dim, block, dtype)
                if heads != 16:  # the layers of one large and one odd-sized model suffice
                    launch_layers(heads, kv_heads, dim, hidden, inner, dtype)
            launch_step(dtype)
            found += [(case, kernel) for kernel in kernels]
            kernels.clear()
    return found


def main() -> None:
    rows = [
        {
            "case": case,
            "name": kernel.name,
            "registers": kernel.registers,
            "stack": kernel.stack,
            "shared": kernel.shared,
            "wgmma": "wgmma" in kernel.ptx,
        }
        for case, kernel in compile_all()
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
