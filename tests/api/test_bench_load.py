"""The load generator and the start-up watch, against a server whose answers are known."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_server
import pytest
from fake_server import FakeServer, running

from octavo.api.bench.event_stream import EventStreamClient
from octavo.api.bench.load import LoadArgs, LoadGenerator, RequestRecord, summarize
from octavo.api.bench.startup import measure_start
from octavo.api.cli import main
from octavo.api.client import ServerAnswerError
from octavo.api.config_file import UsageError
from octavo.core.errors import EngineStartError


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(FakeServer()) as fake:
        yield fake


def load(server: FakeServer, **changes: object) -> list[RequestRecord]:
    """Runs one load against the server."""
    args = LoadArgs(url=server.url, **changes)  # type: ignore[arg-type]
    args.check()

    async def run() -> list[RequestRecord]:
        return await LoadGenerator(args, "fake-model").run()

    return asyncio.run(run())


def test_every_request_is_counted(server: FakeServer) -> None:
    records = load(server, num_requests=5, input_len="3-9", output_len="4")
    assert [record.error for record in records] == [None] * 5
    assert [record.output_tokens for record in records] == [4] * 5
    assert [record.prompt_tokens for record in records] == [7] * 5, "the server's own count wins"
    assert [len(record.chunks) for record in records] == [4] * 5
    body = server.requests[0]
    assert 3 <= len(body["prompt"].split()) <= 9
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (4, True, True)


def test_chat_requests_go_to_the_chat_endpoint(server: FakeServer) -> None:
    load(server, num_requests=1, endpoint="chat", ignore_eos=False)
    assert server.paths == ["/v1/chat/completions"]
    assert server.requests[0]["messages"][0]["role"] == "user"
    assert "ignore_eos" not in server.requests[0]


def test_the_same_seed_sends_the_same_requests(server: FakeServer) -> None:
    load(server, num_requests=3, concurrency=1, seed=5)
    load(server, num_requests=3, concurrency=1, seed=5)
    load(server, num_requests=3, concurrency=1, seed=6)
    assert server.requests[:3] == server.requests[3:6]
    assert server.requests[:3] != server.requests[6:]


def test_no_more_than_the_wanted_requests_run_at_once(server: FakeServer) -> None:
    server.gap = 0.005
    load(server, num_requests=8, concurrency=2)
    assert 1 <= server.most_at_once <= 2
    load(server, num_requests=8)
    assert server.most_at_once > 2


@pytest.mark.parametrize("fault", ["error_in_stream", "break_off"])
def test_a_failed_stream_is_a_failed_request(server: FakeServer, fault: str) -> None:
    setattr(server, fault, True)
    (record,) = load(server, num_requests=1)
    assert record.error


def test_a_refusal_is_a_failed_request(server: FakeServer) -> None:
    server.error_status = 429
    (record,) = load(server, num_requests=1)
    assert record.error is not None
    assert "answered 429" in record.error


def test_the_summary_leaves_failed_requests_out() -> None:
    good = RequestRecord(10, sent=1.0, chunks=[1.5, 1.6, 1.8], output_tokens=4, finished=2.0)
    slow = RequestRecord(10, sent=1.0, chunks=[3.0, 3.1], output_tokens=2, finished=3.2)
    bad = RequestRecord(10, sent=1.0, finished=1.1, error="refused")
    summary = summarize([good, slow, bad], 4.0, {"ttft": 600.0, "tpot": 150.0})
    assert (summary["succeeded"], summary["failed"], summary["errors"]) == (2, 1, ["refused"])
    assert summary["output_tokens_per_second"] == pytest.approx(6 / 4)
    assert summary["goodput_requests_per_second"] == pytest.approx(1 / 4)
    assert summary["milliseconds"]["ttft"]["mean"] == pytest.approx(1250.0)
    assert summary["milliseconds"]["tpot"]["mean"] == pytest.approx(100.0)
    assert summary["milliseconds"]["itl"]["mean"] == pytest.approx((100 + 200 + 100) / 3)
    assert summary["milliseconds"]["e2e"]["p50"] == pytest.approx(1600.0)


def test_limits_are_read_from_the_flag() -> None:
    assert LoadArgs(slo=["ttft:500", "tpot:50.5"]).limits() == {"ttft": 500.0, "tpot": 50.5}
    with pytest.raises(UsageError, match="not like ttft:500"):
        LoadArgs(slo=["ttft"]).limits()


def test_the_command_prints_and_writes(server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.json"
    flags = ["--num-requests", "4", "--rate", "1000", "--slo", "ttft:60000", "--json", str(path)]
    assert main(["bench", "serve", "--url", server.url, *flags]) == 0
    out = capsys.readouterr().out
    assert "fake-model at" in out
    assert "TTFT" in out
    assert "goodput" in out
    document = json.loads(path.read_text())
    assert (document["succeeded"], document["failed"], document["output_tokens"]) == (4, 0, 16)


def test_a_dead_port_is_told_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9"]) == 1
    assert "no server answers" in capsys.readouterr().err


def test_an_address_may_lack_its_scheme_and_hold_a_path(server: FakeServer) -> None:
    async def first_event(client: EventStreamClient) -> bytes:
        body = json.dumps({"prompt": "x"}).encode()
        async for data in client.post("/v1/completions", body):
            return data
        raise AssertionError("no event")

    assert b"Paris" in asyncio.run(first_event(EventStreamClient(server.url.removeprefix("http://"))))
    assert b"Paris" in asyncio.run(first_event(EventStreamClient(f"{server.url}/v1/")))
    with pytest.raises(ServerAnswerError, match="no server answers"):
        asyncio.run(first_event(EventStreamClient("http://127.0.0.1:9")))
    with pytest.raises(UsageError, match="is not an address"):
        EventStreamClient("ftp://x")


def test_a_start_is_watched_to_its_first_token() -> None:
    start = measure_start([sys.executable, "-P", fake_server.__file__], timeout=30.0)
    names = [name for name, _ in start.steps]
    assert names[:2] == ["api: imports", "engine-0: load weights"]
    assert names[2:] == ["client: port open", "client: healthy", "client: first token"]
    assert 0 < start.total < 30


def test_a_start_that_fails_tells_why() -> None:
    with pytest.raises(EngineStartError, match="ended with code 1 and said: octavo: there is no such model"):
        measure_start([sys.executable, "-P", fake_server.__file__, "--fail"], timeout=30.0)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_drawn_of_what_succeeded(server: FakeServer, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"load{suffix}"
    assert main(["bench", "serve", "--url", server.url, "--num-requests", "4", "--plot", str(target)]) == 0
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG") if suffix == ".png" else data.rstrip().endswith(b"</svg>")


def test_a_plot_that_cannot_be_written_is_refused_before_the_load(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--url", server.url, "--plot", str(tmp_path / "load.xyz")]) != 0
    assert "must end with one of" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert main(["bench", "serve", "--url", server.url, "--plot", str(tmp_path / "load.png")]) != 0
    assert "octavo[plot]" in capsys.readouterr().err
    assert server.requests == []
