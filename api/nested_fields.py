"""Unknown names inside of a request's fields: in its messages, tools, formats and options.

``FieldCheck`` sorts the names of the body itself; here are those of the objects within. Only objects that a Struct
describes are looked at: a JSON schema or the variables of a template may hold any name.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

_WITHOUT_EFFECT = frozenset(
    {
        "cache_control",  # prefixes are cached by themselves
        # What clients send back of an answer that they got: none of it is for the model.
        "annotations", "citations", "encrypted_content", "index", "logprobs", "signature",
        "eager_input_streaming",  # calls are always streamed as they come
        "keep",  # how many thoughts a clear_thinking edit keeps: the chat template decides
    }
)  # fmt: skip


MAX_VALUES = 4096
"""Objects and lists of one field that are looked at: a request of millions must not hold up the others."""


class UnknownName(msgspec.Struct, frozen=True):
    """A name that its object's Struct does not have."""

    place: str
    """What leads to it, like ``messages[0].``; empty in the body itself. Of many objects of one kind, the first."""
    name: str
    known: tuple[str, ...]
    """The names that the object may have."""


class NestedNames:
    """Finds unknown names in the values of one endpoint's fields."""

    def __init__(self, request_type: type[msgspec.Struct]) -> None:
        self._fields: dict[type, dict[str, inspect.Type]] = {}
        self._top = {
            name: kind for name, kind in self._of(inspect.type_info(request_type)).items() if _may_hold_structs(kind)
        }

    def unknown(self, body: dict[str, msgspec.Raw]) -> list[UnknownName]:
        """Names whose values ask for something (null, an empty list and an empty object do not), each once.

        ``body``: the request's fields, not decoded yet. Raises ``msgspec.DecodeError``.
        """
        found: dict[tuple[type, str], UnknownName] = {}
        for name, raw in body.items():
            kind = self._top.get(name)
            if kind is not None:
                self._look(_beginning(raw), kind, name, found)
        return list(found.values())

    def _look(self, value: Any, kind: inspect.Type, place: str, found: dict[tuple[type, str], UnknownName]) -> None:
        """Look at a value, then at what it holds."""
        left = [(value, kind, place)]
        for _ in range(MAX_VALUES):
            if not left:
                return
            value, kind, place = left.pop()
            if isinstance(value, list):
                item = next((one.item_type for one in _kinds(kind) if isinstance(one, inspect.ListType)), None)
                if item is not None and _may_hold_structs(item):
                    items = [(each, item, f"{place}[{number}]") for number, each in enumerate(value[:MAX_VALUES])]
                    left += reversed(items)
                continue
            struct = next((one for one in _kinds(kind) if isinstance(one, inspect.StructType)), None)
            if struct is None or not isinstance(value, dict):
                continue
            fields = self._of(struct)
            for name, inner in value.items():
                field = fields.get(name)
                if field is None:
                    if name not in _WITHOUT_EFFECT and inner not in (None, [], {}):
                        found.setdefault((struct.cls, name), UnknownName(f"{place}.", name, tuple(sorted(fields))))
                elif isinstance(inner, list | dict):
                    left.append((inner, field, f"{place}.{name}"))

    def _of(self, struct: inspect.Type) -> dict[str, inspect.Type]:
        """The fields of a Struct, by the names that requests use."""
        assert isinstance(struct, inspect.StructType)
        if struct.cls not in self._fields:
            self._fields[struct.cls] = {field.encode_name: field.type for field in struct.fields}
        return self._fields[struct.cls]


def _beginning(raw: msgspec.Raw) -> Any:
    """The value, of a list only what is looked at: to decode all would take as long as the request itself."""
    if memoryview(raw)[:1] != b"[":
        return msgspec.json.decode(raw)
    return [msgspec.json.decode(item) for item in msgspec.json.decode(raw, type=list[msgspec.Raw])[:MAX_VALUES]]


def _kinds(kind: inspect.Type) -> Iterable[inspect.Type]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _may_hold_structs(kind: inspect.Type) -> bool:
    """False for what needs no look: most fields are plain values."""
    return any(
        isinstance(one, inspect.StructType) or (isinstance(one, inspect.ListType) and _may_hold_structs(one.item_type))
        for one in _kinds(kind)
    )
