"""An engine that plays given token ids, with the real tokenizer and detokenizer: what the HTTP doors are tested on."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.api.prompts import TokensPrompt
from octavo.core.config import CacheConfig, DeviceConfig, EngineConfig, ParallelConfig, SchedulerConfig
from octavo.core.engine_output import EngineReady
from octavo.core.errors import EngineDeadError, EngineError
from octavo.core.model_config import ModelConfig, RopeConfig
from octavo.core.outputs import CompletionOutput, Logprob, RequestOutput, RequestTimings, TokenLogprobs
from octavo.core.pooling_config import PoolingConfig
from octavo.core.pooling_params import PoolingParams
from octavo.core.sampling_params import SamplingParams
from octavo.engine.input_processor import InputProcessor, PreparedRequest
from octavo.engine.tokenizer import Tokenizer

END, START, EOS = 0, 1, 2
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' and loop.first %}{{ raise_exception('a tool cannot speak first') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """Three special tokens, every byte, and a few longer tokens: some text takes one token, some takes its bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<|endoftext|>": END, "<|im_start|>": START, "<|im_end|>": EOS}
    for character in alphabet:
        vocab[character] = len(vocab)
    merges = [("Ġ", "w"), ("o", "r"), ("l", "d"), ("Ġw", "or"), ("Ġwor", "ld"), ("H", "e"), ("l", "l"), ("He", "ll")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    return Tokenizer(backend, {"eos_token": "<|im_end|>"}, {"default": TEMPLATE})


def make_config(vocab_size: int, context: int = 256, default_sampling: dict[str, Any] | None = None) -> EngineConfig:
    """A configuration of the shape that ``EngineArgs.build`` makes."""
    model = ModelConfig(
        path=str(Path("/models/stub")),
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        tie_word_embeddings=True,
        attention_bias=False,
        attention_out_bias=False,
        mlp_bias=False,
        max_position=context,
        rope=RopeConfig("default", 10000.0),
        eos_token_ids=[EOS],
        default_sampling=default_sampling or {},
        max_model_len=context,
    )
    return EngineConfig(
        model=model,
        cache=CacheConfig(num_blocks=64),
        scheduler=SchedulerConfig(max_model_len=context),
        parallel=ParallelConfig(),
        device=DeviceConfig(),
    )


Play = Callable[[list[int], SamplingParams, int], list[int]]


@dataclass
class StubEngine:
    """Plays tokens. ``plays`` gives the ids of one completion; beyond them the end token."""

    tokenizer: Tokenizer | None = field(default_factory=make_tokenizer)
    context: int = 256
    plays: Play | None = None
    text: str = "Hello world"
    """What is played when there is no ``plays``."""
    pieces: Callable[[int], int] = lambda step: 1
    """Tokens of the given step's delta."""
    step_seconds: float = 0.0
    hold_after: int | None = None
    """Stop producing after this many steps, for ever (until ``release`` is set)."""
    fail_after: int | None = None
    """Raise ``EngineDeadError`` at this step."""
    default_sampling: dict[str, Any] = field(default_factory=dict)
    status: str = "ready"
    dead_error: EngineError | None = None
    engine_info: EngineReady | None = None
    seats: tuple[()] = ()
    lowest: float = -math.inf
    """Log probability of the worst alternative."""

    pooling: PoolingConfig = field(default_factory=PoolingConfig)
    architecture: str = "LlamaForCausalLM"

    def __post_init__(self) -> None:
        vocab_size = 280 if self.tokenizer is None else self.tokenizer.vocab_size
        config = make_config(vocab_size, self.context, self.default_sampling)
        model = msgspec.structs.replace(config.model, pooling=self.pooling, architecture=self.architecture)
        self.config = msgspec.structs.replace(config, model=model)
        self.inputs = InputProcessor(self.config, self.tokenizer)
        self.release = asyncio.Event()
        self.running: set[str] = set()
        self.started: list[tuple[str, list[int], SamplingParams]] = []
        self.ended: list[str] = []
        self.aborted: list[str] = []
        self.salts: list[str | None] = []
        self.shut_down = False

    async def wait_ready(self) -> None:
        """Ready at once, unless ``status`` says otherwise."""
        while self.status == "loading":
            await asyncio.sleep(0.01)

    async def shutdown(self, drain_seconds: float) -> None:
        """Only noted."""
        self.shut_down = True

    def die(self, message: str) -> None:
        """The engine's process is gone."""
        self.dead_error = EngineDeadError(message)
        self.status = "dead"
        self.release.set()

    def fail(self, cause: str) -> None:
        """Given up by the server."""
        self.die(cause)

    async def wait_dead(self) -> EngineError:
        """Returns after ``die``."""
        await self.release.wait()
        return self.dead_error or EngineDeadError("released")

    async def prepare(
        self,
        prompt: TokensPrompt,
        sampling_params: SamplingParams | PoolingParams,
        *,
        cache_salt: str | None = None,
    ) -> PreparedRequest:
        """The real input processor's checks."""
        return self.inputs.prepare(prompt, sampling_params, cache_salt)

    async def generate(
        self, prompt: PreparedRequest, *, request_id: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """One output per step, with the new tokens of every completion that still runs."""
        sampling_params = prompt.params
        name = str(request_id)
        ids = prompt.prompt_token_ids
        self.started.append((name, ids, sampling_params))
        self.salts.append(prompt.message.cache_salt)
        self.running.add(name)
        timings = RequestTimings(time.time(), time.time())
        try:
            steps = self._steps(ids, sampling_params) if prompt.message.pooling is None else [[_pooled(prompt)]]
            for step, outputs in enumerate(steps):
                await self._pace(step)
                timings.first_token = timings.first_token or time.time()
                timings.last_token = time.time()
                prompt_logprobs = self._prompt_logprobs(ids, sampling_params) if step == 0 else None
                yield RequestOutput(
                    name,
                    prompt.prompt,
                    ids,
                    outputs,
                    False,
                    prompt_logprobs,
                    4 if len(ids) > 4 else 0,
                    0,
                    timings,
                )
            self.ended.append(name)
        finally:
            self.running.discard(name)
            if name not in self.ended:
                self.aborted.append(name)

    async def _pace(self, step: int) -> None:
        if self.hold_after is not None and step >= self.hold_after:
            await self.release.wait()
        if self.dead_error is not None:
            raise self.dead_error
        if self.fail_after is not None and step >= self.fail_after:
            raise EngineDeadError("the engine process was killed")
        await asyncio.sleep(self.step_seconds)

    def _steps(self, ids: list[int], params: SamplingParams) -> Iterator[list[CompletionOutput]]:
        runs = [self._run(ids, params, index) for index in range(params.n)]
        while runs:
            outputs = []
            for run in list(runs):
                output = next(run, None)
                if output is None:
                    runs.remove(run)
                else:
                    outputs.append(output)
            if outputs:
                yield outputs

    def _run(self, ids: list[int], params: SamplingParams, index: int) -> Iterator[CompletionOutput]:
        tokens = self._tokens(ids, params, index)
        limit = self.context - len(ids) if params.max_tokens is None else params.max_tokens
        detokenizer = self.tokenizer.detokenizer(params) if self.tokenizer is not None and params.detokenize else None
        made = step = 0
        while True:
            delta, finish, reason = [], None, None
            for _ in range(self.pieces(step)):
                token = tokens[made] if made < len(tokens) else EOS
                made += 1
                delta.append(token)
                if token == EOS and not params.ignore_eos:
                    finish = "stop"
                elif token in params.stop_token_ids:
                    finish, reason = "stop", token
                elif made == limit:
                    finish = "length"
                if finish is not None:
                    break
            text = ""
            if detokenizer is not None:
                text = detokenizer.append(delta, finish == "stop")
                if detokenizer.stop_string is not None:
                    finish, reason = "stop", detokenizer.stop_string
                    delta = delta[: detokenizer.tokens_used]
                elif finish is not None:
                    text += detokenizer.finish()
            logprobs = None
            if params.logprobs is not None:
                logprobs = [self._position(token, params.logprobs) for token in delta]
            yield CompletionOutput(index, text, delta, logprobs, finish, reason)
            step += 1
            if finish is not None:
                return

    def _tokens(self, ids: list[int], params: SamplingParams, index: int) -> list[int]:
        if self.plays is not None:
            return self.plays(ids, params, index)
        return [] if self.tokenizer is None else self.tokenizer.encode(self.text)

    def _position(self, token: int, count: int) -> TokenLogprobs:
        """The token itself, then the ``count`` best: made up, but ordered and dependent on the token."""
        chosen_rank = token % 4 + 1
        best = {rank: self._entry((token + rank * 7) % 256 + 3, -0.25 * rank, rank) for rank in range(1, count + 1)}
        if count > 1:
            best[count] = self._entry((token + count * 7) % 256 + 3, self.lowest, count)
        position = {token: self._entry(token, -0.25 * chosen_rank, chosen_rank)[1]}
        for rank, (other, entry) in best.items():
            if rank != chosen_rank:
                position.setdefault(other, entry)
        return position

    def _entry(self, token: int, logprob: float, rank: int) -> tuple[int, Logprob]:
        if self.tokenizer is None:
            return token, Logprob(logprob, rank)
        return token, Logprob(logprob, rank, self.tokenizer.token_text(token), self.tokenizer.token_bytes(token))

    def _prompt_logprobs(self, ids: list[int], params: SamplingParams) -> list[TokenLogprobs | None] | None:
        if params.prompt_logprobs is None:
            return None
        return [None, *(self._position(token, params.prompt_logprobs) for token in ids[1:])]


def _pooled(prompt: PreparedRequest) -> CompletionOutput:
    """A vector of eight numbers that depend on the ids and nothing else."""
    assert prompt.message.pooling is not None
    numbers = np.random.default_rng(prompt.prompt_token_ids).standard_normal(8, dtype=np.float32)
    vector = prompt.message.pooling.finish(numbers.tobytes())
    return CompletionOutput(0, "", [], None, "stop", vector=vector)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something that other tasks bring about. Fails after ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)
    assert condition()
