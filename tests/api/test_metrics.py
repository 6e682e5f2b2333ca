"""Metrics: names, sums, and a text that Prometheus' own parser takes."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from stub_app import StubApp, run
from stub_engine import StubEngine, make_config

from octavo.api.metrics import Metrics, token_buckets
from octavo.api.shared_numbers import NUM_COLUMNS, SharedNumbers
from octavo.core.stats import FinishedRequestStats, SchedulerStats


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample without labels of its own: name to value; labels beyond the model's name in braces."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sorted(sample.labels.items()) if name != "model_name"}
            assert sample.labels["model_name"] == "m"
            found[sample.name + ("{" + ",".join(labels.values()) + "}" if labels else "")] = sample.value
    return found


def make_metrics() -> Metrics:
    return Metrics("m", make_config(300))


def finished(**changes: object) -> FinishedRequestStats:
    """A request of 10 prompt tokens, 4 of them cached, and 5 generated ones."""
    fields = {
        "finish_reason": "stop", "num_prompt_tokens": 10, "num_cached_tokens": 4, "num_generated_tokens": 5,
        "queue_seconds": 0.5, "prefill_seconds": 0.25, "decode_seconds": 2.0, "e2e_seconds": 2.75,
    } | changes  # fmt: skip
    return FinishedRequestStats(**fields)  # type: ignore[arg-type]


def step(**changes: int | float) -> SchedulerStats:
    """The state after a step."""
    fields = {
        "step": 1, "num_running": 3, "num_waiting": 2, "num_free_blocks": 25, "num_blocks": 100,
        "num_prompt_tokens": 7, "num_generated_tokens": 3, "num_preemptions": 1, "prefix_queries": 50,
        "prefix_hits": 16, "step_seconds": 0.01,
    } | changes  # fmt: skip
    return SchedulerStats(**fields)  # type: ignore[arg-type]


NAMES = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total prompt_tokens_total
prompt_tokens_cached_total generation_tokens_total request_success_total{stop} request_success_total{length}
request_success_total{abort} prefix_cache_queries_total prefix_cache_hits_total time_to_first_token_seconds_count
inter_token_latency_seconds_count request_time_per_output_token_seconds_count e2e_request_latency_seconds_count
request_queue_time_seconds_count request_prefill_time_seconds_count request_decode_time_seconds_count
request_prompt_tokens_count request_generation_tokens_count iteration_tokens_total_count step_time_seconds_count
engine_restarts_total requests_rejected_total{unauthorized} requests_rejected_total{overloaded}
requests_rejected_total{client_gone} requests_rejected_total{unavailable} requests_rejected_total{invalid}
requests_rejected_total{failed}"""


def test_every_series_is_there_from_the_start_at_zero() -> None:
    found = values(make_metrics())
    for name in NAMES.split():
        assert found[f"octavo:{name}"] == 0.0, name
    assert found["octavo:cache_config_info{16,True,0.9,64}"] == 1.0


def test_a_step_sets_the_gauges_and_adds_what_the_totals_grew_by() -> None:
    metrics = make_metrics()
    metrics.record_step(step())
    metrics.record_step(step(num_preemptions=3, prefix_queries=70, prefix_hits=32))
    found = values(metrics)
    assert found["octavo:num_requests_running"] == 3 and found["octavo:num_requests_waiting"] == 2
    assert found["octavo:kv_cache_usage_perc"] == pytest.approx(0.75)
    assert found["octavo:num_preemptions_total"] == 3
    assert (found["octavo:prefix_cache_queries_total"], found["octavo:prefix_cache_hits_total"]) == (70, 32)
    assert found["octavo:iteration_tokens_total_sum"] == 20
    assert found["octavo:cache_config_info{16,True,0.9,101}"] == 1.0


def test_an_engine_that_restarts_does_not_make_counters_fall() -> None:
    metrics = make_metrics()
    metrics.record_step(step(num_preemptions=5))
    metrics.record_step(step(num_preemptions=2))
    assert values(metrics)["octavo:num_preemptions_total"] == 7


def test_an_engine_that_counts_its_steps_anew_is_a_restart() -> None:
    metrics = make_metrics()
    for number in (1, 2, 3, 1, 2):
        metrics.record_step(step(step=number))
    assert values(metrics)["octavo:engine_restarts_total"] == 1


def test_answers_with_an_error_are_counted_by_their_kind() -> None:
    metrics = make_metrics()
    for status in (200, 400, 404, 413, 401, 429, 499, 503, 500):
        metrics.record_status(status)
    found = values(metrics)
    kinds = {"invalid": 3, "unauthorized": 1, "overloaded": 1, "client_gone": 1, "unavailable": 1, "failed": 1}
    assert {kind: found[f"octavo:requests_rejected_total{{{kind}}}"] for kind in kinds} == kinds


