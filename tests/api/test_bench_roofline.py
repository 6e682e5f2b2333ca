"""What work needs at least: against Transformers' own parameters, and against a count step by step."""

import json
from pathlib import Path

import pytest
from stub_engine import make_config, make_tokenizer

from octavo.api.bench.decode_steps import DecodeSteps
from octavo.api.bench.roofline import Ceilings, ModelNeeds, Needs
from octavo.api.bench.workload import Work, fixed_work
from octavo.core.engine_args import EngineArgs

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 64, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model without weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_weights_are_those_that_a_step_multiplies_with(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    needs = {dtype: ModelNeeds(EngineArgs(dtype=dtype).build(folder).model) for dtype in ("float32", "bfloat16")}
    assert (needs["float32"].weight_bytes, needs["bfloat16"].weight_bytes) == (4 * matrices, 2 * matrices)
    assert needs["float32"].decode_step([0.0] * 5).num_flops == 2 * 5 * matrices


def test_the_whole_is_the_sum_of_its_steps(folder: Path) -> None:
    config = EngineArgs(dtype="float32").build(folder)
    needs = ModelNeeds(config.model)
    work = Work("mixed", (5, 9), (4, 2))
    whole = needs.whole(work, config)
    steps = [needs.prefill(work.prompt_lens), *(needs.decode_step(c) for c in ([6.0, 10.0], [7.0], [8.0]))]
    assert whole.num_bytes == sum(step.num_bytes for step in steps)
    assert whole.num_flops == pytest.approx(sum(step.num_flops for step in steps))


@pytest.mark.parametrize(
    ("flags", "steps"), [({}, 4), ({"max_num_seqs": 2}, 16), ({"max_num_seqs": 4, "max_num_batched_tokens": 4}, 22)]
)
def test_limits_of_the_engine_make_more_steps(folder: Path, flags: dict[str, int], steps: int) -> None:
    config = EngineArgs(dtype="float32", **flags).build(folder)  # type: ignore[arg-type]
    needs = ModelNeeds(config.model)
    work = fixed_work(8, 8, 4)
    contexts = [8.0 + step for _ in range(8) for step in (1, 2, 3)]
    cache = needs.decode_step(contexts).num_bytes - needs.weight_bytes
    assert needs.whole(work, config).num_bytes == steps * needs.weight_bytes + cache


def test_rates_are_told_with_their_shares() -> None:
    needs = Needs(num_bytes=3e9, num_flops=5e11)
    assert needs.rates(2.0, None) == ("1.5", "0.25")
    assert needs.rates(2.0, Ceilings(3e9, 1e12)) == ("1.5 (50%)", "0.25 (25%)")


def test_decode_steps_run_through_messages_and_text() -> None:
    tokenizer = make_tokenizer()
    steps = DecodeSteps(make_config(tokenizer.vocab_size), tokenizer, num_running=5, num_steps=4)
    for _ in range(4):
        seconds, messages = steps.step_core()
        assert seconds > 0 and len(messages) == 1
        assert steps.process_outputs(messages)[1] == 5
