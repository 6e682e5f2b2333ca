"""Prometheus metrics, under the names that the field's dashboards know with the prefix ``octavo:``.

Implements the engine's ``StatLogger``: the engine calls the ``record_`` methods, ``/metrics`` renders what they left.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..core.config import EngineConfig
from ..core.stats import FinishedRequestStats, SchedulerStats
from .series import Counter, Gauge, Histogram
from .shared_numbers import SharedNumbers

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST
FINISH_REASONS = ("stop", "length", "abort")
REJECTIONS = {401: "unauthorized", 429: "overloaded", 499: "client_gone", 503: "unavailable"}
REJECTION_REASONS = (*REJECTIONS.values(), "invalid", "failed")

_TTFT_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def token_buckets(limit: int) -> list[int]:
    """1, 2, 5, 10, ... up to ``limit`` tokens."""
    buckets = []
    scale = 1
    while scale <= limit:
        buckets += [scale * step for step in (1, 2, 5) if scale * step <= limit]
        scale *= 10
    return buckets


class Metrics(Collector):
    """All metrics of one server. Those that are told here, and in all other processes that share ``numbers``."""

    def __init__(self, model_name: str, config: EngineConfig, numbers: SharedNumbers | None = None) -> None:
        self._numbers = numbers or SharedNumbers()
        self._model_name = model_name
        self._config = config
        self._counted = SchedulerStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
        self._families: list[Callable[[], Metric]] = []
        self._make_gauges()
        self._make_counters()
        self._make_histograms(config.model.max_model_len)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """See Prometheus' ``Collector``."""
        return (family() for family in self._families)

    def record_step(self, stats: SchedulerStats) -> None:
        """The scheduler's state after a step. Told to one process of a server only."""
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._kv_usage.set(stats.kv_usage)
        self._preemptions.inc(_rise(self._counted.num_preemptions, stats.num_preemptions))
        self._prefix_queries.inc(_rise(self._counted.prefix_queries, stats.prefix_queries))
        self._prefix_hits.inc(_rise(self._counted.prefix_hits, stats.prefix_hits))
        if stats.step < self._counted.step:
            self._restarts.inc()  # a new engine counts its steps from the start
        tokens = stats.num_prompt_tokens + stats.num_generated_tokens
        if tokens:
            self._iteration_tokens.observe(tokens)
            self._step_seconds.observe(stats.step_seconds)
        # The null block is in the pool, though it is never handed out.
        self._num_blocks.set(stats.num_blocks + 1)
        self._counted = stats

    def record_first_token(self, seconds: float) -> None:
        """A request's first token came this long after its arrival."""
        self._ttft.observe(seconds)
        self._generation_tokens.inc()

    def record_tokens(self, count: int, seconds: float) -> None:
        """``count`` completions got a token, each one ``seconds`` after its last."""
        self._generation_tokens.inc(count)
        self._inter_token.observe(seconds, count)

    def record_finished(self, stats: FinishedRequestStats) -> None:
        """A request ended."""
        # Of n completions only the very first token was told by record_first_token.
        self._generation_tokens.inc(max(0, min(stats.n, stats.num_generated_tokens) - 1))
        self._success[stats.finish_reason].inc()
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._cached_tokens.inc(stats.num_cached_tokens)
        self._e2e.observe(stats.e2e_seconds)
        self._queue.observe(stats.queue_seconds)
        self._prefill.observe(stats.prefill_seconds)
        self._decode.observe(stats.decode_seconds)
        self._request_prompt_tokens.observe(stats.num_prompt_tokens)
        self._request_generation_tokens.observe(stats.num_generated_tokens)
        if stats.num_generated_tokens > 1:
            self._time_per_token.observe(stats.decode_seconds / (stats.num_generated_tokens - 1))

    def record_status(self, status: int) -> None:
        """An HTTP request was answered with this status."""
        if status >= 400:
            self._rejected[REJECTIONS.get(status) or ("invalid" if status < 500 else "failed")].inc()

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(self._numbers)

        def family() -> Metric:
            told = GaugeMetricFamily(f"octavo:{name}", text, labels=["model_name"])
            told.add_metric([self._model_name], gauge.total)
            return told

        self._families.append(family)
        return gauge

    def _counter(self, name: str, text: str) -> Counter:
        return self._counters(name, text, None, ("",))[""]

    def _counters(self, name: str, text: str, label: str | None, values: Sequence[str]) -> dict[str, Counter]:
        """One counter for each value of a label, all present from the start: the set of series never changes."""
        counters = {value: Counter(self._numbers) for value in values}

        def family() -> Metric:
            labels = ["model_name"] if label is None else ["model_name", label]
            told = CounterMetricFamily(f"octavo:{name}", text, labels=labels)
            for value, counter in counters.items():
                told.add_metric([self._model_name, value][: len(labels)], counter.total)
            return told

        self._families.append(family)
        return counters

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        histogram = Histogram(self._numbers, bounds)

        def family() -> Metric:
            told = HistogramMetricFamily(f"octavo:{name}", text, labels=["model_name"])
            told.add_metric([self._model_name], histogram.buckets, histogram.sum)
            return told

        self._families.append(family)
        return histogram

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait to be scheduled.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.")
        self._num_blocks = Gauge(self._numbers)
        self._families.append(self._cache_config)

    def _cache_config(self) -> Metric:
        cache = self._config.cache
        labels = {
            "model_name": self._model_name,
            "block_size": cache.block_size,
            "num_gpu_blocks": int(self._num_blocks.total) or cache.num_blocks,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "gpu_memory_utilization": cache.memory_utilization,
        }
        text = "The KV cache's configuration, as labels; the value is 1."
        told = GaugeMetricFamily("octavo:cache_config_info", text, labels=list(labels))
        told.add_metric([str(label) for label in labels.values()], 1.0)
        return told

    def _make_counters(self) -> None:
        self._preemptions = self._counter("num_preemptions", "Preemptions: a request gave its KV blocks to another.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests.")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Of those, tokens found in the prefix cache.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found there.")
        self._restarts = self._counter("engine_restarts", "Engines that took over from one that died.")
        self._rejected = self._counters(
            "requests_rejected",
            "HTTP requests that were answered with an error, by its kind.",
            "reason",
            REJECTION_REASONS,
        )
        self._success = self._counters(
            "request_success", "Ended requests, by the reason of their end.", "finished_reason", FINISH_REASONS
        )

    def _make_histograms(self, max_model_len: int) -> None:
        tokens = token_buckets(max_model_len)
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT_SECONDS)
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Time from one token of a request to its next.", _TOKEN_SECONDS
        )
        self._time_per_token = self._histogram(
            "request_time_per_output_token_seconds", "A request's mean time per token after its first.", _TOKEN_SECONDS
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", _REQUEST_SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to first schedule.", _REQUEST_SECONDS)
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "First schedule to first token.", _REQUEST_SECONDS
        )
        self._decode = self._histogram("request_decode_time_seconds", "First token to last.", _REQUEST_SECONDS)
        self._request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self._request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens of a request.", tokens
        )
        self._iteration_tokens = self._histogram("iteration_tokens_total", "Tokens of one step.", _STEP_TOKENS)
        self._step_seconds = self._histogram("step_time_seconds", "Time of one step.", _STEP_SECONDS)


def _rise(before: int, now: int) -> int:
    """How much a running total grew; a restarted engine counts from 0 again."""
    return now - before if now >= before else now
