"""What the kernels must get right on a GPU: the cases of ``kernel_cases`` on shapes of real models."""

import math
import os
from collections.abc import Callable
from functools import partial

import kernel_cases as cases
import torch
from kernel_cases import Heads

from octavo.kernels.triton import decode_attention as decode
from octavo.kernels.triton import sampling
from octavo.kernels.triton.matrix_vector import VectorTiling

GPU = torch.device("cuda")
BF16, FP32 = torch.bfloat16, torch.float32
LLAMA, QWEN, SMOL = (32, 8, 128), (16, 8, 128), (9, 3, 64)

REPEATS = int(os.environ.get("KERNEL_REPEATS", "100"))
"""Of a launch whose results must not change. Fewer under a sanitizer, where each takes seconds."""

Check = Callable[[], None]


def mixed_lengths(count: int) -> list[int]:
    """Contexts from 1 to some thousand tokens, block borders among them, and a padding row."""
    return [0, 1, 15, 16, 17, 64, 512, 513, 1024, 2049, 4100, 33][:count] + [37 * i + 5 for i in range(count - 12)]


def decode_checks() -> dict[str, Check]:
    """Groupings, block sizes, types, windows, large pools, long contexts and capture."""
    check = cases.check_decode_attention
    found: dict[str, Check] = {
        "llama, blocks of 16": partial(check, mixed_lengths(40), Heads(*LLAMA, 16), BF16, GPU),
        "llama, blocks of 128": partial(check, mixed_lengths(40), Heads(*LLAMA, 128), BF16, GPU),
        "qwen, blocks of 32": partial(check, mixed_lengths(20), Heads(*QWEN, 32), BF16, GPU),
        "smollm": partial(check, mixed_lengths(20), Heads(*SMOL, 16), BF16, GPU),
        "smollm, float32": partial(check, mixed_lengths(20), Heads(*SMOL, 16), FP32, GPU),
        "window": partial(check, mixed_lengths(20), Heads(*LLAMA, 16), BF16, GPU, 1000),
        "no grouping, dim 80": partial(check, mixed_lengths(14), Heads(4, 4, 80, 64), BF16, GPU),
        "group of 12": partial(check, mixed_lengths(14), Heads(24, 2, 128, 64), BF16, GPU),
        "one long row": partial(check, [32000], Heads(*LLAMA, 128), BF16, GPU),
        "110 rows": partial(check, [13 * i + 1 for i in range(110)], Heads(*LLAMA, 16), BF16, GPU),
        "300 rows": partial(check, [7 * i + 1 for i in range(300)], Heads(*QWEN, 16), BF16, GPU),
        # 140000 blocks of 16 tokens, 8 heads and 128 elements are more than 2**31 elements
        "large pool": partial(check, [100, 700, 3000], Heads(*LLAMA, 16), BF16, GPU, None, None, 140_000),
        "captured, lengths change": check_captured_decode,
        "repeated": check_repeated_decode,
    }
    for tiling in DECODE_TILINGS:
        name = f"tile {tiling.tile}, {tiling.warps} warps, {tiling.stages} stages"
        found[name] = partial(check, mixed_lengths(30), Heads(*LLAMA, 64), BF16, GPU, None, tiling)
    return found


DECODE_TILINGS = [
    decode.DecodeTiling(64, 4, 3, 3),
    decode.DecodeTiling(64, 4, 4, 2, 4),
    decode.DecodeTiling(32, 4, 4, 4),
    decode.DecodeTiling(32, 2, 4, 4, 4),
    decode.DecodeTiling(32, 2, 3, 5),
    decode.DecodeTiling(128, 8, 3, 1, 4),
]
"""Pipelines worth measuring; how rows are cut, the last number, is varied beside."""


def check_captured_decode() -> None:
    """One captured launch serves whatever lengths are on the device when it is replayed."""
    shape = Heads(*LLAMA, 16)
    case = cases.paged_case([(1, 3000)] * 8, shape, BF16, GPU)
    scratch = decode.allocate_scratch(8, *LLAMA, GPU)
    out = torch.empty_like(case.query)
    caches = (case.key_cache, case.value_cache)

    def attend() -> None:
        decode.decode_attention(case.query, *caches, case.block_table, case.seq_lens, out, scratch, 0.1)

    attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend()
    for lengths in ([1, 2, 3, 2999, 0, 16, 700, 64], [3000] * 8, [5] * 8):
        case.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        out.fill_(math.nan)
        graph.replay()
        right = cases.reference(case, 0.1, None)
        cases.close_where_used(case, out, right, cases.TOLERANCE[BF16], f"replayed with {lengths}")


