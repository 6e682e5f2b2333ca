"""The application over a real engine with a small random model, in a thread of this process: all is in reach."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from stub_app import StubApp

from octavo.core.engine_args import EngineArgs
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.stat_logger import StatLogger


@asynccontextmanager
async def real_app(folder: Path, **settings: Any) -> AsyncIterator[StubApp]:
    """``settings`` are those of ``EngineArgs``. The scheduler's integrity is checked after every step."""
    loggers: list[StatLogger] = []
    args = EngineArgs(model=str(folder), dtype="float32", check_integrity=True, **settings)
    engine = AsyncLLM.from_engine_args(args, loggers, multiprocess=False)
    try:
        await engine.wait_ready()
        app = StubApp(engine)  # type: ignore[arg-type]
        loggers.append(app.metrics)
        yield app
    finally:
        await engine.shutdown()


def samples(app: StubApp) -> dict[str, float]:
    """Every metric by name and labels, without the model's name."""
    return {
        sample.name
        + "".join(f"|{value}" for name, value in sorted(sample.labels.items()) if name != "model_name"): sample.value
        for family in text_string_to_metric_families(app.metrics.render().decode())
        for sample in family.samples
    }


def held_requests(app: StubApp) -> dict[str, int]:
    """Sizes of everything that holds something for a request, from the door to the workers (which hear of a request's
    end with the next step)."""
    engine: Any = app.engine
    core = engine._transport._loop.core
    scheduler, grammars = core.scheduler, core.executor._worker._grammars
    pool = scheduler.kv.pool
    return {
        "open requests": len(app.context.open_requests),
        "their completions": app.context.open_requests.completions,
        "requests of the output processor": len(engine._outputs.requests),
        "completions of the output processor": len(engine._outputs._completions),
        "calls": len(engine._calls),
        "messages": len(engine._messages),
        "requests of the scheduler": len(scheduler.requests),
        "slots": scheduler.config.max_num_seqs - scheduler.slots.num_free,
        "blocks": pool.num_usable - pool.num_free,
        "retiring blocks": scheduler.kv.num_retiring,
        "held grammars": len(grammars._holds),
    }
