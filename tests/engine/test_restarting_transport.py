"""One engine after the other, on engines that the test ends."""

import gc
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from counting import until
from scripted_transport import ScriptedTransport, text_config

from octavo.core.config import EngineConfig
from octavo.core.engine_output import EngineGone, EngineReady
from octavo.engine.restarting_transport import RestartingTransport
from octavo.engine.seat_transport import MovingSeatTransport
from octavo.engine.transport import EngineLost, EngineSeat, TransportMessage


class Engines:
    """Makes engines, and keeps them in order. ``heard`` is what the client heard."""

    def __init__(self, restarts: int, broken: int = 0) -> None:
        self.made: list[ScriptedTransport] = []
        self.configs: list[EngineConfig] = []
        self.heard: list[TransportMessage] = []
        self._broken = broken
        """Engines after the first that cannot even be made."""
        config = msgspec.structs.replace(text_config(), restarts=restarts)
        self.transport = RestartingTransport(config, self._make)
        self.transport.start(self.heard.append)

    def _make(self, config: EngineConfig) -> ScriptedTransport:
        if self.made and self._broken:
            self._broken -= 1
            raise OSError("no space left on device")
        self.made.append(ScriptedTransport())
        self.configs.append(config)
        return self.made[-1]

    def wait_for(self, count: int) -> ScriptedTransport:
        """The newest engine, once so many were made and started."""
        until(lambda: len(self.made) == count and self.made[-1].started, f"{count} engines")
        return self.made[-1]


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.restarting_transport._LONGEST_DELAY", 0.0)


def test_the_next_engine_gets_what_is_sent_and_the_memory_of_the_first() -> None:
    engines = Engines(restarts=1)
    engines.made[0].be_ready(max_model_len=128)
    engines.made[0].say(EngineGone("ended with signal SIGKILL"))
    second = engines.wait_for(2)
    assert engines.made[0].closed
    assert engines.heard[1:] == [EngineLost("ended with signal SIGKILL")]
    engines.transport.send("anything")  # pyright: ignore[reportArgumentType]
    assert second.sent == ["anything"] and not engines.made[0].sent
    config = engines.configs[1]
    assert (config.cache.num_blocks, config.scheduler.max_model_len) == (64, 128)
    second.be_ready(max_model_len=128)
    assert isinstance(engines.heard[-1], EngineReady)
    engines.transport.close()
    assert second.closed


def test_one_death_too_many_is_the_end() -> None:
    engines = Engines(restarts=2)
    for number in (1, 2):
        engine = engines.wait_for(number)
        engine.be_ready()
        engine.say(EngineGone(f"death {number}"))
    last = engines.wait_for(3)
    last.say(EngineGone("died while it loaded"))  # counts as well
    assert engines.heard[-1] == EngineGone("died while it loaded")
    assert [message.message for message in engines.heard if isinstance(message, EngineLost)] == ["death 1", "death 2"]
    assert len(engines.made) == 3


def test_deaths_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(restarts=1)
    now = time.monotonic()
    for number in range(1, 4):
        engine = engines.wait_for(number)
        engine.be_ready()
        monkeypatch.setattr(time, "monotonic", lambda hours=number: now + 3600 * hours)
        engine.say(EngineGone("again"))
        monkeypatch.undo()
    engines.wait_for(4)
    assert not any(isinstance(message, EngineGone) for message in engines.heard)


def test_an_engine_that_never_was_ready_is_not_replaced() -> None:
    engines = Engines(restarts=3)
    engines.made[0].say(EngineGone("the checkpoint is broken", configuration=True))
    assert engines.heard == [EngineGone("the checkpoint is broken", configuration=True)]
    assert len(engines.made) == 1


def test_an_engine_that_cannot_be_made_counts_as_dead() -> None:
    engines = Engines(restarts=2, broken=2)
    engines.made[0].be_ready()
    engines.made[0].say(EngineGone("killed"))
    until(lambda: isinstance(engines.heard[-1], EngineGone), "the end is told")
    assert engines.heard[-1] == EngineGone("OSError: no space left on device")


def test_nothing_is_started_after_the_end() -> None:
    engines = Engines(restarts=3)
    engines.made[0].be_ready()
    engines.transport.close()
    engines.made[0].say(EngineGone("ended"))
    until(lambda: engines.made[0].closed > 1, "the replacement saw it")
    assert len(engines.made) == 1


def test_a_client_moves_to_its_seat_at_the_next_engine(nothing_left: Path) -> None:
    first, second = (EngineSeat(str(nothing_left / name), 1) for name in ("first", "second"))
    for seat in (first, second):
        Path(seat.folder).mkdir()
    heard: list[TransportMessage] = []
    transport = MovingSeatTransport(first)
    transport.start(heard.append)
    transport.move(second, "killed")
    assert heard == [EngineLost("killed")]
    assert not Path(first.folder).exists()
    assert {path.name for path in Path(second.folder).iterdir()} == {"in", "out"}
    transport.move(EngineSeat(str(nothing_left / "missing"), 1), "killed again")
    assert isinstance(heard[-1], EngineGone) and heard[-2] == EngineLost("killed again")
    gc.collect()  # would wait for ever for sockets that were left open
    transport.close()
    transport.move(first, "too late")
    assert len(heard) == 3


@pytest.fixture
def nothing_left() -> Iterator[Path]:
    """A folder for sockets, whose paths must be short, that must be empty in the end."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)
        assert not list(Path(folder).iterdir())
