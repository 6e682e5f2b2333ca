"""Loading checkpoints: sharded or not, tied or not, and one clear line for each way they can be broken."""

import json
import logging
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint
from paged_model import CPU, PagedModel, engine_config
from safetensors.torch import load_file, save_file

from octavo.core.errors import CheckpointError, ConfigurationError
from octavo.kernels.linear import linear, packing_supported
from octavo.worker.layers.linear import InputCutLinear, MergedLinear, OutputPart
from octavo.worker.layers.linear_method import PackedLinearMethod
from octavo.worker.layers.weights import Shard
from octavo.worker.loader.loader import fill_dummy, load_model

IDS = [5, 9, 200, 17, 31, 8]
SINGLE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def logits_of(folder: Path, **settings: object) -> torch.Tensor:
    return PagedModel(engine_config(folder, **settings)).prompt_logits(IDS)


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / SINGLE)
    edit(tensors)
    save_file(tensors, folder / SINGLE)


def test_a_sharded_checkpoint_equals_the_single_file(folder: Path, tmp_path: Path) -> None:
    sharded = make_checkpoint(tmp_path / "sharded", max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert not (sharded / SINGLE).exists()
    assert torch.equal(logits_of(sharded), logits_of(folder))


def test_weights_of_another_dtype_are_converted(folder: Path) -> None:
    rounded = {name: tensor.bfloat16() for name, tensor in load_file(folder / SINGLE).items()}
    edit_tensors(folder, lambda tensors: tensors.update({name: t.float() for name, t in rounded.items()}))
    expected = logits_of(folder)
    save_file(rounded, folder / SINGLE)
    assert torch.equal(logits_of(folder), expected)


def test_a_tied_head_stored_in_the_file_gives_way_to_the_embedding(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tied", tie_word_embeddings=True)
    expected = logits_of(folder)
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": torch.randn_like(t["model.embed_tokens.weight"])}))
    assert torch.equal(logits_of(folder), expected)


def set_config(folder: Path, **changes: object) -> None:
    """Change config.json; None takes a field away."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in config.items() if value is not None})
    )


def test_without_the_flag_the_architecture_decides_whether_the_head_is_tied(folder: Path) -> None:
    expected = logits_of(folder)
    set_config(folder, tie_word_embeddings=None)
    assert torch.equal(logits_of(folder), expected)
    edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        logits_of(folder)
    set_config(folder, tie_word_embeddings=True)
    assert not torch.allclose(logits_of(folder), expected)


def test_a_dtype_that_config_promises_and_the_file_does_not_hold_is_computed_in(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({name: tensor.half() for name, tensor in t.items()}))
    set_config(folder, dtype="bfloat16", torch_dtype=None)
    config = engine_config(folder, dtype="auto")
    assert config.model.dtype == "bfloat16"
    exact = logits_of(folder, dtype="float32")
    assert torch.allclose(PagedModel(config).prompt_logits(IDS), exact, rtol=0, atol=0.02 * float(exact.abs().max()))


def test_stored_rotary_tables_are_ignored_and_other_extras_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits_of(folder)
    caplog.clear()
    edit_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert torch.equal(logits_of(folder), expected)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    edit_tensors(folder, lambda t: t.update({"model.layers.0.self_attn.sinks": torch.ones(4)}))
    assert torch.equal(logits_of(folder), expected)
    assert "model.layers.0.self_attn.sinks" in caplog.text


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.pop(name))


def reshape(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.ones(63)}))


def make_integers(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))


def empty(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"")


def truncate(folder: Path) -> None:
    data = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(data[: len(data) // 2])


def point(folder: Path) -> None:
    (folder / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def garble(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"\xff" * 4096)


def name_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-00002.safetensors"}}))


def break_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")


def escape_folder(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))


def only_pickles(folder: Path) -> None:
    (folder / SINGLE).rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (drop("model.layers.1.mlp.up_proj.weight"), r"lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        (drop("model.layers.0.self_attn.k_proj.weight"), r"lacks model\.layers\.0\.self_attn\.k_proj\.weight"),
        (drop("lm_head.weight"), r"lacks lm_head\.weight \(.*tie_word_embeddings"),
        (reshape, r"model\.norm\.weight has shape \(63,\), but config\.json makes it \(64,\)"),
        (make_integers, r"model\.norm\.weight holds torch\.int8"),
        (empty, r"model\.safetensors \(0 bytes\) is empty"),
        (truncate, "cut short"),
        (garble, "no safetensors file"),
        (point, "a pointer to them; fetch them with: git lfs pull"),
        (name_missing_shard, r"model-00002\.safetensors is missing"),
        (break_index, r"index\.json is no index"),
        (escape_folder, "no file of its folder"),
        (only_pickles, r"pytorch_model\.bin is not read, convert it"),
    ],
)
def test_a_broken_checkpoint_is_one_line_that_names_the_fault(
    folder: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(folder)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_model(engine_config(folder), CPU)
    assert "\n" not in str(caught.value)


def test_a_shard_that_is_gone_is_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "sharded", max_shard_size="100KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name} is missing"):
        load_model(engine_config(folder), CPU)


def test_many_missing_tensors_are_counted_not_listed(folder: Path) -> None:
    save_file({"model.norm.weight": torch.ones(64)}, folder / SINGLE)
    with pytest.raises(CheckpointError, match=r"model\.embed_tokens\.weight.* and \d+ more") as caught:
        load_model(engine_config(folder), CPU)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_dummy_weights_need_no_files_are_repeatable_and_sane(tmp_path: Path, kind: str) -> None:
    folder = make_checkpoint(tmp_path / "model", kind)
    (folder / SINGLE).unlink()
    first = logits_of(folder, load_format="dummy")
    assert torch.equal(logits_of(folder, load_format="dummy"), first)
    assert not torch.allclose(logits_of(folder, load_format="dummy", seed=1), first)
    assert 0.5 < first.std() < 8, f"deviation of the logits is {first.std():.2f}"


def test_int8_on_a_gpu_is_refused_by_name(folder: Path) -> None:
    config = engine_config(folder, quantization="int8")
    with pytest.raises(ConfigurationError, match="--quantization int8 works on the CPU only"):
        load_model(config, torch.device("cuda"))


def test_shards_of_a_layer_together_are_the_layer(folder: Path) -> None:
    parts = [OutputPart("q", 4, 16), OutputPart("k", 2, 16), OutputPart("v", 2, 16)]

    def merged(shard: Shard) -> MergedLinear:
        return MergedLinear(8, parts, True, torch.float32, CPU, shard)

    def narrowed(shard: Shard) -> InputCutLinear:
        return InputCutLinear("o", 64, 8, False, torch.float32, CPU, shard)

    whole, halves = merged(Shard()), [merged(Shard(rank, 2)) for rank in range(2)]
    inputs, input_halves = narrowed(Shard()), [narrowed(Shard(rank, 2)) for rank in range(2)]
    for layer in (whole, *halves, inputs, *input_halves):
        fill_dummy(list(layer.slots("layer.")), seed=0)
    assert whole.weight is not None and halves[0].weight is not None and halves[1].weight is not None
    q, k, v = whole.weight.split((64, 32, 32))
    for rank, half in enumerate(halves):
        expected = torch.cat([part.chunk(2)[rank] for part in (q, k, v)])
        assert half.weight is not None and torch.equal(half.weight, expected)
        assert half.bias is not None and whole.bias is not None
        biases = torch.cat([part.chunk(2)[rank] for part in whole.bias.split((64, 32, 32))])
        assert torch.equal(half.bias, biases)
    joined = torch.cat([half.weight for half in input_halves if half.weight is not None], 1)
    assert inputs.weight is not None and torch.equal(joined, inputs.weight)


_COUNT_FAULTS = """
import resource, sys, torch
from octavo.worker.loader.heap import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("the C library refused")
for _ in range(30):  # the heap grows for a while before it fits
    torch.ones(40 << 20, dtype=torch.int8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(40 << 20, dtype=torch.int8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_of_repeated_allocation(how: str) -> int:
    command = [sys.executable, "-c", _COUNT_FAULTS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap of another C library is left alone")
def test_large_activations_are_not_faulted_in_anew_each_time() -> None:
    assert faults_of_repeated_allocation("default") > 1000, "the C library keeps memory by itself: heap.py can go"
    assert faults_of_repeated_allocation("keep") < 100


@pytest.mark.skipif(not packing_supported(), reason="this CPU has no bfloat16 products")
def test_small_weights_are_kept_for_one_row_as_far_as_their_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(8, 32).bfloat16()
    monkeypatch.setattr(PackedLinearMethod, "SECOND_COPY_BYTES", weight.nbytes)
    rows: list[int] = []

    def one_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows.append(x.shape[0])
        return linear(x, weight, bias)

    method = PackedLinearMethod(one_row)
    kept, packed_only = method.prepare(weight, None), method.prepare(weight.clone(), None)
    x = torch.randn(3, 32).bfloat16()
    for operator in (kept, packed_only):
        torch.testing.assert_close(operator(x[:1]), linear(x[:1], weight), rtol=0.01, atol=0.05)
        torch.testing.assert_close(operator(x), linear(x, weight), rtol=0.01, atol=0.05)
    assert rows == [1], "only one row of the weight kept goes that way"
    assert (kept.num_bytes, packed_only.num_bytes) == (2 * weight.nbytes, weight.nbytes)
    assert kept.shares(weight) and not packed_only.shares(weight)


@pytest.mark.skipif(not packing_supported(), reason="this CPU has no bfloat16 products")
@pytest.mark.parametrize("vocab", [1008, 1010], ids=["kept for one row, too", "packed alone"])
def test_a_tied_table_counts_once_beside_its_packed_copy(tmp_path: Path, vocab: int) -> None:
    folder = make_checkpoint(tmp_path, vocab_size=vocab, tie_word_embeddings=True)
    model = load_model(engine_config(folder, dtype="bfloat16"), CPU)
    linears = [part for layer in model.layers for part in (layer.attention.qkv, layer.attention.out)]
    linears += [part for layer in model.layers for part in (layer.mlp.gate_up, layer.mlp.down)]
    norms = sum(layer.attention_norm.weight.nbytes + layer.mlp_norm.weight.nbytes for layer in model.layers)
    products = sum(layer.operator.num_bytes for layer in linears)
    rest = norms + model.norm.weight.nbytes + model.rotary.num_bytes + products
    assert model.weight_bytes - rest == 2 * model.embedding.weight.nbytes
