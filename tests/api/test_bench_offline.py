"""``octavo bench throughput`` and ``latency`` as commands, with an ``LLM`` that answers at once."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.api.cli import main
from octavo.core.outputs import CompletionOutput, RequestOutput, RequestTimings
from octavo.core.sampling_params import SamplingParams

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}


class InstantLLM:
    """Takes the calls that the benchmarks make, and gives each request the tokens it asked for."""

    made: list[dict[str, Any]] = []
    prompts: list[list[int]] = []
    closed = 0

    def __init__(self, **fields: Any) -> None:
        self.made.append(fields)

    def generate(
        self, prompts: list[dict[str, list[int]]], params: SamplingParams | list[SamplingParams], use_tqdm: bool
    ) -> list[RequestOutput]:
        assert use_tqdm is False
        each = params if isinstance(params, list) else [params] * len(prompts)
        outputs = []
        for prompt, one in zip(prompts, each, strict=True):
            assert (one.temperature, one.ignore_eos) == (0.0, True)
            self.prompts.append(prompt["prompt_token_ids"])
            completion = CompletionOutput(0, "", [1] * (one.max_tokens or 0), finish_reason="length")
            times = RequestTimings(arrival=0.0, first_scheduled=1.0, first_token=1.25, last_token=2.25)
            outputs.append(
                RequestOutput(
                    "r",
                    None,
                    prompt["prompt_token_ids"],
                    [completion],
                    True,
                    num_generated_tokens=one.max_tokens or 0,
                    timings=times,
                )
            )
        return outputs

    def close(self) -> None:
        type(self).closed += 1

    def __enter__(self) -> "InstantLLM":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder without weights, and ``InstantLLM`` in the place of ``LLM``."""
    module = ModuleType("octavo.api.llm")
    monkeypatch.setattr(InstantLLM, "made", [])
    monkeypatch.setattr(InstantLLM, "prompts", [])
    monkeypatch.setattr(InstantLLM, "closed", 0)
    module.LLM = InstantLLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octavo.api.llm", module)
    monkeypatch.setattr("octavo.api.bench.command.configure_logging", lambda process_name: None)
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_throughput_measures_each_work(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    flags = [
        "--work",
        "fixed:3:8:4",
        "--work",
        "ragged:5:4-9:2-6",
        "--load-format",
        "dummy",
        "--dtype",
        "float32",
        "--no-ceilings",
    ]
    assert main(["bench", "throughput", str(model), *flags, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "fixed:3:8:4" in out
    assert "ragged:5:4-9:2-6" in out
    assert f"Throughput of {model}, float32" in out
    document = json.loads(path.read_text())
    assert document["results"][0]["output_tokens"] == 12
    assert document["ceilings"] is None and document["results"][0]["needed_bytes"] > 0
    assert InstantLLM.made[0]["load_format"] == "dummy"
    assert InstantLLM.closed == 1
    assert all(token < 300 for prompt in InstantLLM.prompts for token in prompt)


@pytest.mark.slow
def test_throughput_drives_the_real_engine(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    flags = ["--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "float32", "--num-gpu-blocks-override", "20"]
    command = [sys.executable, "-P", "-m", "octavo.api.cli", "bench", "throughput", str(model), *flags]
    work = ["--work", "fixed:2:8:4", "--work", "ragged:3:4-9:2-6", "--against", "transformers", "--json", str(path)]
    result = subprocess.run([*command, *work], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(path.read_text())
    rows = document["results"]
    assert document["ceilings"]["bytes_per_second"] > 1e6 and document["ceilings"]["flops"] > 1e6
    assert result.stdout.count("%)") == 2 * len(rows), "each rate has its share of a ceiling"
    assert [(row["work"], row["system"], len(row["seconds"])) for row in rows] == [
        ("fixed:2:8:4", "octavo", 2),
        ("fixed:2:8:4", "transformers", 1),
        ("ragged:3:4-9:2-6", "octavo", 2),
        ("ragged:3:4-9:2-6", "transformers", 1),
    ]
    assert result.stdout.count("x │") == 2, "a ratio for each work"


def test_work_beyond_the_context_is_refused_before_anything_loads(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "throughput", str(model), "--work", "fixed:1:60:5"]) == 2
    assert "fixed:1:60:5 needs 65 tokens, above --max-model-len 64" in capsys.readouterr().err
    assert main(["bench", "latency", str(model), "--input-len", "60", "--output-len", "5"]) == 2
    assert InstantLLM.made == []


def test_latency_counts_only_runs_behind_the_warm_up(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    flags = [
        "--batch-size",
        "2",
        "--input-len",
        "8",
        "--output-len",
        "5",
        "--repeat",
        "3",
        "--warmup",
        "2",
        "--no-ceilings",
    ]
    assert main(["bench", "latency", str(model), *flags, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 x (8 + 5)" in out and "decode step" in out
    document = json.loads(path.read_text())
    assert document["samples"]["prefill_ms"] == [250.0] * 6
    assert document["samples"]["prompts_ms"] == [250.0] * 3
    assert document["samples"]["token_ms"] == [250.0] * 6
    assert len(document["samples"]["batch_ms"]) == 3
    assert len({tuple(prompt) for prompt in InstantLLM.prompts}) == 10
    assert InstantLLM.closed == 1


def test_core_gives_every_running_request_a_token_in_every_step(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    flags = ["--running", "1", "--running", "40", "--steps", "20", "--skip-tokenizer-init", "--block-size", "4"]
    assert main(["bench", "core", str(model), *flags, "--json", str(path)]) == 0
    assert "core p99" in capsys.readouterr().out
    rows = json.loads(path.read_text())["results"]
    assert [(row["running"], row["tokens"]) for row in rows] == [(1, 20), (40, 800)]
    assert all(row[part]["p99"] >= row[part]["p50"] > 0 for row in rows for part in ("core_ms", "output_ms"))
    assert main(["bench", "core", str(model), "--running", "0"]) == 2
    assert InstantLLM.made == []
