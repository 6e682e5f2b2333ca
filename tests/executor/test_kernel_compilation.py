"""Kernels compiled ahead, all of them and by forks, under the keys with which a worker would look for them.

In processes of their own: under the interpreter, which the tests beside this use, nothing is compiled.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import make_checkpoint

SCRIPT = """
import sys, json
from pathlib import Path
from triton.backends.compiler import GPUTarget
from octavo.core.engine_args import EngineArgs
from octavo.executor.kernel_compilation import CompilationSpec, Forks, compile_ahead

class InThisProcess:
    def start(self, work):
        work()

folder, how, prompts = sys.argv[1:]
args = EngineArgs(model=folder, device="cuda", dtype="bfloat16", max_num_seqs=40, max_model_len=512)
spec = CompilationSpec(args.build(Path(folder)), 2, prompts == "prompts")
forks = Forks(2) if how == "forks" else InThisProcess()
if how == "names":
    forks.start = lambda work: None
names = compile_ahead(spec, GPUTarget("cuda", 90, 32), forks, None)
print(json.dumps(names))
sys.exit(how == "forks" and forks.join())
"""


def compile_in_process(folder: Path, cache: Path, how: str, prompts: str = "prompts") -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-P", "-c", SCRIPT, str(folder), how, prompts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def kernels_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.is_dir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("triton", reason="the triton package is not installed")
    return make_checkpoint(tmp_path_factory.mktemp("model"), kind="qwen3")


def test_one_process_finds_all_that_the_forks_compiled(folder: Path, tmp_path: Path) -> None:
    names = compile_in_process(folder, tmp_path, "forks")
    compiled = kernels_in(tmp_path)
    assert len(compiled) == len(names)
    assert compile_in_process(folder, tmp_path, "alone") == names
    assert kernels_in(tmp_path) == compiled


def test_what_a_start_needs_is_among_them(folder: Path, tmp_path: Path) -> None:
    names = set(compile_in_process(folder, tmp_path, "names"))
    assert {"_decode_attention_kernel", "_prompt_attention_kernel", "_decode_inputs_kernel", "_draw_kernel"} <= names
    without = set(compile_in_process(folder, tmp_path, "names", "no prompts"))
    assert names - without == {"_prompt_attention_kernel"}
