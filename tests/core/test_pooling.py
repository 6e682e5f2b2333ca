"""``PoolingParams`` and what a model's folder says about pooling."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.core.errors import CheckpointError, ConfigurationError, RequestError, UnsupportedModelError
from octavo.core.pooling_config import PoolingConfig, longest_input, read_pooling_config
from octavo.core.pooling_params import PoolingParams

NUMBERS = np.array([3.0, 4.0, 12.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dimensions", 0),
        ("dimensions", True),
        ("dimensions", 2.5),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
        ("second_text_at", -1),
        ("normalize", 1),
        ("priority", None),
    ],
)
def test_a_bad_value_is_told_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        PoolingParams(**{name: value})
    assert caught.value.param == name


def test_a_vector_is_cut_before_it_is_normalized() -> None:
    pooled = NUMBERS.tobytes()
    assert PoolingParams(normalize=True, dimensions=2).finish(pooled).tolist() == pytest.approx([0.6, 0.8])
    assert PoolingParams(normalize=False, dimensions=2).finish(pooled).tolist() == [3.0, 4.0]
    whole = PoolingParams(normalize=True).finish(pooled)
    assert whole.dtype == np.float32 and float(np.linalg.norm(whole)) == pytest.approx(1.0)


def test_a_vector_of_nothing_stays_nothing() -> None:
    assert PoolingParams(normalize=True).finish(np.zeros(4, np.float32).tobytes()).tolist() == [0.0] * 4


def write(folder: Path, modules: Any, pooling: dict[str, Any]) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def modules(*kinds: str) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.models.{kind}", "path": "1_Pooling"} for kind in kinds]


@pytest.mark.parametrize(
    ("kinds", "pooling", "expected"),
    [
        (("Transformer", "Pooling", "Normalize"), {"pooling_mode_mean_tokens": True}, ("mean", True)),
        (("Transformer", "Pooling"), {"pooling_mode_cls_token": True, "pooling_mode_max": False}, ("cls", False)),
        (("Transformer", "Pooling"), {"pooling_mode_lasttoken": True}, ("last", False)),
        (("Transformer", "Pooling", "Normalize"), {"pooling_mode": "lasttoken"}, ("last", True)),
        (("Transformer", "Normalize"), {}, ("mean", True)),
    ],
)  # fmt: skip
def test_sentence_transformers_files_are_followed(
    tmp_path: Path, kinds: tuple[str, ...], pooling: dict[str, Any], expected: tuple[str, bool]
) -> None:
    write(tmp_path, modules(*kinds), pooling)
    config = read_pooling_config(tmp_path, {}, "BertModel", "auto")
    assert (config.kind, config.normalize) == expected
    assert read_pooling_config(tmp_path, {}, "BertModel", "last").kind == "last"


def test_without_files_encoders_take_the_mean_and_decoders_the_last_token(tmp_path: Path) -> None:
    assert read_pooling_config(tmp_path, {}, "BertModel", "auto") == PoolingConfig(kind="mean")
    assert read_pooling_config(tmp_path, {}, "LlamaForCausalLM", "auto") == PoolingConfig(kind="last")
    assert read_pooling_config(tmp_path, {}, "BertForSequenceClassification", "auto").scores_pairs


def test_matryoshka_models_say_so_in_their_configuration(tmp_path: Path) -> None:
    some = read_pooling_config(tmp_path, {"matryoshka_dimensions": [64, 256]}, "BertModel", "auto")
    assert (some.matryoshka, some.dimensions) == (True, [64, 256])
    assert read_pooling_config(tmp_path, {"is_matryoshka": True}, "BertModel", "auto").matryoshka
    assert not read_pooling_config(tmp_path, {}, "BertModel", "auto").matryoshka


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    write(tmp_path, modules("Transformer", "Pooling"), {"pooling_mode_max_tokens": True})
    with pytest.raises(UnsupportedModelError, match="max_tokens"):
        read_pooling_config(tmp_path, {}, "BertModel", "auto")
    write(tmp_path, modules("Transformer", "Dense"), {})
    with pytest.raises(UnsupportedModelError, match="Dense"):
        read_pooling_config(tmp_path, {}, "BertModel", "auto")
    with pytest.raises(ConfigurationError, match="--pooling"):
        read_pooling_config(tmp_path, {}, "BertForSequenceClassification", "mean")


def test_texts_are_as_long_as_sentence_transformers_lets_them(tmp_path: Path) -> None:
    assert longest_input(tmp_path, 512) == 512
    for written, expected in ((256, 256), (1024, 512), (None, 512)):
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": written}))
        assert longest_input(tmp_path, 512) == expected
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "long"}')
    with pytest.raises(CheckpointError, match="max_seq_length"):
        longest_input(tmp_path, 512)
