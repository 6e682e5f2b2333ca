"""Cases that hold a Triton kernel against its torch reference, on the CPU (interpreted, tiny) or on a GPU.

Each ``check_...`` raises AssertionError with what it measured. Outputs are poisoned with NaN first, and free slots
of caches too, so that nothing unwritten or unowned passes for a result.
"""

import math
from dataclasses import dataclass

import torch
from paged_attention import paged_attention

from octavo.kernels import gated_activation, rms_norm, sampling
from octavo.kernels.rotary import apply_rotary
from octavo.kernels.triton import decode_attention as decode
from octavo.kernels.triton import decode_inputs as inputs
from octavo.kernels.triton import gated_activation as fast_activation
from octavo.kernels.triton import matrix_vector as vector
from octavo.kernels.triton import prompt_attention as prompt
from octavo.kernels.triton import rms_norm as fast_norm
from octavo.kernels.triton import rope_and_cache as rope
from octavo.kernels.triton import sampling as fast_sampling

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}
"""Of the norm of the error over that of the result."""


def close(got: torch.Tensor, right: torch.Tensor, tolerance: float, what: str) -> None:
    """Norm of the difference over the norm of ``right``, with NaN never close."""
    # The interpreter truncates to 16 bits instead of rounding.
    allowed = 2 * tolerance if got.device.type == "cpu" else tolerance
    error = float((got.double() - right.double()).norm() / right.double().norm().clamp(min=1e-30))
    assert error <= allowed, f"{what}: relative error {error:.1e}, allowed {allowed:.0e}"


@dataclass(frozen=True, slots=True)
class PagedCase:
    """Rows over a paged cache in which every slot that no row owns holds NaN."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, KV heads, their size, and the block size of the cache."""

    heads: int
    kv_heads: int
    dim: int
    block: int


def paged_case(
    rows: list[tuple[int, int]], shape: Heads, dtype: torch.dtype, device: torch.device, blocks: int | None = None
) -> PagedCase:
    """Rows of (new tokens, all tokens) with random contents, their blocks shuffled. ``blocks``: size of the pool."""
    needed = [math.ceil(total / shape.block) for _, total in rows]
    blocks = blocks or sum(needed) + 3
    cache = (blocks, shape.block, shape.kv_heads, shape.dim)
    key = torch.full(cache, math.nan, dtype=dtype, device=device)
    value = key.clone()
    # Entries of the table past a row's blocks are undefined: here they point far outside of the pool.
    table = torch.full((len(rows), max([*needed, 1]) + 2), 2**30, dtype=torch.int32, device=device)
    # The highest blocks are used, so that a large pool tests large offsets.
    order = blocks - 1 - torch.randperm(sum(needed), device=device)
    at = 0
    for row, (count, (_, total)) in enumerate(zip(needed, rows, strict=True)):
        own = order[at : at + count]
        table[row, :count] = own.int()
        slots = (own[:, None] * shape.block + torch.arange(shape.block, device=device)).flatten()[:total]
        for part in (key, value):
            part.flatten(0, 1)[slots] = torch.randn(total, shape.kv_heads, shape.dim, device=device).to(dtype)
        at += count
    starts = torch.tensor([0, *[new for new, _ in rows]], device=device).cumsum(0).int()
    query = torch.randn(int(starts[-1]), shape.heads, shape.dim, device=device).to(dtype)
    lengths = torch.tensor([total for _, total in rows], dtype=torch.int32, device=device)
    return PagedCase(query, key, value, starts, lengths, table)


def reference(case: PagedCase, scale: float, window: int | None) -> torch.Tensor:
    """Attention in float32. Rows of length 0 give 0."""
    live = [row for row, length in enumerate(case.seq_lens.tolist()) if length]
    out = torch.zeros_like(case.query)
    for row in live:
        start, stop = case.query_start_loc[row : row + 2].tolist()
        starts = torch.tensor([0, stop - start], dtype=torch.int32)
        part = slice(row, row + 1)
        # float64 would be finer, but bfloat16's own rounding is a thousand times coarser than float32's
        out[start:stop] = paged_attention(
            case.query[start:stop], case.key_cache, case.value_cache, starts, case.seq_lens[part],
            case.block_table[part], scale, window,
        )  # fmt: skip
    return out


