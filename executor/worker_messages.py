"""What crosses the rings between an executor and its workers, as msgpack. Arrays travel as dtype and bytes."""

from typing import Any

import msgspec
import numpy as np

from ..core.step import ModelRunnerOutput, SchedulerOutput


class WorkerCall(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="call"):
    """Call a method of the worker."""

    method: str
    arguments: list[Any]


class WorkerStep(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="step"):
    """Run a step."""

    output: SchedulerOutput


class WorkerResult(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="result"):
    """What a call returned."""

    value: Any


class WorkerStepResult(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="drawn"):
    """What a step drew."""

    output: ModelRunnerOutput


class WorkerError(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="error"):
    """A call or a step raised."""

    message: str
    configuration: bool
    """It was a ``ConfigurationError``: the user's settings or files are the cause."""
    traceback: str


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tobytes()]
    raise TypeError(f"{type(value).__name__} cannot travel to a worker")


def _decode_array(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        return np.frombuffer(value[1], dtype=value[0])
    raise TypeError(f"{kind.__name__} cannot travel to a worker")


encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
task_decoder = msgspec.msgpack.Decoder(WorkerCall | WorkerStep, dec_hook=_decode_array)
reply_decoder = msgspec.msgpack.Decoder(WorkerResult | WorkerStepResult | WorkerError, dec_hook=_decode_array)
