"""Several API processes on one engine: one set of totals, one end, and each tells its own clients."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from counting import until
from prometheus_client.parser import text_string_to_metric_families
from server_process import ServerProcess, Stream

Serve = Callable[..., ServerProcess]


class Pair:
    """A server of two API processes, with a connection to each: one connection stays with the process that took it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.url = server.wait_ready()
        self.child = int(server.wait_for(r"API process 1 has pid (\d+)"))
        server.wait_for(r"\[api-1\] (serving) on")
        server.wait_children(2)
        (self.engine,) = server.family - {self.child}
        self.clients: dict[str, httpx.Client] = {}
        self.opened: list[httpx.Client] = []

    def connect(self) -> None:
        """Connect until each process has taken a connection."""
        while len(self.clients) < 2:
            client = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=1), base_url=self.url)
            self.opened.append(client)
            answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
            name = self.server.wait_for(rf"\[(api(?:-1)?)\] {answer.json()['id']} ")
            self.clients.setdefault(name, client)

    def streams(self, max_tokens: int = 15_000) -> list[Stream]:
        """A stream of each process, flowing."""
        streams = [Stream(self.url, max_tokens, client=client) for client in self.clients.values()]
        for stream in streams:
            stream.wait_flowing()
        return streams

    def totals(self, client: httpx.Client | None = None) -> dict[str, float]:
        """Every sample of one scrape."""
        text = (client or httpx).get(f"{self.url}/metrics").text
        return {
            sample.name + str(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def pair(serve: Serve) -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def start(worker: str = "CountingWorker", **settings: Any) -> Pair:
        pairs.append(Pair(serve(worker, api_servers=2, **settings)))
        return pairs[-1]

    yield start
    for one in pairs:
        for client in one.opened:
            client.close()


def summed(totals: dict[str, float], name: str) -> float:
    return sum(value for key, value in totals.items() if key.startswith(f"octavo:{name}["))


def test_every_scrape_gives_the_totals_of_all_processes(pair: Callable[..., Pair]) -> None:
    two = pair()
    fresh = two.totals()
    assert all(value == 0 for key, value in fresh.items() if not key.startswith("octavo:cache_config_info"))
    two.connect()
    ways = [httpx, *two.clients.values()]

    def ask(number: int) -> dict[str, int]:
        body = {"prompt": "x" * (number % 7 + 1), "max_tokens": number % 9 + 1, "ignore_eos": True, "n": number % 2 + 1}
        return ways[number % 3].post(f"{two.url}/v1/completions", json=body, timeout=60).json()["usage"]

    with ThreadPoolExecutor(8) as threads:
        usages = list(threads.map(ask, range(40)))
    usages += [{"prompt_tokens": 1, "completion_tokens": 1}] * len(two.opened)
    until(lambda: summed(two.totals(), "num_requests_running") == 0, "all is told")
    scrapes = [two.totals(client) for client in (None, *two.clients.values()) for _ in range(7)]
    assert all(len(re.findall(rf"\[{name}\] cmpl-", two.server.log)) > 10 for name in two.clients)
    assert all(scrape == scrapes[0] for scrape in scrapes)
    assert set(scrapes[0]) == set(fresh)
    assert summed(scrapes[0], "request_success_total") == len(usages)
    assert summed(scrapes[0], "prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert summed(scrapes[0], "generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_prompt_tokens"):
        assert summed(scrapes[0], f"{name}_count") == len(usages)
    assert summed(scrapes[0], "iteration_tokens_total_sum") >= summed(scrapes[0], "generation_tokens_total")


def test_the_engine_is_killed_and_every_process_says_so(pair: Callable[..., Pair]) -> None:
    two = pair()
    two.connect()
    streams = two.streams()
    os.kill(two.engine, signal.SIGKILL)
    assert [stream.last_error for stream in streams] == ["engine_dead"] * 2
    assert two.server.end() == 1
    assert two.server.lines[-1] == f"octavo: the engine process (pid {two.engine}) ended with signal SIGKILL"
    assert re.search(r"\[api-1\] this API process ends: the engine process", two.server.log)
    assert "Traceback" not in two.server.log


def test_the_engine_is_killed_and_every_process_goes_on_with_the_next_one(pair: Callable[..., Pair]) -> None:
    two = pair(restarts=1)
    two.connect()
    streams = two.streams(max_tokens=1500)
    os.kill(two.engine, signal.SIGKILL)
    for stream in streams:
        assert stream.last_error == "none: ['[DONE]'] None"
        texts = [event["choices"][0]["text"] for event in stream.events[:-1]]
        assert len("".join(texts)) == 1500
    for client in two.clients.values():
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert summed(two.totals(client), "engine_restarts_total") == 1
    two.server.signal(signal.SIGTERM)
    assert two.server.end() == 0
    assert two.server.folders() == []


def test_health_tells_of_the_engine_in_every_process(pair: Callable[..., Pair]) -> None:
    two = pair()
    two.connect()
    os.kill(two.engine, signal.SIGKILL)
    told: dict[str, str] = {}

    def watch(name: str, client: httpx.Client) -> None:
        while (answer := client.get("/health")).status_code == 200:
            pass
        told[name] = answer.json()["status"]

    threads = [threading.Thread(target=watch, args=item, daemon=True) for item in two.clients.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert told == {"api": "dead", "api-1": "dead"}
    assert two.server.end() == 1


def test_an_api_process_is_killed_and_the_server_ends_with_that_cause(pair: Callable[..., Pair]) -> None:
    two = pair()
    two.connect()
    first, second = (Stream(two.url, client=two.clients[name]) for name in ("api", "api-1"))
    for stream in (first, second):
        stream.wait_flowing()
    os.kill(two.child, signal.SIGKILL)
    assert first.last_error == "engine_dead"
    assert second.done.wait(5) and second.error is not None
    assert two.server.end() == 1
    assert two.server.lines[-1] == "octavo: API process 1 ended with signal SIGKILL"
    assert two.server.folders() == []


@pytest.mark.parametrize("victim", ["api", "engine"])
def test_a_process_is_killed_while_the_engine_loads_and_the_server_ends_with_that_cause(
    serve: Serve, victim: str
) -> None:
    server = serve("SlowLoadingWorker", api_servers=2)
    server.wait_listening()
    server.wait_children(2)
    child = int(server.wait_for(r"API process 1 has pid (\d+)"))
    (engine,) = server.family - {child}
    os.kill(child if victim == "api" else engine, signal.SIGKILL)
    assert server.end() == 1
    cause = "API process 1" if victim == "api" else f"the engine process (pid {engine})"
    assert server.lines[-1] == f"octavo: {cause} ended with signal SIGKILL"
    assert server.folders() == []


@pytest.mark.parametrize("worker", ["CountingWorker", "SlowLoadingWorker"])
def test_the_first_process_is_killed_and_takes_all_others_along(serve: Serve, worker: str) -> None:
    server = serve(worker, api_servers=2)
    server.wait_listening()
    server.wait_children(2)
    if worker == "CountingWorker":
        server.wait_ready()
        server.wait_for(r"\[api-1\] (serving) on")
    else:
        until(lambda: server.folders() == [], "the engine said hello to both")
    server.signal(signal.SIGKILL)
    assert server.end() == -signal.SIGKILL
    assert server.folders() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_drains_every_process(pair: Callable[..., Pair], number: signal.Signals) -> None:
    two = pair(shutdown_timeout=1.5)
    two.connect()
    endless = two.streams()
    two.clients.clear()
    two.connect()
    short = two.streams(max_tokens=200)
    two.server.signal(number)
    for stream in short:
        assert stream.done.wait(10)
        assert stream.events[-1] == "[DONE]", stream.events[-1]
    assert [stream.last_error for stream in endless] == ["stopping"] * 2
    assert two.server.end() == 0
    assert "Traceback" not in two.server.log
    assert two.server.folders() == []


def test_a_second_signal_ends_a_long_drain_of_another_process(pair: Callable[..., Pair]) -> None:
    two = pair(shutdown_timeout=100)
    two.connect()
    stream = Stream(two.url, client=two.clients["api-1"])
    stream.wait_flowing()
    two.server.signal(signal.SIGTERM)
    two.server.wait_for(r"\[api-1\] stopping; (1) open")
    count = len(stream.events)
    until(lambda: len(stream.events) > count + 50, "the stream goes on")
    two.server.signal(signal.SIGTERM)
    assert stream.last_error == "stopping"
    assert two.server.end() == 0


def test_a_signal_while_all_still_load_ends_them(serve: Serve) -> None:
    server = serve("SlowLoadingWorker", api_servers=3)
    server.wait_listening()
    server.wait_children(3)
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.log


def test_an_engine_that_cannot_start_ends_them_with_one_line(serve: Serve) -> None:
    server = serve("RefusingWorker", api_servers=2)
    assert server.end(20) == 1
    assert server.lines[-1] == "octavo: the checkpoint is not to my taste; take another one"
    assert "Traceback" not in server.log


def test_what_one_process_cannot_know_is_refused(pair: Callable[..., Pair]) -> None:
    two = pair()
    asked = httpx.get(f"{two.url}/v1/responses/resp_1")
    assert asked.status_code == 400
    assert "--api-server-count 1" in json.loads(asked.text)["error"]["message"]
