"""``LLM``: batches from a plain program, on a small real model."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB_SIZE, make_checkpoint
from counting import children, folders, gone, until
from greedy_truth import GreedyTruth

from octavo import LLM, SamplingParams
from octavo.core.errors import CheckpointError, ConfigurationError, ContextLengthError, EngineDeadError, RequestError
from octavo.core.outputs import RequestOutput, TokenLogprobs
from octavo.engine.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SETTINGS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "check_integrity": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(checkpoint), multiprocess=False, **SETTINGS) as llm:
        yield llm


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def generate(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def tokenizer_of(llm: LLM) -> Tokenizer:
    assert llm.tokenizer is not None
    return llm.tokenizer


# What goes in.


def test_every_form_of_a_prompt_gives_the_same(llm: LLM) -> None:
    text = "in the house"
    ids = tokenizer_of(llm).encode(text)
    one = [text, [text], ids, [ids], (ids,), {"prompt": text}, [{"prompt_token_ids": ids}]]
    answers = [ids_of(generate(llm, prompt)) for prompt in one]
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == 1
    mixed = generate(llm, [text, ids, {"prompt": text, "prompt_token_ids": ids}])
    assert ids_of(mixed) == answers[0] * 3
    assert [output.prompt for output in mixed] == [text, None, text]
    assert [output.prompt_token_ids for output in mixed] == [ids] * 3


@pytest.mark.parametrize("length", [2, 16, 17])
def test_a_context_of_a_block_or_less_can_be_filled(checkpoint: Path, length: int) -> None:
    with LLM(str(checkpoint), multiprocess=False, **SETTINGS | {"max_model_len": length}) as llm:
        (output,) = generate(llm, [[5] * (length - 1)], SamplingParams(max_tokens=1))
        assert len(output.outputs[0].token_ids) == 1


def test_the_cache_keeps_more_prompts_than_can_run(checkpoint: Path) -> None:
    with LLM(str(checkpoint), multiprocess=False, max_num_seqs=1, **SETTINGS) as llm:
        cached = [generate(llm, [[token] * 200])[0].num_cached_tokens for token in (5, 6, 5, 6)]
    assert cached == [0, 0, 192, 192]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert generate(llm, []) == []


@pytest.mark.parametrize("prompts", [5, None, b"abc", [1.5], [True, 5], ["a", 5], [[]], "", [{}], [None]], ids=repr)
def test_a_wrong_prompt_is_refused_and_nothing_runs(llm: LLM, prompts: Any) -> None:
    with pytest.raises(RequestError) as caught:
        generate(llm, prompts)
    assert caught.value.param == "prompt"
    assert len(generate(llm, "the hat")) == 1


def test_one_wrong_prompt_among_many_stops_the_batch_before_it_runs(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="256"):
        generate(llm, [[5], [5] * 256])
    assert not llm._outputs.requests


def test_each_prompt_can_have_its_own_parameters(llm: LLM) -> None:
    outputs = generate(llm, ["a", "a", "a"], [GREEDY.replace(max_tokens=count) for count in (1, 5, 3)])
    assert [len(ids) for ids in ids_of(outputs)] == [1, 5, 3]
    assert ids_of(outputs)[1][:3] == ids_of(outputs)[2]
    with pytest.raises(RequestError, match="2 prompts but 1 sampling_params"):
        generate(llm, ["a", "b"], [GREEDY])
    with pytest.raises(RequestError, match="not str"):
        generate(llm, ["a", "b"], ["greedy", "greedy"])


def test_chat_writes_the_conversation_as_the_template_says(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the hat"}]
    (answer,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert answer.prompt == "<|im_start|>user\nthe hat<|im_end|>\n<|im_start|>assistant\n"
    assert answer.prompt_token_ids[0] == 1  # the special token, not its letters
    by_hand = generate(llm, {"prompt_token_ids": answer.prompt_token_ids})
    assert ids_of([answer]) == ids_of(by_hand)
    both = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    assert ids_of(both) == ids_of([answer, answer])


# What comes out.


def test_outputs_come_in_the_order_of_the_prompts_whatever_their_length(llm: LLM) -> None:
    counts = [9, 1, 14, 3, 20, 2]
    outputs = generate(llm, [[5 + n] for n in range(6)], [GREEDY.replace(max_tokens=count) for count in counts])
    assert [output.prompt_token_ids for output in outputs] == [[5 + n] for n in range(6)]
    assert [len(ids) for ids in ids_of(outputs)] == counts
    assert all(output.finished and output.outputs[0].finish_reason == "length" for output in outputs)
    assert all(output.num_generated_tokens == count for output, count in zip(outputs, counts, strict=True))


def test_the_text_is_the_decoding_of_the_tokens(llm: LLM) -> None:
    for output in generate(llm, ["the hat", "in"], GREEDY.replace(max_tokens=40)):
        assert output.outputs[0].text == tokenizer_of(llm).decode(output.outputs[0].token_ids)


def test_several_completions_differ_and_repeat_with_their_seed(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=11, max_tokens=16, ignore_eos=True)
    first, again = (generate(llm, "the hat", params)[0] for _ in range(2))
    assert [part.index for part in first.outputs] == [0, 1, 2]
    ids = [tuple(part.token_ids) for part in first.outputs]
    assert len(set(ids)) == 3
    assert [tuple(part.token_ids) for part in again.outputs] == ids
    # The second completion is what its own seed gives alone.
    assert ids_of(generate(llm, "the hat", params.replace(n=1, seed=12))) == [list(ids[1])]


def test_a_seeded_request_is_the_same_alone_and_among_31_others(llm: LLM) -> None:
    params = SamplingParams(seed=2024, temperature=1.2, top_p=0.9, min_p=0.01, max_tokens=24, ignore_eos=True)
    alone = ids_of(generate(llm, "the hat", params))[0]
    others = [[3 + (7 * n + place) % 250 for place in range(1 + 3 * n)] for n in range(31)]
    prompts: list[Any] = [*others[:13], "the hat", *others[13:]]
    mixed = [SamplingParams(max_tokens=4 + n, top_k=5 * (n % 3), presence_penalty=0.1 * (n % 2)) for n in range(32)]
    mixed[13] = params
    assert ids_of(generate(llm, prompts, mixed))[13] == alone


def test_unseeded_requests_differ_and_a_new_engine_repeats_them(checkpoint: Path) -> None:
    answers = []
    for _ in range(2):
        with LLM(str(checkpoint), multiprocess=False, **SETTINGS) as fresh:
            params = SamplingParams(max_tokens=12, ignore_eos=True)
            answers.append(ids_of(generate(fresh, ["the hat"] * 3, params)))
    assert answers[0] == answers[1]
    assert len({tuple(ids) for ids in answers[0]}) == 3


def check_place(place: TokenLogprobs | None, token: int, truth: torch.Tensor, count: int) -> None:
    """One position against log_softmax of the reference's logits."""
    assert place is not None
    best = truth.topk(count)
    assert next(iter(place)) == token
    assert place[token].logprob == pytest.approx(truth[token].item(), abs=1e-3)
    ranks = sorted((entry.rank or 0, entry.logprob) for other, entry in place.items() if (entry.rank or 0) <= count)
    assert [rank for rank, _ in ranks] == list(range(1, count + 1))
    assert [logprob for _, logprob in ranks] == pytest.approx(best.values.tolist(), abs=1e-3)
    assert place[token].rank == pytest.approx(1 + int((truth > truth[token]).sum()), abs=1)


