"""From the joined projection of queries, keys and values to rotated queries and a written cache, in one launch.

Each head may first be normalized (Qwen3). Results are rounded to the model's type where the torch references
(``kernels.rms_norm``, ``kernels.rotary``) round them.
"""

import torch
import triton
import triton.language as tl

from .device import ceil_div, power_of_2

_FEW_TOKENS = 64
"""Up to so many tokens a launch has too few heads to fill the device, and one head per program is quickest."""


def rope_and_cache(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    rotary_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_out: torch.Tensor,
    norm_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    heads_per_program: int | None = None,
) -> torch.Tensor:
    """Fill and return ``query_out`` [T, H, D]; write keys and values to the cache.

    ``qkv`` is [T, (H + 2 KH) * D], rows may be strided. ``positions`` int64 [T] index ``rotary_table`` [P, R]: R / 2
    cosines, then R / 2 sines, for the first R elements of a head; element i is paired with i + R / 2.
    ``slot_mapping`` int64 [T] counts slots through the pool; a token with a negative slot writes nothing to the
    caches [num_blocks, block_size, KH, D] (contiguous but for the stride of a block). ``norm_weight`` [H + KH, D], if
    given, normalizes query heads, then key heads, by RMS with ``eps``.
    """
    num_tokens = qkv.shape[0]
    num_heads, head_dim = query_out.shape[1:]
    _, block_size, num_kv_heads, _ = key_cache.shape
    total = num_heads + 2 * num_kv_heads
    if heads_per_program is None:
        heads_per_program = 1 if num_tokens <= _FEW_TOKENS else 4
    if num_tokens == 0:
        return query_out
    _rope_and_cache_kernel[num_tokens, ceil_div(total, heads_per_program)](
        qkv, positions, rotary_table, slot_mapping, key_cache, value_cache, query_out,
        qkv if norm_weight is None else norm_weight, qkv.stride(0), query_out.stride(0), key_cache.stride(0), eps,
        HEADS=num_heads, KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, DIM_PAD=power_of_2(head_dim),
        ROTARY_DIM=rotary_table.shape[1], BLOCK_SIZE=block_size, PER_PROGRAM=heads_per_program,
        NORMALIZE=norm_weight is not None, num_warps=1 if heads_per_program <= 4 else 4,
    )  # fmt: skip
    return query_out


@triton.jit
def _normalized(
    x: tl.tensor, squares: tl.tensor, weight: tl.tensor, eps: tl.tensor, HEAD_DIM: tl.constexpr
) -> tl.tensor:
    """x [N, D] over the root of the mean of ``squares`` [N], rounded, times ``weight``, rounded; as float32."""
    scale = tl.rsqrt(squares * (1.0 / HEAD_DIM) + eps)
    rounded = (x.to(tl.float32) * scale[:, None]).to(x.dtype).to(tl.float32)
    return (rounded * weight.to(tl.float32)).to(x.dtype).to(tl.float32)


@triton.jit(do_not_specialize_on_alignment=("positions", "slot_mapping"))
def _rope_and_cache_kernel(
    qkv: tl.tensor, positions: tl.tensor, rotary_table: tl.tensor, slot_mapping: tl.tensor, key_cache: tl.tensor,
    value_cache: tl.tensor, query_out: tl.tensor, norm_weight: tl.tensor, qkv_stride: tl.tensor,
    query_stride: tl.tensor, block_stride: tl.tensor, eps: tl.tensor,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    ROTARY_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, PER_PROGRAM: tl.constexpr, NORMALIZE: tl.constexpr,
) -> None:  # fmt: skip
    HALF: tl.constexpr = ROTARY_DIM // 2
    TURNED: tl.constexpr = HEADS + KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * PER_PROGRAM + tl.arange(0, PER_PROGRAM)
    dims = tl.arange(0, DIM_PAD)
    within = (dims < HEAD_DIM)[None, :]
    exists = within & (heads < TURNED + KV_HEADS)[:, None]
    row = qkv + token * qkv_stride
    x = tl.load(row + heads[:, None] * HEAD_DIM + dims[None, :], mask=exists, other=0.0)
    turned = exists & (heads < TURNED)[:, None]
    # The element that each one is paired with: read again, from the first-level cache.
    pair = tl.where(dims < HALF, dims + HALF, tl.where(dims < ROTARY_DIM, dims - HALF, dims))
    other = tl.load(row + heads[:, None] * HEAD_DIM + pair[None, :], mask=turned, other=0.0)
    own, across = x.to(tl.float32), other.to(tl.float32)
    if NORMALIZE:
        squares = tl.sum(own * own, 1)
        weight = norm_weight + heads[:, None] * HEAD_DIM
        own = _normalized(x, squares, tl.load(weight + dims[None, :], mask=turned, other=0.0), eps, HEAD_DIM)
        across = _normalized(other, squares, tl.load(weight + pair[None, :], mask=turned, other=0.0), eps, HEAD_DIM)
    angles = rotary_table + tl.load(positions + token) * ROTARY_DIM
    turns = dims < ROTARY_DIM
    cos = tl.load(angles + dims % HALF, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(angles + HALF + dims % HALF, mask=turns, other=0.0).to(tl.float32)
    sin = tl.where(dims < HALF, -sin, sin)
    first = (own * cos[None, :]).to(x.dtype).to(tl.float32)
    result = (first + across * sin[None, :]).to(x.dtype)
    to_query = exists & (heads < HEADS)[:, None]
    tl.store(query_out + token * query_stride + heads[:, None] * HEAD_DIM + dims[None, :], result, mask=to_query)
    slot = tl.load(slot_mapping + token)
    # A negative slot keeps to the pool's start for the address, and writes nothing.
    kept = tl.maximum(slot, 0)
    place = (kept // BLOCK_SIZE) * block_stride + (kept % BLOCK_SIZE) * (KV_HEADS * HEAD_DIM)
    kept_at = (tl.zeros_like(heads) + slot >= 0)[:, None]
    to_keys = turned & (heads >= HEADS)[:, None] & kept_at
    at_keys = place + (heads - HEADS)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(key_cache + at_keys, result, mask=to_keys)
    to_values = exists & (heads >= TURNED)[:, None] & kept_at
    at_values = place + (heads - TURNED)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(value_cache + at_values, x, mask=to_values)
