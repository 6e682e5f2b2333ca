"""Builds an engine on the simulated executor and drives it."""

import numpy as np

from octavo.core.config import CacheConfig, DeviceConfig, EngineConfig, ParallelConfig, SchedulerConfig
from octavo.core.engine_input import EngineCoreRequest
from octavo.core.engine_output import EngineCoreOutputs
from octavo.core.grammar import GrammarSpec
from octavo.core.model_config import ModelConfig, RopeConfig
from octavo.core.pooling_params import PoolingParams
from octavo.core.sampling_params import SamplingParams
from octavo.core.startup import StartupTimeline
from octavo.core.step import SchedulerOutput
from octavo.engine.engine_core import EngineCore
from octavo.executor.executor import StepFuture
from octavo.executor.simulated_executor import SimulatedExecutor, context_keys, draw_token

VOCAB = 97


def make_config(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 32,
    max_model_len: int = 64,
    overlap: bool = True,
    caching: bool = True,
    chunked: bool = True,
    policy: str = "fcfs",
    check: bool = True,
    vocab_size: int = VOCAB,
) -> EngineConfig:
    """A configuration for a model that does not exist."""
    model = ModelConfig(
        path="", architecture="Simulated", vocab_size=vocab_size, hidden_size=1, intermediate_size=1,
        num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1, rms_norm_eps=1e-6, hidden_act="silu",
        tie_word_embeddings=True, attention_bias=False, attention_out_bias=False, mlp_bias=False,
        max_position=max_model_len, rope=RopeConfig(), max_model_len=max_model_len,
    )  # fmt: skip
    return EngineConfig(
        model=model,
        cache=CacheConfig(block_size=block_size, num_blocks=num_blocks, enable_prefix_caching=caching),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_model_len=max_model_len,
            policy=policy,
            enable_chunked_prefill=chunked,
            overlap=overlap,
            check_integrity=check,
        ),
        parallel=ParallelConfig(),
        device=DeviceConfig(),
    )


def continuation(prompt: list[int], num_tokens: int, seed: int, vocab_size: int) -> list[int]:
    """What the simulated model answers to a prompt, computed without any cache."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(draw_token(context_keys(np.array(tokens), 0), seed, vocab_size))
    return tokens[len(prompt) :]


def pooled_sum(prompt: list[int]) -> bytes:
    """What the simulated model pools a prompt to, computed without any cache."""
    return context_keys(np.array(prompt), 0).sum(dtype=np.uint64).tobytes()


class RecordingExecutor(SimulatedExecutor):
    """Keeps the steps that it runs, if asked to."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.steps: list[SchedulerOutput] = []
        self.keep_steps = False

    def execute(self, output: SchedulerOutput) -> StepFuture:
        """See ``Executor``."""
        if self.keep_steps:
            self.steps.append(output)
        return super().execute(output)


class Simulation:
    """An engine core on the simulated executor, and what its requests have got so far."""

    def __init__(self, config: EngineConfig, num_clients: int = 1) -> None:
        self.executor = RecordingExecutor(config)
        self.core = EngineCore(config, self.executor, StartupTimeline("engine"), num_clients)
        self.scheduler = self.core.scheduler
        self.outputs: dict[int, list[int]] = {}
        self.finished: dict[int, str] = {}
        self.vectors: dict[int, bytes] = {}
        self.stop_tokens: dict[int, int | None] = {}
        self.cached: dict[int, int] = {}
        self.first_step: dict[int, int] = {}
        self.num_steps = 0

    def add(
        self,
        handle: int,
        prompt: list[int],
        *,
        max_tokens: int = 8,
        seed: int = 0,
        eos: list[int] | None = None,
        salt: str | None = None,
        client: int = 0,
        output: list[int] | None = None,
        grammar: GrammarSpec | None = None,
        pools: str | None = None,
        **params: object,
    ) -> None:
        """Hand in a request, as a client's message would. ``pools``: it wants a vector, by the ``mean`` or another."""
        message = EngineCoreRequest(
            request_id=f"r{handle}",
            handle=handle,
            client_index=client,
            prompt_token_ids=np.array(prompt, dtype=np.int32).tobytes(),
            output_token_ids=np.array(output or [], dtype=np.int32).tobytes(),
            params=SamplingParams(max_tokens=max_tokens, **params),
            seed=seed,
            max_total_tokens=len(prompt) + (max_tokens if pools is None else 1),
            arrival_time=0.0,
            eos_token_ids=eos or [],
            cache_salt=salt,
            grammar=grammar,
            pooling=None if pools is None else PoolingParams(),
            whole_prompt=pools == "mean",
        )
        self.outputs[handle] = []
        self.core.add_request(self.core.prepare(message))

    def step(self) -> list[EngineCoreOutputs]:
        """One step of the engine's loop; its deltas are kept."""
        messages = self.core.step()
        self.num_steps += 1
        for message in messages:
            for started in message.started:
                self.cached[started.handle] = started.num_cached_tokens
            handles = np.frombuffer(message.handles, dtype=np.int32)
            tokens = np.frombuffer(message.token_ids, dtype=np.int32)
            for handle, token in zip(handles.tolist(), tokens.tolist(), strict=True):
                assert handle not in self.finished, "a token came after the end"
                self.outputs[handle].append(token)
                self.first_step.setdefault(handle, self.num_steps)
            for pooled in message.pooled:
                assert pooled.handle not in self.vectors, "a request was pooled twice"
                self.vectors[pooled.handle] = pooled.values
            for finished in message.finished:
                assert finished.handle not in self.finished, "a request ended twice"
                self.finished[finished.handle] = finished.reason
                self.stop_tokens[finished.handle] = finished.stop_token
        return messages

    def run(self, limit: int = 10_000) -> None:
        """Until nothing is left. A loop that stops making progress fails."""
        idle = 0
        while self.core.has_work:
            before = (len(self.scheduler.in_flight), self.scheduler.completed_step)
            self.step()
            after = (len(self.scheduler.in_flight), self.scheduler.completed_step)
            idle = idle + 1 if before == after else 0
            assert idle < 2, "requests exist, but no step makes progress"
            limit -= 1
            assert limit > 0, "the run does not end"

    def assert_all_free(self) -> None:
        """Nothing is held once nothing runs."""
        pool = self.scheduler.kv.pool
        assert pool.num_free == pool.num_usable
        assert self.scheduler.slots.num_free == self.scheduler.config.max_num_seqs
        assert self.scheduler.kv.num_retiring == 0
        assert not self.scheduler.slots.watched.any()
        self.scheduler.check_integrity()
