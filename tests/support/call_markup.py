"""The same two calls in every format's markup, and pieces of that markup to make trouble with."""

ATTIC = {"room": 'attic "A"', "level": 3}
PAIR = [("list_rooms", {}), ("set_lamp", ATTIC)]
HERMES_PAIR = (
    '<tool_call>\n{"name": "list_rooms", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"name": "set_lamp", "arguments": {"room": "attic \\"A\\"", "level": 3}}\n</tool_call>'
)
DEEPSEEK_PAIR = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>list_rooms\n```json\n{}\n```<｜tool▁call▁end｜>\n"
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>set_lamp\n```json\n{"room": "attic \\"A\\"", "level": 3}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_31_PAIR = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>list_rooms<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    '<｜tool▁call▁begin｜>set_lamp<｜tool▁sep｜>{"room": "attic \\"A\\"", "level": 3}<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>"
)
QWEN3_CODER_PAIR = (
    "<tool_call>\n<function=list_rooms>\n</function>\n</tool_call>\n<tool_call>\n<function=set_lamp>\n"
    '<parameter=room>\nattic "A"\n</parameter>\n<parameter=level>\n3\n</parameter>\n</function>\n</tool_call>'
)
LISTED = (
    '[{"name": "list_rooms", "arguments": {}}, '
    '{"name": "set_lamp", "arguments": {"room": "attic \\"A\\"", "level": 3}}]'
)
LLAMA_PAIR = (
    '{"name": "list_rooms", "parameters": {}}; '
    '{"name": "set_lamp", "parameters": {"room": "attic \\"A\\"", "level": 3}}'
)
PYTHONIC_PAIR = "[list_rooms(), set_lamp(room='attic \"A\"', level=3)]"

FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool_", HERMES_PAIR],
    "granite": ["<|tool_call|>", "<tool_call>", "<|tool", LISTED],
    "llama3_json": ["<|python_tag|>", ";", LLAMA_PAIR],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL", LISTED],
    "pythonic": [
        "[",
        "]",
        "set_lamp(",
        "list_rooms()",
        "room=",
        "(",
        ")",
        "<|python_start|>",
        "<|python_end|>",
        "'",
        "'''",
        '"""',
        PYTHONIC_PAIR,
    ],
    "deepseek_v3": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool",
        "```",
        "```json\n",
        "function",
        DEEPSEEK_PAIR,
    ],
    "qwen3_coder": [
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "set_lamp>",
        "</function>",
        "<parameter=",
        "room>",
        "level>",
        "</parameter>",
        QWEN3_CODER_PAIR,
    ],
}
COMMON = [
    '{"name": "set_lamp", ',
    '"arguments": ',
    '"parameters": ',
    '{"room": "é🧭',
    '"}',
    "}",
    "{",
    "[",
    "]",
    ",",
    '"',
    "\\",
    "\n",
    " ",
    "list_rooms",
    "text",
    "<",
    "3",
    ": ",
    "\x00",
    "\u2028",
]
