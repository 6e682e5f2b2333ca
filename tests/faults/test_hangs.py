"""An engine that stands still is ended, says where it stood, and ends the server as a dead one does."""

import subprocess
from collections.abc import Callable

import pytest
from counting import until
from server_process import ServerProcess, Stream

Serve = Callable[..., ServerProcess]


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_a_step_that_does_not_end(serve: Serve, executor: str) -> None:
    server = serve("HangingWorker", executor, hang_timeout=1.0)
    stream = Stream(server.wait_ready())
    assert stream.last_error == "engine_dead"
    assert server.end() == 1
    assert "no step was finished for 1 s (--engine-hang-timeout)" in server.lines[-1]
    assert "most recent call first" in server.log, "the log does not say where it stood"


def test_a_step_that_holds_the_interpreter(serve: Serve) -> None:
    server = serve("FrozenWorker", hang_timeout=1.0)
    stream = Stream(server.wait_ready())
    assert stream.last_error == "engine_dead"
    assert server.end() == 1
    assert "ended with exit code 1" in server.lines[-1]
    assert "in draw" in server.log, "the log does not say where it stood"


def test_waiting_for_work_is_no_hang(serve: Serve) -> None:
    server = serve(hang_timeout=2.0)
    url = server.wait_ready()
    first = Stream(url, max_tokens=8)
    until(first.done.is_set, "it is answered")
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(4.0)  # an idle loop that counted as hanging would have ended by now
    Stream(url).wait_flowing()
