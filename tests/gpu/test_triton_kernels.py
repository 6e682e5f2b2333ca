"""The Triton kernels against their torch references on a GPU."""

from pathlib import Path

import pytest

if not Path("/dev/nvidiactl").exists():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

import torch
from gpu_kernel_checks import CHECKS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, checks in CHECKS.items() for name in checks()])
def test_kernel_equals_its_reference(family: str, name: str) -> None:
    torch.manual_seed(0)
    CHECKS[family]()[name]()
