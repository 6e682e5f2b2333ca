"""What to time on a GPU: for each kernel and shape the variants worth comparing, and the work they do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from gpu_kernel_checks import DECODE_TILINGS, GPU

from octavo.kernels import sampling as reference_sampling
from octavo.kernels.triton import decode_attention as decode
from octavo.kernels.triton import decode_inputs as inputs
from octavo.kernels.triton import gated_activation as activation
from octavo.kernels.triton import matrix_vector as vector
from octavo.kernels.triton import prompt_attention as prompt
from octavo.kernels.triton import rms_norm as norm
from octavo.kernels.triton import rope_and_cache as rope
from octavo.kernels.triton import sampling

BF16 = torch.bfloat16
_COLD_BYTES = 2e8
"""Inputs exist so often that their copies exceed this: each launch then finds its own out of the cache."""

Call = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """One shape of one kernel. A variant is called with the number of the copy of the inputs to use."""

    name: str
    variants: dict[str, Call]
    copies: int
    bytes: float = 0.0
    flops: float = 0.0


Maker = Callable[[], Timing]


def copies_of(size: float) -> int:
    """How many sets of inputs of ``size`` bytes to rotate."""
    return max(1, min(8, int(_COLD_BYTES // max(size, 1.0)) + 1))


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device=GPU, dtype=dtype)


def paged(lengths: list[int], kv_heads: int, dim: int, block: int) -> tuple[torch.Tensor, ...]:
    """Random caches, a shuffled table and lengths."""
    width = -(-max(lengths) // block)
    cache = random(len(lengths) * width + 1, block, kv_heads, dim)
    table = torch.randperm(len(lengths) * width, device=GPU).reshape(len(lengths), width).int() + 1
    return cache, torch.randn_like(cache), table, torch.tensor(lengths, dtype=torch.int32, device=GPU)


def decode_timing(name: str, lengths: list[int], heads: int, block: int, dim: int = 128) -> Timing:
    kv_heads = 8
    moved = sum(lengths) * kv_heads * dim * 4 + 4 * len(lengths) * heads * dim
    copies = copies_of(moved)
    sets = [(random(len(lengths), heads, dim), *paged(lengths, kv_heads, dim, block)) for _ in range(copies)]
    scratch = decode.allocate_scratch(len(lengths), heads, kv_heads, dim, GPU)
    out = torch.empty_like(sets[0][0])

    def run(tiling: decode.DecodeTiling | None, copy: int) -> None:
        query, keys, values, table, used = sets[copy]
        decode.decode_attention(query, keys, values, table, used, out, scratch, 0.09, None, tiling)

    variants: dict[str, Call] = {"default": partial(run, None)}
    for tiling in DECODE_TILINGS:
        for keys in (0, 512, 1536):
            chosen = replace(tiling, whole=keys // tiling.tile)
            label = f"t{chosen.tile}w{chosen.warps}s{chosen.stages}p{chosen.programs} {keys or 'even'}"
            variants[label] = partial(run, chosen)
    return Timing(f"decode {name} {heads}/{kv_heads} block {block}", variants, copies, moved)


def mixed_contexts(rows: int) -> list[int]:
    """Contexts from 100 to 2048, as in the middle of a run with random lengths, the longest first."""
    lengths = torch.randint(100, 2048, (rows,), generator=torch.Generator().manual_seed(1))
    return lengths.sort(descending=True).values.tolist()


def decode_timings() -> Iterator[Maker]:
    shapes = {"256x1024": [1024] * 256, "64x1024": [1024] * 64, "1x512": [512], "16x16384": [16384] * 16}
    shapes |= {"256 mixed": mixed_contexts(256), "1x4096": [4096], "4x1024": [1024] * 4, "16x1024": [1024] * 16}
    shapes |= {f"{rows} mixed": mixed_contexts(rows) for rows in (96, 80, 64, 48, 32)}
    shapes |= {"64x4096": [4096] * 64, "1x32000": [32000]}
    for name, lengths in shapes.items():
        yield partial(decode_timing, name, lengths, 32, 128)
        if name in ("256x1024", "64x1024", "256 mixed", "1x512"):
            yield partial(decode_timing, name, lengths, 32, 16)
            yield partial(decode_timing, name, lengths, 16, 16)


PROMPT_TILINGS = [
    prompt.PromptTiling(128, 64, 8, 3),
    prompt.PromptTiling(128, 64, 8, 4),
    prompt.PromptTiling(128, 64, 8, 2),
    prompt.PromptTiling(128, 128, 8, 2),
    prompt.PromptTiling(128, 128, 8, 3),
    prompt.PromptTiling(64, 64, 4, 3),
    prompt.PromptTiling(64, 64, 4, 4),
]


def prompt_timing(name: str, rows: int, new: int, total: int, block: int) -> Timing:
    heads, kv_heads, dim = 32, 8, 128
    query = random(rows * new, heads, dim)
    keys, values, table, used = paged([total] * rows, kv_heads, dim, block)
    starts = torch.arange(0, (rows + 1) * new, new, dtype=torch.int32, device=GPU)
    out = torch.empty_like(query)

    def run(tiling: prompt.PromptTiling | None, copy: int) -> None:
        prompt.prompt_attention(query, keys, values, starts, used, table, out, 0.09, None, tiling)

    variants: dict[str, Call] = {"default": partial(run, None)}
    for tiling in PROMPT_TILINGS:
        label = f"m{tiling.packed}t{tiling.tile}w{tiling.warps}s{tiling.stages}"
        variants[label] = partial(run, tiling)
    pairs = rows * sum(range(total - new + 1, total + 1))
    return Timing(f"prompt {name} block {block}", variants, 1, 0.0, 4.0 * heads * dim * pairs)


def prompt_timings() -> Iterator[Maker]:
    for block in (16, 128):
        yield partial(prompt_timing, "1x8192", 1, 8192, 8192, block)
        yield partial(prompt_timing, "8x1024", 8, 1024, 1024, block)
    yield partial(prompt_timing, "1x1024", 1, 1024, 1024, 128)
    yield partial(prompt_timing, "4x(2048+512)", 4, 512, 2560, 128)


def rope_timing(tokens: int, heads: int, kv_heads: int, normalize: bool) -> Timing:
    dim, total = 128, heads + 2 * kv_heads
    moved = 2.0 * 2 * tokens * total * dim
    copies = copies_of(moved)
    qkv = [random(tokens, total * dim) for _ in range(copies)]
    positions = torch.arange(tokens, device=GPU)
    table = random(tokens, dim)
    caches = random(tokens // 16 + 1, 16, kv_heads, dim), random(tokens // 16 + 1, 16, kv_heads, dim)
    out = random(tokens, heads, dim)
    weight = random(heads + kv_heads, dim) if normalize else None

    def run(per: int | None, copy: int) -> None:
        rope.rope_and_cache(qkv[copy], positions, table, positions, *caches, out, weight, 1e-6, per)

    variants: dict[str, Call] = {"default": partial(run, None)}
    variants |= {f"{per} heads": partial(run, per) for per in (1, 2, 4, 8)}
    return Timing(f"rope+cache {tokens} x {heads}/{kv_heads} norm {normalize}", variants, copies, moved)


def norm_timing(tokens: int, width: int) -> Timing:
    moved = 2.0 * 4 * tokens * width
    copies = copies_of(moved)
    rows = [(random(tokens, width), random(tokens, width)) for _ in range(copies)]
    weight, out = random(width), random(tokens, width)
    variants: dict[str, Call] = {"default": lambda copy: norm.add_rms_norm(*rows[copy], weight, 1e-6, out)}
    return Timing(f"add+norm {tokens} x {width}", variants, copies, moved)


def silu_timing(tokens: int, width: int) -> Timing:
    moved = 2.0 * 3 * tokens * width
    copies = copies_of(moved)
    rows = [random(tokens, 2 * width) for _ in range(copies)]
    out = random(tokens, width)
    variants: dict[str, Call] = {"default": lambda copy: activation.silu_and_mul(rows[copy], out)}
    return Timing(f"silu*up {tokens} x {width}", variants, copies, moved)


def decode_inputs_timing(rows: int) -> Timing:
    slots = torch.randperm(rows, device=GPU).int()
    computed = torch.full((rows,), 1024, dtype=torch.int32, device=GPU)
    longs = [torch.zeros(rows, dtype=torch.int64, device=GPU) for _ in range(4)]
    lengths, tables = torch.zeros_like(computed), torch.zeros(2 * rows, 2048, dtype=torch.int32, device=GPU)

    def run(copy: int) -> None:
        inputs.decode_inputs(
            slots, computed, longs[0], tables[:rows], 16, longs[1], longs[2], lengths, longs[3], tables[rows:]
        )

    return Timing(f"decode inputs {rows}", {"default": run}, 1)


def layer_timings() -> Iterator[Maker]:
    for tokens in (1, 256, 8192):
        yield partial(rope_timing, tokens, 16, 8, True)
        yield partial(rope_timing, tokens, 32, 8, False)
        for width in (1024, 4096):
            yield partial(norm_timing, tokens, width)
        for width in (3072, 14336):
            yield partial(silu_timing, tokens, width)
    yield partial(decode_inputs_timing, 256)


def sampling_timing(count: int, dtype: torch.dtype, kind: str) -> Timing:
    vocab = 151936
    moved = float(count * vocab * dtype.itemsize)
    copies = copies_of(moved)
    logits = [random(count, vocab, dtype=dtype) * (1 if kind == "flat top-p" else 3) for _ in range(copies)]
    longs = torch.arange(count, device=GPU)
    numbers = torch.full((count,), 0.0 if kind == "greedy" else 1.0, device=GPU)
    top_k = torch.full_like(longs, 40 if kind == "top-k" else vocab)
    top_p = torch.full((count,), 0.95 if "top-p" in kind else 1.0, dtype=torch.float64, device=GPU)
    rows = sampling.SamplingRows(numbers, top_k, top_p, numbers * 0, longs, longs)
    draws, filters = kind != "greedy", "top" in kind
    variants: dict[str, Call] = {"default": lambda copy: sampling.sample(logits[copy], rows, draws, filters)}
    noise = reference_sampling.uniform(longs, longs)
    if kind == "greedy":
        variants["torch"] = lambda copy: reference_sampling.greedy(logits[copy])
    elif kind == "plain":
        variants["torch"] = lambda copy: reference_sampling.draw_plain(logits[copy].float(), noise, None)
    return Timing(f"sample {kind} {count} x {vocab} {dtype}", variants, copies, moved)


def sampling_timings() -> Iterator[Maker]:
    for kind in ("greedy", "plain", "top-k", "top-p", "flat top-p"):
        for count in (1, 64, 256):
            yield partial(sampling_timing, count, BF16, kind)
    yield partial(sampling_timing, 256, torch.float32, "plain")


def vector_tilings(width: int) -> Iterator[vector.VectorTiling]:
    """Elements for each thread, warps of a program, and warps of a multiprocessor."""
    padded = 1 << (width - 1).bit_length()
    for elements, warps, most in ((32, 4, 32), (64, 4, 16), (64, 8, 16), (64, 2, 16), (128, 4, 16), (64, 16, 16)):
        if padded <= 2048 * warps:
            rows = max(1, elements * 32 * warps // padded)
            yield vector.VectorTiling(rows, min(256 * warps, padded), warps, most // warps)


def vector_timing(outputs: int, width: int, gated: bool, normed: bool = False) -> Timing:
    moved = 2.0 * outputs * width
    copies = copies_of(moved)
    weights = [random(outputs, width) for _ in range(copies)]
    x = random(1, width)
    out = random(1, outputs // 2 if gated else outputs)
    fused = vector.InputNorm(random(width), 1e-5, random(1, width), random(1, width)) if normed else None
    carried = random(1, width)

    def run(tiling: vector.VectorTiling | None, copy: int) -> None:
        if gated:
            vector.gated_matrix_vector(x, weights[copy], fused, out, tiling)
        else:
            vector.matrix_vector(x, weights[copy], None, fused, out, tiling)

    def library(copy: int) -> torch.Tensor:
        row = x if fused is None else norm.add_rms_norm(x, carried, fused.weight, 1e-5)[0]
        product = F.linear(row, weights[copy])
        return activation.silu_and_mul(product, out) if gated else product

    variants: dict[str, Call] = {"cuBLAS": library, "default": partial(run, None)}
    for tiling in vector_tilings(width):
        name = f"r{tiling.rows}k{tiling.width}w{tiling.warps}p{tiling.programs}"
        variants[name] = partial(run, tiling)
    kind = ("norm+" if normed else "") + ("gated" if gated else "linear")
    return Timing(f"{kind} {outputs} x {width}", variants, copies, moved)


def vector_timings() -> Iterator[Maker]:
    shapes = [(4096, 1024), (1024, 2048), (1024, 3072), (151936, 1024)]  # Qwen3-0.6B: qkv, o, down, head
    shapes += [(6144, 4096), (4096, 4096), (4096, 14336), (128256, 4096)]  # Llama-3.1-8B
    for outputs, width in shapes:
        yield partial(vector_timing, outputs, width, False)
    for normed in (False, True):
        yield partial(vector_timing, 6144, 1024, True, normed)
        yield partial(vector_timing, 28672, 4096, True, normed)
    yield partial(vector_timing, 4096, 1024, False, True)
    yield partial(vector_timing, 6144, 4096, False, True)


TIMINGS: dict[str, Callable[[], Iterator[Maker]]] = {
    "decode": decode_timings,
    "layers": layer_timings,
    "sampling": sampling_timings,
    "vector": vector_timings,
    "prompt": prompt_timings,
}
"""In the order of importance."""
