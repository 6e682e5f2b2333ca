"""Calls of tools: what a request may ask for, how a prompt tells the model, and how its text is read."""

from .registry import TOOL_PARSERS, tool_parser_class
from .text_machine import NotACall, Steps
from .tool_parser import ToolParser

__all__ = ["TOOL_PARSERS", "NotACall", "Steps", "ToolParser", "tool_parser_class"]
