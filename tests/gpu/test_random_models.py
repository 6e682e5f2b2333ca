"""Small random models on a GPU, for what the default model has not: windows, and heads that FlashAttention takes.

float32: the tokens of the CPU. bfloat16: where an answer leaves the best token of Transformers in float32, its token is
among the reference's five best.
"""

from pathlib import Path
from typing import Any

import pytest

if not Path("/dev/nvidiactl").exists():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

import random

import torch
from checkpoints import VOCAB_SIZE, make_checkpoint
from transformers import AutoModelForCausalLM

from octavo import LLM, SamplingParams
from octavo.worker.attention.flash_backend import flash_attention_available

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SETUPS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "no graphs": {"enforce_eager": True},
    "plain loop": {"overlap_scheduling": False},
    "prompts in chunks": {"max_num_batched_tokens": 48, "max_num_seqs": 16},
    "preempted": {"num_gpu_blocks_override": 7, "max_num_seqs": 16, "block_size": 128},
    "asked twice": {"rounds": 2},
}


def prompts() -> list[list[int]]:
    chance = random.Random(0)
    return [
        [chance.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in (1, 5, 16, 17, 33, 64, 100, 200, 300)
    ]


def answers(folder: Path, device: str, dtype: str, rounds: int = 1, **settings: Any) -> list[list[int]]:
    """Of the last round; in a second one the beginnings of long prompts are in the cache."""
    chosen: dict[str, Any] = {"max_model_len": 512, "kv_cache_memory_bytes": 64 << 20} | settings
    with LLM(str(folder), device=device, dtype=dtype, multiprocess=False, check_integrity=True, **chosen) as llm:
        outputs = [llm.generate(prompts(), GREEDY, use_tqdm=False) for _ in range(rounds)][-1]
        assert (sum(output.num_cached_tokens for output in outputs) > 0) >= (rounds > 1)
        preempted = sum(output.timings.num_preemptions for output in outputs)
        assert (preempted > 0) == ("num_gpu_blocks_override" in settings)
        return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("setup", ["graphs", "no graphs", "prompts in chunks"])
def test_a_window_gives_the_tokens_of_the_cpu(tmp_path: Path, setup: str) -> None:
    window = {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1, "num_hidden_layers": 3}
    folder = make_checkpoint(tmp_path, kind="qwen2", hidden_size=256, **window)
    right = answers(folder, "cpu", "float32")
    settings = SETUPS[setup]
    assert answers(folder, "cuda", "float32", attention_backend="triton", **settings) == right


@pytest.fixture(scope="module")
def large_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"head_dim": 128, "hidden_size": 256, "initializer_range": 0.05}
    return make_checkpoint(tmp_path_factory.mktemp("large-heads"), kind="qwen3", **sizes)


@pytest.fixture(scope="module")
def reference(large_heads: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(large_heads, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize("backend", ["flash", "triton"])
@pytest.mark.parametrize("setup", SETUPS, ids=[name.replace(" ", "-") for name in SETUPS])
def test_bfloat16_leaves_the_best_token_only_for_one_of_the_five_best(
    large_heads: Path, reference: Any, backend: str, setup: str
) -> None:
    if backend == "flash" and not flash_attention_available():
        pytest.skip("fa3-fwd is not installed")
    settings = {"attention_backend": backend, "block_size": 128} | SETUPS[setup]
    agreed = 0
    for prompt, answer in zip(prompts(), answers(large_heads, "cuda", "bfloat16", **settings), strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer[:-1]]), logits_to_keep=len(answer)).logits[0]
        different = (logits.argmax(-1) != torch.tensor(answer)).nonzero().flatten().tolist()
        agreed += not different
        if different:
            first = different[0]
            best = logits[first].topk(5).indices.tolist()
            assert answer[first] in best, f"prompt of {len(prompt)} tokens, token {first}"
    assert agreed > 0
