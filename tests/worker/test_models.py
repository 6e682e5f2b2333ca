"""The models compute what Transformers computes from the same checkpoint, however the work is cut into steps."""

from pathlib import Path

import pytest
import torch
import transformers
from checkpoints import VOCAB_SIZE, make_checkpoint
from paged_model import BLOCK_SIZE, PagedModel, Sequence, engine_config

from octavo.core.errors import CheckpointError, UnsupportedModelError
from octavo.worker.models.registry import MODELS

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
VARIANTS: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama no grouping": ("llama", {"num_key_value_heads": 4}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama wide heads": ("llama", {"head_dim": 32, "hidden_act": "gelu"}),
    "llama gelu tanh": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "rope linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "rope dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "rope llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "rope yarn": ("llama", {"rope_parameters": YARN}),
    "rope yarn with mscale": (
        "llama",
        {"rope_parameters": {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False, "beta_fast": 20}},
    ),
    "rope yarn with attention factor": ("qwen3", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 with windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 tied, biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 1}),
}


def random_ids(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def reference_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """Logits [T, vocab] of Transformers' float32 model for the whole sequence."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


@pytest.fixture(scope="module", params=list(VARIANTS.values()), ids=list(VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, overrides = request.param
    return make_checkpoint(tmp_path_factory.mktemp("model"), kind, **overrides)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plain"), "llama")


def test_logits_equal_transformers_for_prompt_chunks_and_decode(variant: Path) -> None:
    token_ids = random_ids(150)
    expected = reference_logits(variant, token_ids)
    assert expected.std() > 0.5, "logits this flat would hide a fault"
    paged = PagedModel(engine_config(variant))
    torch.testing.assert_close(paged.prompt_logits(token_ids), expected, rtol=0, atol=1e-4)

    sequence = paged.start(token_ids)
    parts = [paged.step([(sequence, count)])[0] for count in (5, 40, 1, 64, 2, 28)]
    parts += [paged.step([(sequence, 1)])[0] for _ in range(10)]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-4)


def test_every_token_decoded_alone_equals_the_whole_prompt(plain: Path) -> None:
    token_ids = random_ids(3 * BLOCK_SIZE + 1)
    expected = reference_logits(plain, token_ids)
    paged = PagedModel(engine_config(plain))
    sequence = paged.start(token_ids)
    logits = torch.cat([paged.step([(sequence, 1)])[0] for _ in token_ids])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_a_mixed_batch_equals_each_row_alone(plain: Path) -> None:
    lengths = (3, 8, 9, 17, 70, 150, 151, 40)
    prompts = [random_ids(length + 1, seed) for seed, length in enumerate(lengths)]
    expected = [reference_logits(plain, prompt) for prompt in prompts]
    paged = PagedModel(engine_config(plain))
    sequences = [paged.start(prompt) for prompt in prompts]
    first = paged.step([(s, n) for s, n in zip(sequences[:6], lengths[:6], strict=True)])
    # Six rows decode while one prompt starts and another is cut in two.
    mixed = paged.step([*((s, 1) for s in sequences[:6]), (sequences[6], 100), (sequences[7], 40)])
    last = paged.step([(sequences[7], 1), (sequences[6], 52)])
    for row in range(6):
        got = torch.cat((first[row], mixed[row]))
        torch.testing.assert_close(got, expected[row], rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.cat((mixed[6], last[1])), expected[6], rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.cat((mixed[7], last[0])), expected[7], rtol=0, atol=1e-4)


def test_a_prefix_computed_by_another_request_is_reused(plain: Path) -> None:
    prefix, tail = random_ids(4 * BLOCK_SIZE, 5), random_ids(11, 6)
    paged = PagedModel(engine_config(plain))
    donor = paged.start(prefix + random_ids(20, 7))
    paged.step([(donor, len(donor.token_ids))])
    hit = Sequence(prefix + tail, num_computed=len(prefix), blocks=donor.blocks[:4])
    logits = paged.step([(hit, len(tail))])[0]
    expected = reference_logits(plain, prefix + tail)[len(prefix) :]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_not_a_number_in_a_freed_block_does_not_reach_its_next_owner(plain: Path) -> None:
    token_ids = random_ids(2 * BLOCK_SIZE + 3)
    expected = reference_logits(plain, token_ids)
    paged = PagedModel(engine_config(plain), num_blocks=8)
    backend = paged.backend
    for layer in range(2):
        for cache in backend.cache(layer):  # pyright: ignore[reportAttributeAccessIssue]
            cache[1:].fill_(torch.nan)
    sequence = paged.start(token_ids)
    parts = [paged.step([(sequence, BLOCK_SIZE + 2)])[0]]
    parts += [paged.step([(sequence, 1)])[0] for _ in range(BLOCK_SIZE + 1)]
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-4)


def test_dynamic_rope_past_the_model_positions_equals_cached_generation(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    folder = make_checkpoint(tmp_path, rope_parameters=rope, max_position_embeddings=32)
    token_ids = random_ids(60)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        out = model(torch.tensor([token_ids[:20]]), use_cache=True)
        expected = [out.logits[0]]
        for token in token_ids[20:]:
            out = model(torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True)
            expected.append(out.logits[0])
    paged = PagedModel(engine_config(folder))
    assert paged.model.config.max_model_len == 128
    # In one step, which no cached generation is: keys depend on their position alone.
    torch.testing.assert_close(paged.prompt_logits(token_ids), torch.cat(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_stay_close_to_float32_in_one_step_and_in_many(plain: Path, dtype: str) -> None:
    token_ids = random_ids(90)
    exact = reference_logits(plain, token_ids)
    paged = PagedModel(engine_config(plain, dtype=dtype))
    whole = paged.prompt_logits(token_ids)
    sequence = paged.start(token_ids)
    steps = torch.cat([paged.step([(sequence, count)])[0] for count in (50, 30, *([1] * 10))])
    for logits in (whole, steps):
        assert logits.dtype == torch.float32
        error = (logits - exact).abs().mean() / exact.std()
        assert error < (0.03 if dtype == "bfloat16" else 0.005), f"mean error is {error:.4f} of the logits' deviation"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_int8_equals_the_model_with_dequantized_weights(plain: Path, tmp_path: Path, dtype: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed_tokens" not in name:
                scale = weight.abs().amax(1, keepdim=True) / 127
                weight.copy_((weight / scale).round() * scale)
    model.save_pretrained(tmp_path)
    token_ids = random_ids(40)
    expected = reference_logits(tmp_path, token_ids)
    paged = PagedModel(engine_config(plain, dtype=dtype, quantization="int8"))
    whole = paged.prompt_logits(token_ids)
    sequence = paged.start(token_ids)
    steps = torch.cat([paged.step([(sequence, count)])[0] for count in (30, *([1] * 10))])
    limit = 1e-4 if dtype == "float32" else 0.04
    for logits in (whole, steps):
        assert (logits - expected).abs().mean() / expected.std() < limit
    assert (whole - reference_logits(plain, token_ids)).abs().max() > 1e-3, "nothing was quantized"


def test_an_unknown_architecture_names_those_that_are_known(plain: Path) -> None:
    text = (plain / "config.json").read_text().replace("LlamaForCausalLM", "GrokForCausalLM")
    folder = plain.parent / "grok"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(text)
    config = engine_config(folder)
    with pytest.raises(UnsupportedModelError, match=r"GrokForCausalLM.*LlamaForCausalLM, Qwen2.*Qwen3"):
        PagedModel(config)
    assert set(MODELS) == {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantization_config", {"quant_method": "awq"}),
        ("final_logit_softcapping", 30.0),
        ("num_experts", 8),
        ("layer_types", ["full_attention", "linear_attention"]),
        ("partial_rotary_factor", 0.01),
    ],
)
def test_a_feature_that_would_change_results_is_refused(plain: Path, name: str, value: object) -> None:
    config = engine_config(plain)
    config.model.hf[name] = value
    with pytest.raises((UnsupportedModelError, CheckpointError), match=name.replace("layer_types", "linear_attention")):
        PagedModel(config)
