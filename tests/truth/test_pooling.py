"""Vectors and scores equal those of Transformers: of encoders, of decoders beside generations, of cross-encoders."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import VOCAB_SIZE, make_checkpoint
from encoders import add_pooling, make_encoder, minilm
from safetensors.torch import load_file, save_file

from octavo import LLM, AsyncLLM, EngineArgs, PoolingParams, SamplingParams
from octavo.core.errors import CheckpointError, ConfigurationError, ContextLengthError, RequestError

IN_THREAD: dict[str, Any] = {"multiprocess": False, "check_integrity": True, "dtype": "float32"}


def ragged_texts(count: int) -> list[str]:
    """Texts of one to a hundred words, in no order."""
    words = ["river", "paper", "moon", "Überraschung", "calculating", "a", "of", "42"]
    generator = random.Random(7)
    return [" ".join(generator.choices(words, k=1 + 37 * at % 100)) for at in range(count)]


def unit(vector: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(vector, dim=0).numpy()


def largest_difference(got: list[Any], expected: list[np.ndarray]) -> float:
    return max(float(np.abs(one.embedding - other).max()) for one, other in zip(got, expected, strict=True))


@pytest.fixture(scope="module")
def real() -> Path:
    return minilm()


@pytest.fixture(scope="module")
def real_vectors(real: Path) -> list[np.ndarray]:
    """Transformers' vectors of ``ragged_texts(30)``, each text alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(real)
    model = transformers.AutoModel.from_pretrained(real, dtype=torch.float32)
    vectors = []
    for text in ragged_texts(30):
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.inference_mode():
            vectors.append(unit(model(**encoded).last_hidden_state[0].mean(0)))
    return vectors


def test_a_real_encoder_gives_transformers_vectors_alone_and_in_a_ragged_batch(
    real: Path, real_vectors: list[np.ndarray]
) -> None:
    texts = ragged_texts(30)
    with LLM(str(real), check_integrity=True) as llm:
        assert llm.config.scheduler.max_model_len == 256  # as sentence-transformers cuts
        alone = [llm.embed(text, use_tqdm=False)[0] for text in texts[:3]]
        batch = llm.embed(texts, use_tqdm=False)
        similarities = llm.score(texts[0], texts, use_tqdm=False)
    assert largest_difference(alone, real_vectors[:3]) < 1e-4
    assert largest_difference(batch, real_vectors) < 1e-4
    assert similarities == pytest.approx([float(real_vectors[0] @ other) for other in real_vectors], abs=1e-4)
    assert similarities[0] == pytest.approx(1.0, abs=1e-5)


def test_pairs_that_do_not_fit_each_other_are_refused_by_name(real: Path) -> None:
    with LLM(str(real), **IN_THREAD) as llm:
        for first, second in ((["a", "b"], ["c", "d", "e"]), ([], ["a"]), ("a", [])):
            with pytest.raises(RequestError, match=r"first|second"):
                llm.score(first, second)
        assert llm.embed([], use_tqdm=False) == []
        with pytest.raises(RequestError, match="one text at a time"):
            llm.embed("a", PoolingParams(second_text_at=2))


