"""Rotary tables: what the kinds promise, what is refused, and partial rotation."""

from pathlib import Path

import pytest
import torch
from checkpoints import make_checkpoint
from paged_model import engine_config

from octavo.core.errors import CheckpointError, UnsupportedModelError
from octavo.core.model_config import ModelConfig, RopeConfig
from octavo.kernels.rotary import apply_rotary
from octavo.worker.layers.rotary import RotaryEmbedding, rotary_frequencies

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("rotary"))


def with_rope(folder: Path, kind: str, **parameters: object) -> ModelConfig:
    model = engine_config(folder).model
    values = {name: getattr(model, name) for name in model.__struct_fields__}
    return ModelConfig(**{**values, "rope": RopeConfig(kind, 10000.0, parameters)})


def rotate_pairs(head: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Element i and element i + R/2 turned as a complex number, by definition; the rest is kept."""
    half = angles.shape[0]
    turned = torch.complex(head[:half], head[half : 2 * half]) * torch.polar(torch.ones(half), angles)
    return torch.cat((turned.real, turned.imag, head[2 * half :]))


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.25])
def test_each_token_turns_by_its_position_and_only_in_the_rotary_part(folder: Path, factor: float) -> None:
    config = with_rope(folder, "default", partial_rotary_factor=factor)
    positions = torch.tensor([0, 1, 5, 700])
    heads = torch.randn(4, 3, config.head_dim)
    got = apply_rotary(heads, *RotaryEmbedding(config, torch.float32, CPU).rows(positions))
    size = int(config.head_dim * factor)
    frequencies = torch.tensor([10000.0 ** (-i / size) for i in range(0, size, 2)])
    for token, position in enumerate(positions.tolist()):
        for head in range(3):
            expected = rotate_pairs(heads[token, head], position * frequencies)
            torch.testing.assert_close(got[token, head], expected, rtol=0, atol=1e-4)
    assert torch.equal(got[..., size:], heads[..., size:])


def test_dynamic_equals_default_up_to_the_model_positions(folder: Path) -> None:
    plain, _ = rotary_frequencies(with_rope(folder, "default"))
    config = with_rope(folder, "dynamic", factor=2.0)
    grown, _ = rotary_frequencies(
        ModelConfig(**{**{n: getattr(config, n) for n in config.__struct_fields__}, "max_model_len": 2048})
    )
    assert grown.shape == (2048, plain.shape[0])
    torch.testing.assert_close(grown[: config.max_position], plain.expand(config.max_position, -1))
    assert (grown[config.max_position + 10, 1:] < plain[1:]).all()


@pytest.mark.parametrize(
    ("kind", "parameters", "error", "words"),
    [
        ("longrope", {"long_factor": [1.0]}, UnsupportedModelError, "'longrope'.*known are default, linear"),
        ("linear", {}, CheckpointError, "'linear' needs a positive number factor"),
        ("linear", {"factor": "two"}, CheckpointError, "factor, not 'two'"),
        ("linear", {"factor": float("nan")}, CheckpointError, "factor, not nan"),
        ("dynamic", {"factor": -1}, CheckpointError, "factor, not -1"),
        ("llama3", {"factor": 8.0, "high_freq_factor": 4.0}, CheckpointError, "low_freq_factor"),
        ("llama3", {"factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, CheckpointError, "differ"),
        ("yarn", {"factor": 2.0, "surprise": 1}, UnsupportedModelError, "'yarn' with surprise"),
        ("default", {"partial_rotary_factor": 5 / 16}, CheckpointError, "gives 5 rotary elements"),
    ],
)
def test_parameters_that_cannot_be_honoured_are_refused(
    folder: Path, kind: str, parameters: dict[str, object], error: type[Exception], words: str
) -> None:
    config = with_rope(folder, kind, **parameters)
    with pytest.raises(error, match=words):
        RotaryEmbedding(config, torch.float32, CPU)