def check_repeated_decode() -> None:
    """The same bits every time, whoever merges the chunks."""
    case = cases.paged_case([(1, length) for length in mixed_lengths(30)], Heads(*LLAMA, 16), BF16, GPU)
    scratch = decode.allocate_scratch(30, *LLAMA, GPU)
    caches = (case.key_cache, case.value_cache)
    first: torch.Tensor | None = None
    for _ in range(REPEATS):
        out = torch.full_like(case.query, math.nan)
        decode.decode_attention(case.query, *caches, case.block_table, case.seq_lens, out, scratch, 0.1)
        first = out if first is None else first
        assert torch.equal(out.nan_to_num(), first.nan_to_num()), "results change from run to run: a race"


def prompt_checks() -> dict[str, Check]:
    """Whole prompts, chunks, single tokens."""
    check = cases.check_prompt_attention
    rows = [(512, 512), (1, 700), (100, 1100), (33, 33), (7, 2000), (1, 1)]
    return {
        "llama, blocks of 16": partial(check, rows, Heads(*LLAMA, 16), BF16, GPU),
        "llama, blocks of 128": partial(check, rows, Heads(*LLAMA, 128), BF16, GPU),
        "qwen": partial(check, rows, Heads(*QWEN, 16), BF16, GPU),
        "smollm": partial(check, rows, Heads(*SMOL, 16), BF16, GPU),
        "smollm, float32": partial(check, rows, Heads(*SMOL, 16), FP32, GPU),
        "window": partial(check, rows, Heads(*LLAMA, 16), BF16, GPU, 300),
        "no grouping, dim 80": partial(check, rows, Heads(4, 4, 80, 32), BF16, GPU),
    }


def layer_checks() -> dict[str, Check]:
    """Everything between the products."""
    found: dict[str, Check] = {"decode inputs": partial(cases.check_decode_inputs, GPU)}
    for dtype in (BF16, FP32):
        for tokens in (1, 64, 500):
            for normalize in (False, True):
                shape = Heads(*QWEN, 16)
                name = f"rope, {tokens} tokens, norm {normalize}, {dtype}"
                found[name] = partial(cases.check_rope_and_cache, tokens, shape, 128, normalize, dtype, GPU, None)
        found[f"partial rope {dtype}"] = partial(
            cases.check_rope_and_cache, 70, Heads(6, 2, 80, 64), 32, True, dtype, GPU, 2
        )
        for width in (576, 1024, 4096, 5120):
            found[f"norms {width} {dtype}"] = partial(cases.check_norms, 37, width, dtype, GPU)
        found[f"silu {dtype}"] = partial(cases.check_silu_and_mul, 37, 3000, dtype, GPU)
    return found


def sampling_checks() -> dict[str, Check]:
    """All kinds of rows over real vocabularies, flat and peaked."""
    found: dict[str, Check] = {"captured": check_captured_sampling}
    for dtype in (FP32, BF16):
        for filters in (False, True):
            for vocab, spread in ((49152, 2.0), (151936, 1.0), (151936, 0.001), (128256, 8.0)):
                name = f"{vocab} tokens, spread {spread}, filters {filters}, {dtype}"
                found[name] = partial(cases.check_sampling, 96, vocab, spread, filters, dtype, GPU)
    return found


def check_captured_sampling() -> None:
    """A captured draw reads parameters and positions anew at each replay."""
    logits = torch.randn(8, 50000, device=GPU) * 3
    rows = cases.sampling_rows(8, 50000, True, GPU)
    out = torch.empty(8, dtype=torch.int64, device=GPU)
    sampling.sample(logits, rows, True, True, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampling.sample(logits, rows, True, True, out)
    for _ in range(20):
        rows.positions.add_(1)
        out.fill_(-7)
        graph.replay()
        assert out.tolist() == cases.reference_tokens(logits, rows, True).tolist()


def vector_checks() -> dict[str, Check]:
    """Shapes of real layers, and odd ones."""
    found: dict[str, Check] = {}
    for outputs, width in ((4096, 1024), (1024, 3072), (6144, 4096), (4096, 14336), (575, 576), (300, 20000)):
        for dtype in (BF16, FP32):
            check = partial(cases.check_matrix_vector, outputs, width, dtype, GPU, None)
            found[f"{outputs} x {width}, {dtype}"] = check
    tiling = VectorTiling(8, 512, 8, 1)
    found["other tiling"] = partial(cases.check_matrix_vector, 999, 2000, BF16, GPU, tiling)
    return found


CHECKS: dict[str, Callable[[], dict[str, Check]]] = {
    "decode": decode_checks,
    "prompt": prompt_checks,
    "layers": layer_checks,
    "sampling": sampling_checks,
    "vector": vector_checks,
}
