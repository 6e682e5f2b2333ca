"""``octavo bench serve``: a load generator for any OpenAI-compatible server, and what its clients would feel."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from ...core.limits import check_least
from ..client import DEFAULT_URL, ServerAnswerError, ServerClient, event_texts
from ..config_file import UsageError
from .event_stream import EventStreamClient
from .plot import check_plot, draw_load
from .report import mean, percentile, print_table, progress, write_json
from .workload import draw_lengths

# Common English words that are one token, with the space before them, in nearly every vocabulary.
WORDS = (
    "the of and to in is was for on are with as his they be at one have this from or had by hot but some what there "
    "we can out other were all your when up use word how said an each she which do their time if will way about many"
).split()


@Parameter(name="*")
@dataclass(kw_only=True)
class LoadArgs:
    """The load, and where it goes."""

    url: str = DEFAULT_URL
    """Address of the server."""

    model: str | None = None
    """Name of the model. Without it, the first that the server offers."""

    api_key: Annotated[str | None, Parameter(env_var="OCTAVO_API_KEY")] = None
    """Key to send as a bearer token."""

    endpoint: Literal["completions", "chat"] = "completions"
    """Which API the requests use."""

    num_requests: int = 64
    """Requests in all."""

    rate: float | None = None
    """Requests per second on average; their gaps are drawn as of a Poisson process. Without it, all arrive at once."""

    concurrency: int | None = None
    """Most requests at a time; another starts when one ends. Without it, no limit."""

    input_len: str = "128"
    """Prompt tokens, about: a number, or a range LOW-HIGH to draw from."""

    output_len: str = "64"
    """Output tokens: a number, or a range LOW-HIGH to draw from."""

    warmup: int = 1
    """Requests before those that count, one after the other: a server's first ones may pay for what comes later."""

    ignore_eos: bool = True
    """Ask the server to go on to the full output length. Turn it off for servers that refuse the field."""

    slo: list[str] = field(default_factory=list)
    """Limits in ms that a good request keeps, such as ttft:500 or tpot:50; goodput counts those that keep all."""

    seed: int = 0
    """Seed of the texts, lengths and arrival times."""

    json: Path | None = None
    """Also write the results to this file."""

    plot: Path | None = None
    """Also draw a timeline and the distribution of latencies to this file (.png, .svg, .pdf; extra plot)."""

    def check(self) -> None:
        """Raises ``UsageError`` for a number that cannot be used."""
        check_least(self, UsageError, num_requests=1, warmup=0, concurrency=1)
        if self.rate is not None and not 0.0 < self.rate < 1e6:
            raise UsageError(f"--rate must be above 0, not {self.rate}")

    def limits(self) -> dict[str, float]:
        """The ``--slo`` values, by metric. Raises ``UsageError``."""
        limits = {}
        for text in self.slo:
            metric, _, value = text.partition(":")
            try:
                limits[metric] = float(value)
            except ValueError as error:
                raise UsageError(f"--slo {text!r} is not like ttft:500") from error
            if metric not in ("ttft", "tpot", "e2e"):
                raise UsageError(f"--slo {text!r}: the metric is ttft, tpot or e2e")
        return limits