def close_where_used(case: PagedCase, got: torch.Tensor, right: torch.Tensor, tolerance: float, what: str) -> None:
    """``close`` for decode attention, which leaves rows of length 0 poisoned."""
    used = case.seq_lens > 0
    close(got[used], right[used], tolerance, what)
    assert got[~used].isnan().all(), f"{what}: wrote into a row that is none"


def check_decode_attention(
    lengths: list[int],
    shape: Heads,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
    tiling: decode.DecodeTiling | None = None,
    blocks: int | None = None,
) -> None:
    """Rows of all lengths against float32."""
    case = paged_case([(1, length) for length in lengths], shape, dtype, device, blocks)
    scratch = decode.allocate_scratch(len(lengths), shape.heads, shape.kv_heads, shape.dim, device)
    for tensor in (scratch.outputs, scratch.maxima, scratch.sums):
        tensor.fill_(math.nan)
    scale = shape.dim**-0.5

    out = torch.full_like(case.query, math.nan)
    decode.decode_attention(
        case.query, case.key_cache, case.value_cache, case.block_table, case.seq_lens, out, scratch, scale, window,
        tiling,
    )  # fmt: skip
    close_where_used(case, out, reference(case, scale, window), TOLERANCE[dtype], f"decode attention of {lengths[:6]}")
    assert not scratch.arrived.any(), "the counters of finished parts were not reset"
    assert not scratch.queue.any(), "the queue was not reset"


def check_prompt_attention(
    rows: list[tuple[int, int]],
    shape: Heads,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
    tiling: prompt.PromptTiling | None = None,
) -> None:
    """Rows of (new, all) tokens against float32."""
    case = paged_case(rows, shape, dtype, device)
    scale = shape.dim**-0.5
    out = torch.full_like(case.query, math.nan)
    prompt.prompt_attention(
        case.query, case.key_cache, case.value_cache, case.query_start_loc, case.seq_lens, case.block_table, out, scale,
        window, tiling,
    )  # fmt: skip
    close(out, reference(case, scale, window), TOLERANCE[dtype], f"prompt attention of {rows[:6]}")


