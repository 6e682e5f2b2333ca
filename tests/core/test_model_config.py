"""What a model's configuration files say, and one line for what they cannot mean."""

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import make_checkpoint

from octavo.core.errors import CheckpointError, ConfigurationError
from octavo.core.model_config import read_model_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("generation", "ends", "sampling"),
    [
        ({"eos_token_id": [2, 0], "temperature": 0.6, "top_k": 20}, [2, 0], {"temperature": 0.6, "top_k": 20}),
        ({"eos_token_id": 0, "top_p": None, "max_length": "x"}, [0], {}),
        ({"eos_token_id": None, "top_k": 0, "top_p": 1, "do_sample": True}, [2], {"top_k": 0, "top_p": 1}),
    ],
)
def test_end_tokens_and_defaults_of_the_generation_config(
    folder: Path, generation: dict[str, Any], ends: list[int], sampling: dict[str, Any]
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(generation))
    config = read_model_config(folder)
    assert (config.eos_token_ids, config.default_sampling) == (ends, sampling)


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "default"}, 1000),
        ({"rope_type": "linear", "factor": 4.0}, 4000),
        ({"rope_type": "yarn", "factor": 4.0}, 4000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}, 4000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}, 1000),
        ({"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 250}, 1000),
        ({"rope_type": "yarn", "factor": "two"}, 1000),  # the rotation says what is wrong
    ],
)
def test_the_context_is_as_long_as_the_rotation_is_stretched(
    tmp_path: Path, folder: Path, rope: dict[str, Any], limit: int
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"max_position_embeddings": 1000, "rope_parameters": rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model_config(tmp_path).max_model_len == limit
    with pytest.raises(ConfigurationError, match=f"limit of {limit}"):
        read_model_config(tmp_path, max_model_len=limit + 1)


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("generation_config.json", {"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ("generation_config.json", {"eos_token_id": [[2]]}, "eos_token_id must be a token id"),
        ("generation_config.json", {"temperature": "hot"}, "temperature"),
        ("generation_config.json", {"temperature": -1}, "temperature"),
        ("generation_config.json", {"top_k": 1.5}, "top_k"),
        ("config.json", {"rms_norm_eps": "a"}, "rms_norm_eps must be a number"),
        ("config.json", {"hidden_size": "64"}, "hidden_size must be a positive integer"),
    ],
)
def test_a_value_that_cannot_be_meant_is_told_with_its_file(
    tmp_path: Path, folder: Path, name: str, fields: dict[str, Any], words: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    for each, content in (("config.json", config), ("generation_config.json", {})):
        (tmp_path / each).write_text(json.dumps(content | (fields if each == name else {})))
    with pytest.raises(CheckpointError, match=words) as caught:
        read_model_config(tmp_path)
    assert name in str(caught.value) and "\n" not in str(caught.value)
