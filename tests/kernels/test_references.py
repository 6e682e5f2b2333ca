"""Each kernel's torch reference against the plainest statement of what it computes."""

import pytest
import torch
import torch.nn.functional as F

from octavo.kernels.embedding import embedding
from octavo.kernels.gated_activation import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from octavo.kernels.int8_linear import dequantize_int8, int8_linear, quantize_int8
from octavo.kernels.kv_blocks import gather_blocks, write_kv
from octavo.kernels.linear import linear, pack_weight, packed_linear, packing_supported
from octavo.kernels.rms_norm import add_rms_norm, rms_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_rounds_before_the_weight_and_keeps_its_input(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 64).to(dtype), torch.rand(64).to(dtype) + 0.5
    before = x.clone()
    wide = x.float()
    normalized = (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), weight * normalized, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, before)


def test_add_rms_norm_returns_the_sum_and_its_norm() -> None:
    x, residual, weight = torch.randn(3, 32), torch.randn(3, 32), torch.rand(32)
    total = x + residual
    normed, carried = add_rms_norm(x, residual.clone(), weight, 1e-6)
    assert torch.equal(carried, total)
    assert torch.equal(normed, rms_norm(total, weight, 1e-6))


def test_gated_activations_multiply_the_second_half_by_the_activated_first() -> None:
    gate, up = torch.randn(4, 24), torch.randn(4, 24)
    joined = torch.cat((gate, up), 1)
    torch.testing.assert_close(silu_and_mul(joined), gate * torch.sigmoid(gate) * up)
    torch.testing.assert_close(gelu_and_mul(joined), F.gelu(gate) * up)
    torch.testing.assert_close(gelu_tanh_and_mul(joined), F.gelu(gate, approximate="tanh") * up)
    assert torch.equal(joined, torch.cat((gate, up), 1)), "the input was overwritten"


def test_vocabulary_shards_sum_to_the_whole_lookup() -> None:
    weight, ids = torch.randn(10, 4), torch.tensor([0, 9, 4, 5, 5])
    whole = embedding(ids, weight)
    assert torch.equal(whole, weight[ids])
    assert torch.equal(embedding(ids, weight[:5], 0) + embedding(ids, weight[5:], 5), whole)


def test_keys_and_values_go_to_their_slots_and_nowhere_else() -> None:
    keys, values = torch.zeros(4, 2, 3, 5), torch.zeros(4, 2, 3, 5)
    key, value = torch.randn(3, 3, 5), torch.randn(3, 3, 5)
    write_kv(key, value, keys.flatten(0, 1), values.flatten(0, 1), torch.tensor([7, 2, 4]))
    assert torch.equal(keys[[3, 1, 2], [1, 0, 0]], key)
    assert torch.equal(values[[3, 1, 2], [1, 0, 0]], value)
    assert keys.count_nonzero() == key.numel()


def test_gathered_blocks_come_in_the_order_asked_for() -> None:
    cache = torch.randn(5, 12)
    out = torch.empty(3, 12)
    gather_blocks(cache, torch.tensor([4, 0, 4], dtype=torch.int32), out)
    assert torch.equal(out, cache[[4, 0, 4]])


@pytest.mark.skipif(not packing_supported(), reason="this CPU has no bfloat16 products")
@pytest.mark.parametrize("rows", [1, 7, 130])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_product_equals_the_plain_one(rows: int, biased: bool) -> None:
    x, weight = torch.randn(rows, 48).bfloat16(), torch.randn(40, 48).bfloat16()
    bias = torch.randn(40).bfloat16() if biased else None
    exact = x.float() @ weight.float().t() + (0 if bias is None else bias.float())
    got = packed_linear(x, pack_weight(weight), bias)
    torch.testing.assert_close(got.float(), exact, rtol=0.01, atol=0.05)
    torch.testing.assert_close(linear(x, weight, bias).float(), exact, rtol=0.01, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_rounding_is_within_half_a_step_and_its_product_is_that_of_the_rounded_weight(dtype: torch.dtype) -> None:
    weight = (torch.randn(33, 64) * torch.logspace(-3, 2, 33).unsqueeze(1)).to(dtype)
    weight[5] = 0
    quantized, scales = quantize_int8(weight)
    assert quantized.dtype == torch.int8 and scales.shape == (33,)
    rounded = quantized.float() * scales.float().unsqueeze(1)
    slack = 1.0 if dtype == torch.float32 else 1.4  # the largest value of a row may be clipped by a rounded scale
    assert ((rounded - weight.float()).abs() <= 0.5 * slack * scales.float().unsqueeze(1) + 1e-12).all()
    assert torch.equal(rounded[5], torch.zeros(64))
    x = torch.randn(3, 64).to(dtype)
    product = int8_linear(x, quantized, scales, None).float()
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(product, x.float() @ rounded.t(), rtol=tolerance, atol=tolerance * 10)
    tolerance = 1e-6 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(dequantize_int8(quantized, scales).float(), rounded, rtol=tolerance, atol=0)
