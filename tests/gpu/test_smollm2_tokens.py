"""The default model on a GPU: the tokens that the CPU gives, whatever runs them there.

float32: every set-up gives the tokens of Transformers on the CPU wherever the two best logits are not within 1e-4.
bfloat16: where an answer first leaves that of Transformers in bfloat16, its token is among the reference's five best.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if not Path("/dev/nvidiactl").exists():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

import torch
from greedy_truth import GreedyTruth, prompts_of

from octavo import LLM, SamplingParams

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
SETUPS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "no graphs": {"enforce_eager": True},
    "plain loop": {"overlap_scheduling": False},
    "torch attention": {"attention_backend": "torch"},
    "prompts in chunks": {"max_num_batched_tokens": 64, "max_num_seqs": 24},
    "one at a time": {"max_num_seqs": 1},
    "preempted": {"num_gpu_blocks_override": 90, "max_num_seqs": 24, "block_size": 16},
    "in a process": {"multiprocess": True},
    "no graphs, plain loop": {"enforce_eager": True, "overlap_scheduling": False},
    "torch attention, plain loop": {"attention_backend": "torch", "overlap_scheduling": False},
    "preempted, in chunks, no graphs": {
        "num_gpu_blocks_override": 90,
        "max_num_seqs": 24,
        "block_size": 16,
        "max_num_batched_tokens": 64,
        "enforce_eager": True,
    },
}


@pytest.fixture(scope="module")
def folder() -> Path:
    from octavo.engine.checkpoint.resolver import resolve_model

    return resolve_model(None, quiet=True)


@pytest.fixture(scope="module")
def truth(folder: Path) -> GreedyTruth:
    return GreedyTruth(folder)


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    from octavo.engine.tokenizer import Tokenizer

    return prompts_of(Tokenizer.from_folder(folder))


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Products of float32 numbers are not rounded to TensorFloat-32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def answers(folder: Path, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
    chosen = {"multiprocess": False, "max_model_len": 1024, "kv_cache_memory_bytes": 1 << 30} | settings
    with LLM(str(folder), device="cuda", check_integrity=True, **chosen) as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        preempted = sum(output.timings.num_preemptions for output in outputs)
        assert (preempted > 0) == ("num_gpu_blocks_override" in settings)
        return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("setup", SETUPS, ids=[name.replace(" ", "-").replace(",", "") for name in SETUPS])
def test_float32_gives_the_tokens_of_the_cpu(
    folder: Path, truth: GreedyTruth, prompts: list[list[int]], setup: str
) -> None:
    given = answers(folder, prompts, dtype="float32", **SETUPS[setup])
    for prompt, answer in zip(prompts, given, strict=True):
        assert len(answer) == 64
        complaints = truth.complaints(prompt, answer)
        assert not complaints, f"prompt of {len(prompt)} tokens: {complaints[0]}"


def test_bfloat16_leaves_the_reference_only_for_one_of_its_five_best(folder: Path, prompts: list[list[int]]) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    given = answers(folder, prompts, dtype="bfloat16")
    agreed = 0
    for prompt, answer in zip(prompts, given, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([prompt + answer[:-1]], device="cuda")
            logits = model(ids, logits_to_keep=len(answer)).logits[0].float()
        chosen = torch.tensor(answer, device="cuda")
        different = (logits.argmax(-1) != chosen).nonzero().flatten().tolist()
        if not different:
            agreed += 1
            continue
        first = different[0]
        assert answer[first] in logits[first].topk(5).indices.tolist(), f"prompt of {len(prompt)} tokens, token {first}"
    assert agreed > 0
