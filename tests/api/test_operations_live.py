"""Operations with the real command on a small real model: keys, logs, sockets, and a batch of its own."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from checkpoints import make_checkpoint
from server_process import ServerProcess

KEY, WRONG = "canary-key-81", "wrong-canary-99"
CHAT = {"messages": [{"role": "user", "content": "a canary sings"}], "max_tokens": 4}
FLAGS = ("--dtype", "float32", "--max-model-len", "512")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model."""
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    """Servers that a test starts; they end with it."""
    started: list[ServerProcess] = []
    yield started
    for server in started:
        server.clean_up()


def check_requests(client: httpx.Client) -> None:
    """Good and wrong keys; no answer shows one."""
    assert client.get("/health").status_code == 200
    for key, code in ((KEY, 200), (WRONG, 401)):
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            answers = [client.post("/v1/chat/completions", json=CHAT, headers=headers)]
            answers += [client.get(path, headers=headers) for path in ("/metrics", "/version", "/docs", "/v1/models")]
            assert [answer.status_code for answer in answers] == [code] * 5
            assert not any("canary-" in answer.text for answer in answers)
    assert client.get("/v1/models", headers={"authorization": f"Bearer{KEY}"}).status_code == 401
    broken = client.post("/v1/chat/completions", content=b"{", headers={"x-api-key": KEY})
    assert broken.status_code == 400


def test_a_server_on_a_unix_socket_with_a_key_from_the_environment_logs_json_and_no_secret(
    checkpoint: Path, servers: list[ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", f"{KEY} another-key")
    path = tmp_path / "octavo.sock"
    flags = ("--uds", str(path), "--log-level", "debug", "--log-format", "json")
    flags += ("--otlp-endpoint", "http://127.0.0.1:9")  # nobody listens there, which the log tells in its own format
    server = ServerProcess.octavo("serve", str(checkpoint), *FLAGS, *flags)
    servers.append(server)
    assert server.wait_for(r"is ready on (unix:[^\s\"]+)") == f"unix:{path}"
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://local", timeout=60) as client:
        check_requests(client)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
        raw.sendall(f"what is this {KEY}\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    assert not path.exists()
    lines = [json.loads(line) for line in server.lines]
    assert {line["process"] for line in lines} >= {"api", "engine-0"}
    assert len([line for line in lines if line.get("event") == "request"]) == 2
    assert any(line["logger"].startswith("opentelemetry") for line in lines)
    assert any(line["logger"].startswith("uvicorn") and "Invalid" in line["message"] for line in lines)
    assert "canary" not in server.log


def test_a_key_from_the_command_line_shows_nowhere_either(checkpoint: Path, servers: list[ServerProcess]) -> None:
    flags = ("--port", "0", "--api-key", KEY, "--api-key", "another-key", "--log-level", "debug")
    server = ServerProcess.octavo("serve", str(checkpoint), *FLAGS, *flags)
    servers.append(server)
    with httpx.Client(base_url=server.wait_ready(), timeout=60) as client:
        check_requests(client)
        assert client.get("/v1/models", headers={"x-api-key": "another-key"}).status_code == 200
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    assert "canary" not in server.log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--api-key", ""), "API key 1 of 1"),
        (("--ssl-certfile", "/nowhere.pem"), "--ssl-certfile"),
        (("--otlp-endpoint", "nowhere"), "--otlp-endpoint"),
        (("--allowed-origins", "chat.example"), "--allowed-origins"),
        (("--max-queued-requests", "-1"), "--max-queued-requests"),
        (("--uds", "/nowhere/octavo.sock"), "--uds"),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else "",
)
def test_a_setting_that_cannot_work_ends_the_start_at_once(
    checkpoint: Path, servers: list[ServerProcess], flags: tuple[str, ...], message: str
) -> None:
    server = ServerProcess.octavo("serve", str(checkpoint), "--port", "0", *flags)
    servers.append(server)
    assert server.process.wait(60) == 1
    server.end()
    assert len(server.lines) == 1 and server.lines[0].startswith("octavo: ") and message in server.lines[0]
    assert not server.family


def test_a_batch_runs_on_an_engine_of_its_own_and_goes_on_after_a_kill(checkpoint: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [
        ("/v1/chat/completions", {"model": "small"} | CHAT),
        ("/v1/completions", {"prompt": "the", "max_tokens": 4, "temperature": 0}),
        ("/v1/chat/completions", {"messages": []}),
    ]
    lines = [{"custom_id": str(n), "method": "POST", "url": url, "body": body} for n, (url, body) in enumerate(bodies)]
    source.write_text("\n".join(map(json.dumps, lines)))
    code = "import sys; from octavo.api.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "run-batch", str(source), str(target), "--model", str(checkpoint)]
    run = subprocess.run(
        [*command, *FLAGS, "--served-model-name", "small"], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert "2 answered, 1 failed, 0 had results before" in run.stderr
    results = {result["custom_id"]: result for result in map(json.loads, target.read_text().splitlines())}
    assert [results[str(n)]["response"]["status_code"] for n in range(3)] == [200, 200, 400]
    assert results["0"]["response"]["body"]["usage"]["completion_tokens"] == 4
    before = target.read_text()
    target.write_text(before + '{"id":"batch_req_12')
    run = subprocess.run([*command, *FLAGS], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "0 answered, 0 failed, 3 had results before" in run.stderr, run.stderr
    assert target.read_text() == before
