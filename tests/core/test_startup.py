"""The timeline of a start: marks of all processes in one order, in the log and in a file."""

import json
import logging
import time
from pathlib import Path

import pytest

from octavo.core.startup import StartupTimeline, process_start_time


def test_marks_of_all_processes_come_out_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "startup.json"
    monkeypatch.setenv("OCTAVO_STARTUP_JSON", str(path))
    timeline = StartupTimeline("api")
    timeline.mark("imports")
    engine = StartupTimeline("engine-0")
    engine.mark("load weights")
    timeline.mark("ready")
    timeline.merge(engine.marks)
    with caplog.at_level(logging.INFO):
        timeline.finish()
    report = json.loads(path.read_text())
    assert list(report["marks"]) == ["api: imports", "engine-0: load weights", "api: ready"]
    assert report["process_start"] <= report["marks"]["api: imports"]
    assert "startup: api: imports" in caplog.text


def test_without_the_variable_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    timeline = StartupTimeline("api")
    timeline.mark("imports")
    timeline.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OCTAVO_STARTUP_JSON", str(tmp_path / "nowhere" / "x.json"))
    timeline = StartupTimeline("api")
    timeline.mark("imports")
    timeline.finish()
    assert "nowhere/x.json cannot be written: No such file or directory" in caplog.text


def test_the_process_began_before_now() -> None:
    assert time.time() - 3600 < process_start_time() < time.time()
