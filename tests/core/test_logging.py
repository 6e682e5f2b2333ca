"""Log lines: one each, with the process's name; tracebacks only where they are wanted."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.core.errors import ConfigurationError
from octavo.core.function_trace import FunctionTrace, start_function_trace_if_asked
from octavo.core.logging import LineFormatter, configure_logging
from octavo.core.sampling_params import SamplingParams


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    """Gives the ``octavo`` logger back as it was."""
    logger = logging.getLogger("octavo")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_a_line_tells_time_level_and_process(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("engine-0")
    logging.getLogger("octavo.engine.x").info("loaded %d layers", 30)
    logging.getLogger("octavo.engine.x").debug("not shown")
    line = capsys.readouterr().err
    assert line.endswith("INFO    [engine-0] loaded 30 layers\n")
    assert line[:4].isdigit()
    assert line.count("\n") == 1


def test_configuring_twice_does_not_double_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("api")
    configure_logging("api")
    logging.getLogger("octavo.api").warning("once")
    assert capsys.readouterr().err.count("once") == 1


@pytest.mark.parametrize(("level", "lines"), [("INFO", 1), ("ERROR", 1), ("DEBUG", 4)])
def test_only_debug_shows_tracebacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, lines: int
) -> None:
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", level)
    configure_logging("api")
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("octavo.api").exception("request failed")
    err = capsys.readouterr().err
    assert err.count("\n") >= lines
    assert ("Traceback" in err) == (level == "DEBUG")
    if level != "DEBUG":
        assert err.endswith("[api] request failed: ValueError: a b\n")


def test_other_handlers_still_get_the_exception() -> None:
    record = logging.LogRecord("octavo", logging.ERROR, "x.py", 1, "bad", None, (ValueError, ValueError("v"), None))
    assert LineFormatter("api").format(record).endswith("bad: ValueError: v")
    assert record.exc_info is not None


def test_an_unknown_level_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", "loud")
    with pytest.raises(ConfigurationError, match="OCTAVO_LOGGING_LEVEL is 'LOUD'; use one of DEBUG, INFO"):
        configure_logging("api")


def test_the_function_trace_holds_calls_of_our_own_functions(tmp_path: Path) -> None:
    trace = FunctionTrace(tmp_path / "trace.log")
    trace.start()
    try:
        SamplingParams(temperature=0.5)
        sorted([3, 1], key=lambda number: number)
    finally:
        trace.stop()
    lines = (tmp_path / "trace.log").read_text().splitlines()
    calls = [line.split()[2].lstrip(".")[:1] + line.split()[-1].split(":")[0] for line in lines]
    assert calls[0] == ">core.sampling_params.SamplingParams.__post_init__"
    assert calls[-1] == "<core.sampling_params.SamplingParams.__post_init__"
    assert any("..>" in line or ".>" in line for line in lines), "inner calls are indented"
    assert not any("test_logging" in line for line in lines)
    assert len([call for call in calls if call[0] == ">"]) == len([call for call in calls if call[0] == "<"])


def test_the_function_trace_starts_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_TRACE_DIR", str(tmp_path))
    assert start_function_trace_if_asked("api") is None
    monkeypatch.setenv("OCTAVO_TRACE_FUNCTION", "1")
    trace = start_function_trace_if_asked("api")
    assert trace is not None
    trace.stop()
    assert trace.path.parent == tmp_path
    assert trace.path.name.startswith("octavo-trace-api-")
