"""Chat templates: the same text as Transformers', and errors that are the request's."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import metaspace

from octavo.api import chat_template as module
from octavo.api.chat_template import ChatTemplate
from octavo.core.errors import ConfigurationError, RequestError
from octavo.engine.checkpoint import resolve_model
from octavo.engine.tokenizer import Tokenizer

USER = {"role": "user", "content": "hi"}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "set_lamp",
            "description": "Switch <lamps> & 'bulbs'",
            "parameters": {"type": "object", "properties": {"room": {"type": "string"}}},
        },
    }
]
CALL = {"type": "function", "id": "1", "function": {"name": "set_lamp", "arguments": {"room": "attic é"}}}
CONVERSATION = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": " Light, please\n"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": '{"ok": true}', "tool_call_id": "1"},
    {"role": "assistant", "content": "Done.", "reasoning_content": "It worked."},
    {"role": "user", "content": "Thanks"},
]
TEMPLATES = {
    "markers": (
        "{{ bos_token }}{% for m in messages %}\n<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    "tools": (
        "{%- if tools %}\n    {%- for tool in tools %}\n{{ tool | tojson }}\n    {%- endfor %}\n{%- endif %}\n"
        "{%- for m in messages %}[{{ m['role'] | upper }}] {{ m['content'] | trim if m.content is defined }}"
        "{%- for call in m.tool_calls or [] %}<{{ call.function.name }} {{ call.function.arguments | tojson }}>"
        "{%- endfor %}{%- endfor %}"
    ),
    "indented": "{{ tools | tojson(indent=2) }}{{ messages | tojson(sort_keys=true, separators=(',', ':')) }}",
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
        "{% endgeneration %}{% else %}{{ m.content }}|{% endif %}{% endfor %}"
    ),
    "loop controls": (
        "{% set ns = namespace(count=0) %}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% set ns.count = ns.count + 1 %}{{ ns.count }}:{{ m.content }};{% if ns.count > 3 %}{% break %}{% endif %}"
        "{% endfor %}"
    ),
    "date": "{{ strftime_now('%Y-%m') }} {{ messages[0].content }}{% if documents %}{{ documents[0].text }}{% endif %}",
    "reasoning": (
        "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
        "{{ m.content }}{% endfor %}"
    ),
    "dates and kwargs": "{% if enable_thinking is defined and not enable_thinking %}quick{% else %}slow{% endif %}",
}


def reference(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    """What Transformers makes of it."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=metaspace(), bos_token="<s>", eos_token="</s>")
    text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_templates_render_as_in_transformers(name: str, prompted: bool, tools: list[dict[str, Any]] | None) -> None:
    options: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompted, "enable_thinking": False}
    options["documents"] = [{"title": "a", "text": "b"}]
    expected = reference(TEMPLATES[name], CONVERSATION, **options)
    assert ChatTemplate({"default": TEMPLATES[name]}, SPECIAL).render(CONVERSATION, **options) == expected


@pytest.mark.parametrize("trim", ["", " | trim"])
@pytest.mark.parametrize("content", ["Once upon", "Once upon ", [{"type": "text", "text": "Once"}]])
def test_the_final_message_is_left_open_as_in_transformers(trim: str, content: Any) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content" + trim + " }}{% else %}"
        "{{ m.content[0].text" + trim + " }}{% endif %}</s>{% endfor %}{% if add_generation_prompt %}X{% endif %}"
    )
    messages = [USER, {"role": "assistant", "content": content}]
    expected = reference(template, messages, continue_final_message=True)
    chat = ChatTemplate({"default": template})
    assert chat.render(messages, continue_final_message=True) == expected
    assert messages[1]["content"] == content


def test_a_template_that_drops_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(RequestError, match="leaves the last message out"):
        ChatTemplate({"default": "{{ messages[0].content }}"}).render([USER, USER], continue_final_message=True)
    with pytest.raises(RequestError, match="text to continue"):
        ChatTemplate({"default": "x"}).render([{"role": "assistant"}], continue_final_message=True)


def test_the_default_model_makes_31_tokens_of_a_greeting() -> None:
    tokenizer = Tokenizer.from_folder(resolve_model(None, quiet=True))
    text = ChatTemplate.from_tokenizer(tokenizer).render([USER])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert len(tokenizer.encode(text, add_special_tokens=False)) == 31


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[5].content }}", "has no element 5"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ strftime_now(1) }}", "TypeError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "Recursion"),
    ],
)
def test_a_failing_template_is_the_requests_error(template: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        ChatTemplate({"default": template}).render([USER])
    assert (caught.value.param, caught.value.status) == ("messages", 400)


def test_a_conversation_that_fits_works_after_one_that_was_refused() -> None:
    chat = ChatTemplate({"default": "{% if messages[1] %}{{ raise_exception('one only') }}{% endif %}ok"})
    with pytest.raises(RequestError, match="one only"):
        chat.render([USER, USER])
    assert chat.render([USER]) == "ok"


def test_a_template_that_grows_without_bound_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CHARACTERS", 1000)
    with pytest.raises(RequestError, match="longer than 1000"):
        ChatTemplate({"default": "{% for i in range(99999) %}x{{ i }}{% endfor %}"}).render([USER])


def test_a_template_that_runs_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SECONDS", 0.0)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}"
    start = time.monotonic()
    with pytest.raises(RequestError, match="did not end"):
        ChatTemplate({"default": endless}).render([USER])
    assert time.monotonic() - start < 60


def test_tool_arguments_sent_as_json_text_reach_the_template_as_an_object() -> None:
    chat = ChatTemplate({"default": "{{ messages[0].tool_calls[0].function.arguments | tojson }}"})

    def rendered(arguments: str) -> str:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return chat.render([{"role": "assistant", "content": None, "tool_calls": [call]}])

    assert rendered('{"room": "attic \\"A\\""}') == '{"room": "attic \\"A\\""}'
    assert rendered("") == "{}"
    assert rendered("broken {") == json.dumps("broken {")


def test_with_tools_the_template_for_tools_is_taken() -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert chat.render([USER]) == "plain"
    assert chat.render([USER], tools=TOOLS) == "tools"


def test_request_arguments_cannot_replace_the_messages() -> None:
    chat = ChatTemplate({"default": "{{ bos_token }}{{ messages[0].content }}{{ extra }}"}, SPECIAL)
    assert chat.render([USER], extra="!", bos_token="<b>") == "<b>hi!"


def test_without_template_the_answer_names_the_flag() -> None:
    chat = ChatTemplate.from_tokenizer(Tokenizer(metaspace(), {}, {}))
    with pytest.raises(RequestError, match="--chat-template"):
        chat.render([USER])


def test_an_override_is_a_file_or_the_template_itself(tmp_path: Path) -> None:
    tokenizer = Tokenizer(metaspace(), {}, {"default": "own"})
    (tmp_path / "t.jinja").write_text("from file {{ messages[0].content }}")
    for override in (tmp_path / "t.jinja", str(tmp_path / "t.jinja")):
        assert ChatTemplate.from_tokenizer(tokenizer, override).render([USER]) == "from file hi"
    assert ChatTemplate.from_tokenizer(tokenizer, "inline {{ messages[0].role }}").render([USER]) == "inline user"
    assert ChatTemplate.from_tokenizer(tokenizer).render([USER]) == "own"
    with pytest.raises(ConfigurationError, match=r"--chat-template .*missing\.jinja"):
        ChatTemplate.from_tokenizer(tokenizer, "missing.jinja")


def test_a_template_that_is_no_jinja_stops_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"line 2.*--chat-template"):
        ChatTemplate({"default": "fine\n{% for %}"})
