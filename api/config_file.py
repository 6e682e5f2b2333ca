"""``--config FILE.yaml``: the flags of a command, from a file. Flags on the command line win over the file."""

import difflib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection

CONFIG_FLAG = "--config"
MODEL_ARGUMENT = "MODEL"


class UsageError(ConfigurationError):
    """The command line contradicts itself or its file. The message names the flag or setting to change."""


def apply_config_file(app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:
    """Adds the values of the file that ``--config`` names to the arguments that the command line left open.

    A cyclopts configuration source: called with every command's arguments once the command line is read. The names in
    the file are those of the flags, with ``_`` or ``-``. Raises ``UsageError`` for a file that cannot be read,
    or a name that the command does not know.
    """
    by_name = {argument.name: argument for argument in arguments}
    config = by_name.get(CONFIG_FLAG)
    if config is not None and config.tokens:
        _add_settings(Path(config.tokens[-1].value), app, commands, arguments)
    for argument in arguments:
        if argument.hint is int or int in get_args(argument.hint):
            for token in argument.tokens:
                _check_whole(argument.name, str(token.value))


def _check_whole(name: str, text: str) -> None:
    """Raises ``UsageError`` for a fraction, which the parser would round."""
    with suppress(ValueError):
        if "." in text and not float(text).is_integer():
            raise UsageError(f"{name} must be a whole number, not {text}")


def _add_settings(path: Path, app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:
    settings = read_config_file(path)
    known = {name.lstrip("-").replace("-", "_") for argument in arguments for name in argument.names}
    check_names(settings, known - {"config"}, path)
    # MODEL and --model are two doors to one setting: the one on the command line wins over the file's.
    if any(argument.name == MODEL_ARGUMENT and argument.tokens for argument in arguments):
        settings.pop("model", None)
    from cyclopts.config import Dict

    Dict(settings, source=str(path), use_commands_as_keys=False)(app, commands, arguments)


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings in the YAML file, names with ``_``; nulls are left out. Raises ``UsageError``."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} must hold lines of the form 'max_model_len: 4096'")
    return {str(name).replace("-", "_"): value for name, value in content.items() if value is not None}


def check_names(settings: dict[str, Any], known: set[str], path: Path) -> None:
    """Raises ``UsageError``, with the nearest known name, for a setting that no flag has."""
    for name in settings:
        if name in known:
            continue
        near = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see --help for the names."
        raise UsageError(f"--config {path} has an unknown setting {name!r}; {hint}")
