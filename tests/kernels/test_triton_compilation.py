"""Every Triton kernel compiles for a Hopper GPU as launched for real models, without spilling registers.

In a process of its own: under the interpreter, which the tests beside this use, nothing is compiled.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "triton_model_launches.py"
SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a program can have on Hopper."""


@pytest.fixture(scope="module")
def kernels() -> list[dict[str, int | str]]:
    pytest.importorskip("triton", reason="the triton package is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-P", SCRIPT], capture_output=True, text=True, timeout=250, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_every_kernel_is_compiled(kernels: list[dict[str, int | str]]) -> None:
    names = {str(kernel["name"]) for kernel in kernels}
    folder = Path(__file__).resolve().parents[2] / "kernels" / "triton"
    launched = {
        line.split("[")[0].strip().removeprefix("return ")
        for path in folder.glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "_kernel[" in line
    }
    assert launched
    assert launched == names


def test_no_kernel_spills_registers(kernels: list[dict[str, int | str]]) -> None:
    # A correctly rounded division is a call and takes a few bytes of stack; and where registers are capped, a few
    # numbers that are used once per item are kept there.
    assert [kernel for kernel in kernels if int(kernel["stack"]) > 64] == []


def test_shared_memory_fits(kernels: list[dict[str, int | str]]) -> None:
    assert [kernel for kernel in kernels if int(kernel["shared"]) > SHARED_LIMIT] == []


def test_prompts_use_the_large_matrix_instruction(kernels: list[dict[str, int | str]]) -> None:
    prompts = [
        kernel for kernel in kernels if kernel["name"] == "_prompt_attention_kernel" and kernel["case"] == "bf16"
    ]
    assert prompts
    assert all(kernel["wgmma"] for kernel in prompts)
