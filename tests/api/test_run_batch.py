"""Batch files: every line gets its result, wrong lines say why, and a stopped run goes on where it was."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from stub_app import HI, MODEL, StubApp, run
from stub_engine import StubEngine

from octavo.api import batch as batch_module
from octavo.api.batch import BatchCounts, BatchRun, BatchStoppedError, open_results, read_requests
from octavo.api.cli import main
from octavo.core.errors import ConfigurationError


def line(custom_id: str, path: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    """One request as a line's object."""
    default = {"messages": HI} if path == "/v1/chat/completions" else {"prompt": "Hello"}
    return {"custom_id": custom_id, "method": "POST", "url": path, "body": {"model": MODEL} | default | body}


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in lines))
    return path


def results_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def work_off(app: StubApp, source: Path, target: Path, concurrency: int = 4) -> BatchCounts:
    """A run of the batch against the application, without a command line."""

    async def go() -> BatchCounts:
        output, written = open_results(target)
        with output, source.open("rb") as lines:
            async with app.client() as client:
                batch = BatchRun(client, output, concurrency, lambda: None)
                await batch.run(read_requests(lines), written)
        return batch.counts

    return run(go())


def test_every_line_gets_the_answer_that_a_client_would_get(tmp_path: Path) -> None:
    lines = [line("chat"), line("text", "/v1/completions"), line("two", n=2), line("wrong", temperature=-1),
             line("model", model="else"), line("path", "/v1/nowhere")]  # fmt: skip
    source, target = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    app = StubApp()
    counts = work_off(app, source, target)
    assert counts == BatchCounts(answered=3, failed=3)
    results = {result["custom_id"]: result for result in results_of(target)}
    assert list(results) != [] and set(results) == {item["custom_id"] for item in lines}
    assert all(set(result) == {"id", "custom_id", "response", "error"} for result in results.values())
    assert all(result["error"] is None and result["response"]["request_id"] for result in results.values())
    codes = {name: result["response"]["status_code"] for name, result in results.items()}
    assert codes == {"chat": 200, "text": 200, "two": 200, "wrong": 400, "model": 404, "path": 404}
    assert results["chat"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello world"
    assert results["text"]["response"]["body"]["object"] == "text_completion"
    assert results["wrong"]["response"]["body"]["error"]["param"] == "temperature"
    assert len({result["id"] for result in results.values()}) == 6


def test_lines_that_are_no_request_get_an_error_and_the_others_their_answers(tmp_path: Path) -> None:
    lines = [
        "{not json", "[]", '{"custom_id": "x"}', line("good"), line("good"), line("s", stream=True), "",
        line("get") | {"method": "GET"}, line("abs") | {"url": "http://evil.example/v1/x"}, line("body") | {"body": []},
        json.dumps({"custom_id": 5, "url": "/v1/completions", "body": {}}),
    ]  # fmt: skip
    source, target = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    app = StubApp()
    assert work_off(app, source, target) == BatchCounts(answered=1, failed=9)
    assert len(app.engine.started) == 1
    errors = {result["error"]["line"]: result["error"] for result in results_of(target) if result["error"]}
    assert sorted(errors) == [1, 2, 3, 5, 6, 8, 9, 10, 11]
    assert "used twice" in errors[5]["message"] and "stream" in errors[6]["message"]
    assert "GET" in errors[8]["message"] and "evil" in errors[9]["message"]
    assert "line 1" in errors[1]["message"] and "url" in errors[3]["message"]
    # None of it is done again.
    assert work_off(app, source, target) == BatchCounts(skipped=10)
    assert len(results_of(target)) == 10


@pytest.mark.parametrize("torn", ["", '{"id":"ba', '{"id":"batch_req_5","custom_id":"9","resp', '{"id":"batch_req_0'])
def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, torn: str) -> None:
    lines = [line(str(number)) for number in range(10)]
    source, target = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    first = StubApp()
    work_off(first, write_lines(tmp_path / "part.jsonl", lines[:4]), target)
    before = target.read_text()
    target.write_text(before + torn)
    second = StubApp()
    assert work_off(second, source, target) == BatchCounts(answered=6, skipped=4)
    assert len(second.engine.started) == 6
    assert target.read_text().startswith(before)
    assert sorted(result["custom_id"] for result in results_of(target)) == [str(number) for number in range(10)]


