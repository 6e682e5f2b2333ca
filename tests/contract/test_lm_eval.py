"""lm-eval's ``local-completions`` against a live server, as its users run it: three small tasks, made here, whose
numbers Transformers confirms. It tokenizes with the server (``/tokenizer_info``, ``/tokenize``)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.clients
pytest.importorskip("lm_eval", reason="lm-eval is not installed; make test-clients installs it")

MODEL = "SmolLM2-135M-Instruct"
QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "a banana", "Rome"], "answer": 0},
    {"question": "Two plus two is", "choices": ["five", "four", "blue"], "answer": 1},
    {"question": "Fresh grass, as everybody knows who ever looked, is", "choices": ["loud", "green"], "answer": 1},
    {"question": "In Österreich, in a café,", "choices": ["you drink coffee ☕", "rocks"], "answer": 0},
]  # fmt: skip
LANDS = [{"land": "France", "city": "Paris"}, {"land": "Italy", "city": "Rome"}, {"land": "Germany", "city": "Berlin"}]
TEXTS = [
    {"text": "One sheet folded three times makes eight leaves."},
    {"text": "It was a bright cold day in April, and the clocks were striking thirteen."},
]
TASKS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "questions": (
        'output_type: multiple_choice\ndoc_to_text: "{{question}}"\ndoc_to_choice: "{{choices}}"\n'
        'doc_to_target: "{{answer}}"\nmetric_list: [{metric: acc}]\n',
        QUESTIONS,
    ),
    "lands": (
        'output_type: generate_until\ndoc_to_text: "The capital of {{land}} is"\ndoc_to_target: " {{city}}"\n'
        'generation_kwargs: {until: [".", ","], max_gen_toks: 8, temperature: 0}\n'
        "metric_list: [{metric: exact_match}]\n",
        LANDS,
    ),
    "texts": (
        'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n'
        "metric_list: [{metric: word_perplexity}]\n",
        TEXTS,
    ),
}


@pytest.fixture(scope="module")
def results(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What lm-eval writes about every sample, by task."""
    folder = tmp_path_factory.mktemp("lm-eval")
    for name, (text, documents) in TASKS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
        source = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / f'{name}.jsonl'}}}}}\n"
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{source}test_split: test\n{text}")
    settings = f"model={MODEL},base_url={server_url}/v1/completions,num_concurrent=2,max_length=512"
    command = [
        sys.executable, "-P", "-m", "lm_eval", "--model", "local-completions", "--model_args", settings,
        "--batch_size", "2", "--tasks", ",".join(TASKS), "--include_path", str(folder), "--output_path", str(folder),
        "--log_samples",
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | offline, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[dict[str, Any]]] = {}
    for name in TASKS:
        [path] = folder.rglob(f"samples_{name}_*.jsonl")
        found[name] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return found


class Truth:
    """The default model by Transformers in float32."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from octavo.engine.checkpoint.resolver import resolve_model

        folder: Path = resolve_model(None, quiet=True)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def log_likelihood(self, context: list[int], rest: list[int]) -> float:
        """Log probability of ``rest`` after ``context``."""
        import torch

        with torch.inference_mode():
            logits = self._model(torch.tensor([context + rest])).logits[0, len(context) - 1 : -1]
        return float(logits.double().log_softmax(-1).gather(1, torch.tensor(rest)[:, None]).sum())


@pytest.fixture(scope="module")
def truth() -> Truth:
    """The reference."""
    return Truth()


def test_log_likelihoods_and_accuracy_are_those_of_transformers(results: dict[str, Any], truth: Truth) -> None:
    right = 0
    for question, sample in zip(QUESTIONS, results["questions"], strict=True):
        context = truth.tokenizer.encode(question["question"])
        likelihoods = []
        for choice, told in zip(question["choices"], sample["filtered_resps"], strict=True):
            whole = truth.tokenizer.encode(f"{question['question']} {choice}")
            assert whole[: len(context)] == context
            likelihoods.append(truth.log_likelihood(context, whole[len(context) :]))
            assert float(told[0]) == pytest.approx(likelihoods[-1], abs=1e-3)
        hit = likelihoods.index(max(likelihoods)) == question["answer"]
        assert sample["acc"] == hit
        right += hit
    assert 0 < right < len(QUESTIONS)


def test_rolling_log_likelihoods_are_those_of_transformers(results: dict[str, Any], truth: Truth) -> None:
    for document, sample in zip(TEXTS, results["texts"], strict=True):
        ids = truth.tokenizer.encode(document["text"])
        told = float(sample["filtered_resps"][0])
        assert told == pytest.approx(truth.log_likelihood([truth.tokenizer.bos_token_id], ids), abs=1e-3)


def test_generated_answers_end_before_the_stop_string_and_are_right(results: dict[str, Any]) -> None:
    for document, sample in zip(LANDS, results["lands"], strict=True):
        assert sample["filtered_resps"] == [f" {document['city']}"] and sample["exact_match"] == 1
