"""What a request asks for in tools: checked once, for every dialect."""

from dataclasses import dataclass
from typing import Any

import msgspec

from ...core.errors import RequestError
from .loose_schema import loosened
from .schema_check import check_schema

MAX_TOOLS = 1024


class FunctionDefinition(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments, an object. Without it, the function takes none."""
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that is offered to the model. ``function`` is the only type."""

    type: str = "function"
    function: FunctionDefinition | None = None

    @classmethod
    def of(cls, name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None) -> "Tool":
        """For the dialects in which all this is one level higher."""
        function = FunctionDefinition(name=name, description=description, parameters=parameters, strict=strict)
        return cls(function=function)


class FunctionName(msgspec.Struct, kw_only=True):
    """Names one of the offered functions."""

    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """Names one of the offered tools."""

    type: str = "function"
    function: FunctionName | None = None


class AllowedTools(msgspec.Struct, kw_only=True):
    """Some of the offered tools; ``mode`` is ``auto`` or ``required``."""

    mode: str = "auto"
    tools: list[NamedTool] = []


class ToolChoice(msgspec.Struct, kw_only=True):
    """``{"type": "function", "function": {"name": ...}}``, or ``{"type": "allowed_tools", "allowed_tools": ...}``."""

    type: str = "function"
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, and whether the model must, may or may not call them."""

    tools: list[FunctionDefinition]
    """Those that may be called. The prompt shows all of them, unless ``mode`` is ``none``."""
    mode: str
    """``none``, ``auto``, ``required`` or ``named``."""
    parallel: bool = True
    """False: at most one call per answer."""
    shown: tuple[FunctionDefinition, ...] = ()
    """Those that the prompt shows."""

    @property
    def named(self) -> str | None:
        """The function that must be called, if it is a particular one."""
        return self.tools[0].name if self.mode == "named" else None

    @property
    def forced(self) -> bool:
        """The answer must be a call."""
        return self.mode in ("required", "named")

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """The parameters' schema of each callable tool, by name."""
        return {tool.name: _parameters(tool) for tool in self.tools}

    def enforced(self, loose: bool) -> dict[str, dict[str, Any]]:
        """As ``schemas``. ``loose``: of functions that are not strict only names and types."""
        return {tool.name: _enforced(tool, loose) for tool in self.tools}

    @property
    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools as chat templates expect them; None if the model shall not know any."""
        if self.mode == "none" or not self.shown:
            return None
        return [{"type": "function", "function": _described(tool)} for tool in self.shown]

    @property
    def strict(self) -> bool:
        """Every callable function is defined as strict: its schema must hold to the letter."""
        return all(tool.strict for tool in self.tools)

    def answer_schema(self, loose: bool = False) -> dict[str, Any]:
        """JSON schema that makes an answer the call that is forced: the arguments alone for a named function, else a
        list of ``{"name", "parameters"}``. ``loose``: of functions that are not strict only names and types."""
        if self.mode == "named":
            return _enforced(self.tools[0], loose)
        definitions = {}
        calls = []
        for number, tool in enumerate(self.tools):
            where = f"tool{number}"
            definitions[where] = _moved(_enforced(tool, loose), f"#/$defs/{where}")
            call = {"name": {"const": tool.name}, "parameters": {"$ref": f"#/$defs/{where}"}}
            calls.append({"type": "object", "properties": call, "required": list(call), "additionalProperties": False})
        schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions}
        return schema if self.parallel else schema | {"maxItems": 1}


def tool_use(tools: list[Tool] | None, choice: str | ToolChoice | None, parallel: bool | None) -> ToolUse | None:
    """From the fields of a chat request; None if there are no tools. Raises ``RequestError`` naming the field."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError.at("tool_choice", "asks for a call, but there are no tools")
        return None
    if len(tools) > MAX_TOOLS:
        raise RequestError.at("tools", f"has {len(tools)} entries; at most {MAX_TOOLS} are allowed")
    functions: dict[str, FunctionDefinition] = {}
    for index, tool in enumerate(tools):
        function = _checked(tool, f"tools[{index}]")
        if function.name in functions:
            raise RequestError(
                f"tools[{index}].function.name: {function.name!r} is there twice", f"tools[{index}].function.name"
            )
        functions[function.name] = function
    mode, names = _chosen(choice, functions)
    allowed = [functions[name] for name in names]
    return ToolUse(allowed, mode, parallel is not False, tuple(functions.values()))


def _checked(tool: Tool, param: str) -> FunctionDefinition:
    if tool.type != "function":
        raise RequestError.at(f"{param}.type", f"must be 'function', not {tool.type[:64]!r}")
    function = tool.function
    if function is None:
        raise RequestError.at(f"{param}.function", "is required")
    name = function.name
    if not (0 < len(name) <= 128 and name.isascii() and all(c.isalnum() or c in "_-.:/" for c in name)):
        raise RequestError.at(
            f"{param}.function.name", f"must be 1 to 128 ASCII letters, digits, or one of _-.:/ ; not {name[:64]!r}"
        )
    if function.parameters is not None:
        check_schema(function.parameters, f"{param}.function.parameters")
    return function


def _chosen(choice: str | ToolChoice | None, functions: dict[str, FunctionDefinition]) -> tuple[str, list[str]]:
    """The mode, and the names of the tools that may be called."""
    everything = list(functions)
    if choice is None:
        return "auto", everything
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise RequestError.at(
                "tool_choice", f"must be none, auto, required or a named function, not {choice[:64]!r}"
            )
        return choice, everything
    if choice.type == "allowed_tools":
        return _allowed(choice.allowed_tools, functions)
    if choice.type != "function" or choice.function is None:
        raise RequestError.at("tool_choice", 'as an object must be {"type": "function", "function": {"name": ...}}')
    _require_known(choice.function.name, functions, "tool_choice.function.name")
    return "named", [choice.function.name]


def _allowed(allowed: AllowedTools | None, functions: dict[str, FunctionDefinition]) -> tuple[str, list[str]]:
    if allowed is None or not allowed.tools or allowed.mode not in ("auto", "required"):
        raise RequestError.at("tool_choice.allowed_tools", "must have tools, and the mode auto or required")
    names = [tool.function.name for tool in allowed.tools if tool.function is not None]
    for name in names:
        _require_known(name, functions, "tool_choice.allowed_tools")
    if not names:
        raise RequestError.at("tool_choice.allowed_tools", "names no function")
    return allowed.mode, list(dict.fromkeys(names))


def _require_known(name: str, functions: dict[str, FunctionDefinition], param: str) -> None:
    if name not in functions:
        raise RequestError.at(param, f"names {name[:64]!r}, which is not among the tools")


def _parameters(tool: FunctionDefinition) -> dict[str, Any]:
    """The schema of a tool's arguments, which are always an object."""
    given = tool.parameters
    return {"type": "object", "properties": {}} if not given else {"type": "object"} | given


def _enforced(tool: FunctionDefinition, loose: bool) -> dict[str, Any]:
    if tool.parameters is None:
        return _parameters(tool) | {"additionalProperties": False}  # a grammar would let the model invent arguments
    return loosened(_parameters(tool)) if loose and not tool.strict else _parameters(tool)


def _described(tool: FunctionDefinition) -> dict[str, Any]:
    told = {"name": tool.name, "description": tool.description, "parameters": _parameters(tool)}
    return {key: value for key, value in told.items() if value is not None}


def _moved(schema: Any, root: str) -> Any:
    """The schema with its references to places within itself pointing below ``root``."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, root) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved
