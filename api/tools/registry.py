"""The formats of tool calls by name, and which one a chat template teaches its model."""

import importlib

from ...core.errors import ConfigurationError
from .deepseek import DeepseekV3Parser
from .json_calls import GraniteParser, HermesParser, Llama3JsonParser
from .mistral import MistralParser
from .pythonic import PythonicParser
from .qwen3_coder import Qwen3CoderParser
from .tool_parser import ToolParser

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "deepseek_v3": DeepseekV3Parser,
    "qwen3_coder": Qwen3CoderParser,
    "mistral": MistralParser,
    "granite": GraniteParser,
    "pythonic": PythonicParser,
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
}
"""In the order of detection: a format comes before those whose signs its templates show, too."""

_ALIASES = {
    "deepseek_v31": "deepseek_v3",
    "qwen3_xml": "qwen3_coder",
    "qwen": "hermes",
    "llama4_pythonic": "pythonic",
    "llama4_json": "llama3_json",
}


def tool_parser_class(name: str, template: str) -> type[ToolParser] | None:
    """The parser for ``--tool-call-parser``: a name, ``auto`` (by the chat template's source), ``none``, or
    ``MODULE:CLASS`` for one of the operator's own. Raises ``ConfigurationError``."""
    if name == "none":
        return None
    if name == "auto":
        return detected_parser(template)
    if ":" in name:
        return _imported(name)
    found = TOOL_PARSERS.get(_ALIASES.get(name, name))
    if found is None:
        raise ConfigurationError(
            f"--tool-call-parser {name}: there is no such parser; choose auto, none, one of "
            f"{', '.join(sorted(TOOL_PARSERS))}, or MODULE:CLASS"
        )
    return found


def detected_parser(template: str) -> type[ToolParser]:
    """The format whose markup the template's source shows; without any, the most common one."""
    for parser in TOOL_PARSERS.values():
        if any(all(sign in template for sign in group) for group in parser.template_signs):
            return parser
    return HermesParser


def _imported(path: str) -> type[ToolParser]:
    module, _, name = path.partition(":")
    try:
        found = vars(importlib.import_module(module)).get(name)
    except ImportError as error:
        raise ConfigurationError(f"--tool-call-parser {path}: cannot import {module}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, ToolParser)):
        raise ConfigurationError(f"--tool-call-parser {path}: {name} is no subclass of octavo.api.tools.ToolParser")
    return found
