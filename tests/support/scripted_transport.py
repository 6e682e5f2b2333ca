"""An engine under the test's control: it hears what the client sends and answers what the test says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from checkpoints import VOCAB_SIZE, write_tokenizer
from simulation import make_config

from octavo.core.config import EngineConfig
from octavo.core.engine_input import AbortRequests, EngineCoreInput, EngineCoreRequest
from octavo.core.engine_output import (
    EngineCoreOutputs,
    EngineReady,
    Finished,
    PromptLogprobsDelta,
    Started,
    TokenLogprobsDelta,
)
from octavo.engine.tokenizer import Tokenizer
from octavo.engine.transport import EngineTransport, OnMessage, TransportMessage


def text_config(max_model_len: int = 256) -> EngineConfig:
    """A configuration for the vocabulary of the tests' tokenizer."""
    return make_config(max_model_len=max_model_len, vocab_size=VOCAB_SIZE, budget=256)


def text_tokenizer(folder: Path) -> Tokenizer:
    """The byte-level tokenizer of the tests' checkpoints."""
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def outputs(
    deltas: Sequence[tuple[int, int]] = (),
    *,
    finished: Sequence[Finished] = (),
    started: Sequence[Started] = (),
    logprobs: Sequence[TokenLogprobsDelta] = (),
    prompt_logprobs: Sequence[PromptLogprobsDelta] = (),
    time: float = 10.0,
) -> EngineCoreOutputs:
    """A step's message: (handle, token) pairs and what goes with them."""
    return EngineCoreOutputs(
        time,
        np.array([handle for handle, _ in deltas], dtype=np.int32).tobytes(),
        np.array([token for _, token in deltas], dtype=np.int32).tobytes(),
        list(started),
        list(finished),
        list(logprobs),
        list(prompt_logprobs),
    )


class ScriptedTransport(EngineTransport):
    """Notes what is sent; ``say`` sends back. All calls come on the test's thread."""

    def __init__(self) -> None:
        self.sent: list[EngineCoreInput] = []
        self.closed = 0
        self._on_message: OnMessage | None = None

    def start(self, on_message: OnMessage) -> None:
        self._on_message = on_message

    @property
    def started(self) -> bool:
        return self._on_message is not None

    def send(self, message: EngineCoreInput) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed += 1

    def say(self, message: TransportMessage) -> None:
        """The engine says something."""
        assert self._on_message is not None
        self._on_message(message)

    def be_ready(self, max_model_len: int = 256) -> None:
        """The engine has loaded."""
        self.say(EngineReady(63, max_model_len, {}))

    @property
    def requests(self) -> list[EngineCoreRequest]:
        """Completions that were asked for, in order."""
        return [message for message in self.sent if isinstance(message, EngineCoreRequest)]

    @property
    def aborted(self) -> list[int]:
        """Handles that were aborted, in order."""
        return [handle for message in self.sent if isinstance(message, AbortRequests) for handle in message.handles]