def reference_states(folder: Path, ids: list[int]) -> torch.Tensor:
    """Transformers' last hidden states [T, hidden]."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0]


def random_prompts(*lengths: int) -> list[list[int]]:
    generator = random.Random(3)
    return [[generator.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("decoder"), request.param)


@pytest.mark.parametrize("pooling", ["auto", "mean"])
def test_a_decoder_pools_in_chunks_beside_generations(decoder: Path, pooling: Any) -> None:
    prompts = random_prompts(1, 5, 16, 33, 90, 230)
    prompts.append(prompts[4][:64] + prompts[5][:30])
    args = EngineArgs(
        model=str(decoder), dtype="float32", pooling=pooling, max_model_len=256, max_num_seqs=8, check_integrity=True,
        max_num_batched_tokens=24, kv_cache_memory_bytes=1_000_000,
    )  # fmt: skip
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)

    async def generated(llm: AsyncLLM, prompt: list[int]) -> list[int]:
        outputs = [output async for output in llm.generate(prompt, greedy)]
        return outputs[-1].outputs[0].token_ids

    async def scenario() -> None:
        llm = AsyncLLM.from_engine_args(args, multiprocess=False)
        try:
            alone = [await generated(llm, prompt) for prompt in prompts[:4]]
            await llm.call("reset_prefix_cache")
            states = [reference_states(decoder, ids) for ids in prompts]
            expected = [unit(one.mean(0) if pooling == "mean" else one[-1]) for one in states]
            for turn in range(2):
                both = (*(llm.encode(ids) for ids in prompts), *(generated(llm, ids) for ids in prompts[:4]))
                results = await asyncio.gather(*both)
                assert largest_difference(results[: len(prompts)], expected) < 1e-4
                assert list(results[len(prompts) :]) == alone
                cached = [output.num_cached_tokens for output in results[: len(prompts)]]
                assert (sum(cached) > 0) == (pooling != "mean") or turn == 0
                assert pooling != "mean" or not any(cached)
        finally:
            await llm.shutdown()

    asyncio.run(scenario())


def test_an_embedding_model_stored_without_head_and_prefix_is_read(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "qwen3", tie_word_embeddings=True)
    (prompt,) = random_prompts(20)
    expected = [unit(reference_states(folder, prompt)[-1])]
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    add_pooling(folder, "lasttoken")
    with LLM(str(folder), **IN_THREAD) as llm:
        assert largest_difference(llm.embed([prompt], use_tqdm=False), expected) < 1e-4


PAIRS = [
    ("abc def", "a"),
    ("hello there", "general kenobi and some more letters"),
    ("x", "x y z"),
    ("abc def", "abc def"),
]


def reference_scores(
    folder: Path,
    pairs: list[tuple[str, str]],
    kind: Any = transformers.BertForSequenceClassification,
    types: bool = True,
) -> list[float]:
    """Transformers' logits of each pair alone."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = kind.from_pretrained(folder, dtype=torch.float32)
    scores = []
    for pair in pairs:
        encoded = tokenizer(*pair, return_tensors="pt", return_token_type_ids=types)
        assert not types or encoded["token_type_ids"].max() == 1
        with torch.inference_mode():
            scores.append(float(model(**encoded).logits[0, 0]))
    return scores


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("settings", "activation"),
    [
        ({}, lambda logit: 1 / (1 + np.exp(-logit))),
        ({"sbert_ce_default_activation_function": IDENTITY}, float),
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.0"}}, float),
    ],
)
def test_a_cross_encoder_scores_pairs_as_transformers_does(tmp_path: Path, settings: Any, activation: Any) -> None:
    folder = make_encoder(tmp_path / "model", transformers.BertForSequenceClassification, num_labels=1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    expected = [activation(logit) for logit in reference_scores(folder, PAIRS)]
    with LLM(str(folder), **IN_THREAD) as llm:
        firsts, seconds = ([pair[at] for pair in PAIRS] for at in (0, 1))
        assert llm.score(firsts, seconds, use_tqdm=False) == pytest.approx(expected, abs=1e-4)
        assert llm.score(*PAIRS[1], use_tqdm=False) == pytest.approx(expected[1:2], abs=1e-4)
        with pytest.raises(RequestError, match="scores of pairs"):
            llm.embed("abc")
        with pytest.raises(RequestError, match="no text"):
            llm.generate("abc")


def test_a_pair_that_is_too_long_is_refused_or_cut_with_its_special_tokens_kept(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", transformers.BertForSequenceClassification, num_labels=1)
    long = "abc " * 40
    with LLM(str(folder), **IN_THREAD) as llm:
        with pytest.raises(ContextLengthError, match="64"):
            llm.score("abc", long)
        (cut,) = llm.score("abc", long, PoolingParams(truncate_prompt_tokens=-1), use_tqdm=False)
        assert llm.tokenizer is not None
        ids, second_at = llm.tokenizer.encode_whole("abc", long, 64)
    assert (len(ids), ids[0], ids[second_at - 1], ids[-1]) == (64, 2, 3, 3) and second_at == 5
    assert 0 < cut < 1


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder stored with the head of its training, as BertForMaskedLM."""
    return make_encoder(tmp_path_factory.mktemp("masked"), transformers.BertForMaskedLM)


TEXTS = ["abc", "a much longer text of many letters", "zz 0 1"]


def encoder_vectors(folder: Path, **settings: Any) -> list[np.ndarray]:
    with LLM(str(folder), **IN_THREAD, **settings) as llm:
        return [output.embedding for output in llm.embed(TEXTS, use_tqdm=False)]


def reference_encodings(folder: Path) -> list[torch.Tensor]:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return [reference_states(folder, tokenizer(text)["input_ids"]) for text in TEXTS]


@pytest.mark.parametrize(
    ("mode", "normalize", "pooled"),
    [
        ("mean_tokens", True, lambda states: unit(states.mean(0))),
        ("mean_tokens", False, lambda states: states.mean(0).numpy()),
        ("cls_token", True, lambda states: unit(states[0])),
        ("lasttoken", True, lambda states: unit(states[-1])),
    ],
)
def test_an_encoder_pools_as_its_folder_says(masked: Path, mode: str, normalize: bool, pooled: Any) -> None:
    add_pooling(masked, mode, normalize=normalize)
    for got, states in zip(encoder_vectors(masked), reference_encodings(masked), strict=True):
        assert np.abs(got - pooled(states)).max() < 1e-4


def test_the_flag_goes_before_the_folder_and_a_text_has_its_own_length_limit(masked: Path) -> None:
    add_pooling(masked, "cls_token", longest=20)
    expected = [unit(states.mean(0)) for states in reference_encodings(masked)[::2]]
    with LLM(str(masked), pooling="mean", **IN_THREAD) as llm:
        assert largest_difference(llm.embed(TEXTS[::2], use_tqdm=False), expected) < 1e-4
        with pytest.raises(ContextLengthError, match="20"):
            llm.embed(TEXTS[1])
    with LLM(str(masked), max_model_len=64, **IN_THREAD) as llm:
        assert len(llm.embed(TEXTS[1], use_tqdm=False)[0].prompt_token_ids) > 20


@pytest.mark.parametrize("name", ["RobertaModel", "XLMRobertaForMaskedLM"])
@pytest.mark.parametrize("padding", [0, 1])
def test_roberta_counts_positions_from_its_padding_token(tmp_path: Path, name: str, padding: int) -> None:
    kind = getattr(transformers, name)
    folder = make_encoder(tmp_path / "model", kind, pad_token_id=padding, type_vocab_size=1, layer_norm_eps=1e-5)
    expected = [unit(states.mean(0)) for states in reference_encodings(folder)]
    for got, vector in zip(encoder_vectors(folder), expected, strict=True):
        assert np.abs(got - vector).max() < 1e-4
    with LLM(str(folder), **IN_THREAD) as llm:
        longest = 64 - padding - 1
        llm.embed({"prompt_token_ids": [5] * longest}, use_tqdm=False)
        with pytest.raises(ContextLengthError, match=str(longest)):
            llm.embed({"prompt_token_ids": [5] * (longest + 1)})


@pytest.mark.parametrize("name", ["RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"])
def test_a_roberta_cross_encoder_scores_pairs_as_transformers_does(tmp_path: Path, name: str) -> None:
    kind = getattr(transformers, name)
    folder = make_encoder(tmp_path / "model", kind, num_labels=1, type_vocab_size=1)
    expected = [1 / (1 + np.exp(-logit)) for logit in reference_scores(folder, PAIRS, kind, types=False)]
    with LLM(str(folder), **IN_THREAD) as llm:
        firsts, seconds = ([pair[at] for pair in PAIRS] for at in (0, 1))
        assert llm.score(firsts, seconds, use_tqdm=False) == pytest.approx(expected, abs=1e-4)


def test_norms_under_their_old_names_are_read(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", transformers.BertModel)
    expected = encoder_vectors(folder)
    tensors = load_file(folder / "model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        renamed[f"bert.{name}"] = tensor
    save_file(renamed, folder / "model.safetensors")
    assert all(map(np.array_equal, encoder_vectors(folder), expected))


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"block_size": 16}, "--block-size"),
        ({"kv_cache_memory_bytes": 1000}, "--kv-cache-memory-bytes"),
        ({"max_num_batched_tokens": 32, "max_num_seqs": 8}, "--max-num-batched-tokens"),
        ({"attention_backend": "flash"}, "--attention-backend"),
    ],
)
def test_settings_that_mean_nothing_for_an_encoder_are_refused(tmp_path: Path, settings: Any, told: str) -> None:
    folder = make_encoder(tmp_path / "model", transformers.BertModel)
    with pytest.raises(ConfigurationError, match=told):
        LLM(str(folder), **IN_THREAD, **settings)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"position_embedding_type": "relative_key"}, "absolute"),
        ({"hidden_act": "silu"}, "silu"),
        ({"architectures": ["BertForSequenceClassification"]}, "one label"),
    ],
)
def test_encoders_that_would_compute_something_else_are_refused(tmp_path: Path, changes: Any, told: str) -> None:
    folder = make_encoder(tmp_path / "model", transformers.BertModel)
    edit_config(folder, **changes)
    with pytest.raises(ConfigurationError, match=told):
        LLM(str(folder), **IN_THREAD)


def test_modules_and_poolings_without_code_are_refused(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "model", transformers.BertModel)
    for modes, extra, told in (
        (["max_tokens"], {}, "max_tokens"),
        ([], {}, "nothing"),
        (["cls_token"], {"2_Dense": "Dense"}, "Dense"),
    ):
        add_pooling(folder, *modes, **extra)
        with pytest.raises(ConfigurationError, match=told):
            LLM(str(folder), **IN_THREAD)
    (folder / "modules.json").write_text('{"no": "list"}')
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        LLM(str(folder), **IN_THREAD)


def test_the_first_token_of_a_decoder_is_no_vector(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="first token"):
        LLM(str(folder), pooling="cls", **IN_THREAD)


@pytest.mark.parametrize(
    "changes", [{"quantization": "int8"}, {"dtype": "bfloat16"}, {"distributed_executor_backend": "mp"}]
)
def test_an_encoder_runs_with_other_weights_and_executors(masked: Path, changes: Any) -> None:
    add_pooling(masked, "mean_tokens")
    expected = encoder_vectors(masked)
    with LLM(str(masked), **IN_THREAD | changes) as llm:
        got = llm.embed(TEXTS, use_tqdm=False)
    assert min(float(one.embedding @ other) for one, other in zip(got, expected, strict=True)) > 0.999