def check_rope_and_cache(
    tokens: int, shape: Heads, rotary: int, normalize: bool, dtype: torch.dtype, device: torch.device, per: int | None
) -> None:
    """Rotated queries, and a cache in which only the tokens' slots changed; a negative slot writes nothing."""
    total = shape.heads + 2 * shape.kv_heads
    qkv = torch.randn(tokens, total * shape.dim + 16, device=device).to(dtype)[:, : total * shape.dim]
    positions = torch.randint(0, 50, (tokens,), device=device)
    angles = torch.randn(50, rotary // 2, device=device)
    table = torch.cat((angles.cos(), angles.sin()), 1).to(dtype)
    blocks = tokens // shape.block + 3
    slots = torch.randperm(blocks * shape.block, device=device)[:tokens]
    slots[0] = -1
    cache = (blocks, shape.block, shape.kv_heads, shape.dim)
    key_cache, value_cache = (
        torch.zeros(cache, dtype=dtype, device=device),
        torch.zeros(cache, dtype=dtype, device=device),
    )
    norm = shape.heads + shape.kv_heads
    weight = (1 + 0.2 * torch.randn(norm, shape.dim, device=device)).to(dtype) if normalize else None
    out = torch.full((tokens, shape.heads, shape.dim), math.nan, dtype=dtype, device=device)
    rope.rope_and_cache(qkv, positions, table, slots, key_cache, value_cache, out, weight, 1e-6, per)
    heads = qkv.reshape(tokens, total, shape.dim)
    turned = heads[:, :norm] if weight is None else rms_norm.rms_norm(heads[:, :norm], weight, 1e-6)
    cos, sin = table[positions].unsqueeze(1).chunk(2, -1)
    turned = apply_rotary(turned, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    keys, values = torch.zeros_like(key_cache).flatten(0, 1), torch.zeros_like(value_cache).flatten(0, 1)
    keys[slots[1:]], values[slots[1:]] = turned[1:, shape.heads :], heads[1:, norm:]
    close(out, turned[:, : shape.heads], TOLERANCE[dtype], "rotated queries")
    close(key_cache.flatten(0, 1), keys, TOLERANCE[dtype], "cached keys")
    assert torch.equal(key_cache.flatten(0, 1) != 0, keys != 0), "a key was written to a wrong slot"
    assert torch.equal(value_cache.flatten(0, 1), values), "cached values differ"


def check_norms(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Both norms; the sum that is carried on is exact."""
    x, residual = (torch.randn(rows, width + 8, device=device).to(dtype)[:, :width] for _ in range(2))
    weight = (1 + 0.2 * torch.randn(width, device=device)).to(dtype)
    close(fast_norm.rms_norm(x, weight, 1e-5), rms_norm.rms_norm(x, weight, 1e-5), TOLERANCE[dtype], "norm")
    total = (x.double() + residual.double()).to(dtype)
    carried = residual.clone()
    normed, same = fast_norm.add_rms_norm(x, carried, weight, 1e-5)
    assert same is carried, "the sum is not where it belongs"
    close(carried, total, TOLERANCE[dtype] if device.type == "cpu" else 0.0, "residual sum")
    close(normed, rms_norm.rms_norm(total, weight, 1e-5), TOLERANCE[dtype], "norm of the sum")


def check_silu_and_mul(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Against the reference."""
    joined = torch.randn(rows, 2 * width, device=device).to(dtype)
    right = gated_activation.silu_and_mul(joined)
    close(fast_activation.silu_and_mul(joined), right, TOLERANCE[dtype], "silu and product")


def check_decode_inputs(device: torch.device) -> None:
    """Rows in any order, a padding row, a row at the last slot of a block and one at the first of the next."""
    slots = torch.tensor([2, -1, 0, 3], dtype=torch.int32, device=device)
    computed = torch.tensor([16, 5, 33, 15], dtype=torch.int32, device=device)
    last = torch.tensor([7, 8, 9, 10], device=device)
    tables = torch.arange(20, dtype=torch.int32, device=device).reshape(4, 5) + 100
    ids, positions, mapping = (torch.full((4,), -7, device=device) for _ in range(3))
    lengths = torch.full((4,), -7, dtype=torch.int32, device=device)
    table = torch.full((4, 4), -7, dtype=torch.int32, device=device)
    inputs.decode_inputs(slots, computed, last, tables, 16, ids, positions, lengths, mapping, table)
    assert ids.tolist() == [9, 0, 7, 10]
    assert positions.tolist() == [33, 0, 16, 15]
    assert lengths.tolist() == [34, 0, 17, 16]
    assert mapping.tolist() == [112 * 16 + 1, -1, 101 * 16, 115 * 16 + 15]
    assert table.tolist() == [[110, 111, 112, -7], [-7] * 4, [100, 101, -7, -7], [115, -7, -7, -7]]
    assert computed.tolist() == [17, 5, 34, 16], "tokens counted"


def check_matrix_vector(
    outputs: int, width: int, dtype: torch.dtype, device: torch.device, tiling: vector.VectorTiling | None
) -> None:
    """Plain, biased and gated products against float64."""
    x = torch.randn(1, width, device=device).to(dtype)
    weight = (torch.randn(2 * outputs, width, device=device) * width**-0.5).to(dtype)
    bias = torch.randn(2 * outputs, device=device).to(dtype)
    exact = x.double() @ weight.double().t()
    close(vector.matrix_vector(x, weight, tiling=tiling), exact, TOLERANCE[dtype], "product")
    close(vector.matrix_vector(x, weight, bias, tiling=tiling), exact + bias.double(), TOLERANCE[dtype], "with bias")
    gated = torch.nn.functional.silu(exact[:, :outputs]) * exact[:, outputs:]
    close(vector.gated_matrix_vector(x, weight, tiling=tiling), gated, 2 * TOLERANCE[dtype], "gated product")
    residual = torch.randn(1, width, device=device).to(dtype)
    before, total = residual.clone(), torch.full_like(residual, math.nan)
    norm = vector.InputNorm((1 + 0.2 * torch.randn(width, device=device)).to(dtype), 1e-5, residual, total)
    carried = (x.double() + residual.double()).to(dtype)
    exact = rms_norm.rms_norm(carried, norm.weight, 1e-5).double() @ weight.double().t()
    close(vector.matrix_vector(x, weight, bias, norm, None, tiling), exact + bias.double(), TOLERANCE[dtype], "norm")
    close(total, carried, TOLERANCE[dtype] if device.type == "cpu" else 0.0, "residual sum")
    assert torch.equal(residual, before), "the residual was overwritten"
    gated = torch.nn.functional.silu(exact[:, :outputs]) * exact[:, outputs:]
    got = vector.gated_matrix_vector(x, weight, norm, None, tiling)
    close(got, gated, 2 * TOLERANCE[dtype], "gated product of a norm")
    plain = vector.InputNorm(norm.weight, 1e-5)
    exact = rms_norm.rms_norm(x, norm.weight, 1e-5).double() @ weight.double().t()
    close(vector.matrix_vector(x, weight, None, plain, None, tiling), exact, TOLERANCE[dtype], "norm, no residual")


def sampling_rows(count: int, vocab: int, filters: bool, device: torch.device) -> fast_sampling.SamplingRows:
    """Rows that mix greedy and drawn ones, and, with ``filters``, all kinds of top-k, top-p and min_p."""
    turn = torch.arange(count)
    everything = torch.full((count,), vocab)
    top_k = torch.tensor([vocab, 5, vocab + 10, min(40, vocab), 2 * vocab // 3, 1])[turn % 6] if filters else everything
    top_p = torch.tensor([1.0, 0.9, 0.3, 0.999] if filters else [1.0], dtype=torch.float64)
    columns = (
        torch.tensor([1.0, 0.0, 0.7, 1.3])[turn % 4],
        top_k,
        top_p[turn % len(top_p)],
        torch.tensor([0.0, 0.0, 0.05 if filters else 0.0])[(turn // 2) % 3],
        torch.randint(-(2**62), 2**62, (count,)),
        torch.randint(0, 10**6, (count,)),
    )
    return fast_sampling.SamplingRows(*(column.contiguous().to(device) for column in columns))


def reference_tokens(logits: torch.Tensor, rows: fast_sampling.SamplingRows, filters: bool) -> torch.Tensor:
    """What ``kernels.sampling`` draws."""
    logits = logits.float()
    drawn = rows.temperature > 1e-5
    scaled = logits / torch.where(drawn, rows.temperature, 1.0)[:, None]
    noise = sampling.uniform(rows.seeds, rows.positions)
    if filters:
        top_k = rows.top_k.clamp(max=logits.shape[1])
        tokens = sampling.draw_filtered(scaled, noise, rows.min_p, top_k, rows.top_p, None)
    else:
        tokens = sampling.draw_plain(scaled, noise, rows.min_p)
    return torch.where(drawn, tokens, sampling.greedy(logits))


def check_sampling(
    count: int, vocab: int, spread: float, filters: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """The reference's tokens, for all rows together and for some alone.

    ``exp`` and sums may differ in their last bits, so a noise that falls within about 1e-6 of a border between two
    tokens can give the other one: one row in a thousand may differ, none is expected to.
    """
    logits = (torch.randn(count, vocab, device=device) * spread).to(dtype)
    rows = sampling_rows(count, vocab, filters, device)
    out = torch.full((count,), -7, device=device)
    tokens = fast_sampling.sample(logits, rows, True, filters, out)
    right = reference_tokens(logits, rows, filters)
    wrong = int((tokens != right).sum())
    assert wrong <= count // 1000, f"{wrong} of {count} rows drew another token ({vocab} tokens, spread {spread})"
    plain = (rows.top_k >= vocab) & (rows.top_p >= 1.0) & (rows.min_p == 0.0)
    again = fast_sampling.sample(logits, rows, True, False)
    assert torch.equal(again[plain], tokens[plain]), "other rows' filters change a row without"
    for row in range(min(3, count)):
        part = slice(row, row + 1)
        fields = (getattr(rows, name)[part].clone() for name in rows.__slots__)
        alone = fast_sampling.sample(logits[part].clone(), fast_sampling.SamplingRows(*fields), True, filters)
        assert torch.equal(alone, tokens[part]), f"row {row} depends on the batch"
