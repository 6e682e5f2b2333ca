"""``octavo run-batch``: a batch file, worked off by an engine of its own or by a running server."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import httpx
from cyclopts import Parameter

from ..core.engine_args import EngineArgs
from ..core.errors import ConfigurationError
from ..core.limits import check_least
from ..core.logging import configure_logging
from .batch import BatchCounts, BatchRun, is_written, open_results, read_requests
from .config_file import UsageError
from .progress import progress_bar
from .serve_command import EngineFlags

CONNECT_SECONDS = 10.0


@dataclass(kw_only=True)
class BatchArgs:
    """Settings of ``octavo run-batch``."""

    url: str | None = None
    """Address of a running server to send the requests to. Without it, an engine is started for the batch."""

    api_key: Annotated[str | None, Parameter(env_var="OCTAVO_API_KEY")] = field(default=None, repr=False)
    """Key to send to that server as a bearer token."""

    concurrency: int = 256
    """Most requests at a time."""

    served_model_name: list[str] = field(default_factory=list)
    """Names that requests may give as model to an engine of the batch's own."""

    chat_template: str | None = None
    """Jinja chat template, as a file or as text, in place of the model's own."""


BatchFlags = Annotated[BatchArgs | None, Parameter(name="*", group="Batch")]


def run_batch(
    input_file: Path,
    output_file: Path,
    /,
    *,
    batch: BatchFlags = None,
    engine: EngineFlags = None,
    config: Annotated[Path | None, Parameter(group="Batch")] = None,
) -> int:
    """Work off a batch file in OpenAI's format. A run that was stopped goes on where it was.

    Parameters
    ----------
    input_file
        JSON lines, each a request with custom_id, method, url and body.
    output_file
        JSON lines with the results, in the order they get done. Lines that are there already are kept and not redone.
    config
        YAML file with any of these settings; flags win over it.
    """
    batch = batch or BatchArgs()
    check_least(batch, UsageError, concurrency=1)
    total = _count_lines(input_file)
    if output_file.exists() and output_file.samefile(input_file):
        raise UsageError("input and output are the same file")
    configure_logging("batch")
    counts = asyncio.run(_run(input_file, output_file, total, batch, engine or EngineArgs()))
    print(
        f"octavo: {counts.answered} answered, {counts.failed} failed, {counts.skipped} had results before; "
        f"results in {output_file}",
        file=sys.stderr,
    )
    return 0


def _count_lines(path: Path) -> int:
    try:
        with path.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    except OSError as error:
        raise ConfigurationError(f"the input {path} cannot be read: {error.strerror}") from error


async def _run(source: Path, target: Path, total: int, batch: BatchArgs, engine: EngineArgs) -> BatchCounts:
    # Before the engine starts: a wrong output should be told at once.
    output, written = open_results(target)
    with output, source.open("rb") as lines:
        if all(is_written(item, written) for item in read_requests(lines)):
            return BatchCounts(skipped=total)  # an engine need not be started for that
        lines.seek(0)
        async with _remote(batch.url, batch.api_key) if batch.url else _own_engine(engine, batch) as client:
            with progress_bar("requests", total) as advance:
                run = BatchRun(client, output, batch.concurrency, advance)
                await run.run(read_requests(lines), written)
        return run.counts


@contextlib.asynccontextmanager
async def _remote(url: str, api_key: str | None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    if httpx.URL(base).scheme not in ("http", "https"):
        raise UsageError(f"--url {url!r} is not an address; write it like http://127.0.0.1:8000")
    # A long answer takes as long as it takes; only the connection must come about soon.
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=base, headers=headers, timeout=timeout, limits=limits, trust_env=False
    ) as client:
        yield client


@contextlib.asynccontextmanager
async def _own_engine(args: EngineArgs, batch: BatchArgs) -> AsyncIterator[httpx.AsyncClient]:
    """The server's own application, called without a socket: a batch gets the very answers that a client would."""
    from ..engine.async_llm import AsyncLLM
    from .app import build_app
    from .context import ServerContext
    from .metrics import Metrics
    from .server import DEFAULT_MODEL_NAME
    from .server_args import ServerArgs

    # The results tell of each request; a log line for each beside the bar would only be noise.
    engine = AsyncLLM.from_engine_args(replace(args, disable_log_requests=True))
    try:
        await engine.wait_ready()
        names = batch.served_model_name or [args.model or DEFAULT_MODEL_NAME]
        context = ServerContext(engine, ServerArgs(chat_template=batch.chat_template), names)
        app = build_app(context, Metrics(names[0], engine.config))
        try:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://batch", timeout=None
            ) as client:
                yield client
        finally:
            context.encoder.close()
    finally:
        await engine.shutdown()
