"""A grammar's two stations before its request runs: the door, which refuses, and the gate, which waits for workers."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tokenizer
from simulation import make_config

from octavo.core.config import EngineConfig
from octavo.core.engine_input import EngineCoreRequest
from octavo.core.errors import EngineDeadError, RequestError
from octavo.core.grammar import REGEX, GrammarSpec, StructuredOutputs
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine import grammar_door, grammar_gate
from octavo.engine.grammar_door import GrammarDoor, make_vocabulary
from octavo.engine.grammar_gate import GrammarGate, GrammarReady
from octavo.engine.tokenizer import Tokenizer
from octavo.executor.executor import Executor, StepFuture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


class _CountingDoor(GrammarDoor):
    compiled = 0

    def _compile(self, spec: GrammarSpec) -> str:
        self.compiled += 1
        return super()._compile(spec)


def test_the_door_compiles_each_grammar_once_good_or_bad(tokenizer: Tokenizer) -> None:
    door = _CountingDoor(tokenizer, 320, [2])
    for _ in range(3):
        assert door.admit(StructuredOutputs(regex="a+")) == GrammarSpec(REGEX, "a+")
        with pytest.raises(RequestError, match="unclosed group"):
            door.admit(StructuredOutputs(regex="("))
    assert door.compiled == 2


def test_the_door_forgets_the_oldest_verdicts(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_door, "_VERDICTS", 5)
    door = GrammarDoor(tokenizer, 320, [2])
    for number in range(30):
        door.admit(StructuredOutputs(regex=f"a{number}"))
    assert len(door._verdicts) == 5


def test_a_grammar_that_takes_too_long_is_refused_and_others_are_not(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    class Door(GrammarDoor):
        def _compile(self, spec: GrammarSpec) -> str:
            if spec.text == "slow":
                gate.wait(20)
            return super()._compile(spec)

    door = Door(tokenizer, 320, [2])
    door.admit(StructuredOutputs(regex="warm"))
    monkeypatch.setattr(grammar_door, "COMPILE_SECONDS", 0.2)
    with pytest.raises(RequestError, match="takes longer"):
        door.admit(StructuredOutputs(regex="slow"))
    monkeypatch.setattr(grammar_door, "COMPILE_SECONDS", 20.0)
    door.admit(StructuredOutputs(regex="quick"))
    gate.set()
    door.admit(StructuredOutputs(regex="slow"))  # perhaps only the machine was busy


def test_a_model_without_an_end_token_cannot_end_a_structure(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="end token"):
        GrammarDoor(tokenizer, 320, []).admit(StructuredOutputs(regex="a"))


def test_a_trigger_that_is_a_special_token_is_found_as_that_token(tokenizer: Tokenizer) -> None:
    structure = {"begin": "<|im_start|>f", "schema": {"type": "integer"}, "end": "."}
    wanted = StructuredOutputs(structural_tag={"structures": [structure], "triggers": ["<|im_start|>"]})
    spec = GrammarDoor(tokenizer, 320, [2]).admit(wanted)
    from octavo.worker.grammar_compiler import GrammarCompiler

    matcher = GrammarCompiler(make_vocabulary(tokenizer, 320, [2])).compile(spec)
    ids = [*tokenizer.encode("hi "), 1, *tokenizer.encode("f"), *tokenizer.encode("5"), *tokenizer.encode(".")]
    assert matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


class _Workers(Executor):
    """Two ranks whose grammars take some questions to be ready."""

    def __init__(self, config: EngineConfig, answers: list[list[str | None]]) -> None:
        super().__init__(config)
        self.answers = answers
        self.calls: list[str] = []

    def call(self, method: str, *arguments: Any) -> list[Any]:
        self.calls.append(method)
        if method == "provide_vocabulary":
            return [None, None]
        if not self.answers:
            raise EngineDeadError("worker 1 is gone")
        return self.answers.pop(0)

    def execute(self, output: Any) -> StepFuture:
        raise AssertionError("no step is run here")

    def shutdown(self) -> None:
        pass


def _outcome(folder: Path, answers: list[list[str | None]], count: int = 1) -> tuple[list[GrammarReady], _Workers]:
    config = make_config(vocab_size=320)
    config = EngineConfig(
        model=config.model, cache=config.cache, scheduler=config.scheduler, parallel=config.parallel,
        device=config.device, tokenizer=str(folder),
    )  # fmt: skip
    workers = _Workers(config, answers)
    ready: list[GrammarReady] = []
    gate = GrammarGate(config, workers, ready.append)
    for number in range(count):
        message = EngineCoreRequest(
            f"r{number}", number, 0, b"\1\0\0\0", SamplingParams(), 0, 9, 0.0, [2], grammar=GrammarSpec(REGEX, "a")
        )
        gate.start(Request(message, 4))
        deadline = time.monotonic() + 20
        while len(ready) <= number:
            assert time.monotonic() < deadline, "the gate does not open"
            time.sleep(0.002)
    gate.close()
    return ready, workers


def test_the_gate_opens_when_every_worker_is_ready(folder: Path) -> None:
    ready, workers = _outcome(folder, [[None, None], ["", None], ["", ""], ["", ""]], count=2)
    assert [(one.started, one.error) for one in ready] == [(True, ""), (True, "")]
    asked = ["start_grammar", "grammar_state", "grammar_state"]
    assert workers.calls == ["provide_vocabulary", *asked, "start_grammar"]


def test_one_worker_that_cannot_compile_fails_the_request(folder: Path) -> None:
    ready, _ = _outcome(folder, [[None, "no good"], ["", "no good"]])
    assert (ready[0].started, ready[0].error) == (True, "no good")


def test_workers_that_are_gone_fail_the_request(folder: Path) -> None:
    ready, _ = _outcome(folder, [])
    assert not ready[0].started and "worker 1 is gone" in ready[0].error


def test_the_gate_gives_up_after_its_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_gate, "COMPILE_SECONDS", 0.05)
    ready, _ = _outcome(folder, [[None, None]] * 1000)
    assert "longer than" in ready[0].error
