"""What is packaged, what lies at the top level, and the front door."""

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import ROOMS, ROOT

import octavo

REQUIRED_ENTRIES = {
    ".ci",
    ".gitignore",
    "LICENSE",
    "Makefile",
    "README.md",
    "__init__.py",
    "constraints.txt",
    "docs",
    "examples",
    "pyproject.toml",
    "tests",
    *ROOMS,
}
OPTIONAL_ENTRIES = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"}
COMMAND = Path(sys.executable).parent / "octavo"


def project() -> dict:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_folder_of_the_package_is_listed() -> None:
    folders = {"octavo"}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            folders.add(".".join(("octavo", *path.parent.relative_to(ROOT).parts)))
    assert sorted(project()["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_every_package_has_its_init_file() -> None:
    for name in project()["tool"]["setuptools"]["packages"]:
        folder = ROOT.joinpath(*name.split(".")[1:])
        assert (folder / "__init__.py").is_file(), f"{folder} would be a namespace package"


def test_the_top_level_holds_only_what_belongs_there() -> None:
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if git.returncode != 0:
        pytest.skip("not a git checkout")
    entries = {line.split("/")[0] for line in git.stdout.splitlines()}
    assert entries - REQUIRED_ENTRIES - OPTIONAL_ENTRIES == set()
    assert REQUIRED_ENTRIES - entries == set()


def test_no_model_or_large_file_is_committed() -> None:
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if git.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in git.stdout.split("\0") if name]
    large = [str(path) for path in paths if path.is_file() and path.stat().st_size > 1_000_000]
    weights = [str(path) for path in paths if path.suffix in (".gguf", ".safetensors", ".bin", ".pt", ".pth")]
    assert large + weights == []


def test_constraints_pin_every_direct_dependency() -> None:
    pinned = set()
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert version and "+" not in version, line
            pinned.add(canonical(name))
    table = project()["project"]
    extras = table["optional-dependencies"]
    wanted = [*table["dependencies"], *extras["test"], *extras["dev"], *extras["clients"]]
    assert {canonical(requirement_name(text)) for text in wanted} - pinned == set()


def requirement_name(text: str) -> str:
    """``uvloop`` of ``uvloop>=0.21; sys_platform != 'win32'``."""
    name = ""
    for character in text:
        if not (character.isalnum() or character in "-_."):
            break
        name += character
    return name


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")


def test_python_and_licence_are_declared() -> None:
    table = project()["project"]
    assert table["requires-python"] == ">=3.11"
    assert table["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_front_door_offers_exactly_the_public_names() -> None:
    assert set(octavo.__all__) == {
        "LLM",
        "AsyncLLM",
        "CompletionOutput",
        "EmbeddingOutput",
        "EngineArgs",
        "Logprob",
        "PoolingParams",
        "RequestOutput",
        "RequestOutputKind",
        "SamplingParams",
        "StructuredOutputs",
        "__version__",
    }
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        octavo.Nonsense  # noqa: B018


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs the installed command."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60, env=environment, check=False
    )


@pytest.mark.parametrize("folder", [ROOT, Path("/")], ids=["in the checkout", "elsewhere"])
def test_the_command_runs_from_anywhere(folder: Path) -> None:
    result = run("--version", cwd=folder)
    assert (result.returncode, result.stdout.strip()) == (0, f"octavo {octavo.__version__}"), result.stderr


def test_the_checkouts_kernels_folder_shadows_nothing_for_the_command() -> None:
    code = "import sys, importlib.util; sys.exit(importlib.util.find_spec('kernels') is not None)"
    assert subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("serve", "--help"), ("chat", "--help"), ("bench", "--help"), ("docs",)]
)
def test_helping_texts_come_without_torch(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys; from octavo.api.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'fastapi', 'zmq', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_importing_the_package_imports_no_library() -> None:
    code = "import sys; import octavo; sys.exit('torch' in sys.modules or 'msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], cwd="/", check=False).returncode == 0


def test_openmp_threads_wait_without_spinning() -> None:
    importlib.import_module("octavo")
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
