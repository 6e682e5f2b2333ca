"""The benchmarks' own arithmetic: work, turns, percentiles, tables; with contestants that only count."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from octavo.api.bench.contestant import TransformersContestant
from octavo.api.bench.latency import LatencyArgs, LatencySamples
from octavo.api.bench.report import format_value, mean, percentile, print_table, write_json
from octavo.api.bench.startup import Start, StartupArgs
from octavo.api.bench.throughput import Measurement, ThroughputArgs, measure
from octavo.api.bench.workload import draw_lengths, fixed_work, parse_work
from octavo.api.config_file import UsageError
from octavo.core.engine_args import EngineArgs
from octavo.core.errors import EngineError
from octavo.core.outputs import RequestOutput, RequestTimings


class CountingContestant:
    """Gives the tokens it was asked for, after ``seconds`` of a clock that nobody has to wait for."""

    def __init__(self, name: str, clock: list[float], seconds: Iterator[float], missing: int = 0) -> None:
        self.name = name
        self.calls: list[list[list[int]]] = []
        self._clock = clock
        self._seconds = seconds
        self._missing = missing

    def generate(self, prompts: list[list[int]], output_lens: Sequence[int]) -> int:
        self.calls.append(prompts)
        self._clock[0] += next(self._seconds)
        return sum(output_lens) - self._missing

    def close(self) -> None:
        pass


def test_fixed_work_has_equal_requests() -> None:
    work = parse_work("fixed:4:32:8")
    assert (work.num_requests, work.prompt_tokens, work.output_tokens, work.longest) == (4, 128, 32, 40)


def test_ragged_work_keeps_its_ranges_and_repeats() -> None:
    work = parse_work("ragged:200:16-512:8-128", seed=3)
    assert 16 <= min(work.prompt_lens) < 40
    assert 480 < max(work.prompt_lens) <= 512
    assert 8 <= min(work.output_lens) < max(work.output_lens) <= 128
    assert work == parse_work("ragged:200:16-512:8-128", seed=3)
    assert work != parse_work("ragged:200:16-512:8-128", seed=4)
    assert draw_lengths(3, "5", "7", 0).prompt_lens == (5, 5, 5)


@pytest.mark.parametrize("spec", ["fixed", "fixed:1:2", "fixed:0:1:1", "fixed:a:1:1", "ragged:2:9-3:1", "odd:1:1:1"])
def test_malformed_work_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        parse_work(spec)


def test_prompts_are_plain_tokens_and_differ_between_runs() -> None:
    work = fixed_work(8, 16, 4)
    prompts = work.prompts(49152, seed=1)
    assert [len(prompt) for prompt in prompts] == [16] * 8
    assert all(256 <= token < 49152 for prompt in prompts for token in prompt)
    assert prompts == work.prompts(49152, seed=1)
    assert len({tuple(prompt[:2]) for prompt in prompts + work.prompts(49152, seed=2)}) == 16
    assert all(token < 50 for prompt in work.prompts(50, seed=0) for token in prompt)


def test_turns_alternate_and_rates_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    clock = [0.0]
    octavo = CountingContestant("octavo", clock, iter([9.0, 1.0, 3.0]))
    other = CountingContestant("transformers", clock, iter([9.0, 8.0]))
    ours, theirs = measure(fixed_work(2, 10, 20), [octavo, other], 1000, 0, clock=lambda: clock[0])
    assert (ours.seconds, theirs.seconds) == ([1.0, 3.0], [8.0])
    assert ours.rates["output_tokens_per_second"] == pytest.approx(2 * 40 / 4)
    assert ours.rates["total_tokens_per_second"] == pytest.approx(2 * 60 / 4)
    assert ours.rates["requests_per_second"] == pytest.approx(2 * 2 / 4)
    assert theirs.rates["output_tokens_per_second"] == pytest.approx(40 / 8)
    # The same turn has the same prompts for both, and another turn has others: no cache can help.
    assert octavo.calls[1] == other.calls[1]
    assert octavo.calls[2] != octavo.calls[1]


def test_alone_a_contestant_runs_once_a_round() -> None:
    clock = [0.0]
    octavo = CountingContestant("octavo", clock, iter([1.0] * 4))
    (result,) = measure(fixed_work(1, 1, 1), [octavo], 1000, 0, rounds=3, clock=lambda: clock[0])
    assert len(result.seconds) == 3


def test_tokens_that_did_not_come_are_no_result() -> None:
    lazy = CountingContestant("octavo", [0.0], iter([1.0, 1.0]), missing=1)
    with pytest.raises(EngineError, match="octavo gave 39 tokens of 40"):
        measure(fixed_work(2, 10, 20), [lazy], 1000, 0)


def test_throughput_flags_give_one_work_unless_works_are_named() -> None:
    assert ThroughputArgs(num_requests=2, input_len=3, output_len=4).works(0) == [fixed_work(2, 3, 4)]
    assert [work.name for work in ThroughputArgs(work=["fixed:1:1:1", "ragged:2:1-2:3"]).works(0)] == [
        "fixed:1:1:1",
        "ragged:2:1-2:3",
    ]
    with pytest.raises(UsageError, match="--against-batch must be at least 1"):
        ThroughputArgs(against_batch=0).works(0)


def test_latency_is_taken_from_each_requests_timeline() -> None:
    def output(first: float, last: float, tokens: int) -> RequestOutput:
        times = RequestTimings(arrival=10.0, first_scheduled=10.5, first_token=first, last_token=last)
        return RequestOutput("r", None, [1], [], True, num_generated_tokens=tokens, timings=times)

    samples = LatencySamples([], [], [], [])
    samples.add([output(11.0, 12.0, 11), output(11.5, 11.5, 1)], batch_seconds=2.0)
    assert samples.prefill_ms == pytest.approx([500.0, 1000.0])
    assert samples.token_ms == pytest.approx([100.0])
    assert samples.batch_ms == [2000.0]
    assert samples.prompts_ms == pytest.approx([1000.0])
    assert samples.as_dict()["milliseconds"]["prefill"]["p50"] == pytest.approx(750.0)
    with pytest.raises(UsageError, match="--output-len must be at least 2"):
        LatencyArgs(output_len=1).check()


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0
    assert percentile([0.0, 100.0], 99) == pytest.approx(99.0)
    assert math.isnan(percentile([], 50))
    assert math.isnan(mean([]))


def test_figures_keep_three_digits() -> None:
    values = (1234.5, 12.345, 1.2345, 7, None, math.nan, "x")
    assert [format_value(value) for value in values] == ["1234", "12.3", "1.23", "7", "-", "-", "x"]


def test_a_table_in_a_pipe_cuts_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Title", ["a long column name", "value"], [["x" * 60, 123456.0]])
    out = capsys.readouterr().out
    assert "x" * 60 in out
    assert "123456" in out


def test_json_tells_the_machine_too(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    measurement = Measurement(fixed_work(1, 2, 4), "octavo", [2.0])
    write_json(path, "throughput", {"results": [measurement.as_dict()]})
    document = json.loads(path.read_text())
    assert document["benchmark"] == "throughput"
    assert document["results"][0]["output_tokens_per_second"] == 2.0
    assert document["environment"]["torch"].startswith("2.")
    write_json(None, "throughput", {})


def test_a_waterfall_step_begins_where_its_process_ended_the_last() -> None:
    start = Start([("api: imports", 1.0), ("engine: imports", 3.0), ("api: ready", 3.5), ("engine: load", 4.0)])
    rows = [(row[0], row[1], row[2]) for row in start.rows()]
    assert rows == [
        ("api: imports", 1.0, 1.0),
        ("engine: imports", 3.0, 2.0),
        ("api: ready", 3.5, 2.5),
        ("engine: load", 4.0, 1.0),
    ]
    assert start.total == 4.0
    assert StartupArgs().repeat == 1


@pytest.mark.slow
def test_transformers_gives_exactly_the_tokens_asked_for(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "eos_token_id": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = EngineArgs(model=str(tmp_path), load_format="dummy", dtype="float32")
    contestant = TransformersContestant(tmp_path, engine, batch_size=2)
    assert contestant.generate([[5, 6, 7], [8], [9, 10]], [3, 9, 4]) == 16
    contestant.close()
