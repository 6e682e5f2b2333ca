"""Workers without a model: they draw tokens by counting, and misbehave where a test wants it."""

import ctypes
import time

import numpy as np

from octavo.core.config import EngineConfig
from octavo.core.errors import ConfigurationError
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.executor.worker_protocol import PendingStep


class CountingWorker:
    """Draws 40, 41, 42, ... in the order of its rows: letters of the tests' tokenizer."""

    step_seconds = 0.002

    def __init__(self, config: EngineConfig, rank: int) -> None:
        self._config = config
        self._decodes = np.empty(0, dtype=np.int32)
        self.num_steps = 0

    def load(self) -> dict[str, float]:
        return {}

    def num_blocks(self) -> int:
        return 64

    def allocate(self, num_blocks: int) -> dict[str, int]:
        return {"kv cache": num_blocks}

    def launch(self, output: SchedulerOutput) -> PendingStep:
        self.num_steps += 1
        drawn = self.draw(output)
        return lambda: drawn

    def draw(self, output: SchedulerOutput) -> ModelRunnerOutput:
        time.sleep(self.step_seconds)
        if output.decodes is not None:
            self._decodes = output.decodes
        rows = len(self._decodes) + sum(chunk.samples for chunk in output.chunks)
        return ModelRunnerOutput(output.step, 40 + np.arange(rows, dtype=np.int32) % 200)

    def close(self) -> None:
        pass


class FailingWorker(CountingWorker):
    """Raises in its fifth step."""

    def draw(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if self.num_steps == 5:
            raise ArithmeticError("the device fell off the bus")
        return super().draw(output)


class RefusingWorker(CountingWorker):
    """Does not like its checkpoint."""

    def load(self) -> dict[str, float]:
        raise ConfigurationError("the checkpoint is not to my taste; take another one")


class BrokenWorker(CountingWorker):
    """Has a bug in its loading."""

    def load(self) -> dict[str, float]:
        raise IndexError("no such layer")


class SlowLoadingWorker(CountingWorker):
    """Loads for longer than any test waits."""

    def load(self) -> dict[str, float]:
        time.sleep(120)
        return {}


class HangingWorker(CountingWorker):
    """Never returns from its fifth step."""

    def draw(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if self.num_steps == 5:
            time.sleep(120)
        return super().draw(output)


class FrozenWorker(CountingWorker):
    """Never returns from its fifth step, and lets no other thread of its process run."""

    def draw(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if self.num_steps == 5:
            ctypes.PyDLL(None).sleep(120)
        return super().draw(output)
