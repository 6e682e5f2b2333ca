"""LiteLLM against a live server, as an OpenAI server and as a vLLM one."""

import json
import os
from typing import Any

import pytest
from pydantic import BaseModel, Field

# Read at import: its table of prices comes from the network otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm: Any = pytest.importorskip("litellm", reason="LiteLLM is not installed; make test-clients installs it")
pytestmark = [pytest.mark.clients, pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])]

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


def target(server_url: str, provider: str) -> dict[str, Any]:
    """What every call says."""
    address = {"api_base": f"{server_url}/v1", "api_key": "not-needed", "num_retries": 0, "timeout": 120}
    return {"model": f"{provider}/SmolLM2-135M-Instruct", "temperature": 0, **address}


def test_a_stream_is_built_into_the_plain_answer(server_url: str, provider: str) -> None:
    asked = target(server_url, provider) | {"messages": FRANCE, "max_tokens": 12}
    plain = litellm.completion(**asked)
    chunks = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **asked))
    built = litellm.stream_chunk_builder(chunks)
    assert "Paris" in plain.choices[0].message.content
    assert built.choices[0].message.content == plain.choices[0].message.content
    assert built.choices[0].finish_reason == plain.choices[0].finish_reason
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [built.usage[name] for name in counts] == [plain.usage[name] for name in counts]


def test_calls_are_the_same_streamed_and_plain_and_results_go_back(server_url: str, provider: str) -> None:
    asked = target(server_url, provider) | {"messages": FRANCE, "max_tokens": 60, "tools": [WEATHER]}
    forced = asked | {"tool_choice": "required", "parallel_tool_calls": False}
    plain = litellm.completion(**forced).choices[0]
    built = litellm.stream_chunk_builder(list(litellm.completion(stream=True, **forced))).choices[0]
    assert plain.finish_reason == built.finish_reason == "tool_calls"
    [ours], [theirs] = plain.message.tool_calls, built.message.tool_calls
    assert (ours.function.name, ours.function.arguments) == (theirs.function.name, theirs.function.arguments)
    assert json.loads(ours.function.arguments).keys() == {"city"}
    result = {"role": "tool", "tool_call_id": ours.id, "content": "sunny"}
    last = litellm.completion(**asked | {"messages": [*FRANCE, plain.message.model_dump(), result], "max_tokens": 12})
    assert last.choices[0].message.content or last.choices[0].message.tool_calls


def test_a_response_format_gives_the_callers_own_model(server_url: str, provider: str) -> None:
    messages = [{"role": "user", "content": "Bob is 30 years old."}]
    asked = target(server_url, provider) | {"messages": messages, "max_tokens": 60}
    answer = litellm.completion(response_format=Person, **asked).choices[0]
    assert answer.finish_reason == "stop" and Person.model_validate_json(answer.message.content)


def test_text_completions_carry_their_log_probabilities(server_url: str, provider: str) -> None:
    asked = target(server_url, provider) | {"prompt": "The capital of France is", "max_tokens": 3, "logprobs": 2}
    choice = litellm.text_completion(**asked).choices[0]
    assert choice.text.startswith(" Paris") and choice.logprobs.tokens[0] == " Paris"
    assert all(len(best) >= 2 for best in choice.logprobs.top_logprobs)


def test_the_responses_api_is_reached(server_url: str, provider: str) -> None:
    answer = litellm.responses(**target(server_url, provider), input=FRANCE[0]["content"], max_output_tokens=16)
    assert answer.status == "completed" and "Paris" in answer.output[0].content[0].text


def test_refusals_are_told_apart(server_url: str, provider: str) -> None:
    asked = target(server_url, provider) | {"messages": FRANCE}
    with pytest.raises(litellm.BadRequestError, match="temperature must be"):
        litellm.completion(**asked | {"temperature": -1})
    # Its fallbacks to a model with a longer context hang on this class.
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**asked | {"messages": [{"role": "user", "content": "word " * 600}]})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**asked | {"model": f"{provider}/else"})


def test_embeddings_have_an_entry_for_each_text(server_url: str, provider: str) -> None:
    asked = target(server_url, provider)
    del asked["temperature"]
    answer = litellm.embedding(**asked, input=["a cat", "a dog", "a cat"])
    first, second, third = (entry["embedding"] for entry in answer.data)
    assert first == pytest.approx(third, abs=1e-5) and first != pytest.approx(second, abs=1e-3)
    assert answer.usage.prompt_tokens > 0
