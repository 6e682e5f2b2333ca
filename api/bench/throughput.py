"""``octavo bench throughput``: tokens per second of offline work, alone or beside Transformers in the same run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from cyclopts import Parameter

from ...core.engine_args import EngineArgs
from ...core.errors import EngineError
from ...core.limits import check_least
from ..config_file import UsageError
from .contestant import Contestant, OctavoContestant, TransformersContestant
from .report import print_table, progress, write_json
from .roofline import Ceilings, ModelNeeds, Needs, measure_ceilings, print_ceilings
from .workload import Work, fixed_work, parse_work


@Parameter(name="*")
@dataclass(kw_only=True)
class ThroughputArgs:
    """What to run, and against whom."""

    num_requests: int = 32
    """Requests of the work, all at once."""

    input_len: int = 128
    """Prompt tokens of each."""

    output_len: int = 64
    """Output tokens of each."""

    work: list[str] = field(default_factory=list)
    """Work in place of the three flags above, and as often as wanted: fixed:N:IN:OUT or ragged:N:LOW-HIGH:LOW-HIGH."""

    rounds: int = 1
    """Times that each work is measured."""

    against: Literal["transformers"] | None = None
    """Also run Transformers' generate on the same work, between two runs of Octavo in each round."""

    against_batch: int | None = None
    """Requests in one padded batch of Transformers. Without it, all of them."""

    ceilings: bool = True
    """Also measure what the device gives at most, in a copy and a matrix product, and tell the shares of it."""

    json: Path | None = None
    """Also write the results to this file."""

    def works(self, seed: int) -> list[Work]:
        """The works to measure. Raises ``UsageError`` for a number below one or a malformed ``--work``."""
        check_least(self, UsageError, num_requests=1, input_len=1, output_len=1, rounds=1, against_batch=1)
        if self.work:
            return [parse_work(spec, seed) for spec in self.work]
        return [fixed_work(self.num_requests, self.input_len, self.output_len)]


@dataclass(slots=True)
class Measurement:
    """All runs of one contestant on one work."""

    work: Work
    system: str
    seconds: list[float]
    """One entry for each run."""

    @property
    def rates(self) -> dict[str, float]:
        """Per second, over all runs: output tokens, all tokens, and requests."""
        work, each = self.work, sum(self.seconds) / len(self.seconds)
        return {
            "output_tokens_per_second": work.output_tokens / each,
            "total_tokens_per_second": (work.prompt_tokens + work.output_tokens) / each,
            "requests_per_second": work.num_requests / each,
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {name: getattr(self.work, name) for name in ("num_requests", "prompt_tokens", "output_tokens")}
        return {"work": self.work.name, "system": self.system, **counts, "seconds": self.seconds, **self.rates}


def run_throughput(engine: EngineArgs, args: ThroughputArgs) -> int:
    """Measures, prints the table and writes the JSON. The exit code."""
    from ...engine.checkpoint import resolve_model

    works = args.works(engine.seed)
    folder = resolve_model(engine.model)
    # Read again by the engine itself; here for the vocabulary, and so that a bad flag fails before a model loads.
    config = engine.build(folder)
    for work in works:
        limit = config.model.max_model_len
        if work.longest > limit:
            raise UsageError(f"{work.name} needs {work.longest} tokens, above --max-model-len {limit}")
    ceilings = measure_ceilings(config) if args.ceilings else None
    contestants: list[Contestant] = [OctavoContestant(engine)]
    if args.against == "transformers":
        progress("loading Transformers ...")
        contestants.append(TransformersContestant(folder, engine, args.against_batch))
    try:
        measurements = [
            measurement
            for work in works
            for measurement in measure(work, contestants, config.model.vocab_size, engine.seed, args.rounds)
        ]
    finally:
        for contestant in contestants:
            contestant.close()
    title = ", ".join(filter(None, (engine.model or folder.name, config.model.dtype, engine.quantization)))
    needs = {work.name: ModelNeeds(config.model).whole(work, config) for work in works}
    _print(title, measurements, needs, ceilings)
    results = [measurement.as_dict() | needs[measurement.work.name].as_dict() for measurement in measurements]
    about = {"model": str(folder), "dtype": config.model.dtype, "ceilings": ceilings and asdict(ceilings)}
    write_json(args.json, "throughput", about | {"results": results})
    return 0


def measure(
    work: Work,
    contestants: Sequence[Contestant],
    vocab_size: int,
    seed: int,
    rounds: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Measurement]:
    """Lets each contestant do ``work``, one after the other: A, or A-B-A in each round.

    The first contestant frames the others, so that a machine that slows down or speeds up meanwhile shows in its two
    runs instead of in the ratio. Each run has prompts of its own, so that no prefix cache helps in a later one; equal
    turns of different contestants have the same prompts. Everyone warms up on a small part first.
    """
    turns = [0, *range(1, len(contestants)), *([0] if len(contestants) > 1 else [])] * rounds
    warmup = work.prompts(vocab_size, seed=-1)[: min(4, work.num_requests)]
    for contestant in contestants:
        contestant.generate(warmup, [min(4, n) for n in work.output_lens[: len(warmup)]])
    results = [Measurement(work, contestant.name, []) for contestant in contestants]
    for turn in turns:
        result = results[turn]
        prompts = work.prompts(vocab_size, seed + 1000 * len(result.seconds))
        began = clock()
        generated = contestants[turn].generate(prompts, work.output_lens)
        seconds = clock() - began
        if generated != work.output_tokens:
            raise EngineError(f"{result.system} gave {generated} tokens of {work.output_tokens} in {work.name}")
        result.seconds.append(seconds)
        progress(f"{work.name} {result.system}: {work.output_tokens / seconds:.1f} output tok/s in {seconds:.2f} s")
    return results


def _print(
    title: str, measurements: Sequence[Measurement], needs: Mapping[str, Needs], ceilings: Ceilings | None
) -> None:
    columns = ["work", "system", "output tok/s", "total tok/s", "requests/s", "seconds", "GB/s", "TFLOP/s", "ratio"]
    reference = {
        m.work.name: m.rates["output_tokens_per_second"] for m in measurements if m.system != OctavoContestant.name
    }
    rows = []
    for m in measurements:
        against = reference.get(m.work.name)
        ratio = (
            f"{m.rates['output_tokens_per_second'] / against:.2f}x"
            if against and m.system == OctavoContestant.name
            else None
        )
        seconds = " / ".join(f"{value:.2f}" for value in m.seconds)
        rates = needs[m.work.name].rates(sum(m.seconds) / len(m.seconds), ceilings)
        rows.append([m.work.name, m.system, *m.rates.values(), seconds, *rates, ratio])
    if not reference:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(f"Throughput of {title}", columns, rows)
    print_ceilings(ceilings)