def test_when_the_engine_dies_what_is_done_is_kept_and_the_rest_follows_later(tmp_path: Path) -> None:
    lines = [line(str(number)) for number in range(30)]
    source, target = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    app = StubApp()
    prepare = app.engine.prepare

    async def until_the_twentieth(*arguments: Any, **settings: Any) -> Any:
        if len(app.engine.started) == 20:
            app.engine.die("killed")
        return await prepare(*arguments, **settings)

    app.engine.prepare = until_the_twentieth  # type: ignore[method-assign]
    with pytest.raises(BatchStoppedError, match="run the same command again"):
        work_off(app, source, target)
    done = results_of(target)
    assert 0 < len(done) < 30 and all(result["response"]["status_code"] == 200 for result in done)
    assert work_off(StubApp(), source, target) == BatchCounts(answered=30 - len(done), skipped=len(done))
    assert len({result["custom_id"] for result in results_of(target)}) == len(results_of(target)) == 30


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        name = json.loads(request.content)["user"]
        calls.append(name)
        if name == "1" and calls.count("1") == 1:
            return httpx.Response(429, headers={"retry-after": "1"}, json={"error": {"code": "overloaded"}})
        if name == "2" and calls.count("2") == 1:
            return httpx.Response(503, json={"error": {"code": "loading"}})
        if name == "3" and calls.count("3") == 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, text="no json" if name == "0" else "{}")

    async def go() -> BatchCounts:
        output, written = open_results(tmp_path / "out.jsonl")
        lines = [json.dumps(line(str(number), user=str(number))).encode() for number in range(4)]
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://x") as client:
            with output:
                batch = BatchRun(client, output, 4, lambda: None)
                await batch.run(read_requests(lines), written)
        return batch.counts

    assert run(go()).answered == 4
    bodies = {result["custom_id"]: result["response"]["body"] for result in results_of(tmp_path / "out.jsonl")}
    assert bodies == {"0": "no json", "1": {}, "2": {}, "3": {}}


def test_an_answer_on_several_lines_is_written_on_one(tmp_path: Path) -> None:
    answer = '{\n  "cost": 1.10,\n  "data": [\n    1\n  ]\n}\n'

    def handle(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=answer)

    async def go() -> BatchCounts:
        output, written = open_results(tmp_path / "out.jsonl")
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://x") as client:
            with output:
                batch = BatchRun(client, output, 1, lambda: None)
                await batch.run(read_requests([json.dumps(line("a")).encode()]), written)
        return batch.counts

    assert run(go()) == BatchCounts(answered=1)
    assert run(go()) == BatchCounts(skipped=1)
    [written] = (tmp_path / "out.jsonl").read_text().splitlines()
    assert '"body":{"cost":1.10,"data":[1]}' in written


def test_a_server_that_stays_away_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "PATIENCE_SECONDS", 0.2)

    def handle(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async def go() -> None:
        output, written = open_results(tmp_path / "out.jsonl")
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://x") as client:
            with output:
                await BatchRun(client, output, 4, lambda: None).run(
                    read_requests([json.dumps(line("a")).encode()]), written
                )

    with pytest.raises(BatchStoppedError, match="cannot be reached"):
        run(go())
    assert (tmp_path / "out.jsonl").read_text() == ""


def test_no_more_requests_run_at_a_time_than_asked_for(tmp_path: Path) -> None:
    most = 0
    engine = StubEngine()

    class Watch(set[str]):
        def add(self, name: str) -> None:
            nonlocal most
            super().add(name)
            most = max(most, len(self))

    engine.running = Watch()
    lines = [line(str(number)) for number in range(20)]
    work_off(StubApp(engine), write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", concurrency=3)
    assert most == 3


def test_a_file_that_is_no_batch_output_is_left_alone(tmp_path: Path) -> None:
    for content in ("my notes", '{"a": 1}\nmore\n', "[1]\n", '{"id":"something","custom_id":7}'):
        target = tmp_path / "out.jsonl"
        target.write_text(content)
        with pytest.raises(ConfigurationError, match="no batch result"):
            open_results(target)
        assert target.read_text() == content


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    output, _ = open_results(tmp_path / "out.jsonl")
    with output, pytest.raises(ConfigurationError, match="another run"):
        open_results(tmp_path / "out.jsonl")


def test_the_command_sends_the_batch_to_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("octavo.api.batch_command.configure_logging", lambda _name: None)
    from live_app import live

    source = write_lines(tmp_path / "in.jsonl", [line("a"), line("b", temperature=-1)])
    target = tmp_path / "out.jsonl"

    async def go() -> int:
        async with live(StubApp(api_key=["key-of-the-server"])) as port:
            flags = ["--url", f"http://127.0.0.1:{port}/v1", "--api-key", "key-of-the-server"]
            return await asyncio.to_thread(main, ["run-batch", str(source), str(target), *flags])

    assert run(go()) == 0
    assert {result["custom_id"]: result["response"]["status_code"] for result in results_of(target)} == {
        "a": 200,
        "b": 400,
    }
    assert "1 answered, 1 failed, 0 had results before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.jsonl", "out.jsonl"], 1, "the input none.jsonl cannot be read"),
        (["in.jsonl", "in.jsonl"], 2, "same file"),
        (["in.jsonl", "none/out.jsonl", "--url", "http://127.0.0.1:9"], 1, "cannot be written"),
        (["in.jsonl", "out.jsonl", "--concurrency", "0"], 2, "--concurrency"),
        (["in.jsonl", "out.jsonl", "--url", "nonsense"], 2, "--url 'nonsense'"),
    ],
)
def test_mistakes_on_the_command_line_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("octavo.api.batch_command.configure_logging", lambda _name: None)
    write_lines(tmp_path / "in.jsonl", [line("a")])
    assert main(["run-batch", *arguments]) == code
    assert message in capsys.readouterr().err
