"""Requests that only decode, on the simulated executor: the work of the two processes of a server, as two calls."""

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import msgspec

from ...core.config import EngineConfig
from ...core.engine_output import EngineCoreMessage, EngineCoreOutputs
from ...core.sampling_params import RequestOutputKind, SamplingParams
from ...core.startup import StartupTimeline
from ...core.step import SchedulerOutput
from ...engine.engine_core import EngineCore
from ...engine.input_processor import InputProcessor
from ...engine.output_processor import OutputProcessor
from ...engine.tokenizer import Tokenizer
from ...executor.executor import StepFuture
from ...executor.simulated_executor import SimulatedExecutor
from ..metrics import Metrics
from .workload import Work


class _TimedExecutor(SimulatedExecutor):
    """Knows how long it took, for the core's own time is what is wanted."""

    seconds = 0.0

    def execute(self, output: SchedulerOutput) -> StepFuture:
        began = perf_counter()
        future = super().execute(output)
        self.seconds += perf_counter() - began
        return future


class DecodeSteps:
    """As many requests as a step holds, past their prompts, and not one ends while it is looked at.

    Prompts differ in length by up to a block, so that in every step as many requests as usual need their next block.
    """

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None, num_running: int, num_steps: int) -> None:
        size = config.cache.block_size
        prompt_lens = tuple(size + index % size for index in range(num_running))
        output_len = num_steps + 16  # some are drawn before the first measured step, and one is in flight at the last
        longest = 2 * size + output_len
        scheduler = msgspec.structs.replace(
            config.scheduler,
            max_num_seqs=num_running,
            max_num_batched_tokens=sum(prompt_lens) + longest,  # all prompts are through at once
            max_model_len=longest,
        )
        cache = msgspec.structs.replace(config.cache, num_blocks=num_running * (longest // size + 1) + 1)
        config = msgspec.structs.replace(config, scheduler=scheduler, cache=cache)
        self._executor = _TimedExecutor(config)
        self._core = EngineCore(config, self._executor, StartupTimeline("bench"))
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(EngineCoreMessage).decode
        self._outputs = OutputProcessor(tokenizer, [Metrics("bench", config)])
        self._news: list[str] = []
        inputs = InputProcessor(config, tokenizer)
        params = SamplingParams(max_tokens=output_len, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
        work = Work("decode", prompt_lens, (output_len,) * num_running)
        for index, ids in enumerate(work.prompts(config.model.vocab_size, seed=0)):
            name = f"request-{index}"
            for message in self._outputs.add(name, inputs.prepare(ids, params), partial(self._news.append, name)):
                self._core.add_request(self._core.prepare(message))
        # Two more, since a step's tokens may come with the step after it.
        while len(self._core.scheduler.decoding) < num_running:
            self.process_outputs(self.step_core()[1])
        for _ in range(2):
            self.process_outputs(self.step_core()[1])

    def step_core(self) -> tuple[float, list[bytes]]:
        """The engine's process: schedule, update, encode. Seconds without the executor's, and the messages."""
        before = self._executor.seconds
        began = perf_counter()
        messages = [self._encode(message) for message in self._core.step() if message.has_news]
        return perf_counter() - began - (self._executor.seconds - before), messages

    def process_outputs(self, messages: Sequence[bytes]) -> tuple[float, int]:
        """The API process without HTTP: decode, detokenize, make every caller's output. Seconds, and tokens."""
        began = perf_counter()
        num_tokens = 0
        for data in messages:
            message = self._decode(data)
            assert isinstance(message, EngineCoreOutputs)
            self._outputs.process(message)
            for name in self._news:
                output = self._outputs.requests[name].take()
                num_tokens += sum(len(one.token_ids) for one in output.outputs) if output is not None else 0
            self._news.clear()
        return perf_counter() - began, num_tokens
