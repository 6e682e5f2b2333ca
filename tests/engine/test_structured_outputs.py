"""Answers have the shape that was asked for, whatever else runs, and nobody else's answer changes for it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from checkpoints import make_checkpoint
from random_schemas import complaint, random_schema

from octavo import LLM, SamplingParams
from octavo.core.errors import RequestError
from octavo.core.grammar import StructuredOutputs
from octavo.core.outputs import CompletionOutput

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", 3, None]}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPTS = [f"Tell me about number {number}." for number in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with _engine(folder) as engine:
        yield engine


def _engine(folder: Path, **settings: Any) -> LLM:
    return LLM(str(folder), multiprocess=False, dtype="float32", check_integrity=True, **settings)


def _outputs(llm: LLM, params: list[SamplingParams], prompts: list[str] | None = None) -> list[CompletionOutput]:
    prompts = prompts or [PROMPTS[number % len(PROMPTS)] for number in range(len(params))]
    return [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]


def _params(number: int, wanted: StructuredOutputs | None, **fields: Any) -> SamplingParams:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": number, "max_tokens": 200} | fields
    return SamplingParams(structured_outputs=wanted, **settings)


WANTED: dict[str, tuple[StructuredOutputs, str]] = {
    "choice": (StructuredOutputs(choice=["red", "blue"]), "red|blue"),
    "regex": (StructuredOutputs(regex="[0-9]{5}"), "[0-9]{5}"),
    "boolean": (StructuredOutputs(json={"type": "boolean"}), "true|false"),
    "grammar": (StructuredOutputs(grammar='root ::= ("ab" | "cd")'), "ab|cd"),
}


@pytest.mark.parametrize("kind", WANTED)
def test_after_a_complete_grammar_comes_the_end_and_nothing_else(llm: LLM, kind: str) -> None:
    wanted, pattern = WANTED[kind]
    outputs = _outputs(llm, [_params(seed, wanted, max_tokens=50) for seed in range(50)])
    for output in outputs:
        assert re.fullmatch(pattern, output.text), output.text
        assert output.finish_reason == "stop" and output.stop_reason is None
        assert len(output.token_ids) <= len(output.text) + 1
    assert len({output.text for output in outputs}) > 1


def test_a_greedy_choice_takes_the_likelier_text(llm: LLM) -> None:
    (plain,) = _outputs(llm, [_params(0, None, temperature=0.0, max_tokens=3)])
    text = "".join(character if character.isascii() and character.isprintable() else "?" for character in plain.text)
    (output,) = _outputs(llm, [_params(0, StructuredOutputs(choice=["zebra", plain.text, text]), temperature=0.0)])
    assert output.text in (plain.text, text)


def test_stop_strings_logprobs_and_n_go_with_a_grammar(llm: LLM) -> None:
    wanted = StructuredOutputs(choice=["one fish two fish"])
    (stopped,) = _outputs(llm, [_params(0, wanted, stop=["fish"])])
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("one ", "stop", "fish")
    params = _params(3, WANTED["regex"][0], n=4, logprobs=2)
    (output,) = llm.generate("five digits", params, use_tqdm=False)
    texts = [completion.text for completion in output.outputs]
    assert all(re.fullmatch("[0-9]{5}", text) for text in texts) and len(set(texts)) > 1
    for completion in output.outputs:
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.token_ids)
        for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
            assert entry[token].logprob < 0.0


def test_logprobs_are_those_of_the_model_and_not_of_the_grammar(llm: LLM) -> None:
    forced = _params(0, StructuredOutputs(choice=["zzz"]), logprobs=3)
    (output,) = _outputs(llm, [forced])
    assert output.logprobs is not None
    first = output.logprobs[0]
    assert len(first) >= 3 and max(entry.logprob for entry in first.values()) > first[output.token_ids[0]].logprob


def test_min_tokens_holds_the_end_back_only_while_the_grammar_can_go_on(llm: LLM) -> None:
    digits = _params(0, StructuredOutputs(regex="[0-9]+"), min_tokens=30, max_tokens=60, logit_bias={2: 100.0})
    word = _params(0, StructuredOutputs(choice=["red"]), min_tokens=30, max_tokens=60)
    long, short = _outputs(llm, [digits, word])
    assert re.fullmatch("[0-9]{30}", long.text) and long.finish_reason == "stop"
    assert (short.text, short.finish_reason) == ("red", "stop")


def test_ignore_eos_goes_on_while_the_grammar_can(llm: LLM) -> None:
    digits = _params(0, StructuredOutputs(regex="[0-9]+"), ignore_eos=True, max_tokens=20, logit_bias={2: 100.0})
    word = _params(0, StructuredOutputs(choice=["red"]), ignore_eos=True, max_tokens=20)
    long, short = _outputs(llm, [digits, word])
    assert re.fullmatch("[0-9]{20}", long.text) and long.finish_reason == "length"
    assert (short.text, short.finish_reason) == ("red", "stop")


def test_penalties_and_biases_cannot_break_the_shape(llm: LLM) -> None:
    fields: dict[str, Any] = {"repetition_penalty": 1.8, "frequency_penalty": 2.0, "logit_bias": {2: 100.0, 100: 100.0}}
    (output,) = _outputs(llm, [_params(1, StructuredOutputs(regex="[0-9]{20}"), **fields)])
    assert re.fullmatch("[0-9]{20}", output.text) and output.finish_reason == "stop"


def test_bad_words_are_avoided_unless_the_grammar_leaves_nothing_else(llm: LLM) -> None:
    params = [_params(seed, StructuredOutputs(regex="[abc]{9}"), bad_words=["a", "bb"]) for seed in range(8)]
    for output in _outputs(llm, params):
        assert re.fullmatch("[bc]{9}", output.text) and "bb" not in output.text
    for words in (["a", "b"], ["aa", "ab", "ba", "bb"]):
        (output,) = _outputs(llm, [_params(0, StructuredOutputs(regex="[ab]{9}"), bad_words=words)])
        assert re.fullmatch("[ab]{9}", output.text) and output.finish_reason == "stop"


@pytest.mark.parametrize(
    "wanted",
    [
        StructuredOutputs(regex="("), StructuredOutputs(json={"type": "objekt"}), StructuredOutputs(choice=[]),
        StructuredOutputs(), StructuredOutputs(json={"uniqueItems": True}), StructuredOutputs(grammar="start: foo"),
    ],
)  # fmt: skip
def test_a_bad_constraint_is_refused_before_anything_runs(llm: LLM, wanted: StructuredOutputs) -> None:
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            _outputs(llm, [_params(0, None), _params(0, wanted)])
        assert caught.value.param == "structured_outputs"


def test_allowed_tokens_and_a_constraint_exclude_each_other() -> None:
    with pytest.raises(RequestError, match="only one"):
        SamplingParams(structured_outputs=StructuredOutputs(regex="a"), allowed_token_ids=[5])
    with pytest.raises(RequestError, match="must be StructuredOutputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_without_a_tokenizer_there_is_no_structured_output(folder: Path) -> None:
    with _engine(folder, skip_tokenizer_init=True) as llm, pytest.raises(RequestError, match="needs a tokenizer"):
        llm.generate([[5, 6]], SamplingParams(structured_outputs=StructuredOutputs(regex="a"), detokenize=False))


def _mixture() -> list[SamplingParams]:
    wanted = [None, StructuredOutputs(json=PERSON), StructuredOutputs(regex="[a-f]{12}"), None]
    kinds = [wanted[number % 4] for number in range(12)]
    fields: list[dict[str, Any]] = [
        {"temperature": 0.0 if number % 3 == 0 else 1.0, "logprobs": 1 if number % 5 == 0 else None}
        | ({"repetition_penalty": 1.3} if number % 2 else {})
        for number in range(12)
    ]
    return [_params(number, kind, max_tokens=64, **fields[number]) for number, kind in enumerate(kinds)]


def _facts(outputs: list[CompletionOutput]) -> list[tuple[str, list[int], str | None]]:
    return [(output.text, list(output.token_ids), output.finish_reason) for output in outputs]


SETUPS: dict[str, dict[str, Any]] = {
    "plain loop": {"overlap_scheduling": False},
    "preempted": {"num_gpu_blocks_override": 28, "max_num_seqs": 12, "max_model_len": 128},
    "few at a time, in chunks": {"max_num_seqs": 3, "max_num_batched_tokens": 16},
}


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[tuple[str, list[int], str | None]]:
    """Each request of the mixture by itself."""
    return [_facts(_outputs(llm, [params], [prompt]))[0] for params, prompt in zip(_mixture(), PROMPTS, strict=True)]


def test_in_a_mixture_everyone_gets_what_it_gets_alone(llm: LLM, alone: list[Any]) -> None:
    assert _facts(_outputs(llm, _mixture())) == alone
    free = [facts for facts, params in zip(alone, _mixture(), strict=True) if params.structured_outputs is None]
    assert any(len(tokens) == 64 for _, tokens, _ in free)


@pytest.mark.parametrize("setup", SETUPS, ids=[name.replace(" ", "-") for name in SETUPS])
def test_loops_chunks_and_preemption_change_no_answer(folder: Path, alone: list[Any], setup: str) -> None:
    with _engine(folder, **SETUPS[setup]) as llm:
        outputs = llm.generate(PROMPTS, _mixture(), use_tqdm=False)
        assert _facts([output.outputs[0] for output in outputs]) == alone
        preempted = [output.timings.num_preemptions for output in outputs]
        assert any(preempted) == (setup == "preempted")
        constrained = [count for count, params in zip(preempted, _mixture(), strict=True) if params.structured_outputs]
        assert setup != "preempted" or any(constrained)


@pytest.mark.slow
def test_workers_in_their_own_processes_follow_the_same_grammars(folder: Path, alone: list[Any]) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "distributed_executor_backend": "mp"}
    with LLM(str(folder), multiprocess=True, **settings) as llm:
        assert _facts(_outputs(llm, _mixture())) == alone


def test_two_hundred_schemas_are_satisfied_by_every_finished_answer(llm: LLM) -> None:
    schemas: list[dict[str, Any]] = []
    seed = 0
    while len(schemas) < 200:
        schema = random_schema(Random(seed), depth=2)
        seed += 1
        try:
            llm._inputs.prepare("x", _params(0, StructuredOutputs(json=schema)))
        except RequestError:
            continue
        schemas.append(schema)
    assert seed < 220
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    bias = {tokenizer.encode(text)[0]: 5.0 for text in ('"', "}", "]")} | {2: 9.0}
    bias |= {tokenizer.encode(text)[0]: -9.0 for text in (" ", "\n", "\t", "\r")}
    params = [
        _params(number, StructuredOutputs(json=schema), max_tokens=120, temperature=1.5, logit_bias=bias)
        for number, schema in enumerate(schemas)
    ]
    outputs = _outputs(llm, params)
    finished = 0
    for schema, output in zip(schemas, outputs, strict=True):
        if output.finish_reason == "stop":
            finished += 1
            assert not complaint(schema, output.text), (schema, output.text)
        else:
            assert output.finish_reason == "length" and len(output.token_ids) == 120
    assert finished > 150


def test_after_everything_nothing_is_held(llm: LLM) -> None:
    outputs = _outputs(llm, [_params(number, StructuredOutputs(json=PERSON)) for number in range(3)])
    assert all(complaint(PERSON, output.text) == "" for output in outputs if output.finish_reason == "stop")
    assert json.loads(outputs[0].text) if outputs[0].finish_reason == "stop" else True


@pytest.mark.gpu
@pytest.mark.parametrize("overlap", [True, False])
def test_on_a_gpu_answers_have_their_shapes_too(tmp_path: Path, overlap: bool) -> None:
    """Masks are copied beside the running step there, and the tokens that they follow come back late."""
    folder = make_checkpoint(tmp_path, head_dim=64)
    with LLM(str(folder), multiprocess=False, device="cuda", overlap_scheduling=overlap) as llm:
        wanted = [None, StructuredOutputs(json=PERSON), StructuredOutputs(regex="[a-f]{40}"), WANTED["choice"][0]]
        params = [_params(number, wanted[number % 4], max_tokens=100) for number in range(64)]
        outputs = _outputs(llm, params)
    for number, output in enumerate(outputs):
        if number % 4 == 1 and output.finish_reason == "stop":
            assert not complaint(PERSON, output.text)
        elif number % 4 == 2:
            assert re.fullmatch("[a-f]{40}", output.text) and output.finish_reason == "stop"
        elif number % 4 == 3:
            assert output.text in ("red", "blue") and output.finish_reason == "stop"
