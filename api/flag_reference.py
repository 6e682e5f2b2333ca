"""``octavo docs``: the reference of all flags, made from the dataclasses that define them."""

from dataclasses import MISSING, Field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..core.engine_args import EngineArgs
from .server_args import ServerArgs
from .terminal import TerminalArgs

PREAMBLE = """\
# Flags

Made by `octavo docs` from the fields of `EngineArgs`, `ServerArgs` and each command's arguments; change those, then
run `octavo docs > docs/flags.md`. Each flag is also a name for the YAML file of `--config` (with `_` or `-`), and each
engine flag is an argument of `LLM` and a field of `EngineArgs`. A boolean flag `--x` is turned off by `--no-x`.
"""


def docs() -> None:
    """Print the reference of all flags as Markdown."""
    print(flag_reference(), end="")


def flag_reference() -> str:
    """The content of ``docs/flags.md``."""
    # The benchmarks' modules import an HTTP client, so they wait until they are wanted.
    from .batch_command import BatchArgs
    from .bench.core_cost import CoreCostArgs
    from .bench.latency import LatencyArgs
    from .bench.load import LoadArgs
    from .bench.startup import StartupArgs
    from .bench.throughput import ThroughputArgs

    sections = (
        ("Engine: `octavo serve`, `octavo bench throughput`, `latency`, `core`", EngineArgs),
        ("Server: `octavo serve`", ServerArgs),
        ("Batch: `octavo run-batch`", BatchArgs),
        ("Terminal: `octavo chat`, `octavo complete`", TerminalArgs),
        ("`octavo bench throughput`", ThroughputArgs),
        ("`octavo bench latency`", LatencyArgs),
        ("`octavo bench core`", CoreCostArgs),
        ("`octavo bench serve`", LoadArgs),
        ("`octavo bench startup`", StartupArgs),
    )
    return PREAMBLE + "".join(f"\n## {title}\n\n{_table(arguments)}" for title, arguments in sections)


def field_docs(arguments: type) -> dict[str, str]:
    """The docstring under each field of a dataclass. Fields without one are left out."""
    from docstring_parser import parse_from_object

    return {
        param.arg_name: " ".join((param.description or "").split())
        for param in parse_from_object(arguments).params
        if param.description
    }


def _table(arguments: type) -> str:
    docs = field_docs(arguments)
    types = get_type_hints(arguments)
    lines = ["| flag | values | default | meaning |", "|---|---|---|---|"]
    for item in fields(arguments):
        flag = f"`--{item.name.replace('_', '-')}`"
        cells = (flag, _values(types[item.name]), _default(item), docs[item.name])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _values(annotation: Any) -> str:
    """``integer``, ``text``, or the choices themselves."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is list:
        return _values(parts[0]) + ", repeatable"
    if parts:
        return _values(parts[0])
    names = {bool: "on or off", int: "integer", float: "number", str: "text"}
    return names.get(annotation, "path")


def _default(item: "Field[Any]") -> str:
    if item.default is not MISSING:
        value: Any = item.default
    else:
        value = item.default_factory() if item.default_factory is not MISSING else None
    if value is None or value in ([], ""):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"
