"""``octavo bench core``: what a step costs beside the model, in the engine's process and in the API process."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from ...core.engine_args import EngineArgs
from ..config_file import UsageError
from .report import percentile, print_table, progress, write_json

PERCENTILES = (50, 99)


@Parameter(name="*")
@dataclass(kw_only=True)
class CoreCostArgs:
    """How many requests decode, and for how long."""

    running: list[int] = field(default_factory=lambda: [1, 64, 256, 1024])
    """Requests that decode at the same time: a row of the table for each number."""

    steps: int = 200
    """Measured steps of each row."""

    json: Path | None = None
    """Also write the results to this file."""

    def check(self) -> None:
        """Raises ``UsageError`` for a number below one."""
        for name, value in (("running", min(self.running)), ("steps", self.steps)):
            if value < 1:
                raise UsageError(f"--{name} must be at least 1, not {value}")


def run_core_cost(engine: EngineArgs, args: CoreCostArgs) -> int:
    """Measures, prints the table and writes the JSON. The exit code."""
    args.check()
    from ...engine.checkpoint import resolve_model
    from ...engine.engine_setup import load_tokenizer
    from .decode_steps import DecodeSteps

    folder = resolve_model(engine.model)
    config = engine.build(folder)
    tokenizer = load_tokenizer(config)
    results: list[dict[str, Any]] = []
    for num_running in args.running:
        progress(f"{num_running} running ...")
        work = DecodeSteps(config, tokenizer, num_running, args.steps)
        core_ms, output_ms, num_tokens = [], [], 0
        for _ in range(args.steps):
            seconds, messages = work.step_core()
            core_ms.append(1000.0 * seconds)
            seconds, tokens = work.process_outputs(messages)
            output_ms.append(1000.0 * seconds)
            num_tokens += tokens
        result: dict[str, Any] = {"running": num_running, "tokens": num_tokens}
        for name, values in (("core_ms", core_ms), ("output_ms", output_ms)):
            result[name] = {f"p{p}": percentile(values, p) for p in PERCENTILES}
        results.append(result)
    columns = ["running", *(f"{part} p{p}" for part in ("core", "output") for p in PERCENTILES), "output us/token"]
    rows = [
        [
            result["running"],
            *(f"{result[part][f'p{p}']:.3f}" for part in ("core_ms", "output_ms") for p in PERCENTILES),
            1000.0 * result["output_ms"]["p50"] / result["running"],
        ]
        for result in results
    ]
    print_table("Milliseconds of one decode step, without the model", columns, rows)
    write_json(args.json, "core", {"model": str(folder), "steps": args.steps, "results": results})
    return 0
