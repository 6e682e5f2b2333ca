"""Steps of prompts in chunks beside decodes, through two attention backends that must agree."""

import torch
from paged_model import Sequence, build_layout

from octavo.worker.attention.backend import AttentionBackend
from octavo.worker.layers.norm import HeadNorm
from octavo.worker.layers.rotary import RotaryEmbedding

STEPS = [[(0, 20), (1, 5)], [(0, 1), (1, 13), (2, 3)], [(0, 1), (1, 1), (2, 1)]]
"""(sequence, new tokens) of each step, decodes first."""


def compare_backends(
    reference: AttentionBackend,
    backend: AttentionBackend,
    rotary: RotaryEmbedding,
    heads: tuple[int, int, int],
    block_size: int,
    num_layers: int,
    norm: HeadNorm | None,
) -> None:
    """Take ``STEPS`` with random ``heads`` (H, KH, D) through every layer of both and compare what comes out."""
    num_heads, num_kv_heads, head_dim = heads
    needed = -(-40 // block_size)
    sequences = [Sequence([], 0, [1 + index + 3 * block for block in range(needed)]) for index in range(3)]
    for made in (reference, backend):
        made.allocate(1 + 3 * needed)
    for step in STEPS:
        layout = build_layout([(sequences[index], count) for index, count in step], block_size)
        data = torch.randn(layout.num_tokens, num_heads + 2 * num_kv_heads, head_dim)
        with torch.inference_mode():
            for layer in range(num_layers):
                outputs = [
                    made.forward(
                        layer,
                        data.clone(),
                        num_kv_heads,
                        norm,
                        made.rotation(rotary, layout.positions),
                        made.plan(layout),
                    )
                    for made in (reference, backend)
                ]
                torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=2e-5)
        for index, count in step:
            sequences[index].num_computed += count
