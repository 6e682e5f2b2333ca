"""``octavo bench latency``: one batch at a time, repeated: how long until the first token, and between tokens."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from ...core.engine_args import EngineArgs
from ...core.limits import check_least
from ...core.outputs import RequestOutput
from ...core.sampling_params import RequestOutputKind, SamplingParams
from ..config_file import UsageError
from .report import mean, percentile, print_table, progress, write_json
from .roofline import ModelNeeds, measure_ceilings, print_ceilings
from .workload import fixed_work

PERCENTILES = (50, 90, 99)


@Parameter(name="*")
@dataclass(kw_only=True)
class LatencyArgs:
    """The batch, and how often it runs."""

    batch_size: int = 1
    """Requests that run at the same time."""

    input_len: int = 128
    """Prompt tokens of each."""

    output_len: int = 64
    """Output tokens of each."""

    repeat: int = 5
    """Measured repetitions."""

    warmup: int = 1
    """Repetitions before them that do not count."""

    ceilings: bool = True
    """Also measure what the device gives at most, in a copy and a matrix product, and tell the shares of it."""

    json: Path | None = None
    """Also write the results to this file."""

    def check(self) -> None:
        """Raises ``UsageError`` for a number that cannot be used."""
        check_least(self, UsageError, batch_size=1, input_len=1, output_len=2, repeat=1, warmup=0)


@dataclass(slots=True)
class LatencySamples:
    """Milliseconds, one value for each request of each repetition (``batch_ms``: for each repetition)."""

    prefill_ms: list[float]
    """From the first time the request was scheduled to its first token."""
    token_ms: list[float]
    """Mean time from one token to the next."""
    batch_ms: list[float]
    """From the call to the last token of the batch, as the caller sees it."""
    prompts_ms: list[float]
    """From the first time that a request of the batch was scheduled to the last first token."""

    def add(self, outputs: Sequence[RequestOutput], batch_seconds: float) -> None:
        """Takes the times of one repetition's finished requests."""
        self.batch_ms.append(1000.0 * batch_seconds)
        starts, firsts = [], []
        for output in outputs:
            times = output.timings
            if times.first_token is None or times.last_token is None:
                continue
            began = times.first_scheduled if times.first_scheduled is not None else times.arrival
            self.prefill_ms.append(1000.0 * (times.first_token - began))
            starts.append(began)
            firsts.append(times.first_token)
            gaps = output.num_generated_tokens - 1
            if gaps > 0:
                self.token_ms.append(1000.0 * (times.last_token - times.first_token) / gaps)
        if firsts:
            self.prompts_ms.append(1000.0 * (max(firsts) - min(starts)))

    def rows(self) -> list[list[object]]:
        """Name, mean and percentiles of each kind of sample."""
        named = (("prefill", self.prefill_ms), ("per token", self.token_ms), ("whole batch", self.batch_ms))
        return [[name, mean(values), *(percentile(values, p) for p in PERCENTILES)] for name, values in named]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: the summary, and every sample."""
        keys = ["mean", *(f"p{p}" for p in PERCENTILES)]
        summary = {str(row[0]).replace(" ", "_"): dict(zip(keys, row[1:], strict=True)) for row in self.rows()}
        return {"milliseconds": summary, "samples": asdict(self)}


def run_latency(engine: EngineArgs, args: LatencyArgs) -> int:
    """Measures, prints the table and writes the JSON. The exit code."""
    args.check()
    from ...engine.checkpoint import resolve_model
    from ..llm import LLM

    folder = resolve_model(engine.model)
    config = engine.build(folder)
    work = fixed_work(args.batch_size, args.input_len, args.output_len)
    if work.longest > config.model.max_model_len:
        raise UsageError(f"{work.longest} tokens are above --max-model-len {config.model.max_model_len}")
    parameters = SamplingParams(
        temperature=0.0, max_tokens=args.output_len, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
    )
    samples = LatencySamples([], [], [], [])
    ceilings = measure_ceilings(config) if args.ceilings else None
    with LLM(**asdict(engine)) as llm:
        for repetition in range(-args.warmup, args.repeat):
            prompts = work.prompts(config.model.vocab_size, seed=engine.seed + repetition)
            began = time.perf_counter()
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
            seconds = time.perf_counter() - began
            progress(f"{'warm-up' if repetition < 0 else f'run {repetition + 1} of {args.repeat}'}: {seconds:.3f} s")
            if repetition >= 0:
                samples.add(outputs, seconds)
    shape = f"{args.batch_size} x ({args.input_len} + {args.output_len})"
    title = f"Latency in ms of {engine.model or folder.name}, {config.model.dtype}: {shape}"
    print_table(title, ["", "mean", *(f"p{p}" for p in PERCENTILES)], samples.rows())
    model = ModelNeeds(config.model)
    decode = model.decode_step([args.input_len + args.output_len / 2] * args.batch_size)
    needs = (
        ("prompts", model.prefill(work.prompt_lens), samples.prompts_ms),
        ("decode step", decode, samples.token_ms),
    )
    rates = [[name, mean(values), *need.rates(mean(values) / 1000.0, ceilings)] for name, need, values in needs]
    print_table("Achieved, on the mean", ["", "ms", "GB/s", "TFLOP/s"], rates)
    print_ceilings(ceilings)
    about = {"model": str(folder), "work": work.name, "ceilings": ceilings and asdict(ceilings)}
    about["needs"] = {name: need.as_dict() for name, need, _ in needs}
    write_json(args.json, "latency", about | samples.as_dict())
    return 0
