"""``octavo chat`` and ``octavo complete`` against a server that says what the test wants."""

import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import httpx
import pytest
from fake_server import FakeServer, running

from octavo.api.cli import main
from octavo.api.client import ServerAnswerError, ServerClient, StreamUsage
from octavo.api.terminal import Answer, ChatSession, TerminalArgs, read_turn


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(FakeServer()) as fake:
        yield fake


def typed(*lines: str) -> Callable[[str], str]:
    """A ``read_line`` that gives these lines and then the end of the input."""
    rest = iter(lines)

    def read_line(prompt: str) -> str:
        try:
            return next(rest)
        except StopIteration:
            raise EOFError from None

    return read_line


def session(server: FakeServer, *lines: str, system: str | None = None) -> ChatSession:
    """A conversation in which the user types ``lines``."""
    return ChatSession(ServerClient(server.url), "fake-model", TerminalArgs(), system, typed(*lines))


def test_complete_prints_the_text_alone(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "Capital?", "--url", server.url, "--max-tokens", "9", "--temperature", "0"]) == 0
    assert capsys.readouterr() == ("Paris is it.\n", "")
    assert server.paths == ["/v1/completions"]
    assert server.requests[0] == {
        "prompt": "Capital?",
        "model": "fake-model",
        "max_tokens": 9,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_complete_without_a_text_reads_standard_input(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("from a pipe"))
    assert main(["complete", "--url", f"{server.url}/v1", "--model", "mine"]) == 0
    assert (server.requests[0]["prompt"], server.requests[0]["model"]) == ("from a pipe", "mine")


def test_a_refused_request_is_told_in_the_servers_words(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.error_status = 400
    assert main(["complete", "x", "--url", server.url]) == 1
    assert capsys.readouterr().err == f"octavo: {server.url} answered 400: max_tokens is too large\n"


def test_an_error_in_the_stream_is_told(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.error_in_stream = True
    assert main(["complete", "x", "--url", server.url]) == 1
    assert "the server ended the stream: the engine is gone" in capsys.readouterr().err


def test_a_stream_that_breaks_off_is_told(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.break_off = True
    assert main(["complete", "x", "--url", server.url]) == 1
    assert "the connection to" in capsys.readouterr().err


@pytest.mark.parametrize("event", [{"choices": float("nan")}, "no object"])
def test_an_event_that_is_none_is_told_in_a_line(
    server: FakeServer, capsys: pytest.CaptureFixture[str], event: object
) -> None:
    server.events = lambda chat: iter([event])  # type: ignore[assignment, list-item]
    assert main(["complete", "x", "--url", server.url]) == 1
    told = f"octavo: the server sent what is no event: {json.dumps(event)}"
    assert told in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_a_stream_end_at_cr_and_lf_alone(end: str) -> None:
    texts = ["one\u2028two", "\u2029", "three\x85", "\x1c\x0b"]
    events = [json.dumps({"choices": [{"text": text}]}, ensure_ascii=False) for text in texts]
    body = "".join(f"data: {event}{end}{end}" for event in [*events, "[DONE]"]).encode()
    stream = httpx.MockTransport(lambda _request: httpx.Response(200, content=iter([body[:60], body[60:]])))
    with ServerClient() as client:
        client._http = httpx.Client(transport=stream, base_url=client.url)
        assert list(client.stream_completion("x")) == texts


def test_a_chat_remembers_what_was_said(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    session(server, "Capital of France?", "", "Sure?", system="Be brief.").run()
    assert capsys.readouterr().out == "Paris is it.\nParis is it.\n"
    assert [body["messages"] for body in server.requests] == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of France?"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Capital of France?"},
            {"role": "assistant", "content": "Paris is it."},
            {"role": "user", "content": "Sure?"},
        ],
    ]


def test_reset_forgets_all_but_the_system_message(server: FakeServer) -> None:
    chat = session(server, "one", "/reset", "/system Be kind.", "two")
    chat.run()
    assert server.requests[1]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "two"},
    ]


def test_exit_ends_the_conversation(server: FakeServer) -> None:
    session(server, "/exit", "never said").run()
    assert server.requests == []


def test_save_writes_the_conversation(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    session(server, "hi", f"/save {path}", "/save", f"/save {tmp_path}").run()
    assert json.loads(path.read_text()) == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Paris is it."},
    ]


def test_an_unknown_command_is_not_sent(server: FakeServer) -> None:
    session(server, "/hepl", "/help").run()
    assert server.requests == []


def test_a_turn_that_failed_is_taken_back(server: FakeServer) -> None:
    server.error_status = 500
    chat = session(server, "lost")
    chat.run()
    assert chat.turns == []


def test_a_script_hears_of_a_failed_turn(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("hello\n"))
    server.error_status = 503
    assert main(["chat", "--url", server.url]) == 1
    assert "answered 503" in capsys.readouterr().err


def test_a_turn_may_span_lines() -> None:
    assert read_turn(typed("one \\", "two"), "") == "one \ntwo"
    assert read_turn(typed('"""', "a", "", "b", '"""', "next"), "") == "a\n\nb"
    assert read_turn(typed("cut\\"), "") == "cut\n"
    with pytest.raises(EOFError):
        read_turn(typed(), "")


def test_the_summary_counts_from_the_first_token() -> None:
    answer = Answer(iter(["a", "b", StreamUsage(3, 2)]))
    assert list(answer) == ["a", "b"]
    assert answer.summary().startswith("2 tokens, ")
    assert Answer(iter([])).summary() == "no text"


def test_what_is_no_openai_server_is_told(server: FakeServer) -> None:
    with ServerClient(f"{server.url}/elsewhere") as client, pytest.raises(ServerAnswerError, match="answered 404"):
        client.models()
