"""Constraints for answers in which calls are possible, not forced: beside JSON of a given schema, or beside text."""

from collections.abc import Callable

from ...core.grammar import StructuredOutputs, quoted
from .tool_use import ToolUse

Frame = Callable[[str], tuple[str, str]]
"""What a format writes before and after the arguments of a call of the named function."""


def answer_or_calls(schema: str, tools: ToolUse, frame: Frame) -> str:
    """The grammar, in Lark's syntax. ``schema``: the answer's, as enforceable JSON text. Raises ``RequestError``.

    Arguments are held to the whole schema of strict functions, and to names and types of others.
    """
    rules = [
        "start: answer | calls",
        f"answer: %json {schema}",
        "calls: call (" + quoted("\n") + " call)*" if tools.parallel else "calls: call",
        "call: " + " | ".join(f"call_{number}" for number in range(len(tools.tools))),
    ]
    for number, (name, parameters) in enumerate(tools.enforced(loose=True).items()):
        before, after = frame(name)
        arguments = StructuredOutputs(json=parameters).spec().text
        rules.append(f"call_{number}: {quoted(before)} %json {arguments} {quoted(after)}")
    return "\n".join(rules)


def text_and_calls(tools: ToolUse, frame: Frame, opening: str) -> StructuredOutputs:
    """Free text, in which ``opening`` begins a call of an offered tool with arguments of its schema.

    Arguments are held to the whole schema of strict functions, and to names and types of others.
    """
    structures = []
    for name, parameters in tools.enforced(loose=True).items():
        before, after = frame(name)
        structures.append({"begin": before, "schema": parameters, "end": after})
    return StructuredOutputs(structural_tag={"structures": structures, "triggers": [opening]})
