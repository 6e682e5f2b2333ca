"""The engine's greedy tokens are those of Transformers, however the engine is set up.

24 prompts of 1 to 900 tokens, 64 tokens each, float32. The set-ups are those that have gone wrong in engines of this
kind: alone or together, prompts whole or in chunks, cache off, cold and hit, requests preempted, either loop, engine
in a thread or a process, worker in the engine's process or its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make_checkpoint
from greedy_truth import GreedyTruth, prompts_of

from octavo import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def answers(llm: LLM, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


class Truth:
    """The reference model, its prompts, and a check of answers to them."""

    def __init__(self, folder: Path) -> None:
        from octavo.engine.tokenizer import Tokenizer

        self.folder = folder
        self.reference = GreedyTruth(folder)
        self.prompts = prompts_of(Tokenizer.from_folder(folder))

    def check(self, given: list[list[int]], prompts: list[list[int]] | None = None) -> None:
        for prompt, answer in zip(prompts or self.prompts, given, strict=True):
            assert len(answer) == 64
            complaints = self.reference.complaints(prompt, answer)
            assert not complaints, f"prompt of {len(prompt)} tokens: {complaints[0]}"


@pytest.fixture(scope="module")
def truth(default_model: Path) -> Truth:
    return Truth(default_model)


SETUPS: dict[str, dict[str, Any]] = {
    "as it comes, in a process": {"multiprocess": True},
    "worker in its own process": {"multiprocess": True, "distributed_executor_backend": "mp"},
    "plain loop": {"overlap_scheduling": False},
    "prompts in chunks": {"max_num_batched_tokens": 64, "max_num_seqs": 24},
    "no cache, prompts whole": {"enable_prefix_caching": False, "enable_chunked_prefill": False},
    "a pool so small that requests are preempted": {"num_gpu_blocks_override": 90, "max_num_seqs": 24},
    "blocks of 5 tokens": {"block_size": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=[name.replace(" ", "-") for name in SETUPS])
def test_the_default_model_gives_the_tokens_of_transformers(truth: Truth, setup: str) -> None:
    settings = {"multiprocess": False, "dtype": "float32", "max_model_len": 1024, **SETUPS[setup]}
    with LLM(str(truth.folder), check_integrity=True, **settings) as llm:
        outputs = llm.generate(truth.prompts, GREEDY, use_tqdm=False)
        truth.check([output.outputs[0].token_ids for output in outputs])
        preempted = sum(output.timings.num_preemptions for output in outputs)
        assert (preempted > 0) == ("preempted" in setup)


@pytest.mark.slow
def test_alone_and_from_the_cache_the_tokens_are_the_same(truth: Truth) -> None:
    with LLM(str(truth.folder), multiprocess=False, dtype="float32", max_model_len=1024) as llm:
        some = truth.prompts[::3]
        alone = [answers(llm, [prompt])[0] for prompt in some]
        truth.check(alone, some)
        hits = llm.generate(some, GREEDY, use_tqdm=False)
        truth.check([output.outputs[0].token_ids for output in hits], some)
        for prompt, output in zip(some, hits, strict=True):
            assert output.num_cached_tokens == (len(prompt) - 1) // 16 * 16


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def small_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Truth]:
    folder = tmp_path_factory.mktemp(request.param)
    yield Truth(make_checkpoint(folder, kind=request.param, max_position_embeddings=1024))


def test_small_models_give_the_tokens_of_transformers(small_model: Truth) -> None:
    with LLM(str(small_model.folder), multiprocess=False, dtype="float32", max_num_batched_tokens=256) as llm:
        small_model.check(answers(llm, small_model.prompts))


VARIANTS: dict[str, dict[str, Any]] = {
    "llama, tied": {"kind": "llama", "tie_word_embeddings": True},
    "llama, biases": {"kind": "llama", "attention_bias": True, "mlp_bias": True},
    "llama, one key head": {"kind": "llama", "num_key_value_heads": 1},
    "llama, no grouping": {"kind": "llama", "num_attention_heads": 4, "num_key_value_heads": 4},
    "qwen2, tied": {"kind": "qwen2", "tie_word_embeddings": True},
    "qwen3, tied": {"kind": "qwen3", "tie_word_embeddings": True},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "rope llama3": {
        "rope_parameters": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256, "rope_theta": 10000.0,
        }
    },
    "rope yarn": {
        "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0,
        }
    },
    "rope dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS, ids=[name.replace(", ", "-").replace(" ", "-") for name in VARIANTS])
def test_every_variant_gives_the_tokens_of_transformers(variant: str, tmp_path: Path) -> None:
    settings = {"kind": "llama", "max_position_embeddings": 1024} | VARIANTS[variant]
    truth = Truth(make_checkpoint(tmp_path / "model", **settings))
    with LLM(str(truth.folder), multiprocess=False, dtype="float32", max_num_batched_tokens=256) as llm:
        truth.check(answers(llm, truth.prompts))
