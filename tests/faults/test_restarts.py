"""An engine that dies is replaced, and its requests go on where they stopped."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import make_checkpoint
from counting import until
from server_process import ServerProcess, Stream, gauge

Serve = Callable[..., ServerProcess]

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "minLength": 200}}, "required": ["a"]}
BODIES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1, "seed": 7, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "seed": 3, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    "two choices": {"temperature": 1, "seed": 11, "n": 2},
    "log probabilities": {"temperature": 0, "logprobs": 2},
    "a schema": {"temperature": 1, "seed": 5, "response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": SCHEMA}}},
}  # fmt: skip


def ask(url: str, kind: str) -> Stream:
    return Stream(url, max_tokens=500, **{"prompt": "once upon a time", **BODIES[kind]})


def answer_of(stream: Stream) -> tuple[dict[int, str], list[str], dict[int, str]]:
    """Text and end of each choice, and the tokens of log probabilities, once the stream is over."""
    assert stream.done.wait(60), "the stream hangs"
    assert stream.events[-1] == "[DONE]", (stream.events[-1:], stream.error)
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    tokens: list[str] = []
    for choice in (choice for event in stream.events[:-1] for choice in event["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        tokens += (choice["logprobs"] or {}).get("tokens", [])
        if choice["finish_reason"]:
            ends[choice["index"]] = choice["finish_reason"]
    return texts, tokens, ends


@pytest.fixture
def octavo(tmp_path: Path, nothing_is_left: None) -> Iterator[Callable[..., ServerProcess]]:
    """Starts the real command on a small real model."""
    folder = make_checkpoint(tmp_path / "model", max_position_embeddings=1024)
    servers: list[ServerProcess] = []

    def start(*flags: str) -> ServerProcess:
        settings = ("--dtype", "float32", "--max-model-len", "1000", "--port", "0", *flags)
        servers.append(ServerProcess.octavo("serve", str(folder), *settings))
        return servers[-1]

    yield start
    for server in servers:
        server.clean_up()


def engine_of(server: ServerProcess, but: int | None = None) -> int:
    """The engine's process; ``but``: another one than this."""
    found: list[int] = []

    def seen() -> bool:
        found[:] = [pid for pid in server.see_family() if pid != but]
        return len(found) == 1

    until(seen, "there is an engine", 30)
    return found[0]


def test_streams_go_on_with_the_tokens_that_they_would_have_had(octavo: Callable[..., ServerProcess]) -> None:
    server = octavo()
    url = server.wait_ready()
    undisturbed = {kind: answer_of(ask(url, kind)) for kind in BODIES}
    engine = engine_of(server)
    streams = {kind: ask(url, kind) for kind in BODIES}
    until(lambda: all(len(stream.events) > 5 for stream in streams.values()), "all flow")
    os.kill(engine, signal.SIGKILL)
    until(lambda: httpx.get(f"{url}/health").json() == {"status": "restarting"}, "/health tells it", 5)
    refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
    for kind, stream in streams.items():
        assert answer_of(stream) == undisturbed[kind], kind
    assert httpx.get(f"{url}/health").status_code == 200
    assert gauge(url, "engine_restarts_total") == 1
    assert engine_of(server) != engine
    assert f"the engine process (pid {engine}) ended with signal SIGKILL; another one is started" in server.log
    server.signal(signal.SIGTERM)
    assert server.end() == 0


def test_one_death_more_than_allowed_ends_the_server(octavo: Callable[..., ServerProcess]) -> None:
    server = octavo("--engine-restarts", "1")
    url = server.wait_ready()
    first = engine_of(server)
    os.kill(first, signal.SIGKILL)
    second = engine_of(server, but=first)
    until(lambda: httpx.get(f"{url}/health").status_code == 200, "it serves again", 30)
    os.kill(second, signal.SIGKILL)
    assert server.end() == 1
    assert server.lines[-1] == f"octavo: the engine process (pid {second}) ended with signal SIGKILL"


def test_a_server_can_be_stopped_while_an_engine_is_replaced(octavo: Callable[..., ServerProcess]) -> None:
    server = octavo("--shutdown-timeout", "0")
    url = server.wait_ready()
    first = engine_of(server)
    os.kill(first, signal.SIGKILL)
    until(lambda: httpx.get(f"{url}/health").status_code == 503, "it is seen", 5)
    server.signal(signal.SIGTERM)
    assert server.end() == 0


@pytest.mark.parametrize("worker", ["FailingWorker", "HangingWorker"])
def test_a_request_that_every_engine_dies_of_is_given_up_and_the_next_one_served(serve: Serve, worker: str) -> None:
    server = serve(worker, hang_timeout=1.0, restarts=3)
    url = server.wait_ready()
    assert Stream(url).last_error == "engine_dead"
    until(lambda: httpx.get(f"{url}/health").status_code == 200, "it serves again", 30)
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 2, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 2
    assert server.log.count("another one is started") == 2


def test_a_worker_process_that_is_killed_takes_the_engine_with_it_and_both_come_back(serve: Serve) -> None:
    server = serve(executor="mp", restarts=1)
    url = server.wait_ready()
    family = server.wait_children(2)
    stream = Stream(url, max_tokens=400)
    stream.wait_flowing()
    os.kill(max(family), signal.SIGKILL)  # started by the other one
    assert stream.last_error.startswith("none: ['[DONE]']")
    assert sum(event != "[DONE]" and len(event["choices"]) for event in stream.events) > 0
    assert server.process.poll() is None
