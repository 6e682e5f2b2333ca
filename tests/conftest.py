"""What all tests share: quiet thread pools, a clean environment, and GPU tests only where there is a GPU."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch: OpenMP's threads spin while they wait otherwise, and starve the other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Read when a kernel's module is first imported: without a GPU kernels run in Triton's interpreter.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts what it puts in the background with some signals ignored, and programs inherit that. The processes that
# tests start must meet signals as those of a user do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

# Switches of the developer's shell must not decide what a test sees. The cache of models stays where it is.
for _name in [name for name in os.environ if name.startswith("OCTAVO_") and name != "OCTAVO_CACHE"]:
    del os.environ[_name]

# A busy machine is no failure: no test may depend on how long one example takes.
settings.register_profile("octavo", deadline=None)
settings.load_profile("octavo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked ``gpu`` where there is no NVIDIA driver, saying so. Asks no torch: its import is slow."""
    if Path("/dev/nvidiactl").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
