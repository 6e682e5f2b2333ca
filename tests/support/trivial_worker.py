"""A worker that adds up what it is given: enough to prove an executor's plumbing."""

import os
import time

import numpy as np

from octavo.core.config import EngineConfig
from octavo.core.errors import ConfigurationError
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.executor.worker_protocol import PendingStep


class TrivialWorker:
    """Answers each step with one token: the step's number times ten plus the rank."""

    def __init__(self, config: EngineConfig, rank: int) -> None:
        self.rank = rank
        self.steps: list[int] = []

    def load(self) -> dict[str, float]:
        return {"load": 0.0}

    def num_blocks(self) -> int:
        return 10 + self.rank

    def allocate(self, num_blocks: int) -> dict[str, int]:
        return {"kv cache": num_blocks}

    def launch(self, output: SchedulerOutput) -> PendingStep:
        self.steps.append(output.step)
        lengths = [len(new.token_ids) for new in output.new]
        tokens = np.array([output.step * 10 + self.rank, *lengths], dtype=np.int32)
        return lambda: ModelRunnerOutput(output.step, tokens)

    def seen(self) -> list[int]:
        return self.steps

    def pid(self) -> int:
        return os.getpid()

    def refuse(self) -> None:
        raise ConfigurationError("this checkpoint is not to my taste")

    def fail(self) -> None:
        raise ValueError("seven is not a number")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        pass
