"""Who compiles ahead, and that its failure costs nothing but time."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from simulation import make_config

from octavo.core.config import DECODER_WORKER, EngineConfig
from octavo.executor import kernel_compilers
from octavo.executor.kernel_compilers import KernelCompilers, trace_path


class StubChild:
    """Ends with ``code``."""

    code: int | None = 0
    made: list["StubChild"] = []

    def __init__(self, name: str, entry: str, payload: bytes) -> None:
        self.name, self.entry, self.spec = name, entry, msgspec.msgpack.decode(payload)
        self.stopped = False
        StubChild.made.append(self)

    def wait(self, seconds: float) -> int | None:
        return StubChild.code

    def stop(self, grace_seconds: float) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel_compilers, "ChildProcess", StubChild)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(7)))
    StubChild.code, StubChild.made = 0, []


def config(**device: Any) -> EngineConfig:
    base = make_config()
    parallel = msgspec.structs.replace(base.parallel, worker=DECODER_WORKER)
    settings = msgspec.structs.replace(base.device, **({"device": "cuda"} | device))
    return msgspec.structs.replace(base, device=settings, parallel=parallel)


def test_a_cold_start_compiles_ahead_and_leaves_its_trace() -> None:
    KernelCompilers(config()).wait()
    assert [child.spec["processes"] for child in StubChild.made] == [3]
    assert StubChild.made[0].stopped
    assert trace_path(config()).exists()


def test_a_warm_start_does_not() -> None:
    KernelCompilers(config()).wait()
    StubChild.made.clear()
    KernelCompilers(config()).wait()
    assert StubChild.made == []
    KernelCompilers(config(cuda_graphs=False)).wait()  # other kernels
    assert len(StubChild.made) == 1


@pytest.mark.parametrize("code", [1, None, -9])
def test_a_failure_leaves_no_trace(code: int | None) -> None:
    StubChild.code = code
    KernelCompilers(config()).wait()
    assert StubChild.made[0].stopped
    assert not trace_path(config()).exists()


@pytest.mark.parametrize("device", [{"device": "cpu"}, {"attention_backend": "torch"}])
def test_without_kernels_nothing_is_started(device: dict[str, str]) -> None:
    KernelCompilers(config(**device)).wait()
    assert StubChild.made == []


def test_few_cores_are_left_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    KernelCompilers(config()).wait()
    assert StubChild.made == []