@dataclass(slots=True)
class RequestRecord:
    """What one client saw. Times are seconds of one clock."""

    prompt_tokens: int
    sent: float
    chunks: list[float] = field(default_factory=list)
    """When each piece of text came."""
    output_tokens: int = 0
    finished: float = 0.0
    error: str | None = None

    @property
    def ttft_ms(self) -> float:
        """Until the first text."""
        return 1000.0 * (self.chunks[0] - self.sent)

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first; None for a single token."""
        gaps = self.output_tokens - 1
        return 1000.0 * (self.chunks[-1] - self.chunks[0]) / gaps if gaps > 0 else None

    @property
    def e2e_ms(self) -> float:
        """Until the end of the stream."""
        return 1000.0 * (self.finished - self.sent)

    @property
    def itl_ms(self) -> list[float]:
        """Times between neighbouring pieces of text. A server may put several tokens into one."""
        return [1000.0 * (b - a) for a, b in zip(self.chunks, self.chunks[1:], strict=False)]

    def keeps(self, limits: dict[str, float]) -> bool:
        """True if the request succeeded within every limit."""
        if self.error is not None or not self.chunks:
            return False
        values = {"ttft": self.ttft_ms, "tpot": self.tpot_ms or 0.0, "e2e": self.e2e_ms}
        return all(values[metric] <= limit for metric, limit in limits.items())


class LoadGenerator:
    """Sends the requests at their times and records what comes back."""

    def __init__(self, args: LoadArgs, model: str) -> None:
        self.args = args
        self.client = EventStreamClient(args.url, api_key=args.api_key)
        self._model = model
        self._random = random.Random(args.seed)
        self._gate = asyncio.Semaphore(args.concurrency or args.num_requests)
        lens = draw_lengths(args.num_requests, args.input_len, args.output_len, args.seed)
        self._bodies = [
            (prompt_len, self._body(prompt_len, output_len))
            for prompt_len, output_len in zip(lens.prompt_lens, lens.output_lens, strict=True)
        ]

    async def warm_up(self) -> None:
        """Sends the uncounted requests, with texts of their own. Raises ``ServerAnswerError`` if one fails."""
        for _ in range(self.args.warmup):
            record = await self._send(16, self._body(16, 4))
            if record.error is not None:
                raise ServerAnswerError(record.error)

    async def run(self) -> list[RequestRecord]:
        """All requests, to their ends; a failed one has its error in its record."""
        tasks = []
        due = asyncio.get_running_loop().time()
        for prompt_len, body in self._bodies:
            if self.args.rate is not None:
                # Times are added up, not slept one by one, so that a late wake-up does not lower the rate.
                due += self._random.expovariate(self.args.rate)
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            tasks.append(asyncio.create_task(self._send(prompt_len, body)))
        return list(await asyncio.gather(*tasks))

    async def _send(self, prompt_len: int, body: bytes) -> RequestRecord:
        path = "/v1/chat/completions" if self.args.endpoint == "chat" else "/v1/completions"
        async with self._gate:
            record = RequestRecord(prompt_len, time.perf_counter())
            try:
                async for data in self.client.post(path, body):
                    _take(record, msgspec.json.decode(data), time.perf_counter())
            except (ServerAnswerError, msgspec.DecodeError) as error:
                record.error = str(error)
            record.finished = time.perf_counter()
        if record.error is None and not record.chunks:
            record.error = "the stream held no text"
        # A server that does not report usage most likely sent one token a piece.
        record.output_tokens = record.output_tokens or len(record.chunks)
        return record

    def _body(self, prompt_len: int, output_len: int) -> bytes:
        text = " ".join(self._random.choices(WORDS, k=prompt_len))
        prompt = {"messages": [{"role": "user", "content": text}]} if self.args.endpoint == "chat" else {"prompt": text}
        body = {
            "model": self._model,
            "max_tokens": output_len,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **prompt,
        }
        if self.args.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body)


def run_load(args: LoadArgs) -> int:
    """Loads the server, prints the table and writes the JSON. The exit code: 1 if any request failed."""
    args.check()
    limits = args.limits()
    check_plot(args.plot)
    with ServerClient(args.url, api_key=args.api_key) as client:
        model = args.model or client.first_model()
    pace = f"{args.rate:g} requests/s" if args.rate else "all at once"
    progress(f"{args.num_requests} requests to {model} at {args.url}, {pace} ...")
    records, seconds = asyncio.run(_run(args, model))
    summary = summarize(records, seconds, limits)
    _print(args, model, summary)
    write_json(args.json, "serve", {"url": args.url, "model": model, **summary})
    if args.plot is not None and summary["succeeded"]:
        good = [record for record in records if record.error is None]
        draw_load(good, latencies_of(good), f"{model}, {pace}", args.plot)
    return 1 if summary["failed"] else 0


async def _run(args: LoadArgs, model: str) -> tuple[list[RequestRecord], float]:
    """The records, and the seconds from the first request to the end of the last."""
    generator = LoadGenerator(args, model)
    await generator.warm_up()
    began = time.perf_counter()
    records = await generator.run()
    return records, time.perf_counter() - began


def latencies_of(records: list[RequestRecord]) -> dict[str, list[float]]:
    """All values in ms, by kind."""
    return {
        "ttft": [record.ttft_ms for record in records],
        "tpot": [record.tpot_ms for record in records if record.tpot_ms is not None],
        "itl": [gap for record in records for gap in record.itl_ms],
        "e2e": [record.e2e_ms for record in records],
    }


def summarize(records: list[RequestRecord], seconds: float, limits: dict[str, float]) -> dict[str, Any]:
    """Rates over ``seconds``, and mean, p50 and p99 in ms of each latency, of the requests that succeeded."""
    good = [record for record in records if record.error is None]
    summary: dict[str, Any] = {
        "seconds": seconds,
        "succeeded": len(good),
        "failed": len(records) - len(good),
        "errors": sorted({record.error for record in records if record.error is not None}),
        "prompt_tokens": sum(record.prompt_tokens for record in good),
        "output_tokens": sum(record.output_tokens for record in good),
        "output_tokens_per_second": sum(record.output_tokens for record in good) / seconds,
        "requests_per_second": len(good) / seconds,
        "milliseconds": {
            name: {"mean": mean(values), "p50": percentile(values, 50), "p99": percentile(values, 99)}
            for name, values in latencies_of(good).items()
            if values
        },
    }
    if limits:
        summary["slo"] = limits
        summary["goodput_requests_per_second"] = sum(record.keeps(limits) for record in good) / seconds
    return summary


def _take(record: RequestRecord, event: dict[str, Any], now: float) -> None:
    """Takes one event of a stream into the record."""
    if event.get("error"):
        raise ServerAnswerError(f"error in the stream: {event['error']}")
    record.chunks += [now for _ in event_texts(event)]
    usage = event.get("usage")
    if usage:
        record.output_tokens = usage.get("completion_tokens") or record.output_tokens
        record.prompt_tokens = usage.get("prompt_tokens") or record.prompt_tokens


def _print(args: LoadArgs, model: str, summary: dict[str, Any]) -> None:
    figures = [
        ["requests that succeeded", summary["succeeded"]],
        ["requests that failed", summary["failed"]],
        ["seconds", summary["seconds"]],
        ["requests/s", summary["requests_per_second"]],
        ["output tok/s", summary["output_tokens_per_second"]],
        ["prompt tokens", summary["prompt_tokens"]],
        ["output tokens", summary["output_tokens"]],
    ]
    if "slo" in summary:
        limits = ", ".join(f"{metric} <= {limit:g} ms" for metric, limit in summary["slo"].items())
        figures.append([f"goodput, requests/s ({limits})", summary["goodput_requests_per_second"]])
    print_table(f"{model} at {args.url}", ["", "value"], figures)
    rows = [[name.upper(), v["mean"], v["p50"], v["p99"]] for name, v in summary["milliseconds"].items()]
    if rows:
        print_table("Latency in ms", ["", "mean", "p50", "p99"], rows)
    for error in summary["errors"][:3]:
        progress(f"failed: {error}")