def test_probes_are_no_refusals() -> None:
    app = StubApp(StubEngine(status="loading"))
    for path in ("/health", "/ready", "/v1/nowhere"):
        run(app.get(path))
    text = app.metrics.render().decode()
    assert 'requests_rejected_total{model_name="stub-model",reason="unavailable"} 0.0' in text
    assert 'requests_rejected_total{model_name="stub-model",reason="invalid"} 1.0' in text


def test_the_text_keeps_the_rules_of_the_format() -> None:
    """What promtool's check looks for, over the text itself as well as over what the parser makes of it."""
    metrics = make_metrics()
    metrics.record_first_token(0.1)
    metrics.record_tokens(2, 0.1)
    metrics.record_finished(finished())
    metrics.record_step(step())
    text = metrics.render().decode()
    assert text.endswith("\n") and "NaN" not in text
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    names = [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
    assert len(set(names)) == len(names), "a series is there twice"
    for family in families:
        assert family.name.startswith("octavo:") and re.fullmatch(r"octavo:[a-z][a-z0-9_]*", family.name)
        assert family.documentation.endswith(".") and family.type in ("gauge", "counter", "histogram")
        if family.type == "counter":
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)
        if family.type == "histogram":
            check_histogram(family.samples)


def check_histogram(samples: list[Sample]) -> None:
    buckets = [sample for sample in samples if sample.name.endswith("_bucket")]
    bounds = [float(sample.labels["le"]) for sample in buckets]
    counts = [sample.value for sample in buckets]
    assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf")
    assert counts == sorted(counts)
    (count,) = [sample.value for sample in samples if sample.name.endswith("_count")]
    assert counts[-1] == count


def test_a_finished_request_is_counted_once_in_every_histogram() -> None:
    metrics = make_metrics()
    metrics.record_finished(finished())
    metrics.record_finished(finished(finish_reason="abort", num_generated_tokens=1))
    found = values(metrics)
    assert (found["octavo:request_success_total{stop}"], found["octavo:request_success_total{abort}"]) == (1, 1)
    assert (found["octavo:prompt_tokens_total"], found["octavo:prompt_tokens_cached_total"]) == (20, 8)
    for name in ("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prompt_tokens"):
        assert found[f"octavo:{name}_count"] == found[f"octavo:{name}_bucket{{+Inf}}"] == 2
    assert found["octavo:request_time_per_output_token_seconds_sum"] == pytest.approx(0.5)


@pytest.mark.parametrize("n", [1, 3])
def test_generated_tokens_add_up_whatever_n_is(n: int) -> None:
    metrics = make_metrics()
    # As the engine tells it: the first token of the request, then each completion's tokens after its first.
    metrics.record_first_token(0.1)
    for _ in range(n):
        for _ in range(4):
            metrics.record_tokens(1, 0.02)
    metrics.record_finished(finished(n=n, num_generated_tokens=5 * n))
    assert values(metrics)["octavo:generation_tokens_total"] == 5 * n
    assert values(metrics)["octavo:inter_token_latency_seconds_count"] == 4 * n


def test_token_buckets_reach_up_to_the_context() -> None:
    assert token_buckets(256) == [1, 2, 5, 10, 20, 50, 100, 200]


def test_metrics_of_all_processes_are_the_same_text_wherever_it_is_asked_for() -> None:
    numbers = SharedNumbers(2)
    first, second = (Metrics("m", make_config(300), one) for one in (numbers, SharedNumbers(2, 1, numbers.fd)))
    first.record_step(step())
    first.record_finished(finished())
    for metrics in (first, second):
        metrics.record_first_token(0.02)
        metrics.record_tokens(2, 0.1)
        metrics.record_status(429)
    second.record_finished(finished(num_prompt_tokens=7, finish_reason="length"))
    assert first.render() == second.render()
    found = values(second)
    assert found["octavo:num_requests_running"] == 3 and found["octavo:num_preemptions_total"] == 1
    assert found["octavo:cache_config_info{16,True,0.9,101}"] == 1.0
    assert (found["octavo:request_success_total{stop}"], found["octavo:request_success_total{length}"]) == (1, 1)
    assert found["octavo:prompt_tokens_total"] == 17 and found["octavo:generation_tokens_total"] == 6
    assert found["octavo:time_to_first_token_seconds_bucket{0.02}"] == 2  # a bound belongs to its bucket
    assert found["octavo:time_to_first_token_seconds_bucket{0.01}"] == 0
    assert found["octavo:time_to_first_token_seconds_sum"] == pytest.approx(0.04)
    assert found["octavo:requests_rejected_total{overloaded}"] == 2


def test_metrics_need_few_of_the_columns() -> None:
    numbers = SharedNumbers()
    Metrics("m", make_config(10_000_000), numbers)
    assert numbers.take() < NUM_COLUMNS / 3


def test_the_endpoint_serves_them_as_text() -> None:
    response = run(StubApp().get("/metrics"))
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    assert "octavo:num_requests_running" in response.text
