"""``octavo bench``: the benchmarks as commands. What is heavy is imported when one of them runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ...core.engine_args import EngineArgs
from ...core.logging import configure_logging
from ..serve_command import EngineFlags, with_model
from .core_cost import CoreCostArgs, run_core_cost
from .latency import LatencyArgs, run_latency
from .load import LoadArgs, run_load
from .startup import StartupArgs, run_startup
from .throughput import ThroughputArgs, run_throughput

ConfigFlag = Annotated[Path | None, Parameter(group="Engine")]

bench = App(name="bench", help="Measure throughput, latency, a server, a start, or the engine's own cost.")


@bench.command
def throughput(
    model: str | None = None,
    /,
    *,
    args: ThroughputArgs | None = None,
    engine: EngineFlags = None,
    config: ConfigFlag = None,
) -> int:
    """Tokens per second of offline work, alone or beside Transformers.

    Parameters
    ----------
    model
        A local folder, a .gguf file or a hub id. Without it, the embedded default model.
    config
        YAML file with any of these settings; flags win over it.
    """
    configure_logging("bench")
    return run_throughput(with_model(engine or EngineArgs(), model), args or ThroughputArgs())


@bench.command
def latency(
    model: str | None = None,
    /,
    *,
    args: LatencyArgs | None = None,
    engine: EngineFlags = None,
    config: ConfigFlag = None,
) -> int:
    """Time to the first token and between tokens, of one batch at a time.

    Parameters
    ----------
    model
        A local folder, a .gguf file or a hub id. Without it, the embedded default model.
    config
        YAML file with any of these settings; flags win over it.
    """
    configure_logging("bench")
    return run_latency(with_model(engine or EngineArgs(), model), args or LatencyArgs())


@bench.command
def core(
    model: str | None = None,
    /,
    *,
    args: CoreCostArgs | None = None,
    engine: EngineFlags = None,
    config: ConfigFlag = None,
) -> int:
    """What a decode step costs beside the model: scheduling and messages, and the work of the API process.

    Parameters
    ----------
    model
        Whose tokenizer and vocabulary are used; the model itself is simulated. Without it, the embedded default model.
    config
        YAML file with any of these settings; flags win over it.
    """
    configure_logging("bench")
    return run_core_cost(with_model(engine or EngineArgs(), model), args or CoreCostArgs())


@bench.command(name="serve")
def serve_load(*, args: LoadArgs | None = None) -> int:
    """Load any OpenAI-compatible server, and tell what its clients felt."""
    return run_load(args or LoadArgs())


@bench.command
def startup(*serve_flags: Annotated[str, Parameter(allow_leading_hyphen=True)], args: StartupArgs | None = None) -> int:
    """Start octavo serve and print, step by step, how long it takes to the first token.

    Parameters
    ----------
    serve_flags
        MODEL and flags for octavo serve, behind a --.
    """
    return run_startup(serve_flags, args or StartupArgs())
