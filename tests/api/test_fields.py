"""The tables of fields, and what counts as a slip."""

import msgspec
import pytest

from octavo.api.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    DETOKENIZE_FIELDS,
    TOKENIZE_FIELDS,
    EndpointFields,
    edit_distance,
    nearest_name,
)
from octavo.api.nested_fields import NestedNames

KNOWN = sorted(CHAT_FIELDS.offered | CHAT_FIELDS.without_effect | CHAT_FIELDS.refused.keys())


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "ab", 1), ("abc", "xbc", 1), ("abcd", "badc", 2)],
)
def test_edit_distance_counts_swaps_as_one(left: str, right: str, distance: int) -> None:
    assert edit_distance(left, right) == edit_distance(right, left) == distance


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("temprature", "temperature"), ("Temperature", "temperature"), ("maxTokens", "max_tokens"),
        ("max-tokens", "max_tokens"), ("top_pp", "top_p"), ("mesages", "messages"), ("streem", "stream"),
        ("sotp", "stop"), ("N", "n"), ("seeed", "seed"), ("response_fromat", "response_format"),
        ("presence_penatly", "presence_penalty"), ("max_new_tokens", None), ("foo", None), ("m", None), ("x", None),
        ("top_a", "top_a"), ("mirostat", None), ("typical_p", None), ("", None), ("user_id", None),
    ],
)  # fmt: skip
def test_a_slip_finds_the_name_that_was_meant_and_a_stranger_none(slip: str, meant: str | None) -> None:
    assert nearest_name(slip, KNOWN) == meant


@pytest.mark.parametrize("fields", [CHAT_FIELDS, COMPLETION_FIELDS, TOKENIZE_FIELDS, DETOKENIZE_FIELDS])
def test_no_field_is_in_two_places(fields: EndpointFields) -> None:
    assert not fields.offered & fields.without_effect
    assert not fields.offered & fields.refused.keys()
    assert not fields.without_effect & fields.refused.keys()


def test_of_very_many_objects_only_some_are_looked_at() -> None:
    names = NestedNames(CHAT_FIELDS.request_type)
    part = {"type": "text", "text": "x"}

    def unknown(count: int) -> list[str]:
        messages = [{"role": "user", "content": [part] * count + [part | {"zzz": 1}]}]
        body = {"messages": msgspec.Raw(msgspec.json.encode(messages))}
        return [one.place + one.name for one in names.unknown(body)]

    assert unknown(1000) == ["messages[0].content[1000].zzz"]
    assert unknown(10_000) == []


def test_no_known_name_is_taken_for_a_slip_of_another() -> None:
    for name in KNOWN:
        assert nearest_name(name, KNOWN) == name