@pytest.mark.parametrize("chunk", [256, 16], ids=["whole", "chunked"])
def test_logprobs_are_those_of_transformers(checkpoint: Path, chunk: int) -> None:
    reference = GreedyTruth(checkpoint).model
    prompts = [[3 + (11 * place) % 250 for place in range(length)] for length in (1, 2, 20, 61)]
    params = GREEDY.replace(logprobs=4, prompt_logprobs=3)
    with LLM(str(checkpoint), multiprocess=False, max_num_batched_tokens=chunk, max_num_seqs=8, **SETTINGS) as llm:
        outputs = generate(llm, prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0]
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer.token_ids])).logits[0]
        truth = logits.float().log_softmax(-1)
        assert output.prompt_logprobs is not None and answer.logprobs is not None
        assert len(output.prompt_logprobs) == len(prompt)
        assert output.prompt_logprobs[0] is None
        for place in range(1, len(prompt)):
            check_place(output.prompt_logprobs[place], prompt[place], truth[place - 1], 3)
        assert len(answer.logprobs) == len(answer.token_ids)
        for place, token in enumerate(answer.token_ids):
            check_place(answer.logprobs[place], token, truth[len(prompt) + place - 1], 4)


def test_a_cached_prompt_is_counted_and_changes_nothing(llm: LLM) -> None:
    prompt = [3 + (5 * place) % 250 for place in range(70)]
    first, second = (generate(llm, [prompt])[0] for _ in range(2))
    assert second.num_cached_tokens == 64
    assert ids_of([first]) == ids_of([second])


