"""The command line: flags become arguments, mistakes become one clear line."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from octavo.api.cli import main
from octavo.api.server_args import ServerArgs
from octavo.core.engine_args import EngineArgs
from octavo.core.errors import CheckpointError

Served = list[tuple[EngineArgs, ServerArgs]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """The arguments of each call of ``run_server``, which does nothing here."""
    calls: Served = []
    install_server(monkeypatch, lambda engine, server: calls.append((engine, server)) or 0)
    return calls


def install_server(monkeypatch: pytest.MonkeyPatch, run_server: Callable[[EngineArgs, ServerArgs], Any]) -> None:
    module = ModuleType("octavo.api.server")
    module.run_server = run_server  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octavo.api.server", module)
    monkeypatch.setattr("octavo.core.logging.configure_logging", lambda process_name: None)


def test_serve_without_arguments_takes_every_default(served: Served) -> None:
    assert main(["serve"]) == 0
    assert served == [(EngineArgs(), ServerArgs())]


def test_flags_of_engine_and_server_lie_side_by_side(served: Served) -> None:
    flags = ["--max-model-len", "512", "--port=9000", "--dtype", "float32", "--no-enable-prefix-caching"]
    assert main(["serve", "some/model", *flags, "--served-model-name", "a", "--served-model-name", "b"]) == 0
    engine, server = served[0]
    assert engine == EngineArgs(model="some/model", max_model_len=512, dtype="float32", enable_prefix_caching=False)
    assert server == ServerArgs(port=9000, served_model_name=["a", "b"])


@pytest.mark.parametrize("arguments", [["folder"], ["--model", "folder"], ["folder", "--model", "folder"]])
def test_the_model_is_given_by_position_or_by_name(served: Served, arguments: list[str]) -> None:
    assert main(["serve", *arguments]) == 0
    assert served[0][0].model == "folder"


def test_the_exit_code_is_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    install_server(monkeypatch, lambda engine, server: 3)
    assert main(["serve"]) == 3


MISTAKES = [
    (["serve", "--max-modle-len", "5"], 2, "Unknown option: --max-modle-len. Did you mean --max-model-len?"),
    (["serve", "--port", "many"], 2, 'Invalid value for --port: unable to convert "many" into int.'),
    (["serve", "--dtype", "float3"], 2, 'Invalid value "float3" for --dtype.'),
    (["serve", "a", "--model", "b"], 2, "the model is given twice: 'a' and --model 'b'; leave one out"),
    (["serve", "a", "b"], 2, "['b']"),
    (["serve", "--port"], 2, "--port"),
    (["sevre"], 2, 'Did you mean "serve"?'),
    (["serve", "--config", "/nowhere/x.yaml"], 2, "--config /nowhere/x.yaml cannot be read: No such file"),
    (["bench", "throughput", "--work", "fixed:1:2"], 2, "--work 'fixed:1:2' is neither"),
    (["bench", "latency", "--repeat", "0"], 2, "--repeat must be at least 1, not 0"),
    (["bench", "serve", "--slo", "speed:1"], 2, "--slo 'speed:1': the metric is"),
    (
        ["serve", "--overlap-scheduling", "false"],
        2,
        "'false' would be the MODEL; a flag that is on or off takes no value",
    ),
    (["serve", "--port", "8144.6"], 2, "--port must be a whole number, not 8144.6"),
    (["complete", "caf\udce9", "--model", "m"], 2, "a text is not valid UTF-8"),
    (["run-batch", "/dev/null", "/nowhere/out.jsonl"], 1, "/nowhere/out.jsonl"),
    (["complete", "hi", "--url", "http://127.0.0.1:9"], 1, "no server answers at http://127.0.0.1:9; start one with"),
    (["complete", "hi", "--url", "nonsense"], 1, "--url 'nonsense' is not an address"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES, ids=[" ".join(row[0]) for row in MISTAKES])
def test_a_mistake_is_one_line_on_stderr(
    served: Served, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: ")
    assert message in err
    assert err.count("\n") == 1
    assert served == []


def test_an_error_of_the_engine_is_one_line_and_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(engine: EngineArgs, server: ServerArgs) -> int:
        raise CheckpointError("config.json is\nmissing")

    install_server(monkeypatch, fail)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "octavo: config.json is missing\n"


def test_a_file_in_the_way_is_one_line_and_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install_server(monkeypatch, lambda engine, server: len((tmp_path / "absent").read_bytes()))
    assert main(["serve"]) == 1
    err = capsys.readouterr().err
    assert str(tmp_path / "absent") in err and err.count("\n") == 1


def test_a_fraction_in_the_file_of_settings_is_refused(
    served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text("max_model_len: 1.5\ngpu_memory_utilization: 0.5\n")
    assert main(["serve", "--config", str(tmp_path / "x.yaml")]) == 2
    assert "--max-model-len must be a whole number, not 1.5" in capsys.readouterr().err
    assert served == []


def test_debug_shows_the_traceback_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(engine: EngineArgs, server: ServerArgs) -> int:
        raise CheckpointError("broken")

    install_server(monkeypatch, fail)
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", "INFO")
    assert main(["serve", "--log-level", "debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("octavo: broken\n")


def test_ctrl_c_ends_with_130_and_no_noise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(engine: EngineArgs, server: ServerArgs) -> int:
        raise KeyboardInterrupt

    install_server(monkeypatch, interrupt)
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == ""


class TestConfigFile:
    def test_it_sets_the_same_names_as_the_flags(self, served: Served, tmp_path: Path) -> None:
        path = tmp_path / "octavo.yaml"
        path.write_text(
            "model: folder\nmax_model_len: 256\nmax-num-seqs: 8\nport: 9001\nenable_prefix_caching: false\n"
            "served_model_name: [x, y]\ngpu_memory_utilization: 0.5\nseed:\n"
        )
        assert main(["serve", "--config", str(path)]) == 0
        engine, server = served[0]
        assert engine == EngineArgs(
            model="folder",
            max_model_len=256,
            max_num_seqs=8,
            enable_prefix_caching=False,
            gpu_memory_utilization=0.5,
        )
        assert server == ServerArgs(port=9001, served_model_name=["x", "y"])

    def test_flags_win_over_it(self, served: Served, tmp_path: Path) -> None:
        path = tmp_path / "octavo.yaml"
        path.write_text("model: of-the-file\nport: 9001\nmax_num_seqs: 8\n")
        assert main(["serve", "given", "--port", "9002", f"--config={path}"]) == 0
        engine, server = served[0]
        assert (engine.model, engine.max_num_seqs, server.port) == ("given", 8, 9002)

    def test_an_empty_one_changes_nothing(self, served: Served, tmp_path: Path) -> None:
        path = tmp_path / "octavo.yaml"
        path.write_text("# nothing yet\n")
        assert main(["serve", "--config", str(path)]) == 0
        assert served == [(EngineArgs(), ServerArgs())]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("max_modle_len: 3\n", "unknown setting 'max_modle_len'; did you mean 'max_model_len'?"),
            ("zzz: 3\n", "unknown setting 'zzz'; see --help"),
            ("config: other.yaml\n", "unknown setting 'config'"),
            ("- a\n- b\n", "must hold lines of the form"),
            ("a: [1\n", "is not valid YAML"),
            ("port: many\n", 'unable to convert "many" into int'),
        ],
    )
    def test_a_mistake_in_it_is_one_line(
        self, served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
    ) -> None:
        path = tmp_path / "octavo.yaml"
        path.write_text(content)
        assert main(["serve", "--config", str(path)]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
        assert served == []


def test_every_flag_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    from octavo.api.flag_reference import field_docs

    for arguments in (EngineArgs, ServerArgs):
        assert set(field_docs(arguments)) == set(arguments.__dataclass_fields__)


def test_the_flag_reference_is_up_to_date() -> None:
    from octavo.api.flag_reference import flag_reference

    path = Path(__file__).parents[2] / "docs" / "flags.md"
    assert path.read_text(encoding="utf-8") == flag_reference(), "run: octavo docs > docs/flags.md"


def test_collect_env_tells_versions_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "hush")
    monkeypatch.setenv("OCTAVO_LOGGING_LEVEL", "INFO")
    assert main(["collect-env"]) == 0
    out = capsys.readouterr().out
    assert "hush" not in out
    assert "OCTAVO_LOGGING_LEVEL: INFO" in out
    assert "octavo: " in out
    assert "torch: 2." in out