def test_ids_without_text_in_the_vocabulary_can_be_prompts(llm: LLM) -> None:
    assert len(ids_of(generate(llm, [[VOCAB_SIZE - 1, VOCAB_SIZE - 2]]))[0]) == 8


# What goes wrong, and the end.


class Interrupted(BaseException):
    """As Ctrl-C: no ``Exception``."""


def test_a_call_that_is_interrupted_leaves_nothing_and_the_next_one_works(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids_of(generate(llm, ["the hat", "in"]))
    for place in (1, 2, 5):
        calls = iter(range(1000))
        real = llm._handle

        def interrupt(message: Any, place: int = place, calls: Any = calls, real: Any = real) -> None:
            if next(calls) == place:
                raise Interrupted
            real(message)

        with monkeypatch.context() as patch:
            patch.setattr(llm, "_handle", interrupt)
            with pytest.raises(Interrupted):
                generate(llm, ["the hat"] * 5, GREEDY.replace(max_tokens=100))
        assert not llm._outputs.requests
        assert ids_of(generate(llm, ["the hat", "in"])) == expected


def test_a_call_that_is_interrupted_while_it_hands_in_requests_leaves_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1000))
    real = llm._transport.send

    def interrupt(message: Any) -> None:
        real(message)
        if next(calls) == 2:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(llm._transport, "send", interrupt)
        with pytest.raises(Interrupted):
            generate(llm, ["the hat"] * 5, GREEDY.replace(max_tokens=100))
    assert not llm._outputs.requests
    assert len(generate(llm, ["in"])) == 1


def test_a_batch_goes_on_when_its_engine_is_killed(checkpoint: Path) -> None:
    prompts = [[5, 6, 7 + index] for index in range(12)]
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=120, ignore_eos=True)
    before = set(children())
    with LLM(str(checkpoint), max_num_seqs=4, **SETTINGS) as llm:
        right = ids_of(generate(llm, prompts, params))
        (engine,) = set(children()) - before
        killer = threading.Timer(0.3, os.kill, (engine, signal.SIGKILL))
        killer.start()
        assert ids_of(generate(llm, prompts, params)) == right
        killer.join()
        until(lambda: gone(engine), "it was killed")
        assert ids_of(generate(llm, prompts[:1], params)) == right[:1]


def test_a_closed_llm_says_so_instead_of_waiting_for_ever(checkpoint: Path) -> None:
    closed = LLM(str(checkpoint), multiprocess=False, **SETTINGS)
    closed.close()
    closed.close()
    with pytest.raises(EngineDeadError, match="closed"):
        generate(closed, "the hat")


def test_an_llm_that_nobody_holds_any_more_ends_its_engine(checkpoint: Path) -> None:
    before = set(children())
    held = LLM(str(checkpoint), **SETTINGS)
    assert ids_of(generate(held, "the hat"))
    assert set(children()) > before
    del held
    gc.collect()
    until(lambda: set(children()) <= before, "the engine ended")
    assert folders(os.getpid()) == []


def test_wrong_settings_and_files_are_told_before_anything_starts(checkpoint: Path, tmp_path: Path) -> None:
    before = set(children())
    with pytest.raises(ConfigurationError, match="max_modellen"):
        LLM(str(checkpoint), max_modellen=5)
    with pytest.raises(CheckpointError):
        LLM(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"the KV cache holds .* tokens.*--kv-cache-memory-bytes"):
        LLM(str(checkpoint), kv_cache_memory_bytes=20_000, **SETTINGS)
    with pytest.raises(ConfigurationError, match=r"0\.0 MB are left for the KV cache.*--kv-cache-memory-bytes"):
        LLM(str(checkpoint), kv_cache_memory_bytes=1000, dtype="float32")
    until(lambda: set(children()) <= before, "child processes ended")
    assert folders(os.getpid()) == []


def test_a_program_that_never_closes_its_llm_ends_by_itself(checkpoint: Path) -> None:
    program = """
        import sys
        from octavo import LLM, SamplingParams
        llm = LLM(sys.argv[1], dtype="float32", max_model_len=256, multiprocess=sys.argv[2] == "process")
        print(llm.generate("the hat", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids)
    """
    for kind in ("process", "thread"):
        result = subprocess.run(
            [sys.executable, "-P", "-c", textwrap.dedent(program), str(checkpoint), kind],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert not [line for line in result.stderr.splitlines() if " INFO " not in line], result.stderr
        assert result.stdout.startswith("[")
